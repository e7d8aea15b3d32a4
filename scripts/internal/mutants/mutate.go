package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A mutant is one wrong place. Line is its text, by which the list of equal ones finds it when others move it.
type mutant struct {
	id     int
	file   string // seen from the root
	number int    // of the line
	line   string
	what   string
	env    []string // what switches it on
}

func (m *mutant) key() string { return m.file + ": " + m.line + "\n\t" + m.what }

func (m *mutant) name() string { return strings.Replace(m.key(), "\n\t", ": ", 1) }

// A mutator writes a package in which every mutant is there and one may be on, so that it compiles once. The text keeps
// its lines.
type mutator struct {
	fset    *token.FileSet
	info    types.Info
	name    string // of the file
	source  []byte
	before  map[int]string // to insert, by offset
	after   map[int]string
	dropped map[int]int // how many bytes, by offset
	bools   map[ast.Expr]bool
	mutants []*mutant
}

// mutateGo returns the mutants of the chosen files of a package, and the files to compile instead, by path.
func mutateGo(root, dir string, files []string) ([]*mutant, map[string]string, error) {
	m := &mutator{fset: token.NewFileSet(), info: types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
	}}
	parsed, err := m.load(filepath.Join(root, dir))
	if err != nil {
		return nil, nil, err
	}
	changed := map[string]string{}
	for _, file := range parsed {
		name := m.fset.File(file.FileStart).Name()
		if len(files) > 0 && !slices.Contains(files, filepath.Base(name)) {
			continue
		}
		if m.source, err = os.ReadFile(name); err != nil {
			return nil, nil, err
		}
		m.name = filepath.ToSlash(filepath.Join(dir, filepath.Base(name)))
		m.before, m.after, m.dropped, m.bools = map[int]string{}, map[int]string{}, map[int]int{}, map[ast.Expr]bool{}
		for _, decl := range file.Decls {
			m.walk(decl)
		}
		changed[name] = m.text()
	}
	helper := strings.NewReplacer("PACKAGE", parsed[0].Name.Name, "COUNT", fmt.Sprint(len(m.mutants)+1)).Replace(helpers)
	changed[filepath.Join(root, dir, "zz_mutants.go")] = helper
	return number(m.mutants), changed, nil
}

//go:embed switch.go.txt
var helpers string

// load parses and checks a package, with what the go command has compiled of its imports.
func (m *mutator) load(dir string) ([]*ast.File, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-f",
		`{{.ImportPath}} {{.Export}} {{if not .DepOnly}}{{join .GoFiles ","}}{{end}}`, ".")
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	exports := map[string]string{}
	var files []*ast.File
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) > 1 {
			exports[fields[0]] = fields[1]
		}
		if len(fields) > 2 {
			for name := range strings.SplitSeq(fields[2], ",") {
				file, err := parser.ParseFile(m.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
				if err != nil {
					return nil, err
				}
				files = append(files, file)
			}
		}
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	config := types.Config{Importer: importer.ForCompiler(m.fset, "gc", open)}
	_, err = config.Check(dir, m.fset, files, &m.info)
	return files, err
}

func (m *mutator) offset(pos token.Pos) int { return m.fset.Position(pos).Offset }

func (m *mutator) of(n ast.Node) string { return string(m.source[m.offset(n.Pos()):m.offset(n.End())]) }

// add notes a mutant of a node, and returns its number.
func (m *mutator) add(n ast.Node, what string) int {
	at := m.offset(n.Pos())
	end := len(m.source)
	if i := bytes.IndexByte(m.source[at:], '\n'); i >= 0 {
		end = at + i
	}
	text := strings.Join(strings.Fields(m.of(n)), " ")
	id := len(m.mutants) + 1
	m.mutants = append(m.mutants, &mutant{
		id: id, file: m.name, number: m.fset.Position(n.Pos()).Line,
		line: strings.TrimSpace(string(m.source[bytes.LastIndexByte(m.source[:at], '\n')+1 : end])),
		what: what + " `" + text[:min(len(text), 100)] + "`", env: []string{fmt.Sprintf("ONCEMILL_MUTANT=%d", id)},
	})
	return id
}

