package drivertest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// row is one fault that users of such systems have reported, and what proves that
// it is not here: behaviours of this suite ("group/behaviour"), tests beside the
// rooms ("folder Test"), or lines of files ("file: text"). Which of them run on
// which backend, and which are skipped, is in internal/testlist.
type row struct {
	fault  string
	proofs []string
	// later says what the row waits for.
	later string
}

// rows are numbered as in the collection that they were read in; a fault without a
// number was one line there.
func rows() map[string]row {
	return map[string]row{
		// Process lifetime.
		"1":  {fault: "a timeout leaves daemons and their ports", proofs: []string{"timeout/daemon", "timeout/headless", "timeout/chains", "tree/deep", "destroy/everything-ends"}},
		"2":  {fault: "a timeout kills the client only", proofs: []string{"timeout/whole-tree", "cancel/exec"}},
		"4":  {fault: "zombies where the host program is PID 1", proofs: []string{"backend/process TestFirstProcessCollectsNoZombies", "tree/reaping"}},
		"5":  {fault: "a background child holds up the result", proofs: []string{"streams/background-child", "tree/lingering", "tree/lingering-ends"}},
		"6":  {fault: "a timeout is told when the command has ended", proofs: []string{"timeout/fires", "timeout/default"}},
		"7":  {fault: "heredocs hang", proofs: []string{"exec/heredoc", "internal/agent TestHeredoc"}},
		"8":  {fault: "exit ends the session", proofs: []string{"exec/exit-status", "exec/no-shell-state"}},
		"9":  {fault: "parallel commands mix", proofs: []string{"concurrency/commands", "concurrency/sandboxes"}},
		"11": {fault: "out of memory looks like any failure", proofs: []string{"limits/memory", "backend/process TestMemoryLimitKillsAndCounts", "cmd/berm/testdata/script/oom.txtar: out-of-memory"}},
		// Streams and exit status.
		"12": {fault: "an open input holds up a command that has ended", proofs: []string{"stdin/unread", "stdin/half-read", "stdin/endless-timeout", "cmd/berm/testdata/script/stdin.txtar: exec 9<>fifo"}},
		"13": {fault: "an exit status is made up for a lost stream", proofs: []string{"transport/lost", "transport/lost-file", "destroy/under-way", "internal/agentclient FuzzEnvelopes", "internal/agentclient TestCutStreamsAreLost"}},
		"14": {fault: "much output wedges", proofs: []string{"streams/big", "streams/slow-reader"}},
		"15": {fault: "a split character is changed", proofs: []string{"streams/split-character", "streams/binary"}},
		"16": {fault: "much input is lost in silence", proofs: []string{"stdin/big", "stdin/failing-reader"}},
		"18": {fault: "the end of an empty input does not arrive", proofs: []string{"stdin/none", "stdin/empty", "stdin/closed", "internal/agent TestInputEndWithoutData"}},
		"19": {fault: "output is cut in silence", proofs: []string{"streams/cap"}},
		"20": {fault: "a timeout throws output away", proofs: []string{"timeout/partial-output"}},
		"22": {fault: "following a command again loses or repeats bytes", proofs: []string{"background/replayed", "background/reconnected", "background/outlives-its-caller"}},
		"23": {fault: "a silent command is given up", proofs: []string{"streams/silence", "internal/agentclient TestSilentCommandIsWaitedFor"}},
		// Building the command.
		"24": {fault: "a command runs in the wrong directory", proofs: []string{"workdir/missing", "workdir/given", "workdir/default"}},
		"26": {fault: "secrets are in the process list", proofs: []string{"secrets/not-in-arguments", "secrets/host-environment"}},
		"27": {fault: "a key of the environment is executed", proofs: []string{"env/keys", "create/faults"}},
		"29": {fault: "a write is an argument, and too long", proofs: []string{"files/sizes", "files/huge"}},
		"30": {fault: "the host's separators get inside", proofs: []string{"names/odd", ". TestNamesInsideAreSlashed", ". FuzzNames", "Makefile: GOOS=windows $(GO) vet"}},
		// Files and mounts.
		"31": {fault: "an upload says yes and is not there", proofs: []string{"files/sizes", "files/huge", "files/streamed", "atomic/never-half", "atomic/broken-off"}},
		"32": {fault: "planted links are followed", proofs: []string{
			"links/planted", "links/swapped-parent", "files/links", "internal/agent FuzzWalk", "internal/agentclient TestProcfsIsOutOfReach", "backend/process/launch TestSources",
		}},
		"33": {fault: "a name leaves its directory", proofs: []string{"names/refused", "names/odd", "fs/bounds", "internal/agent TestFilesRefusals", "internal/agentclient FuzzListing"}},
		"34": {fault: "archives lose links and modes", proofs: []string{"archive/round-trip", "archive/to-host", "archive/clean", "archive/hard-links", "archive/broken-off", "internal/agent FuzzExtract", "internal/agentclient FuzzTree"}},
		"35": {fault: "another uid than 1000 cannot use what is shared", proofs: []string{"layout/owner", "layout/outputs", "backend/process/launch TestOwner"}},
		"37": {fault: "a link among the mounts disables everything", proofs: []string{"links/as-sources", "links/read-only", "driver TestResolveRefuses", "driver FuzzResolve"}},
		// One line each.
		"cancelled create":  {fault: "a cancelled Create leaves its machine", proofs: []string{"create/cancelled", "create/failed-later", "backend/process TestCreateThatIsCancelledLeavesNothing"}},
		"same id":           {fault: "an identity cannot be used again", proofs: []string{"destroy/same-id"}},
		"dead container":    {fault: "a stream hangs when its sandbox dies", proofs: []string{"transport/lost", "destroy/under-way", "host-killed/everything-ends"}},
		"buffered uploads":  {fault: "an upload is held in memory", proofs: []string{"files/streamed"}},
		"slow transfers":    {fault: "a deadline cuts slow transfers", proofs: []string{"internal/agentclient TestSlowTransfersAreNotCut"}},
		"planted programs":  {fault: "own helpers run what a payload has put in PATH", proofs: []string{"env/planted-programs"}},
		"hostile file size": {fault: "a file's size costs the host its memory", proofs: []string{"files/endless", "files/special"}},
	}
}

