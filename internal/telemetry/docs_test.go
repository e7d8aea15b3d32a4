package telemetry

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	made = regexp.MustCompile(`(?:set\.(?:counter|histogram)\(&[\w.]+|(?:Int64|Float64)\w+)(?:, |\()` +
		`"([a-z_.]+)",\s*(?:metric\.WithUnit\()?"([^"]+)"`)
	described = regexp.MustCompile("(?m)^\\| `((?:oncemill|messaging)\\.[a-z_.]+)`[ *°]*\\| ([^ ,|]+)")
)

// docs/operations.md has a table of all metrics with their units.
func TestDocs_EveryMetricStandsInTheTableWithItsUnit(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]string{}
	for _, m := range described.FindAllStringSubmatch(string(page), -1) {
		table[m[1]] = m[2]
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if matched, _ := filepath.Match("*_test.go", file); matched {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range made.FindAllStringSubmatch(string(text), -1) {
			name, unit := m[1], m[2]
			if unit[0] != '{' {
				unit = "s" // of histograms made by maker; the text is their description
			}
			if table[name] != unit {
				t.Errorf("%s is in %s; the table says %q", name, unit, table[name])
			}
			delete(table, name)
		}
	}
	for name := range table {
		t.Errorf("the table has %s, which nobody makes", name)
	}
}