// wrap writes something before and behind a node; outer ones come first.
func (m *mutator) wrap(n ast.Node, before, after string) {
	start, end := m.offset(n.Pos()), m.offset(n.End())
	m.before[start] += before
	m.after[end] = after + m.after[end]
}

// instead writes something instead of a few bytes.
func (m *mutator) instead(pos token.Pos, length int, text string) {
	m.before[m.offset(pos)] += text
	m.dropped[m.offset(pos)] = length
}

func (m *mutator) text() string {
	var b strings.Builder
	last := 0
	offsets := slices.AppendSeq(slices.Collect(maps.Keys(m.before)), maps.Keys(m.after))
	slices.Sort(offsets)
	for _, at := range slices.Compact(offsets) {
		b.Write(m.source[last:at])
		b.WriteString(m.after[at] + m.before[at])
		last = at + m.dropped[at]
	}
	b.Write(m.source[last:])
	return b.String()
}

func (m *mutator) walk(decl ast.Decl) {
	function, ok := decl.(*ast.FuncDecl)
	if !ok || function.Body == nil {
		return
	}
	m.body(function.Type, function.Body)
}

func (m *mutator) body(signature *ast.FuncType, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			m.body(n.Type, n.Body)
			return false
		case *ast.BlockStmt:
			m.statements(signature, n.List)
		case *ast.CaseClause:
			m.statements(signature, n.Body)
		case *ast.CommClause:
			m.statements(signature, n.Body)
		case *ast.IfStmt:
			m.bools[n.Cond] = true
		case *ast.ForStmt:
			m.bools[n.Cond] = true
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, clause := range n.Body.List {
					for _, e := range clause.(*ast.CaseClause).List {
						m.bools[e] = true
					}
				}
			}
		case *ast.ReturnStmt:
			m.results(signature, n)
		case ast.Expr:
			m.expression(n)
		}
		return true
	})
}

// statements removes calls, assignments and the like, one at a time. Log lines are for people: they stay.
func (m *mutator) statements(signature *ast.FuncType, list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok && (m.of(call.Fun) == "panic" || m.logs(call)) {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || m.of(s.Lhs[0]) == "_" {
				continue
			}
		case *ast.ReturnStmt:
			if signature.Results != nil {
				continue
			}
		case *ast.BranchStmt:
			if s.Tok == token.FALLTHROUGH {
				continue
			}
		case *ast.DeferStmt, *ast.GoStmt, *ast.IncDecStmt, *ast.SendStmt:
		default:
			continue
		}
		m.wrap(s, fmt.Sprintf("if !mutantIs(%d) { ", m.add(s, "remove")), " }")
	}
}

func (m *mutator) logs(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	return ok && m.info.Types[method.X].Type != nil && m.info.Types[method.X].Type.String() == "*log/slog.Logger"
}

// results returns the opposite of a truth, and zero for the rest.
func (m *mutator) results(signature *ast.FuncType, s *ast.ReturnStmt) {
	if signature.Results == nil || len(s.Results) != signature.Results.NumFields() {
		return
	}
	var expected []ast.Expr
	for _, field := range signature.Results.List {
		expected = append(expected, slices.Repeat([]ast.Expr{field.Type}, max(1, len(field.Names)))...)
	}
	for i, e := range s.Results {
		value := m.info.Types[e]
		literal, composite := e.(*ast.CompositeLit)
		switch {
		case isBool(value.Type):
			m.bools[e] = true
			if value.Value != nil {
				m.wrap(e, fmt.Sprintf("mutantNot(%d, ", m.add(e, "negate")), ")")
			}
		case value.IsNil(), composite && len(literal.Elts) == 0, value.Value != nil && isZero(value.Value.ExactString()):
		default:
			as := "[" + m.of(expected[i]) + "]"
			if value.Value == nil && types.Identical(value.Type, m.info.Types[expected[i]].Type) {
				as = "" // a variable may hide the name of the type
			}
			m.wrap(e, fmt.Sprintf("mutantZero%s(%d, ", as, m.add(e, "return zero for")), ")")
		}
	}
}

