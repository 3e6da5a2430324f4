package address_test

import (
	"bufio"
	"fmt"
	"go/format"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// TestTableIsTheData regenerates table.go from special.csv and compares. UPDATE=1
// writes it.
func TestTableIsTheData(t *testing.T) {
	t.Parallel()
	f, err := os.Open("special.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var b strings.Builder
	b.WriteString("// Code generated from special.csv by UPDATE=1 go test -run TestTableIsTheData; DO NOT EDIT.\n\npackage address\n\nimport \"net/netip\"\n\n")
	b.WriteString("// special is what is not the public internet, as special.csv says.\nvar special = [...]block{\n")
	classes := map[string]string{"inward": "Inward", "metadata": "Metadata"}
	seen := map[netip.Prefix]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		row := strings.SplitN(lines.Text(), ",", 4)
		if len(row) != 4 || classes[row[1]] == "" {
			t.Fatalf("special.csv: %q is no row", lines.Text())
		}
		p, err := netip.ParsePrefix(row[0])
		if err != nil || p != p.Masked() || seen[p] {
			t.Fatalf("special.csv: block %q: %v, not masked, or twice", row[0], err)
		}
		seen[p] = true
		fmt.Fprintf(&b, "{netip.MustParsePrefix(%q), %s, %q},\n", row[0], classes[row[1]], row[3])
	}
	b.WriteString("}\n")
	want, err := format.Source([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE") == "1" {
		if err := os.WriteFile("table.go", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("table.go")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("table.go is not what special.csv says: UPDATE=1 go test -run TestTableIsTheData ./egress/internal/address")
	}
}
