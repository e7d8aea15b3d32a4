package house

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	testName = regexp.MustCompile(`(-run )?\b((?:Test|Fuzz)[A-Z]\w*)`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	caseList = regexp.MustCompile("storetest ((?:`[^`]+`(?:, )?)+)") // cases of the stores' suite, in a page
	caseName = regexp.MustCompile(`(?m)^\t*name: +"(\w+/[\w-]+)"`)
	unsaid   = regexp.MustCompile(`[^\p{L}\p{N} _-]`) // what an anchor leaves out of its heading
)

// Links between files of the repository lead somewhere. The tests that a page names exist, cases of storetest included.
func TestDocs_LinksAndNamesOfTestsLeadSomewhere(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	pages := map[string]string{}
	walk(t, func(path, text string) {
		switch {
		case strings.HasSuffix(path, "_test.go"):
			for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
				tests[m[1]] = true
			}
		case strings.HasPrefix(path, "dedupstore/storetest/"):
			for _, m := range caseName.FindAllStringSubmatch(text, -1) {
				tests[m[1]] = true
			}
		case filepath.Ext(path) == ".md":
			pages[path] = text
		}
	})
	if len(pages) < 10 || len(tests) < 100 {
		t.Fatalf("found %d pages and %d tests", len(pages), len(tests))
	}
	exists := func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	}
	for page := range pages {
		for _, problem := range missing(page, pages, exists, tests) {
			t.Errorf("%s: %s", page, problem)
		}
	}
}

// walk reads the Go and Markdown files of the repository, those of all its modules. Paths are below root.
func walk(t *testing.T, visit func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || path == filepath.Join(root, "build")):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md" && filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		path, err = filepath.Rel(root, path)
		visit(path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// astray returns what a page names that is not there.
func missing(page string, pages map[string]string, exists func(path string) bool, tests map[string]bool) (problems []string) {
	for _, m := range link.FindAllStringSubmatch(pages[page], -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		path, anchor, _ := strings.Cut(m[1], "#")
		target := page
		if path != "" {
			target = filepath.Join(filepath.Dir(page), path)
		}
		if !exists(target) {
			problems = append(problems, "there is no "+m[1])
		} else if n := headings(pages[target], anchor); anchor != "" && n != 1 {
			problems = append(problems, fmt.Sprintf("%s leads to %d headings", m[1], n))
		}
	}
	for _, m := range testName.FindAllStringSubmatch(pages[page], -1) {
		if begins := m[1] != ""; !tests[m[2]] && !(begins && anyBegins(tests, m[2])) {
			problems = append(problems, "there is no "+m[2])
		}
	}
	for _, list := range caseList.FindAllStringSubmatch(pages[page], -1) {
		for name := range strings.SplitSeq(strings.TrimRight(list[1], ", "), ", ") {
			name = strings.Trim(name, "`")
			if group, all := strings.CutSuffix(name, "…"); !tests[name] && !(all && anyBegins(tests, group)) {
				problems = append(problems, "storetest has no "+name)
			}
		}
	}
	return problems
}

func anyBegins(tests map[string]bool, prefix string) bool {
	for name := range tests {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// headings counts the headings of a page that have an anchor.
func headings(text, anchor string) (n int) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		if strings.ReplaceAll(unsaid.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			n++
		}
	}
	return n
}

func TestAstray_FindsWhatLeadsNowhere(t *testing.T) {
	t.Parallel()
	const other = "# Other\n## Tier 2: inbox\n## Twice\n## Twice\n"
	exists := func(path string) bool { return path == "page.md" || path == filepath.Join("docs", "other.md") }
	for text, want := range map[string]string{
		"[a](docs/gone.md)":                          "there is no docs/gone.md",
		"[a](docs/other.md#gone)":                    "docs/other.md#gone leads to 0 headings",
		"[a](docs/other.md#twice)":                   "leads to 2 headings",
		"# Here\n[a](#there)":                        "#there leads to 0 headings",
		"`TestX_IsGone`":                             "there is no TestX_IsGone",
		"TestX_IsGone, without quotes":               "there is no TestX_IsGone",
		"`go test -run TestY .`":                     "there is no TestY",
		"storetest `a/one`, `a/two`; `b/x`":          "storetest has no a/two",
		"storetest `b/…`":                            "storetest has no b/…",
		"[a](docs/other.md), `TestX_Holds`":          "",
		"`go test -run TestX .`, `TestX_Holds/case`": "",
		"storetest `a/one`, `a/…`; `TestX_Holds`":    "",
		"[a](docs/other.md#tier-2-inbox)":            "",
		"# Here\n[a](#here), [b](https://x#y)":       "",
	} {
		pages := map[string]string{"page.md": text, filepath.Join("docs", "other.md"): other}
		found := strings.Join(missing("page.md", pages, exists, map[string]bool{"TestX_Holds": true, "a/one": true}), "; ")
		if (want == "") != (found == "") || !strings.Contains(found, want) {
			t.Errorf("%s: found %q, want %q", text, found, want)
		}
	}
}
