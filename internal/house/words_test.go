package house

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goneWords are words that stood for a concept which has a word of its own: docs/README.md has the words that count. In
// a sentence they are free, as names of code or files they are not.
var goneWords = strings.Fields("patience lane lanes passenger flight burial veil giveup job jobs")

func TestSource_NamesUseOneWordForEachConcept(t *testing.T) {
	t.Parallel()
	var files []string
	walk(t, func(path, _ string) {
		if filepath.Ext(path) != ".go" {
			return
		}
		files = append(files, filepath.Join(root, path))
		if name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".go"), "_test"); slices.Contains(goneWords, name) {
			t.Errorf("%s: no file is named %q", path, name)
		}
	})
	eachFinding(t, files, goneNames, "this name is gone: use the word that docs/README.md has for it")
}

// goneNames finds declarations of names that are gone.
func goneNames(f *ast.File) (found []token.Pos) {
	declares := func(names ...*ast.Ident) {
		for _, n := range names {
			if slices.Contains(goneWords, strings.ToLower(n.Name)) && n.Name != "giveUp" {
				found = append(found, n.Pos())
			}
		}
	}
	for n := range ast.Preorder(f) {
		switch n := n.(type) {
		case *ast.FuncDecl:
			declares(n.Name)
		case *ast.TypeSpec:
			declares(n.Name)
		case *ast.ValueSpec:
			declares(n.Names...)
		case *ast.Field:
			declares(n.Names...)
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if name, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
					declares(name)
				}
			}
		}
	}
	return found
}

func TestGoneNames_FindsThem(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]int{
		`var patience = 1`:                                 1,
		`type Lane struct{ patience int }`:                 2,
		`func lane(job int) { burial := job; _ = burial }`: 3,
		"var told int // the job of who holds it":          0,
		`func f() { g.Lane() }`:                            0,
	} {
		if found := goneNames(parse(t, token.NewFileSet(), "p.go", "package p\n"+src)); len(found) != want {
			t.Errorf("%s: found %d, want %d", src, len(found), want)
		}
	}
}
