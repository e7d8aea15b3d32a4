package main

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const root = "../../.."

var loaded = sync.OnceValues(func() (*site, error) { return load(root) })

func repositoryOf(t *testing.T) *site {
	t.Helper()
	s, err := loaded()
	if errors.Is(err, errNoClone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(s.groups) < 4 || len(s.packages) < 20 {
		t.Fatalf("the map has %d groups, and there are %d packages", len(s.groups), len(s.packages))
	}
	return s
}

func TestLLMs_FollowsTheMap(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "llms.txt"))
	if err != nil || string(text) != repositoryOf(t).llms() {
		t.Errorf("llms.txt is stale (%v): run `go run ./scripts/internal/site -llms`", err)
	}
}

func TestMap_HasEveryPageOfTheDocs(t *testing.T) {
	t.Parallel()
	s := repositoryOf(t)
	for name := range s.files {
		page := strings.HasPrefix(name, "docs/") && path.Ext(name) == ".md"
		if page && path.Dir(name) != "docs/adr" && !s.mapped(name) {
			t.Errorf("%s: there is no row for %s", mapPage, name)
		}
	}
	for _, g := range s.groups {
		for _, e := range g.entries {
			if s.files[e.path] == "" {
				t.Errorf("%s: there is no %s", mapPage, e.path)
			}
		}
	}
}

// laidOut reports links that lead nowhere in the repository. Here: those that it makes lead to files of the site.
func TestSite_LinksLeadToItsFiles(t *testing.T) {
	t.Parallel()
	files, err := repositoryOf(t).laidOut()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for name, text := range files {
		if name == "llms-full.txt" { // pages with their own relative links
			continue
		}
		outsideCode(text, func(line string) string {
			for _, m := range pageLink.FindAllStringSubmatch(line, -1) {
				to, _, _ := strings.Cut(m[1], "#")
				if _, ok := files[path.Join(path.Dir(name), to)]; !ok && !strings.Contains(to, "://") {
					t.Errorf("%s has a link to %s", name, m[1])
				}
				count++
			}
			return line
		})
	}
	if count < 500 {
		t.Errorf("found %d links", count)
	}
}

func TestLink_EachKind(t *testing.T) {
	t.Parallel()
	s := repositoryOf(t)
	files, err := s.laidOut()
	if err != nil {
		t.Fatal(err)
	}
	for link, want := range map[string]string{
		"redis.md#x":              "redis.md#x",
		"#x":                      "http.md#x",
		"../README.md":            "../README.md",
		"adr":                     "adr/README.md",
		"pictures/tiers.svg":      "pictures/tiers.svg",
		"https://example.com/a#b": "https://example.com/a#b",
		"mailto:ada@example.com":  "mailto:ada@example.com",
		"../compose.yaml":         repository + "/blob/main/compose.yaml",
		"../deploy":               repository + "/tree/main/deploy",
		repository + "/blob/main/docs/redis.md#x":        "redis.md#x",
		pkgGoDev + "/" + module:                          "../packages/oncemill.md",
		pkgGoDev + "/" + module + "/outbox#Relay.Run":    "../packages/outbox.md#Relay.Run",
		pkgGoDev + "/" + module + "/outbox#Config.Lease": "../packages/outbox.md#Config",
		pkgGoDev + "/io#EOF":                             pkgGoDev + "/io#EOF",
		"../outbox/doc.go":                               "../packages/outbox.md",
		"gone.md":                                        "",
	} {
		to, err := s.link(files, "docs/http.md", link)
		if to != want || (err != nil) != (want == "") {
			t.Errorf("%s leads to %q, want %q: %v", link, to, want, err)
		}
	}
}
