package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unknown stands in a text for what only the running program knows.
const unknown = "…"

// A source is the parsed code of a package, in which texts are looked for.
type source struct {
	name  string
	fset  *token.FileSet
	files []*ast.File
}

// A logLine is a call that logs.
type logLine struct {
	pos   token.Position
	level string
	texts []string // what it can say; none: the rule cannot read it
}

// librarySources returns the library's packages: neither programs nor code for tests.
func librarySources(t *testing.T) (all []source) {
	t.Helper()
	for _, p := range listed(t) {
		if r, ok := house.row(p.path()); !ok || r.floor == programs || r.testCode() {
			continue
		}
		s := source{name: p.Name, fset: token.NewFileSet()}
		for _, name := range p.GoFiles {
			s.files = append(s.files, parse(t, s.fset, filepath.Join(p.Dir, name), nil))
		}
		all = append(all, s)
	}
	return all
}

// each visits the nodes of the package, with the declarations that they are in.
func (s source) each(visit func(ast.Node, ast.Decl)) {
	for _, f := range s.files {
		for _, d := range f.Decls {
			for n := range ast.Preorder(d) {
				visit(n, d)
			}
		}
	}
}

var levels = []string{"Debug", "Info", "Warn", "Error"}

// logLines returns the calls of a logger.
func (s source) logLines() (found []logLine) {
	s.each(func(n ast.Node, within ast.Decl) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		_, isMethod := call.Fun.(*ast.SelectorExpr)
		level, withContext := strings.CutSuffix(called(call), "Context")
		text := 0
		if withContext {
			text = 1
		}
		if !isMethod || !slices.Contains(levels, level) || len(call.Args) <= text {
			return
		}
		texts := s.texts(call.Args[text], within)
		if len(texts) > 0 || withContext { // without a context it may be another method of that name
			found = append(found, logLine{s.fset.Position(call.Pos()), strings.ToLower(level), texts})
		}
	})
	return found
}

// called is the name of the function or method that is called.
func called(call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		return fun.Sel.Name
	}
	return ""
}

// texts returns what a string expression can be, as far as the package shows it. A parameter is what callers pass, a
// variable what is assigned to it.
func (s source) texts(e ast.Expr, within ast.Decl) []string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return []string{text}
		}
	case *ast.BinaryExpr:
		return joined(s.texts(e.X, within), s.texts(e.Y, within))
	case *ast.CallExpr:
		if called(e) == "Sprintf" {
			return verbless(s.texts(e.Args[0], within))
		}
	case *ast.Ident:
		return append(s.passed(e.Name, within), s.assigned(e.Name, within)...)
	}
	return nil
}

// joined returns each text of the one before each of the other.
func joined(left, right []string) (all []string) {
	if len(left)+len(right) == 0 {
		return nil
	}
	for _, side := range []*[]string{&left, &right} {
		if len(*side) == 0 {
			*side = []string{unknown}
		}
	}
	for _, l := range left {
		for _, r := range right {
			all = append(all, l+r)
		}
	}
	return all
}

var verb = regexp.MustCompile(`%[-+# 0]*[\d.]*(\[\d+\])?[a-zA-Z]`)

// verbless puts the mark of the unknown in the place of the verbs of formats.
func verbless(formats []string) (all []string) {
	for _, format := range formats {
		all = append(all, strings.ReplaceAll(verb.ReplaceAllString(format, unknown), "%%", "%"))
	}
	return all
}

// passed returns the texts that calls in the package pass for a parameter of a function.
func (s source) passed(param string, within ast.Decl) (all []string) {
	fun, ok := within.(*ast.FuncDecl)
	if !ok {
		return nil
	}
	var params []string
	for _, field := range fun.Type.Params.List {
		for _, name := range field.Names {
			params = append(params, name.Name)
		}
	}
	at := slices.Index(params, param)
	if at < 0 {
		return nil
	}
	s.each(func(n ast.Node, d ast.Decl) {
		if call, ok := n.(*ast.CallExpr); ok && called(call) == fun.Name.Name && len(call.Args) > at && d != within {
			all = append(all, s.texts(call.Args[at], d)...)
		}
	})
	return all
}

// assigned returns the texts that a declaration assigns to a variable.
func (s source) assigned(variable string, within ast.Decl) (all []string) {
	for n := range ast.Preorder(within) {
		assign, ok := n.(*ast.AssignStmt)
		if !ok || len(assign.Lhs) != len(assign.Rhs) {
			continue
		}
		for i, to := range assign.Lhs {
			if id, ok := to.(*ast.Ident); ok && id.Name == variable {
				all = append(all, s.texts(assign.Rhs[i], within)...)
			}
		}
	}
	return all
}

