package main

import (
	"fmt"
	"html"
	"strings"
)

// style has a light and a dark palette. The panel behind the picture is opaque, so either palette is readable on any page.
const style = `text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1f2328 }
.name { font-weight: 600 }
.small { font-size: 12px; fill: #59636e }
.panel { fill: #ffffff }
.area { fill: #f6f8fa; stroke: #d1d9e0; stroke-dasharray: 4 3 }
.step { fill: #ddf4ff; stroke: #0969da }
.good { fill: #dafbe1; stroke: #1a7f37 }
.wait { fill: #fff8c5; stroke: #9a6700 }
.bad { fill: #ffebe9; stroke: #cf222e }
.warn { fill: #cf222e }
.line { fill: none; stroke: #59636e; stroke-width: 1.5 }
.dashed { stroke-dasharray: 5 4 }
.head { fill: #59636e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.small { fill: #b7bdc8 }
.panel { fill: #0d1117 }
.area { fill: #151b23; stroke: #3d444d }
.step { fill: #10233d; stroke: #4493f8 }
.good { fill: #12261e; stroke: #3fb950 }
.wait { fill: #272115; stroke: #d29922 }
.bad { fill: #25171c; stroke: #f85149 }
.warn { fill: #ff7b72 }
.line { stroke: #b7bdc8 }
.head { fill: #b7bdc8 }
}`

// A picture collects the elements of one SVG file. Lengths are pixels.
type picture struct {
	name          string // of the file, without .svg
	title, desc   string // for screen readers
	width, height int
	body          strings.Builder
	boxes         []box
	misfits       []string // texts that are wider than their box
}

type point struct{ x, y int }

type box struct{ x, y, w, h int }

func (b box) left() point   { return point{b.x, b.y + b.h/2} }
func (b box) right() point  { return point{b.x + b.w, b.y + b.h/2} }
func (b box) top() point    { return point{b.x + b.w/2, b.y} }
func (b box) bottom() point { return point{b.x + b.w/2, b.y + b.h} }

func (p point) move(dx, dy int) point { return point{p.x + dx, p.y + dy} }

const (
	lineHeight = 17
	letter     = 7.4 // the mean width of a letter at 14 pixels, in a wide system font
)

// box draws a box with a name in its middle, and small lines below the name.
func (p *picture) box(class string, b box, name string, small ...string) box {
	fmt.Fprintf(&p.body, "<rect class=%q x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", class, b.x, b.y, b.w, b.h)
	y := b.y + b.h/2 - len(small)*lineHeight/2 + 5
	p.line("name", "middle", point{b.x + b.w/2, y}, name)
	for i, s := range small {
		p.line("small", "middle", point{b.x + b.w/2, y + (i+1)*lineHeight}, s)
	}
	for _, s := range append([]string{name}, small...) {
		if width(s, s != name) > b.w-8 {
			p.misfits = append(p.misfits, s)
		}
	}
	p.boxes = append(p.boxes, b)
	return b
}

// area draws a frame around other boxes, with its name in the upper left corner.
func (p *picture) area(b box, name string) {
	fmt.Fprintf(&p.body, "<rect class=\"area\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", b.x, b.y, b.w, b.h)
	p.line("small", "start", point{b.x + 10, b.y + 19}, name)
}

// note writes small lines. The anchor says which end of them is at the point: start, middle or end.
func (p *picture) note(anchor string, at point, lines ...string) {
	for i, s := range lines {
		p.line("small", anchor, at.move(0, i*(lineHeight-1)), s)
	}
}

// heading writes a line in the size and weight of a box's name.
func (p *picture) heading(at point, text string) { p.line("name", "start", at, text) }

// warning is a note about what goes wrong.
func (p *picture) warning(anchor string, at point, lines ...string) {
	for i, s := range lines {
		p.line("small warn", anchor, at.move(0, i*(lineHeight-1)), s)
	}
}

func (p *picture) line(class, anchor string, at point, text string) {
	left, w := at.x, width(text, strings.HasPrefix(class, "small"))
	switch anchor {
	case "middle":
		left -= w / 2
	case "end":
		left -= w
	}
	if left < 4 || left+w > p.width-4 || at.y > p.height-6 {
		p.misfits = append(p.misfits, text)
	}
	fmt.Fprintf(&p.body, "<text class=%q text-anchor=%q x=\"%d\" y=\"%d\">%s</text>\n",
		class, anchor, at.x, at.y, html.EscapeString(text))
}

// arrow draws a line through the points, with a head at the last one. Class is "", or "dashed".
func (p *picture) arrow(class string, points ...point) {
	var path []string
	for _, at := range points {
		path = append(path, fmt.Sprintf("%d,%d", at.x, at.y))
	}
	fmt.Fprintf(&p.body, "<polyline class=%q marker-end=\"url(#head)\" points=%q/>\n",
		strings.TrimSpace("line "+class), strings.Join(path, " "))
}

// width is how much room a text takes at most.
func width(s string, small bool) int {
	w := float64(len([]rune(s))) * letter
	if small {
		w *= 12.0 / 14
	}
	return int(w)
}

func (p *picture) svg() string {
	const format = `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" ` +
		`role="img" aria-labelledby="title desc">
<!-- Made by: go run ./scripts/internal/pictures -->
<title id="title">%[3]s</title>
<desc id="desc">%[4]s</desc>
<style>
%[5]s
</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">` +
		`<path class="head" d="M0,0 L10,5 L0,10 z"/></marker></defs>
<rect class="panel" width="%[1]d" height="%[2]d" rx="8"/>
%[6]s</svg>
`
	return fmt.Sprintf(format, p.width, p.height, html.EscapeString(p.title), html.EscapeString(p.desc), style, p.body.String())
}
