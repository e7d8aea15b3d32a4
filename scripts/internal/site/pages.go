package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	module     = "github.com/oncemill/oncemill"
	repository = "https://" + module
	mapPage    = "docs/README.md"
)

// A site is what the repository has to show. Names of files are below its root, with slashes.
type site struct {
	root     string
	files    map[string]string // Markdown and pictures by name
	groups   []group
	packages []*pkg
}

// A group is a section of the map.
type group struct {
	title   string
	entries []entry
}

// An entry is a page in the map.
type entry struct{ path, note string }

var (
	mapRow   = regexp.MustCompile(`^\| \[[^\]]+\]\(([^)]+)\) \| (.+) \|$`)
	pageLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

var errNoClone = errors.New("this is no clone")

func load(root string) (*site, error) {
	s := &site{root: root, files: map[string]string{}}
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard",
		"*.md", "docs/pictures", "console/assets/*.svg")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: git ls-files: %w", errNoClone, err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			s.files[name] = string(text)
		} else if !errors.Is(err, os.ErrNotExist) { // deleted, and not committed yet
			return nil, err
		}
	}
	for line := range strings.Lines(s.files[mapPage]) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			s.groups = append(s.groups, group{title: title})
		} else if m := mapRow.FindStringSubmatch(line); m != nil && s.groups != nil {
			g := &s.groups[len(s.groups)-1]
			g.entries = append(g.entries, entry{path.Join(path.Dir(mapPage), m[1]), m[2]})
		}
	}
	s.groups = slices.DeleteFunc(s.groups, func(g group) bool { return g.entries == nil })
	s.packages, err = packages(root)
	return s, err
}

// mapped says whether the map has a page.
func (s *site) mapped(page string) bool {
	return page == mapPage || slices.ContainsFunc(s.groups, func(g group) bool {
		return slices.ContainsFunc(g.entries, func(e entry) bool { return e.path == page })
	})
}

// below returns the pages in the folder of a README that the map leaves out.
func (s *site) below(readme string) (pages []string) {
	folder := strings.TrimSuffix(readme, "README.md")
	if folder == readme || folder == "" {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if strings.HasPrefix(name, folder) && path.Ext(name) == ".md" && !s.mapped(name) {
			pages = append(pages, name)
		}
	}
	return pages
}

// title is the heading of a page.
func (s *site) title(page string) string {
	first, _, _ := strings.Cut(s.files[page], "\n")
	return strings.TrimPrefix(first, "# ")
}

// llms is llms.txt, as llmstxt.org has it: a title, a summary, and the map with a link a line.
func (s *site) llms() string {
	var b strings.Builder
	summary := strings.SplitN(s.files["README.md"], "\n\n", 3)[1]
	fmt.Fprintf(&b, "# %s\n\n> %s\n", s.title("README.md"), strings.ReplaceAll(summary, "\n", " "))
	for _, g := range s.groups {
		fmt.Fprintf(&b, "\n## %s\n\n", g.title)
		for _, e := range g.entries {
			fmt.Fprintf(&b, "- [%s](%s): %s\n", s.title(e.path), e.path, e.note)
		}
	}
	return b.String() + "\n## Packages\n\n" + packageLines(s.packages, "")
}

// laidOut returns the files of the site: those of the repository, a page for each package, and llms.txt with its full
// form, all with links that work there.
func (s *site) laidOut() (map[string]string, error) {
	files := maps.Clone(s.files)
	files["llms.txt"] = s.llms()
	files[packageList] = "# Packages\n\n" + packageLines(s.packages, "..")
	for _, p := range s.packages {
		files[p.page()] = p.markdown()
	}
	var problems []error
	for name, text := range files {
		files[name] = outsideCode(text, func(line string) string {
			return pageLink.ReplaceAllStringFunc(line, func(found string) string {
				to, err := s.link(files, name, pageLink.FindStringSubmatch(found)[1])
				problems = append(problems, err)
				return "](" + to + ")"
			})
		})
	}
	full := files["llms.txt"]
	for _, g := range s.groups {
		for _, e := range g.entries {
			full += fmt.Sprintf("\n<!-- %s -->\n\n%s", e.path, files[e.path])
		}
	}
	files["llms-full.txt"] = full
	return files, errors.Join(problems...)
}

// outsideCode changes the lines of a page that are not in a block of code.
func outsideCode(text string, change func(string) string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		if !code {
			line = change(line)
		}
		b.WriteString(line)
	}
	return b.String()
}

// link returns where a link leads on the site: to one of its files, or else to the repository.
func (s *site) link(files map[string]string, from, target string) (string, error) {
	name, anchor, _ := strings.Cut(target, "#")
	if below, ok := strings.CutPrefix(name, repository+"/blob/main/"); ok {
		name = below
	} else if below, ok := strings.CutPrefix(name, pkgGoDev+"/"+module); ok {
		name = path.Join(".", below)
	} else if name == "" { //nolint:gocritic // what is cut above has no place in a switch
		name = from
	} else if strings.Contains(name, ":") {
		return target, nil
	} else {
		name = path.Join(path.Dir(from), name)
	}
	to := name
	if _, ok := files[path.Join(name, "README.md")]; ok {
		to = path.Join(name, "README.md")
	}
	for _, p := range s.packages {
		if name == p.path() || name == path.Join(p.path(), "doc.go") {
			to = p.page()
		}
	}
	if text, ok := files[to]; ok {
		if strings.HasPrefix(to, "packages/") && !strings.Contains(text, "{#"+anchor+"}") {
			anchor, _, _ = strings.Cut(anchor, ".") // of a field: its type
		}
		relative, err := filepath.Rel(path.Dir(from), to)
		return strings.TrimSuffix(filepath.ToSlash(relative)+"#"+anchor, "#"), err
	}
	info, err := os.Stat(filepath.Join(s.root, name))
	if err != nil {
		return "", fmt.Errorf("%s: a link leads nowhere: %w", from, err)
	}
	kind := "/blob/main/"
	if info.IsDir() {
		kind = "/tree/main/"
	}
	return repository + kind + name, nil
}