// errorTexts returns the texts of the errors that the package makes, as far as they are sentences.
func (s source) errorTexts() (all []string) {
	makers := s.errorMakers()
	add := func(within ast.Decl, parts ...ast.Expr) {
		if text := s.sentence(within, parts); strings.Contains(text, " ") && len(word.FindAllString(text, 2)) == 2 {
			all = append(all, s.named(text))
		}
	}
	s.each(func(n ast.Node, within ast.Decl) {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch name := called(n); {
			case isSelector(n.Fun, "fmt", "Errorf"):
				add(within, n.Args[0])
			case isSelector(n.Fun, "errors", "New"), isSelector(n.Fun, "txctx", "NoTx"), makers[name]:
				add(within, n.Args...)
			}
		case *ast.CompositeLit:
			if isErrorType(n.Type) {
				add(within, n.Elts...)
			}
		case *ast.ReturnStmt:
			if fun, ok := within.(*ast.FuncDecl); ok && saysWhy(fun) {
				for _, result := range n.Results {
					add(within, result)
				}
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if id, ok := to.(*ast.Ident); ok && id.Name == "problem" && len(n.Lhs) == len(n.Rhs) {
					add(within, n.Rhs[i])
				}
			}
		}
	})
	return all
}

// sentence joins the parts of an error whose text is in the code at this place.
func (s source) sentence(within ast.Decl, parts []ast.Expr) string {
	var texts []string
	for _, part := range parts {
		if field, ok := part.(*ast.KeyValueExpr); ok {
			if name, ok := field.Key.(*ast.Ident); ok && name.Name == "Package" {
				continue
			}
			part = field.Value
		}
		if _, ok := part.(*ast.Ident); ok { // what it holds is found where it is made
			continue
		}
		if found := verbless(s.texts(part, within)); len(found) == 1 {
			texts = append(texts, found[0])
		}
	}
	text := strings.ReplaceAll(strings.Join(texts, " "), "\n", " ")
	return strings.TrimSuffix(text, ": "+unknown)
}

// word is what a sentence has more than one of, beside the name of its package.
var word = regexp.MustCompile(`\pL{2,}[^:\pL]|\pL{2,}$`)

var itsPackage = regexp.MustCompile(`^[a-z]+: `)

// named puts the name of the package before a text that does not begin with one.
func (s source) named(text string) string {
	if itsPackage.MatchString(text) {
		return text
	}
	return s.name + ": " + text
}

// errorMakers returns the functions of the package that make an error of strings and do nothing else.
func (s source) errorMakers() map[string]bool {
	makers := map[string]bool{}
	s.each(func(n ast.Node, _ ast.Decl) {
		fun, ok := n.(*ast.FuncDecl)
		if !ok || fun.Type.Results.NumFields() != 1 || !isErrorType(fun.Type.Results.List[0].Type) {
			return
		}
		strings, contexts := 0, 0
		for _, param := range fun.Type.Params.List {
			if id, ok := param.Type.(*ast.Ident); ok && id.Name == "string" {
				strings++
			}
			if isSelector(param.Type, "context", "Context") {
				contexts++
			}
		}
		if strings > 0 && contexts == 0 {
			makers[fun.Name.Name] = true
		}
	})
	return makers
}

// isErrorType knows the types of errors by their names.
func isErrorType(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "error" || strings.HasSuffix(e.Name, "Error")
	case *ast.SelectorExpr:
		return strings.HasSuffix(e.Sel.Name, "Error")
	case *ast.StarExpr:
		return isErrorType(e.X)
	}
	return false
}

// saysWhy knows the functions whose result is the text of an error, or the end of one.
func saysWhy(fun *ast.FuncDecl) bool {
	return fun.Name.Name == "Error" || strings.HasSuffix(strings.ToLower(fun.Name.Name), "problem")
}

var (
	bullet = regexp.MustCompile("(?m)^- ((?:[;,]? ?(?:(?:debug|info|warn|error) )?`[^`]+`)+):")
	begins = regexp.MustCompile("(?:(debug|info|warn|error) )?`([^`]+)`")
	quotes = regexp.MustCompile("`((?:oncemill|consumer|franz|natsjs|outbox|pgwal|(?:pg|redis|sqlite)store): [^`…]+)")
)

// explained returns the beginnings of lines of docs/messages.md, each after its level.
func explained(page string) (all []string) {
	for _, head := range bullet.FindAllStringSubmatch(strings.ReplaceAll(page, "\n  ", " "), -1) {
		level := ""
		for _, m := range begins.FindAllStringSubmatch(head[1], -1) {
			if m[1] != "" {
				level = m[1]
			}
			all = append(all, level+" "+m[2])
		}
	}
	return all
}

