package e2e_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/e2e/dashboard"
)

const operations = "docs/operations.md"

// anchors are the places of a Markdown file that links can lead to, and how often each is there.
func anchors(t *testing.T, path string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	inCode := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "```") {
			inCode = !inCode
		}
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") && !inCode {
			found[dashboard.Anchor(strings.TrimSpace(heading))]++
		}
	}
	return found
}

func TestDocs_EachAlertsRunbookLandsOnItsSection(t *testing.T) {
	t.Parallel()
	sections := anchors(t, filepath.Join(root, operations))
	for _, r := range rules(t, "alerts.yaml") {
		page, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
		if page != dashboard.Docs || anchor != dashboard.Anchor(r.Alert) || sections[anchor] != 1 {
			t.Errorf("%s has the runbook %s; its section is there %d times", r.Alert, r.Annotations["runbook_url"], sections[anchor])
		}
	}
}

func TestDocs_EachPanelsLinkLandsOnItsSection(t *testing.T) {
	t.Parallel()
	sections := anchors(t, filepath.Join(root, operations))
	for name, d := range dashboard.All() {
		for _, p := range d.Panels {
			for _, link := range p.Links {
				page, anchor, _ := strings.Cut(link.URL, "#")
				if page != dashboard.Docs || sections[anchor] != 1 {
					t.Errorf("%s: %s links to %s, which is there %d times", name, p.Title, link.URL, sections[anchor])
				}
			}
		}
	}
}

// Every section about a panel or an alert is about one that exists.
func TestDocs_NoSectionIsAboutWhatIsGone(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, operations))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, d := range dashboard.All() {
		for _, p := range d.Panels {
			known[p.Title] = true
		}
	}
	for _, r := range rules(t, "alerts.yaml") {
		known[r.Alert] = true
	}
	count := 0
	for _, m := range regexp.MustCompile(`(?m)^#### (.+)$`).FindAllStringSubmatch(string(text), -1) {
		count++
		if !known[m[1]] {
			t.Errorf("%s has a section about %q, which is no panel and no alert", operations, m[1])
		}
	}
	if count == 0 {
		t.Error("no section about a panel or an alert was found")
	}
}

var markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links between files of the repository lead somewhere: in this page, and from it.
func TestDocs_LinksOfTheOperationsPageLandSomewhere(t *testing.T) {
	t.Parallel()
	page := filepath.Join(root, operations)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range markdownLink.FindAllStringSubmatch(string(text), -1) {
		path, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(path, "://") {
			continue
		}
		target := page
		if path != "" {
			target = filepath.Join(filepath.Dir(page), path)
		}
		if _, err := os.Stat(target); err != nil {
			t.Errorf("%s: %v", m[1], err)
		} else if anchor != "" && anchors(t, target)[anchor] != 1 {
			t.Errorf("%s: there is no such heading, or more than one", m[1])
		}
	}
}
