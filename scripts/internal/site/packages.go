package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	packageList = "packages/README.md"
	pkgGoDev    = "https://pkg.go.dev"
)

// A pkg is a package that users import.
type pkg struct {
	ImportPath, Dir, Name              string
	GoFiles, TestGoFiles, XTestGoFiles []string

	fset *token.FileSet
	doc  *doc.Package
}

// notPublic are folders whose packages nobody imports.
var notPublic = regexp.MustCompile(`^(bench|e2e|examples|scripts)(/|$)|(^|/)internal(/|$)`)

func packages(root string) (all []*pkg, err error) {
	list := exec.Command("go", "list", "-json=ImportPath,Dir,Name,GoFiles,TestGoFiles,XTestGoFiles", "work")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &pkg{fset: token.NewFileSet()}
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if p.Name == "main" || notPublic.MatchString(p.path()) {
			continue
		}
		if err := p.parse(); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

func (p *pkg) parse() error {
	var files []*ast.File
	for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) { // tests for the examples
		file, err := parser.ParseFile(p.fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	var err error
	p.doc, err = doc.NewFromFiles(p.fset, files, p.ImportPath)
	return err
}

// path is the package's folder; the root's is ".".
func (p *pkg) path() string { return path.Join(".", strings.TrimPrefix(p.ImportPath, module)) }

// title is the import path without what all begin with.
func (p *pkg) title() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module+"/"), path.Dir(module)+"/")
}

func (p *pkg) page() string { return "packages/" + p.title() + ".md" }

// packageLines lists the packages with what they do: their first sentences without the beginning that all share.
func packageLines(packages []*pkg, folder string) string {
	var b strings.Builder
	for _, p := range packages {
		does := strings.TrimPrefix(p.doc.Synopsis(p.doc.Doc), "Package "+p.Name+" ")
		file := path.Join(folder, p.path(), "doc.go")
		fmt.Fprintf(&b, "- [%s](%s): %s\n", p.title(), file, strings.TrimRight(does, ":."))
	}
	return b.String()
}

// markdown is the page of the package: what go doc and the tests say.
func (p *pkg) markdown() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n```go\nimport %q\n```\n\n", p.title(), p.ImportPath)
	p.text(&b, 2, p.doc.Doc)
	p.examples(&b, p.doc.Examples)
	p.values(&b, "## Constants\n\n", p.doc.Consts)
	p.values(&b, "## Variables\n\n", p.doc.Vars)
	p.funcs(&b, "##", "", p.doc.Funcs)
	for _, t := range p.doc.Types {
		fmt.Fprintf(&b, "## type %s {#%s}\n\n", t.Name, t.Name)
		p.code(&b, t.Decl)
		p.text(&b, 4, t.Doc)
		p.examples(&b, t.Examples)
		p.values(&b, "", t.Consts)
		p.values(&b, "", t.Vars)
		p.funcs(&b, "###", "", t.Funcs)
		p.funcs(&b, "###", t.Name+".", t.Methods)
	}
	return b.String()
}

func (p *pkg) values(b *bytes.Buffer, heading string, values []*doc.Value) {
	for _, v := range values {
		b.WriteString(heading)
		heading = ""
		for _, name := range v.Names {
			fmt.Fprintf(b, "<a id=%q></a>", name)
		}
		b.WriteString("\n\n")
		p.code(b, v.Decl)
		p.text(b, 4, v.Doc)
	}
}

func (p *pkg) funcs(b *bytes.Buffer, level, anchor string, funcs []*doc.Func) {
	for _, f := range funcs {
		name := f.Name
		if f.Recv != "" {
			name = "(" + f.Recv + ") " + name
		}
		fmt.Fprintf(b, "%s func %s {#%s%s}\n\n", level, name, anchor, f.Name)
		p.code(b, f.Decl)
		p.text(b, 4, f.Doc)
		p.examples(b, f.Examples)
	}
}

// text writes a comment, with links as pkg.go.dev has them.
func (p *pkg) text(b *bytes.Buffer, level int, text string) {
	to := p.doc.Printer()
	to.HeadingLevel, to.DocLinkBaseURL = level, pkgGoDev
	b.Write(bytes.ReplaceAll(to.Markdown(p.doc.Parser().Parse(text)), []byte(`\<`), []byte("&lt;")))
	b.WriteByte('\n')
}

func (p *pkg) code(b *bytes.Buffer, decl ast.Node) {
	fmt.Fprintf(b, "```go\n%s\n```\n\n", p.source(decl))
}

func (p *pkg) source(node any) string {
	var b strings.Builder
	if err := format.Node(&b, p.fset, node); err != nil {
		panic(err) // it was parsed
	}
	return strings.TrimSpace(b.String())
}

func (p *pkg) examples(b *bytes.Buffer, examples []*doc.Example) {
	for _, e := range examples {
		fmt.Fprintf(b, "**%s**\n\n", strings.TrimSpace("Example "+e.Suffix))
		p.text(b, 4, e.Doc)
		code := p.source(&printer.CommentedNode{Node: e.Code, Comments: e.Comments})
		if body, ok := strings.CutPrefix(code, "{"); ok { // else it is a whole file
			body, _, _ = strings.Cut(strings.TrimSuffix(body, "}"), "\n\t// Output:")
			code = strings.TrimSpace(strings.ReplaceAll(body, "\n\t", "\n"))
		}
		fmt.Fprintf(b, "```go\n%s\n```\n\n", code)
		if e.Output != "" {
			fmt.Fprintf(b, "Output:\n\n```\n%s\n```\n\n", strings.TrimSpace(e.Output))
		}
	}
}
