package main

import (
	"fmt"
	"strings"
)

// figure is one median, or another number that a verdict rests on.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// verdict is a number held against its target.
type verdict struct {
	Row     string   `json:"row"`
	Name    string   `json:"name"`
	Figures []figure `json:"figures,omitempty"`
	Value   float64  `json:"value"`
	Unit    string   `json:"unit"`
	// AtLeast: Target is the smallest value that will do; otherwise the largest.
	AtLeast bool    `json:"atLeast"`
	Target  float64 `json:"target"`
	Held    bool    `json:"held"`
	// Skipped says why there is no number, empty when there is one.
	Skipped string `json:"skipped,omitempty"`
}

// atMost judges a value that must not be above its target.
func atMost(name string, value, target float64, unit string, figures ...figure) verdict {
	return verdict{Name: name, Figures: figures, Value: value, Unit: unit, Target: target, Held: value <= target}
}

// atLeast judges a value that must not be below its target.
func atLeast(name string, value, target float64, unit string, figures ...figure) verdict {
	return verdict{Name: name, Figures: figures, Value: value, Unit: unit, AtLeast: true, Target: target, Held: value >= target}
}

// String is the verdict for people.
func (v verdict) String() string {
	var out strings.Builder
	if v.Skipped != "" {
		fmt.Fprintf(&out, "%-9s %s: not measured: %s\n", v.Row, v.Name, v.Skipped)
		return out.String()
	}
	relation, word := "<=", "MISSED"
	if v.AtLeast {
		relation = ">="
	}
	if v.Held {
		word = "held"
	}
	fmt.Fprintf(&out, "%-9s %-52s %9.2f %-5s target %s %g %s  %s\n", v.Row, v.Name, v.Value, v.Unit, relation, v.Target, v.Unit, word)
	for _, f := range v.Figures {
		fmt.Fprintf(&out, "%-9s   %-50s %9.2f %s\n", "", f.Name, f.Value, f.Unit)
	}
	return out.String()
}
