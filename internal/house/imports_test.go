package house

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/oncemill/oncemill"

// root is the module's root folder, seen from here.
var root = filepath.Join("..", "..")

// A pkg is what `go list` says about a package. Test files are not part of it.
type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	GoFiles    []string
	Imports    []string
	Module     struct{ Path, GoMod string }
}

func (p pkg) path() string { return below(p.ImportPath) }

// below turns an import path of this module into one of the table.
func below(importPath string) string {
	if importPath == module {
		return "."
	}
	return strings.TrimPrefix(importPath, module+"/")
}

func own(importPath string) bool { return matches(module+"/...", importPath) }

// packages returns all packages of all modules: "./..." would mean those of the root module only.
var packages = sync.OnceValues(func() ([]pkg, error) {
	// -e: what does not build is the build's to say; the rules are checked all the same.
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Name,GoFiles,Imports,Module", "work")
	cmd.Dir = root
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("go list: %s", exit.Stderr)
	}
	if err != nil {
		return nil, err
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func TestHouse_PackagesImportOnlyWhatTheTableAllows(t *testing.T) {
	t.Parallel()
	for _, v := range house.violations(listed(t)) {
		t.Error(v)
	}
}

func listed(t *testing.T) []pkg {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// violations returns a sentence for each import that the table forbids.
func (t table) violations(pkgs []pkg) []string {
	var found []string
	for _, p := range pkgs {
		from, ok := t.row(p.path())
		if !ok {
			found = append(found, p.path()+" is not in the table: give it a floor in internal/house/table_test.go")
			continue
		}
		for _, imported := range p.Imports {
			if problem := t.problem(from, imported); problem != "" {
				found = append(found, fmt.Sprintf("%s imports %s: %s", p.path(), imported, problem))
			}
		}
	}
	return found
}

// problem says what is wrong with an import, or "".
func (t table) problem(from row, imported string) string {
	if from.allows(imported) {
		return ""
	}
	if !own(imported) {
		switch {
		case matches("testing/...", imported):
			return "only test code may"
		case standard(imported):
			return ""
		}
		return fmt.Sprintf("its row allows nothing beside lower floors but %q", from.beside)
	}
	to, ok := t.row(below(imported))
	switch {
	case !ok:
		return "" // said once, about the package itself
	case to.floor >= from.floor:
		return fmt.Sprintf("floor %d may import lower floors only, and that is floor %d", from.floor, to.floor)
	case to.testCode() && !from.testCode():
		return "that is test code"
	}
	return ""
}

// standard tells the standard library by the first part of the path, which has no dot.
func standard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

func TestTable_FindsEachKindOfViolation(t *testing.T) {
	t.Parallel()
	small := table{
		{0, "contract", "", nil},
		{0, "servers", "", these(testLib, goRedis)},
		{1, ".", "", otelAPI},
		{1, "contract/suite", "", testLib},
		{1, "contract/redis", "", goRedis},
		{2, "examples/...", "", everything},
	}
	for _, tc := range []struct{ name, from, imports, want string }{
		{"a higher floor", "contract", module, "lower floors only"},
		{"its own floor", "contract/redis", module, "lower floors only"},
		{"another module", "contract", "github.com/redis/go-redis/v9", "nothing beside"},
		{"a sibling of what is allowed", ".", "go.opentelemetry.io/otel/sdk/trace", "nothing beside"},
		{"a module whose name begins alike", "contract/redis", "github.com/redis/go-redis/v99", "nothing beside"},
		{"testing in production code", "contract/redis", "testing", "only test code"},
		{"a part of testing in production code", "contract", "testing/synctest", "only test code"},
		{"test code in production code", ".", module + "/servers", "test code"},
		{"a package that nobody placed", "attic", "fmt", "not in the table"},

		{"a lower floor", ".", module + "/contract", ""},
		{"the standard library", "contract", "net/http", ""},
		{"what its row allows", ".", "go.opentelemetry.io/otel/metric/noop", ""},
		{"testing in a suite", "contract/suite", "testing", ""},
		{"test code in test code", "contract/suite", module + "/servers", ""},
		{"anything in a program", "examples/shop", module + "/examples/shop/internal/books", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := pkg{ImportPath: module + "/" + tc.from, Imports: []string{tc.imports}}
			if tc.from == "." {
				p.ImportPath = module
			}
			found := strings.Join(small.violations([]pkg{p}), "; ")
			if (tc.want == "") != (found == "") || !strings.Contains(found, tc.want) {
				t.Errorf("%s importing %s: found %q, want %q", tc.from, tc.imports, found, tc.want)
			}
		})
	}
}

func TestTable_NamesEachPackageOnce(t *testing.T) {
	t.Parallel()
	for i, r := range house {
		if found, _ := house[:i].row(r.path); found.path != "" {
			t.Errorf("%s stands in the table twice", r.path)
		}
		if r.task == "" {
			t.Errorf("%s has no job", r.path)
		}
	}
}