// TestEveryRowHasItsProofs: what a row names is there. A row without proofs says
// what it waits for.
func TestEveryRowHasItsProofs(t *testing.T) {
	t.Parallel()
	suite := map[string]bool{}
	for _, g := range groups() {
		for _, b := range g.behaviours {
			suite[g.name+"/"+b.name] = true
		}
	}
	for number, r := range rows() {
		if r.fault == "" || (len(r.proofs) == 0) == (r.later == "") {
			t.Errorf("row %s has no fault, or no proofs and no reason, or both", number)
		}
		for _, proof := range r.proofs {
			if reason := missing(suite, proof); reason != "" {
				t.Errorf("row %s (%s): %q: %s", number, r.fault, proof, reason)
			}
		}
	}
}

// missing says why a proof is not there, "" when it is.
func missing(suite map[string]bool, proof string) string {
	if file, text, ok := strings.Cut(proof, ": "); ok {
		data, err := os.ReadFile(filepath.Join("..", file))
		if err != nil || !strings.Contains(string(data), text) {
			return "the file is not there or does not say that"
		}
		return ""
	}
	folder, name, ok := strings.Cut(proof, " ")
	if !ok {
		if !suite[proof] {
			return "the suite has no such behaviour"
		}
		return ""
	}
	files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		return "the folder has no tests"
	}
	declared := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(`)
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && declared.Match(data) {
			return ""
		}
	}
	return "there is no such test"
}

// TestRowsAreComplete: no number of the collection's four parts on lifetime,
// streams, commands and files is left out.
func TestRowsAreComplete(t *testing.T) {
	t.Parallel()
	all := rows()
	for _, number := range strings.Fields("1 2 4 5 6 7 8 9 11 12 13 14 15 16 18 19 20 22 23 24 26 27 29 30 31 32 33 34 35 37") {
		if _, ok := all[number]; !ok {
			t.Errorf("row %s is not there", number)
		}
	}
}
