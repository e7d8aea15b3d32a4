package house

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

func TestDocs_EveryPackageAndExportedNameHasAComment(t *testing.T) {
	t.Parallel()
	for _, p := range listed(t) {
		var files []*ast.File
		fset := token.NewFileSet()
		for _, name := range p.GoFiles {
			files = append(files, parse(t, fset, filepath.Join(p.Dir, name), nil))
		}
		for _, u := range undocumented(t, fset, p.ImportPath, files) {
			t.Errorf("%s: %s", p.path(), u)
		}
	}
}

// Where a package is looked up, examples stand beside its API: each that users import has one.
func TestDocs_EveryPublicPackageHasAnExample(t *testing.T) {
	t.Parallel()
	count := 0
	for _, p := range listed(t) {
		if r, _ := house.row(p.path()); r.floor == programs || strings.Contains("/"+p.ImportPath+"/", "/internal/") {
			continue
		}
		count++
		names, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var tests []*ast.File
		for _, name := range names {
			tests = append(tests, parse(t, token.NewFileSet(), name, nil))
		}
		if len(doc.Examples(tests...)) == 0 {
			t.Errorf("%s has no Example: write one, of 30 lines at most", p.path())
		}
	}
	if count < 20 {
		t.Errorf("found %d public packages", count)
	}
}

func parse(t *testing.T, fset *token.FileSet, name string, src any) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// undocumented returns a sentence for each comment that is missing.
func undocumented(t *testing.T, fset *token.FileSet, importPath string, files []*ast.File) []string {
	t.Helper()
	d, err := doc.NewFromFiles(fset, files, importPath)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	need := func(comment, name string) {
		if comment == "" {
			found = append(found, name+" has no comment")
		}
	}
	funcs := func(prefix string, list []*doc.Func) {
		for _, f := range list {
			if prefix == "" || !explainedElsewhere[f.Name] {
				need(f.Doc, prefix+f.Name)
			}
		}
	}
	values := func(groups []*doc.Value) {
		for _, g := range groups {
			for _, name := range bareValues(g) {
				need("", name)
			}
		}
	}

	if want := "Package " + d.Name + " "; d.Name != "main" && !strings.HasPrefix(d.Doc, want) {
		found = append(found, fmt.Sprintf("has no package doc that begins with %q", want))
	} else if d.Name == "main" {
		need(d.Doc, "package main")
	}
	values(d.Consts)
	values(d.Vars)
	funcs("", d.Funcs)
	for _, typ := range d.Types {
		need(typ.Doc, typ.Name)
		values(typ.Consts)
		values(typ.Vars)
		funcs("", typ.Funcs)
		funcs(typ.Name+".", typ.Methods)
	}
	return found
}

// explainedElsewhere are methods that mean what their well-known interface says.
var explainedElsewhere = map[string]bool{"Error": true, "Is": true, "As": true, "Unwrap": true, "String": true}

// bareValues returns the exported names of a group of constants or variables that have neither a comment of their own
// nor one for the group.
func bareValues(g *doc.Value) []string {
	if g.Doc != "" {
		return nil
	}
	var bare []string
	for _, spec := range g.Decl.Specs {
		if v, ok := spec.(*ast.ValueSpec); ok && v.Doc == nil && v.Comment == nil {
			for _, name := range v.Names {
				if name.IsExported() {
					bare = append(bare, name.Name)
				}
			}
		}
	}
	return bare
}

func TestUndocumented_FindsEachKindOfName(t *testing.T) {
	t.Parallel()
	const documented = "// Package p is an example.\npackage p\n"
	for _, tc := range []struct{ name, src, want string }{
		{"package", "package p", "package doc"},
		{"package of another name", "// Package q is.\npackage p", "package doc"},
		{"type", documented + "type T int", "T has no comment"},
		{"function", documented + "func F() {}", "F has no comment"},
		{"constructor", documented + "// T is.\ntype T int\nfunc New() T { return 0 }", "New has no comment"},
		{"method", documented + "// T is.\ntype T int\nfunc (T) M() {}", "T.M has no comment"},
		{"constant", documented + "const C = 1", "C has no comment"},
		{"variable in a group", documented + "var (\nA = 1 // one\nB = 2\n)", "B has no comment"},

		{"comment for a group", documented + "// Both.\nconst (\nA = 1\nB = 2\n)", ""},
		{"unexported names", documented + "type t int\nfunc (t) M() {}\nconst c = 1", ""},
		{"method of a well-known interface", documented + "// T is.\ntype T int\nfunc (T) Error() string { return \"\" }", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			fset := token.NewFileSet()
			found := strings.Join(undocumented(t, fset, "p", []*ast.File{parse(t, fset, "p.go", tc.src)}), "; ")
			if (tc.want == "") != (found == "") || !strings.Contains(found, tc.want) {
				t.Errorf("found %q, want %q", found, tc.want)
			}
		})
	}
}
