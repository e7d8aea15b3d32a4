package stock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The table of docs/brokers.md that names no tests compares adapters at one glance.
const glance = "| | natsjs "

var (
	folderRE = regexp.MustCompile("[Tt]ests in `([a-z0-9/]+)`")
	nameRE   = regexp.MustCompile("`(Test\\w+)`")
	funcRE   = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
)

func TestDocs_EveryRowAboutABrokerNamesATestThatExists(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "brokers.md"))
	if err != nil {
		t.Fatal(err)
	}
	problems, rows := check(string(text), func(folder string) []string { return testsIn(t, filepath.Join(root, folder)) })
	for _, p := range problems {
		t.Errorf("docs/brokers.md: %s", p)
	}
	if rows < 40 {
		t.Errorf("%d rows, want all of them", rows)
	}
}

// testsIn returns the names of the tests in a folder.
func testsIn(t *testing.T, folder string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range funcRE.FindAllStringSubmatch(string(text), -1) {
			names = append(names, found[1])
		}
	}
	return names
}

// check returns what is wrong with the tables of a page, and how many of their rows it has looked at.
func check(page string, tests func(folder string) []string) (problems []string, rows int) {
	for section := range strings.SplitSeq(page, "\n## ") {
		title, _, _ := strings.Cut(section, "\n")
		var known []string
		for _, folder := range folderRE.FindAllStringSubmatch(section, -1) {
			known = append(known, tests(folder[1])...)
		}
		for _, row := range bodies(section) {
			rows++
			named := nameRE.FindAllStringSubmatch(row, -1)
			if len(named) == 0 {
				problems = append(problems, title+": no test in the row "+row)
			}
			for _, name := range named {
				if !slices.Contains(known, name[1]) {
					problems = append(problems, title+": there is no "+name[1])
				}
			}
		}
	}
	return problems, rows
}

// bodies returns the rows of tables without their heads.
func bodies(section string) (rows []string) {
	lines := strings.Split(section, "\n")
	skip := false
	for i, line := range lines {
		switch {
		case !strings.HasPrefix(line, "|"):
			skip = false
		case strings.HasPrefix(line, glance):
			skip = true
		case skip || strings.HasPrefix(line, "|---") || i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|---"):
		default:
			rows = append(rows, line)
		}
	}
	return rows
}

func TestCheck_FindsWhatItLooksFor(t *testing.T) {
	t.Parallel()
	tests := func(folder string) []string {
		if folder == "a/b" {
			return []string{"TestX_Holds"}
		}
		return nil
	}
	const head = "\n## A\n\nTests in `a/b`.\n\n| what | test |\n|---|---|\n"
	for name, tc := range map[string]struct {
		page, want string
	}{
		"a test that exists":         {head + "| x | `TestX_Holds` |\n", ""},
		"no test":                    {head + "| x | always |\n", "no test"},
		"a test that does not exist": {head + "| x | `TestX_Holds`, `TestX_Held` |\n", "TestX_Held"},
		"a test of another folder":   {strings.Replace(head, "a/b", "c", 1) + "| x | `TestX_Holds` |\n", "there is no TestX_Holds"},
		"no folder":                  {"\n## A\n| a | b |\n|---|---|\n| x | `TestX_Holds` |\n", "there is no TestX_Holds"},
		"the table at one glance":    {head + "| x | `TestX_Holds` |\n\n" + glance + "| b |\n|---|---|\n| x | y |\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problems, rows := check(tc.page, tests)
			found := strings.Join(problems, "; ")
			if (tc.want == "") != (found == "") || !strings.Contains(found, tc.want) || rows != 1 {
				t.Errorf("found %q in %d rows, want %q in one", found, rows, tc.want)
			}
		})
	}
}
