package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestSizes_CountWhatTheyAreSaidTo(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	got := sizes{lines: map[string]int{}, names: map[string]int{}}
	for name, text := range map[string]string{
		"go.go": `
// Package p.
package p // 1

/* A comment
   of two lines. */
type StoreConfig struct { // 2
	Name, Other string // 3
	hidden      int    // 4
} // 5

type Policy struct{ Window int } // 6

type LostError struct{} // 7

type Panic struct{} // 8

func (*Panic) Error() string { return ` + "`9\n\n10`" + ` }
`,
		"doc.go":              "// Package p has\n// five words.\npackage p\n",
		"q/claim.lua":         "-- no\n\nreturn 1\n",
		"q/claim.sql":         "SELECT 1 -- one\nFROM t\n",
		"q/q_test.go":         "package q\n",
		"examples/x/x.go":     "package main\n\nfunc main() {}\n",
		"internal/house/h.go": "package house\n",
		"docs/adr/1.md":       "two words\n",
		"model/README.md":     "not counted\n",
		"README.md":           "one\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := got.add(root, name); err != nil {
			t.Fatal(err)
		}
	}
	if want := map[string]int{".": 11, "q": 3}; !maps.Equal(got.lines, want) {
		t.Errorf("lines: %v, want %v", got.lines, want)
	}
	if want := map[string]int{".": 5}; !maps.Equal(got.names, want) {
		t.Errorf("names: %v, want %v", got.names, want)
	}
	got.lines, got.names = nil, nil
	want := sizes{examples: 3, errorStructs: 2, fields: 3, pageWords: 3, docWords: 5}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestColumns_TabsAreAsWideAsFour(t *testing.T) {
	t.Parallel()
	if got := columns("\t\täb\n"); got != 10 {
		t.Errorf("%d, want 10", got)
	}
}