func isZero(text string) bool { return text == "0" || text == `""` }

func isBool(t types.Type) bool { return basic(t)&types.IsBoolean != 0 }

func basic(t types.Type) types.BasicInfo {
	if t == nil {
		return 0
	}
	b, ok := t.Underlying().(*types.Basic)
	if !ok {
		return 0
	}
	return b.Info()
}

func (m *mutator) expression(e ast.Expr) {
	if m.info.Types[e].Value != nil {
		return // a constant
	}
	switch x := e.(type) {
	case *ast.ParenExpr:
		m.bools[x.X] = m.bools[x]
		return
	case *ast.UnaryExpr:
		if x.Op == token.NOT {
			m.bools[x.X] = true
			return
		}
	case *ast.BinaryExpr:
		m.binary(x)
		return
	case *ast.CallExpr:
		m.call(x)
	}
	if m.bools[e] {
		m.wrap(e, fmt.Sprintf("mutantNot(%d, ", m.add(e, "negate")), ")")
	}
}

func (m *mutator) binary(x *ast.BinaryExpr) {
	kind := cmp.Or(basic(m.info.Types[x.X].Type)&^types.IsUntyped, basic(m.info.Types[x.Y].Type))
	switch x.Op {
	case token.LAND, token.LOR: // a || b is !(!a && !b)
		id := m.add(x, "swap && and || in")
		m.wrap(x, fmt.Sprintf("mutantNot(%d, ", id), ")")
		for _, side := range []ast.Expr{x.X, x.Y} {
			m.bools[side] = true
			m.wrap(side, fmt.Sprintf("mutantNot(%d, ", id), ")")
		}
	case token.EQL, token.NEQ:
		m.wrap(x, fmt.Sprintf("mutantNot(%d, ", m.add(x, "negate")), ")")
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		m.wrap(x, fmt.Sprintf("mutantNot(%d, ", m.add(x, "negate")), ")")
		m.operator(x, "shift", "mutantCompare")
	case token.ADD, token.SUB, token.MUL, token.QUO:
		if kind&types.IsNumeric != 0 {
			m.operator(x, "invert "+x.Op.String()+" in", "mutantSum")
		}
	}
}

func (m *mutator) operator(x *ast.BinaryExpr, what, function string) {
	m.wrap(x, fmt.Sprintf("%s(%d, ", function, m.add(x, what)), ")")
	m.instead(x.OpPos, len(x.Op.String()), fmt.Sprintf(", %q,", x.Op))
}

// call takes min for max, and lets moments that are equal count as before and after each other.
func (m *mutator) call(x *ast.CallExpr) {
	switch function := x.Fun.(type) {
	case *ast.Ident:
		_, builtin := m.info.Uses[function].(*types.Builtin)
		if builtin && (function.Name == "max" || function.Name == "min") {
			id := m.add(x, "swap min and max in")
			m.instead(x.Pos(), len("max("), fmt.Sprintf("mutantMost(%d, %v, ", id, function.Name == "max"))
		}
	case *ast.SelectorExpr:
		name, receiver := function.Sel.Name, m.info.Types[function.X].Type
		if receiver != nil && receiver.String() == "time.Time" && (name == "Before" || name == "After") {
			also := fmt.Sprintf(" || mutantIs(%d) && %s.Equal(%s))", m.add(x, "shift"), m.of(function.X), m.of(x.Args[0]))
			m.wrap(x, "(", also)
		}
	}
}
