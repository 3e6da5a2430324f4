// Package posture says what isolation was promised and what was measured. It is
// pure: witnesses elsewhere gather facts, and Check compares them with a table
// of who has to say what. A missing fact is a failed claim.
package posture

import (
	"fmt"
	"sort"
	"time"

	"github.com/berm-dev/berm/internal/defence"
)

// Isolation names the four promises that a sandbox can keep. As a request
// (Require) true means "refuse without it"; as a result true means "measured".
type Isolation struct {
	// Filesystem: only the layout is writable, and nothing outside it can be
	// reached by privilege.
	Filesystem bool `json:"filesystem"`
	// Network: no way out but the gate.
	Network bool `json:"network"`
	// Processes: processes outside can be neither seen nor signalled.
	Processes bool `json:"processes"`
	// Limits: memory, processes and temporary storage are bounded for the
	// sandbox as a whole.
	Limits bool `json:"limits"`
}

// Names lists the promises that are set, in a fixed order.
func (i Isolation) Names() []string {
	var names []string
	for _, d := range Dimensions {
		if i.Has(d) {
			names = append(names, string(d))
		}
	}
	return names
}

// Has reports one promise.
func (i Isolation) Has(d Dimension) bool {
	switch d {
	case Filesystem:
		return i.Filesystem
	case Network:
		return i.Network
	case Processes:
		return i.Processes
	case Limits:
		return i.Limits
	}
	return false
}

// With returns a copy with one promise set to v.
func (i Isolation) With(d Dimension, v bool) Isolation {
	switch d {
	case Filesystem:
		i.Filesystem = v
	case Network:
		i.Network = v
	case Processes:
		i.Processes = v
	case Limits:
		i.Limits = v
	}
	return i
}

// Missing lists what i asks for and have does not give.
func (i Isolation) Missing(have Isolation) []Dimension {
	var missing []Dimension
	for _, d := range Dimensions {
		if i.Has(d) && !have.Has(d) {
			missing = append(missing, d)
		}
	}
	return missing
}

// Dimension is one of the four promises.
type Dimension string

// The promises, in the order in which they are shown.
const (
	Filesystem Dimension = "filesystem"
	Network    Dimension = "network"
	Processes  Dimension = "processes"
	Limits     Dimension = "limits"
)

// Dimensions has all four, in order. Do not change it.
var Dimensions = [...]Dimension{Filesystem, Network, Processes, Limits}

// Witness says who measured.
type Witness string

// The witnesses. Only the host side is believed after the first command.
const (
	// Host: seen from outside the sandbox.
	Host Witness = "host"
	// Probe: seen by a child started through the same path as a command, before
	// any command ran.
	Probe Witness = "probe"
)

// Fact is one measurement.
type Fact struct {
	Claim   Claim   `json:"claim"`
	Witness Witness `json:"witness"`
	Held    bool    `json:"held"`
	// Detail is what was seen, for people.
	Detail string `json:"detail,omitempty"`
}

// Status says how a claim stands in a Record.
type Status string

// The statuses.
const (
	// Held: measured, and it holds.
	Held Status = "held"
	// Failed: measured and it does not hold, or it was not measured at all.
	Failed Status = "failed"
	// Recorded: measured once, before untrusted code ran; not measured again.
	Recorded Status = "recorded"
	// Unverified: nobody who can be believed has measured it.
	Unverified Status = "unverified"
)

// Finding is one claim with its outcome.
type Finding struct {
	Claim     Claim     `json:"claim"`
	Dimension Dimension `json:"dimension"`
	Witness   Witness   `json:"witness"`
	Status    Status    `json:"status"`
	Detail    string    `json:"detail,omitempty"`
}

// Record is the posture of one sandbox at one moment. It is immutable.
type Record struct {
	Backend    string    `json:"backend"`
	Tier       string    `json:"tier"`
	MeasuredAt time.Time `json:"measuredAt"`
	// Promised is what the backend declared for this sandbox.
	Promised Isolation `json:"promised"`
	// Achieved is what was measured to hold.
	Achieved Isolation `json:"achieved"`
	Findings []Finding `json:"findings"`
	// Notes are degradations and known limits that apply to this sandbox.
	Notes []string `json:"notes,omitempty"`
}

// Failures lists the claims of promised dimensions that do not hold, one
// sentence each.
func (r Record) Failures() []string {
	var out []string
	for _, f := range r.Findings {
		if f.Status != Held && r.Promised.Has(f.Dimension) {
			out = append(out, fmt.Sprintf("%s: claim %s is %s (witness %s): %s", f.Dimension, f.Claim, f.Status, f.Witness, f.Detail))
		}
	}
	return out
}

// Check compares facts with what the table demands of a tier for the promised
// dimensions. A fact from another witness than the table's does not count. When
// a claim was reported more than once, each report must hold.
func Check(table Table, promised Isolation, facts []Fact) Record {
	record := Record{Promised: promised}
	for _, rule := range table {
		if promised.Has(rule.Dimension) {
			record.Findings = append(record.Findings, judge(rule, facts))
		}
	}
	sort.SliceStable(record.Findings, func(a, b int) bool {
		return order(record.Findings[a].Dimension) < order(record.Findings[b].Dimension)
	})
	for _, d := range Dimensions {
		record.Achieved = record.Achieved.With(d, promised.Has(d) && holds(d, record.Findings))
	}
	return record
}

// judge finds the outcome of one rule.
func judge(rule Rule, facts []Fact) Finding {
	finding := Finding{Claim: rule.Claim, Dimension: rule.Dimension, Witness: rule.Witness, Status: Failed, Detail: "not measured"}
	if defence.PostureSilence.Off() {
		finding.Status = Held
	}
	seen := false
	for _, fact := range facts {
		if fact.Claim != rule.Claim || fact.Witness != rule.Witness && !defence.PostureWitness.Off() {
			continue
		}
		if !seen {
			finding.Status, finding.Detail, seen = Held, fact.Detail, true
		}
		if !fact.Held && !defence.PostureEachReport.Off() {
			finding.Status, finding.Detail = Failed, fact.Detail
		}
	}
	return finding
}

// holds reports whether a dimension has at least one claim and all of them hold:
// a promise that nothing measures is not kept.
func holds(d Dimension, findings []Finding) bool {
	any := false
	for _, f := range findings {
		if f.Dimension == d {
			if f.Status != Held {
				return false
			}
			any = true
		}
	}
	return any
}

func order(d Dimension) int {
	for i, known := range Dimensions {
		if known == d {
			return i
		}
	}
	return len(Dimensions)
}