func TestMessages_EveryLogLineIsExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "messages.md"))
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, beginning := range explained(string(text)) {
		used[beginning] = false
	}
	for _, s := range librarySources(t) {
		for _, l := range s.logLines() {
			if len(l.texts) == 0 {
				t.Errorf("%v: the text of the line is not in the package: make it a constant", l.pos)
			}
			for _, text := range l.texts {
				found := false
				for beginning := range used {
					if strings.HasPrefix(l.level+" "+text, beginning) {
						used[beginning], found = true, true
					}
				}
				if !found {
					t.Errorf("%v: docs/messages.md does not explain %s %q", l.pos, l.level, text)
				}
			}
		}
	}
	for beginning, used := range used {
		if !used {
			t.Errorf("docs/messages.md explains %q, which nobody logs", beginning)
		}
	}
}

// Texts of the log and of errors that pages quote are in the code.
func TestMessages_WhatPagesQuoteIsThere(t *testing.T) {
	t.Parallel()
	var texts []string
	for _, s := range librarySources(t) {
		texts = append(texts, s.errorTexts()...)
		for _, l := range s.logLines() {
			texts = append(texts, l.texts...)
		}
	}
	walk(t, func(path, text string) {
		if filepath.Ext(path) != ".md" || strings.HasPrefix(path, filepath.Join("docs", "adr")) {
			return
		}
		for _, m := range quotes.FindAllStringSubmatch(text, -1) {
			quoted := strings.Join(strings.Fields(m[1]), " ")
			if !slices.ContainsFunc(texts, func(text string) bool { return strings.HasPrefix(text, quoted) }) {
				t.Errorf("%s quotes %q, which nobody says", path, quoted)
			}
		}
	})
}

func TestMessages_ErrorsAreListed(t *testing.T) {
	t.Parallel()
	var all []string
	for _, s := range librarySources(t) {
		all = append(all, s.errorTexts()...)
	}
	slices.Sort(all)
	want := strings.Join(slices.Compact(all), "\n") + "\n"
	path := filepath.Join(root, "docs", "errors.txt")
	if has, err := os.ReadFile(path); err == nil && string(has) == want {
		return
	}
	if !*update {
		t.Fatal("docs/errors.txt is stale: go test ./internal/house -run ErrorsAreListed -update")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestMessages_FindEachKind(t *testing.T) {
	t.Parallel()
	const src = `package p
		func f(ctx context.Context, log *slog.Logger) {
			log.Warn("p: a " + "b")
			log.ErrorContext(ctx, "p: c "+where)
			log.ErrorContext(ctx, where)
			cons.Info(ctx)
			why := "p: d"
			log.Debug(why)
			say("p: e", log)
		}
		func say(text string, log *slog.Logger) { log.Info(text) }
		func g() error { return errors.New("no room here") }
		func h(n int) error { return fmt.Errorf("p: has %d rows: %w", n, err) }
		func i() error { return bad("field", fmt.Sprintf("is %q", x)) }
		func bad(field, problem string) error { return &fieldError{Field: field, Problem: problem} }
		func j() error { return &q.SetupError{Package: "r", Subject: "table", Problem: "is missing"} }
		func (e *fieldError) Error() string { return "p: field " + e.Field }
		func k() { _ = sql("select all rows") }`
	fset := token.NewFileSet()
	s := source{name: "p", fset: fset, files: []*ast.File{parse(t, fset, "p.go", src)}}
	var lines []string
	for _, l := range s.logLines() {
		lines = append(lines, fmt.Sprintf("%d %s %q", l.pos.Line, l.level, l.texts))
	}
	wantLines := []string{
		`3 warn ["p: a b"]`, `4 error ["p: c …"]`, `5 error []`, `8 debug ["p: d"]`, `11 info ["p: e"]`,
	}
	if !slices.Equal(lines, wantLines) {
		t.Errorf("lines %q, want %q", lines, wantLines)
	}
	wantErrors := []string{"p: no room here", "p: has … rows", "p: field is …", "p: table is missing"}
	if got := s.errorTexts(); !slices.Equal(got, wantErrors) {
		t.Errorf("errors %q, want %q", got, wantErrors)
	}
	page := "# P\n- warn `p: a`, `p: b`; error\n  `p: c`: Do `x`.\n- `no level`\nwarn `p: d`: no bullet.\n"
	if got, want := explained(page), []string{"warn p: a", "warn p: b", "error p: c"}; !slices.Equal(got, want) {
		t.Errorf("explained %q, want %q", got, want)
	}
}
