package house

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A goMod is what a go.mod says, as `go mod edit -json` prints it.
type goMod struct {
	Module  struct{ Path string }
	Go      string
	Require []struct {
		Path, Version string
		Indirect      bool
	}
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
}

// A user of the root module gets these and what they need, and nothing else: no store, driver, server or client, not
// even for tests.
var rootNeeds = []string{
	"github.com/google/uuid",
	"github.com/gowebpki/jcs",
	"github.com/sony/gobreaker/v2",
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/otel/metric",
	"go.opentelemetry.io/otel/trace",
}

func TestModules_TheRootNeedsNoClient(t *testing.T) {
	t.Parallel()
	if got := readMod(t, ".").direct(); !slices.Equal(got, rootNeeds) {
		t.Errorf("the root module requires %q, want %q: what needs more is a module of its own, or a test of e2e",
			got, rootNeeds)
	}
}

// TestModules_TheWorkspaceHasThemAll also counts the packages, because "./..." leaves out those of other modules.
func TestModules_TheWorkspaceHasThemAll(t *testing.T) {
	t.Parallel()
	known, dirs := map[string]bool{}, map[string]bool{}
	for _, p := range listed(t) {
		known[p.path()] = true
	}
	walk(t, func(path, _ string) {
		if strings.HasSuffix(path, ".go") && !strings.Contains(path, "testdata/") {
			dirs[filepath.ToSlash(filepath.Dir(path))] = true
		}
	})
	if !maps.Equal(known, dirs) {
		t.Errorf("`go list work` has %d packages and the repository %d: go.work or its modules miss some",
			len(known), len(dirs))
	}
	for dir := range dirs {
		if !known[dir] {
			t.Errorf("%s is in no module of go.work", dir)
		}
	}
}

// TestModules_NeedEachOtherByPath: before a release no version of them exists, so each finds the others beside it.
func TestModules_NeedEachOtherByPath(t *testing.T) {
	t.Parallel()
	toolchain := readMod(t, ".").Go
	for _, dir := range moduleDirs(t) {
		mod := readMod(t, dir)
		if want := strings.TrimSuffix(module+"/"+dir, "/."); mod.Module.Path != want || mod.Go != toolchain {
			t.Errorf("%s: module %s, go %s; want %s, go %s", dir, mod.Module.Path, mod.Go, want, toolchain)
		}
		beside := map[string]string{}
		for _, r := range mod.Replace {
			beside[r.Old.Path] = filepath.ToSlash(filepath.Join(dir, r.New.Path))
		}
		for _, r := range mod.Require {
			if !own(r.Path) {
				continue
			}
			if beside[r.Path] != below(r.Path) {
				t.Errorf("%s requires %s without a replace by its folder", dir, r.Path)
			}
			delete(beside, r.Path)
		}
		for path := range beside {
			t.Errorf("%s replaces %s, which it does not require", dir, path)
		}
	}
}

func (m goMod) direct() (paths []string) {
	for _, r := range m.Require {
		if !r.Indirect {
			paths = append(paths, r.Path)
		}
	}
	slices.Sort(paths)
	return paths
}

func readMod(t *testing.T, dir string) (mod goMod) {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(root, dir, "go.mod")).Output()
	if err == nil {
		err = json.Unmarshal(out, &mod)
	}
	if err != nil {
		t.Fatalf("%s/go.mod: %v", dir, err)
	}
	return mod
}

// moduleDirs returns the folders of all modules, sorted.
func moduleDirs(t *testing.T) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if err == nil && d.Name() == "go.mod" {
			dir, _ := filepath.Rel(root, filepath.Dir(path))
			dirs = append(dirs, filepath.ToSlash(dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(dirs)
	return dirs
}

var update = flag.Bool("update", false, "write the picture of docs/protocol.md, and docs/errors.txt")

const (
	pictureBegins = "<!-- The picture is made by: go test ./internal/house -run Picture -update -->\n"
	pictureEnds   = "<!-- The picture ends. -->\n"
)

func TestHouse_PictureIsTrue(t *testing.T) {
	t.Parallel()
	page := filepath.Join(root, "docs", "protocol.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), pictureBegins)
	_, after, ended := strings.Cut(rest, pictureEnds)
	if !found || !ended {
		t.Fatalf("docs/protocol.md has no place for the picture of the house")
	}
	drawn := before + pictureBegins + house.picture(listed(t), moduleDirs(t)) + pictureEnds + after
	if drawn == string(text) {
		return
	}
	if !*update {
		t.Fatal("the picture in docs/protocol.md is old: go test ./internal/house -run Picture -update")
	}
	if err := os.WriteFile(page, []byte(drawn), 0o644); err != nil {
		t.Fatal(err)
	}
}

// picture draws the library's packages by floor, in Mermaid's language. Modules have a thick border. An arrow leads to
// an imported package, unless another arrow leads there by a longer way.
func (t table) picture(pkgs []pkg, modules []string) string {
	imports := map[string][]string{}
	for _, p := range pkgs {
		if t.drawn(p.path()) {
			imports[p.path()] = nil
		}
	}
	for _, p := range pkgs {
		for _, imported := range p.Imports {
			if _, known := imports[p.path()]; known && own(imported) && t.drawn(below(imported)) {
				imports[p.path()] = append(imports[p.path()], below(imported))
			}
		}
	}
	var b strings.Builder
	b.WriteString("```mermaid\nflowchart BT\n")
	for floor := range programs {
		fmt.Fprintf(&b, "  subgraph floor%d[floor %d]\n", floor, floor)
		for _, path := range slices.Sorted(maps.Keys(imports)) {
			if r, _ := t.row(path); r.floor == floor {
				fmt.Fprintf(&b, "    %s[%s]\n", node(path), label(path))
			}
		}
		b.WriteString("  end\n")
	}
	for _, path := range slices.Sorted(maps.Keys(imports)) {
		for _, to := range slices.Sorted(slices.Values(imports[path])) {
			if !longerWay(imports, path, to) {
				fmt.Fprintf(&b, "  %s --> %s\n", node(path), node(to))
			}
		}
	}
	b.WriteString("  classDef module stroke-width:4px\n")
	for _, dir := range modules {
		if _, known := imports[dir]; known {
			fmt.Fprintf(&b, "  class %s module\n", node(dir))
		}
	}
	b.WriteString("```\n")
	return b.String()
}

// drawn leaves out programs, test code, and internal packages, which would hide the rest.
func (t table) drawn(path string) bool {
	r, ok := t.row(path)
	return ok && r.floor < programs && !r.testCode() && !strings.HasPrefix(path, "internal/")
}

func longerWay(imports map[string][]string, from, to string) bool {
	for _, between := range imports[from] {
		if between != to && (slices.Contains(imports[between], to) || longerWay(imports, between, to)) {
			return true
		}
	}
	return false
}

func node(path string) string { return strings.NewReplacer("/", "_", ".", "oncemill").Replace(path) }

func label(path string) string {
	if path == "." {
		return "oncemill"
	}
	return path
}
