package house

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	wayRow  = regexp.MustCompile(`(?m)^\|(?: \d+ \|)? (\[\S+\]\(\S+\)(?:, \[\S+\]\(\S+\))*) \| ((?:` + "`" + `\w+` + "`" + `(?:, )?)+) \|`)
	wayFile = regexp.MustCompile(`\]\(\.\./(\S+?)\)`)
	wayFunc = regexp.MustCompile("`(\\w+)`")
)

// docs/way.md names the files and functions of one delivery.
func TestWay_FunctionsAreInTheirFiles(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "way.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := wayRow.FindAllStringSubmatch(string(page), -1)
	if len(rows) < 15 {
		t.Fatalf("found %d rows", len(rows))
	}
	for _, row := range rows {
		declared := map[string]bool{}
		for _, file := range wayFile.FindAllStringSubmatch(row[1], -1) {
			text, err := os.ReadFile(filepath.Join(root, file[1]))
			if err != nil {
				t.Error(err)
				continue
			}
			for _, d := range parse(t, token.NewFileSet(), file[1], string(text)).Decls {
				if f, ok := d.(*ast.FuncDecl); ok {
					declared[f.Name.Name] = true
				}
			}
		}
		for _, name := range wayFunc.FindAllStringSubmatch(row[2], -1) {
			if !declared[name[1]] {
				t.Errorf("docs/way.md: %s has no function %s", row[1], name[1])
			}
		}
	}
}
