package house

import (
	"bytes"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// protocol is where time is virtual in tests, or waited for by a condition: the module's root and these folders.
var protocol = []string{".", "consumer/...", "dedupstore/...", "outbox/..."}

func TestSource_NoTestOfTheProtocolSleeps(t *testing.T) {
	t.Parallel()
	for _, p := range listed(t) {
		if !(row{beside: protocol}).allows(p.path()) {
			continue
		}
		tests, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		eachFinding(t, tests, realSleeps, "time.Sleep: wait for a condition, or run in virtual time")
	}
}

func TestSource_NoStructHoldsAContext(t *testing.T) {
	t.Parallel()
	for _, p := range listed(t) {
		if r, _ := house.row(p.path()); r.testCode() && r.floor < programs {
			continue
		}
		switch p.path() {
		case "internal/contexts": // they are contexts
			continue
		case ".", "consumer", "internal/worker", "transport/natsjs", "transport/franz", "transport/oncewatermill":
			continue // a run's own
		}
		var files []string
		for _, name := range p.GoFiles {
			files = append(files, filepath.Join(p.Dir, name))
		}
		eachFinding(t, files, contextFields, "a struct holds a context: pass it as an argument")
	}
}

// eachFinding fails the test for each place that the rule finds in the files.
func eachFinding(t *testing.T, files []string, rule func(*ast.File) []token.Pos, problem string) {
	t.Helper()
	for _, name := range files {
		fset := token.NewFileSet()
		for _, pos := range rule(parse(t, fset, name, nil)) {
			t.Errorf("%s: %s", fset.Position(pos), problem)
		}
	}
}

// realSleeps finds the uses of time.Sleep in files whose tests run in real time. These neither import testing/synctest
// nor call a helper named virtual.
func realSleeps(f *ast.File) []token.Pos {
	for _, imported := range f.Imports {
		if imported.Path.Value == `"testing/synctest"` {
			return nil
		}
	}
	for n := range ast.Preorder(f) {
		if call, ok := n.(*ast.CallExpr); ok {
			if fun, ok := call.Fun.(*ast.Ident); ok && fun.Name == "virtual" {
				return nil
			}
		}
	}
	return sleeps(f)
}

// sleeps finds the uses of time.Sleep.
func sleeps(f *ast.File) (found []token.Pos) {
	for n := range ast.Preorder(f) {
		if isSelector(n, "time", "Sleep") {
			found = append(found, n.Pos())
		}
	}
	return found
}

// contextFields finds the fields of structs whose type is context.Context.
func contextFields(f *ast.File) (found []token.Pos) {
	for n := range ast.Preorder(f) {
		s, ok := n.(*ast.StructType)
		if !ok {
			continue
		}
		for _, field := range s.Fields.List {
			if isSelector(field.Type, "context", "Context") {
				found = append(found, field.Pos())
			}
		}
	}
	return found
}

func isSelector(n ast.Node, pkg, name string) bool {
	s, ok := n.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}

func TestRules_FindWhatTheyLookFor(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, src string
		rule      func(*ast.File) []token.Pos
		want      int
	}{
		{"a call", "func f() { time.Sleep(1) }", sleeps, 1},
		{"a value", "var pause = time.Sleep", sleeps, 1},
		{"a call in real time", "func f() { time.Sleep(1) }", realSleeps, 1},
		{"a call in virtual time", "import \"testing/synctest\"\nfunc f() { time.Sleep(1) }", realSleeps, 0},
		{"a call in a helper's virtual time", "func f() { virtual(t, func() { time.Sleep(1) }) }", realSleeps, 0},
		{"another Sleep", "func f() { clock.Sleep(1); time.After(1) }", sleeps, 0},
		{"a field", "type t struct { ctx context.Context; n int }", contextFields, 1},
		{"embedded, in a function", "func f() { _ = struct{ context.Context }{} }", contextFields, 1},
		{"an argument", "type t struct { f func(context.Context) }; func f(ctx context.Context) {}", contextFields, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			found := tc.rule(parse(t, token.NewFileSet(), "p.go", "package p\n"+tc.src))
			if len(found) != tc.want {
				t.Errorf("found %d, want %d", len(found), tc.want)
			}
		})
	}
}

// foreign is what means something only on one machine. The brackets keep the expressions from finding themselves.
var foreign = []struct {
	what string
	re   *regexp.Regexp
}{
	{"a path of one machine", regexp.MustCompile(`(^|[^\w.])/([w]ork/|[r]oot/|[h]ome/\w|[U]sers/\w)`)},
	{"a path outside of the repository", regexp.MustCompile(`\.\./[s]hared`)},
	{"the host of a mirror or registry",
		regexp.MustCompile(`https?://[\w.-]*([p]roxy\.g|[r]egistry\.n|[d]eb\.debian|[m]aven\.org)`)},
}

// foreignIn returns what of it a text holds, or "".
func foreignIn(text []byte) string {
	for _, f := range foreign {
		if f.re.Match(text) {
			return f.what
		}
	}
	return ""
}

func TestSource_NamesNothingOfOneMachine(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{".git", "bin", "build"}, entry.Name()) {
			return fs.SkipDir
		}
		if !entry.Type().IsRegular() || entry.Name() == ".git" { // a file in a worktree
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || bytes.IndexByte(text, 0) >= 0 { // a zero byte: not text
			return err
		}
		if foreignIn(text) == "" {
			return nil
		}
		number := 0
		for line := range bytes.Lines(text) {
			number++
			if what := foreignIn(line); what != "" {
				t.Errorf("%s:%d: %s: %s", path, number, what, bytes.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSource_HasNoBinaries(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("this is no clone: git ls-files: %v", err)
	}
	names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(names) < 500 {
		t.Errorf("git lists %d files", len(names))
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil && bytes.IndexByte(text, 0) >= 0 { // an error: it is deleted, and not committed yet
			t.Errorf("%s is no text: keep it out of the repository", name)
		}
	}
}

func TestForeign_FindsEachKind(t *testing.T) {
	t.Parallel()
	// A # stands where a letter is left out, so that this file does not hold what it forbids.
	for line, letter := range map[string]string{
		"see /#ork/main/x.go":            "w",
		"/#oot/go/bin":                   "r",
		"dir=/#ome/ada/src":              "h",
		"see ../#hared/notes":            "s",
		"https://#roxy.golang.org":       "p",
		"http://repo1.#aven.org/maven2":  "m",
		"from https://#eb.debian.org/ x": "d",
	} {
		line := strings.Replace(line, "#", letter, 1)
		if foreignIn([]byte(line)) == "" {
			t.Errorf("%q passes", line)
		}
	}
	for _, line := range []string{
		"frame/root/x", "./root/", "https://example.com/root/x", "https://pkg.go.dev", "/tmp/x",
	} {
		if what := foreignIn([]byte(line)); what != "" {
			t.Errorf("%q is taken for %s", line, what)
		}
	}
}
