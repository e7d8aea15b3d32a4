// Command site lays out the static site: `site DIR` writes into DIR the pages of the repository, a page for each
// package, and a configuration for MkDocs; scripts/site makes HTML of them. `site -llms` writes llms.txt. Run it from
// the root of the repository. docs/README.md, the map of all pages, says which there are and in which order.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("want a folder, or -llms")
	}
	s, err := load(".")
	if err != nil {
		return err
	}
	if args[0] == "-llms" {
		return os.WriteFile("llms.txt", []byte(s.llms()), 0o644)
	}
	return s.write(args[0])
}

// write lays out DIR/pages and DIR/mkdocs.yml.
func (s *site) write(dir string) error {
	files, err := s.laidOut()
	if err != nil {
		return err
	}
	for name, text := range files {
		name = filepath.Join(dir, "pages", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	look := "../scripts/internal/site/mkdocs.yml"
	config, err := json.Marshal(map[string]any{"INHERIT": look, "nav": s.nav()}) // YAML, too
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "mkdocs.yml"), config, 0o644)
}

// nav is the menu: the groups of the map, then the packages. A page that the map leaves out stands below the README of
// its folder.
func (s *site) nav() (menu []any) {
	for _, g := range s.groups {
		var items []any
		for _, e := range g.entries {
			var item any = e.path
			if below := s.below(e.path); below != nil {
				item = append([]string{e.path}, below...)
			}
			items = append(items, map[string]any{short(s.title(e.path)): item})
		}
		if menu == nil {
			items = append(items, mapPage)
		}
		menu = append(menu, map[string]any{g.title: items})
	}
	items := []any{packageList}
	for _, p := range s.packages {
		items = append(items, map[string]string{p.title(): p.page()})
	}
	return append(menu, map[string]any{"Packages": items})
}

// short is a heading up to a colon, or to what the page is about something as.
func short(heading string) string {
	heading, _, _ = strings.Cut(heading, ":")
	heading, _, _ = strings.Cut(heading, " as ")
	return heading
}
