package console

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
)

// Charts are SVG made of numbers and of names of classes: no text of others gets into them.

// spark draws a line.
func spark(points []float64, tone string) template.HTML {
	const width, height = 96.0, 20.0
	if !slices.Contains(tones, tone) {
		tone = "quiet"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="spark t-%s" viewBox="0 0 %g %g" preserveAspectRatio="none" aria-hidden="true">`,
		tone, width, height)
	top := 0.0
	for _, p := range points {
		top = max(top, p)
	}
	if top > 0 && len(points) > 1 {
		var line strings.Builder
		for i, p := range points {
			fmt.Fprintf(&line, "%.1f,%.1f ", width*float64(i)/float64(len(points)-1), height-1-(height-2)*p/top)
		}
		fmt.Fprintf(&b, `<polygon points="0,%g %s%g,%g"/><polyline points="%s"/>`, height, line.String(), width, height,
			strings.TrimSpace(line.String()))
	} else {
		fmt.Fprintf(&b, `<polyline points="0,%g %g,%g"/>`, height-1, width, height-1)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// bars draws a column for each sample, stacked by tone. The newest is at the right.
func bars(columns [][]float64) template.HTML {
	const height = 100.0
	top := 0.0
	for _, column := range columns {
		sum := 0.0
		for _, v := range column {
			sum += v
		}
		top = max(top, sum)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="bars" viewBox="0 0 %d %g" preserveAspectRatio="none" aria-hidden="true">`,
		4*mostBeats, height)
	for i, column := range columns {
		x, y := 4*(mostBeats-len(columns)+i), height
		for n, v := range column {
			if v <= 0 || top == 0 {
				continue
			}
			h := max(0.6, (height-2)*v/top)
			y -= h
			fmt.Fprintf(&b, `<rect class="t-%s" x="%d" y="%.2f" width="3" height="%.2f"/>`, tones[n], x, y, h)
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// split draws a bar whose pieces are the parts of a sum.
func split(parts []amount) template.HTML {
	sum := int64(0)
	for _, p := range parts {
		sum += p.N
	}
	var b strings.Builder
	b.WriteString(`<svg class="split" viewBox="0 0 1000 8" preserveAspectRatio="none" aria-hidden="true">`)
	x := 0.0
	for _, p := range parts {
		if p.N <= 0 || !slices.Contains(tones, p.Tone) {
			continue
		}
		wide := max(3, 1000*float64(p.N)/float64(sum))
		fmt.Fprintf(&b, `<rect class="t-%s" x="%.1f" y="0" width="%.1f" height="8"/>`, p.Tone, x, max(1, wide-2))
		x += wide
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// nodes are the states in the picture, with their places.
var nodes = []struct {
	state dedupstore.State
	name  string
	x, y  int
}{
	{dedupstore.Absent, "absent", 2, 6},
	{dedupstore.Running, "running", 142, 6},
	{dedupstore.Finished, "done", 282, 6},
	{dedupstore.Retryable, "retryable", 72, 86},
	{dedupstore.Publishing, "publishing", 212, 86},
}

// picture draws the states of a record, with the present one lit.
func picture(r *dedupstore.Record) template.HTML {
	var b strings.Builder
	b.WriteString(`<svg class="states" viewBox="0 0 380 124" role="img" aria-label="` +
		`The states of a record, and the present one: ` + picturedState(r) + `"><defs>` +
		`<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" ` +
		`orient="auto-start-reverse"><path d="M0 0 8 4 0 8z"/></marker></defs>` +
		`<path class="way" d="M98 22H141"/><path class="way" d="M238 22H281"/>` +
		`<path class="way back" d="M167 39 137 85"/><path class="way" d="M212 38 242 85"/>` +
		`<path class="way" d="M278 86 308 39"/>` +
		`<text class="by" x="118" y="15">claim</text><text class="by" x="258" y="15">finish</text>` +
		`<text class="by left" x="144" y="66">release, claim again</text>` +
		`<text class="by right" x="236" y="60">finish</text>` +
		`<text class="by right" x="302" y="66">published</text>`)
	for _, n := range nodes {
		class, name := "node", n.name
		if n.state == r.State {
			name = picturedState(r)
			class = "node lit t-" + tone(name)
		}
		fmt.Fprintf(&b, `<g class="%s"><rect x="%d" y="%d" width="96" height="32" rx="6"/>`+
			`<text x="%d" y="%d">%s</text></g>`, class, n.x, n.y, n.x+48, n.y+20, name)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// picturedState is the present state in a word that is known here.
func picturedState(r *dedupstore.Record) string {
	word := operate.StateOf(r)
	if word == "absent" || slices.Contains(states, word) {
		return word
	}
	return "done"
}
