// Command measure prints the size of a checkout of this repository: scripts/measure says what counts as what.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	sizes := sizes{lines: map[string]int{}, names: map[string]int{}}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (entry.Name()[0] == '.' || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		return sizes.add(root, name)
	})
	if err == nil && len(sizes.lines) == 0 {
		err = errors.New(root + " has no Go code")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
	sizes.print()
}

// notLibrary lists the folders whose code no user of the library compiles.
var notLibrary = []string{
	"bench", "cmd", "docs", "e2e", "examples", "model", "scripts",
	"consumer/sourcetest", "dedupstore/storetest", "oncemilltest", "outbox/outboxtest",
	"internal/answertest", "internal/claimtest", "internal/consumertest", "internal/crowdtest",
	"internal/house", "internal/keytest", "internal/leaktest",
	"internal/lineartest", "internal/recorder", "internal/relaytest", "internal/sim", "internal/testserver",
}

type sizes struct {
	lines        map[string]int // of library code, by package
	names        map[string]int // exported, by package
	wide         int
	examples     int
	errorStructs int
	fields       int
	pageWords    int
	docWords     int
}

func (s *sizes) add(root, name string) error {
	kind := path.Ext(name)
	if !slices.Contains([]string{".go", ".sql", ".lua", ".md"}, kind) || strings.HasSuffix(name, "_test.go") {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return err
	}
	switch {
	case kind == ".md":
		if name == "README.md" || name == "CHANGELOG.md" || strings.HasPrefix(name, "docs/") {
			s.pageWords += len(strings.Fields(string(text)))
		}
	case strings.HasPrefix(name, "examples/"):
		if kind == ".go" {
			s.examples += strings.Count(string(text), "\n")
		}
	case !slices.ContainsFunc(notLibrary, func(dir string) bool { return strings.HasPrefix(name, dir+"/") }):
		return s.addLibrary(name, string(text))
	}
	return nil
}

func (s *sizes) addLibrary(name, text string) error {
	if path.Ext(name) != ".go" {
		s.lines[path.Dir(name)] += queryLines(text)
		return nil
	}
	for line := range strings.Lines(text) {
		if columns(line) > 120 {
			s.wide++
		}
	}
	s.lines[path.Dir(name)] += goLines(text)
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if path.Base(name) == "doc.go" {
		for _, group := range file.Comments {
			s.docWords += len(strings.Fields(group.Text()))
		}
	}
	s.addTypes(file)
	if dir := path.Dir(name); file.Name.Name != "main" && !strings.HasPrefix(dir+"/", "internal/") {
		s.names[dir] += exportedNames(file)
	}
	return nil
}

// columns counts with tabs as wide as four.
func columns(line string) int {
	line = strings.TrimRight(line, "\r\n")
	return len([]rune(line)) + 3*strings.Count(line, "\t")
}

// goLines counts the lines that hold more than comments. Blank lines within a raw string do not count.
func goLines(text string) int {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	var scan scanner.Scanner
	scan.Init(file, []byte(text), nil, 0)
	code := map[int]bool{}
	for {
		pos, tok, literal := scan.Scan()
		if tok == token.EOF {
			return len(code)
		}
		if tok == token.SEMICOLON && literal == "\n" { // the scanner's own
			continue
		}
		for i, part := range strings.Split(literal, "\n") {
			if i == 0 || strings.TrimSpace(part) != "" {
				code[file.Line(pos)+i] = true
			}
		}
	}
}

// queryLines counts the lines of SQL or Lua that are neither blank nor one comment.
func queryLines(text string) (n int) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			n++
		}
	}
	return n
}

// addTypes counts the exported structs of a file that are errors, and the exported fields of those that configure:
// *Config, Policy.
func (s *sizes) addTypes(file *ast.File) {
	if file.Name.Name == "main" {
		return
	}
	for n := range ast.Preorder(file) {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || !spec.Name.IsExported() {
			continue
		}
		of, ok := spec.Type.(*ast.StructType)
		if !ok {
			continue
		}
		name := spec.Name.Name
		if strings.HasSuffix(name, "Error") || hasErrorMethod(file, name) {
			s.errorStructs++
		}
		if strings.HasSuffix(name, "Config") || name == "Policy" {
			s.fields += exportedFields(of)
		}
	}
}

// hasErrorMethod looks in the type's own file only, where this repository keeps methods.
func hasErrorMethod(file *ast.File, name string) bool {
	return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && f.Recv != nil && f.Name.Name == "Error" && receiver(f) == name
	})
}

// exportedNames counts what go doc -all shows: types, functions, methods, constants and variables.
func exportedNames(file *ast.File) (n int) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
				n++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.IsExported() {
						n++
					}
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						if name.IsExported() {
							n++
						}
					}
				}
			}
		}
	}
	return n
}

// receiver is the name of the type that a method is of.
func receiver(method *ast.FuncDecl) string {
	of := method.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	switch generic := of.(type) {
	case *ast.IndexExpr:
		of = generic.X
	case *ast.IndexListExpr:
		of = generic.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}

func exportedFields(of *ast.StructType) (n int) {
	for _, field := range of.Fields.List {
		for _, name := range field.Names {
			if name.IsExported() {
				n++
			}
		}
	}
	return n
}

func (s *sizes) print() {
	total := 0
	for _, n := range s.lines {
		total += n
	}
	for _, row := range []struct {
		n    int
		what string
	}{
		{total, "library lines of code (Go, SQL, Lua; no comments, no blanks)"},
		{s.wide, "library lines of Go over 120 columns, with tabs of 4"},
		{s.errorStructs, "exported error structs"},
		{s.fields, "exported fields of Policy and of structs named …Config"},
		{s.examples, "lines of examples"},
		{s.pageWords, "words of README, CHANGELOG and docs"},
		{s.docWords, "words of doc.go comments"},
	} {
		fmt.Printf("%8d  %s\n", row.n, row.what)
	}
	fmt.Println("\nlibrary lines of code by package")
	dirs := slices.SortedFunc(maps.Keys(s.lines), func(a, b string) int {
		return cmp.Or(s.lines[b]-s.lines[a], strings.Compare(a, b))
	})
	for _, dir := range dirs {
		fmt.Printf("%8d  %s\n", s.lines[dir], dir)
	}
	fmt.Println("\nexported names by package (types, functions, methods, constants, variables)")
	for _, dir := range slices.Sorted(maps.Keys(s.names)) {
		fmt.Printf("%8d  %s\n", s.names[dir], dir)
	}
}
