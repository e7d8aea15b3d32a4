package kit

import (
	"fmt"
	"strings"
)

// Aims are ratios that have to reach something.
type aims []aim

type aim struct {
	name              string
	x, required, goal float64
}

// Aim notes a ratio, as Ratio does, with the least that it has to be, and what is aimed for. Zero: nothing.
func (b *Bench) Aim(name string, x, required, goal float64) {
	b.Ratio(name, x)
	b.aims = append(b.aims, aim{name, x, required, goal})
}

func (list aims) markdown() string {
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n### Ratios\n\n| | measured | required | goal | |\n| --- | ---: | ---: | ---: | --- |\n")
	for _, a := range list {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", a.name, number(a.x), optional(a.required), optional(a.goal), a.verdict())
	}
	return b.String()
}

func optional(v float64) string {
	if v == 0 {
		return ""
	}
	return number(v)
}

func (a aim) verdict() string {
	switch {
	case a.x < a.required:
		return "MISSED"
	case a.goal > 0 && a.x >= a.goal:
		return "goal reached"
	case a.required > 0:
		return "met"
	}
	return ""
}
