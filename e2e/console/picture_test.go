package console_test

import (
	_ "embed"
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var update = flag.Bool("update", false, "write docs/pictures/books.svg")

//go:embed testdata/picture.js
var pictureJS string

// A thing is a rectangle, or a text, of a page.
type thing struct {
	X, Y, W, H, R float64
	Text          string
	Size          float64
	Weight        int
	Mono          bool
	Fill          string
}

// draws compares the quickstart's closed books with the picture of the README, an SVG of what the browser shows in
// light and in dark.
func (p *tab) draws() {
	t := p.t
	t.Helper()
	p.size(1000, 800)
	light := eval[[]thing](p, pictureJS)
	p.dark(true)
	drawn := drawing(light, eval[[]thing](p, pictureJS), 1000, 900)
	p.dark(false)
	p.size(1280, 800)
	for _, text := range []string{"The books", "unguarded", "DOUBLE CHARGES", "Where it went wrong", "charged twice"} {
		if !strings.Contains(drawn, text) {
			t.Errorf("the picture does not show %q", text)
		}
	}
	if len(drawn) > 60_000 {
		t.Errorf("the picture has %d bytes", len(drawn))
	}
	file := filepath.Join("..", "..", "docs", "pictures", "books.svg")
	if *update {
		if err := os.WriteFile(file, []byte(drawn), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(string(kept)), names(drawn); got != want {
		t.Errorf("the page is not as in its picture: go test ./e2e/console -run Quickstart -update\n%s\n%s", got, want)
	}
}

var aText = regexp.MustCompile(`>([^<>]*[A-Za-z][^<>]*)</text>`)

// names are the texts of a picture down to the list of orders, without numbers.
func names(svg string) string {
	var all []string
	for _, m := range aText.FindAllStringSubmatch(svg, -1) {
		if all = append(all, m[1]); m[1] == "Where it went wrong" {
			break
		}
	}
	return strings.Join(all, "\n")
}

// drawing is an SVG of a page, with its colours in light and in dark.
func drawing(light, dark []thing, width, height float64) string {
	var colours, shapes []string
	class := func(i int) string {
		other := light[i].Fill
		if i < len(dark) {
			other = dark[i].Fill
		}
		pair := light[i].Fill + "|" + other
		at := slices.Index(colours, pair)
		if at < 0 {
			at, colours = len(colours), append(colours, pair)
		}
		return fmt.Sprintf("c%d", at)
	}
	for i, th := range light {
		if th.Y > height {
			continue
		}
		if th.Text == "" {
			shapes = append(shapes, fmt.Sprintf(`<rect class="%s" x="%g" y="%g" width="%g" height="%g" rx="%g"/>`,
				class(i), th.X, th.Y, th.W, th.H, th.R))
			continue
		}
		style := ""
		if th.Weight >= 600 {
			style += ` font-weight="600"`
		}
		if th.Mono {
			style += ` font-family="monospace"`
		}
		var text strings.Builder
		_ = xml.EscapeText(&text, []byte(th.Text))
		shapes = append(shapes, fmt.Sprintf(`<text class="%s" x="%g" y="%g" font-size="%g" textLength="%g"%s>%s</text>`,
			class(i), th.X, th.Y, th.Size, th.W, style, text.String()))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" "+
		"font-family=\"system-ui, sans-serif\">\n", width, height)
	b.WriteString("<title>The books of the quickstart: three stacks side by side</title>\n<style>\n")
	for i, pair := range colours {
		l, _, _ := strings.Cut(pair, "|")
		fmt.Fprintf(&b, ".c%d { fill: %s }\n", i, l)
	}
	b.WriteString("@media (prefers-color-scheme: dark) {\n")
	for i, pair := range colours {
		_, d, _ := strings.Cut(pair, "|")
		fmt.Fprintf(&b, ".c%d { fill: %s }\n", i, d)
	}
	b.WriteString("}\n</style>\n" + strings.Join(shapes, "\n") + "\n</svg>\n")
	return b.String()
}
