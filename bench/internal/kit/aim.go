package kit

import (
	"fmt"
	"strings"
)

// Aims are results that have to reach something.
type aims []aim

type aim struct {
	name              string
	x, required, goal float64
	most              bool // required is the most that it may be
}

// Aim notes a ratio, as Ratio does, with the least that it has to be, and what is aimed for. Zero: nothing.
func (b *Bench) Aim(name string, x, required, goal float64) {
	b.Ratio(name, x)
	b.aims = append(b.aims, aim{name: name, x: x, required: required, goal: goal})
}

// Limit notes a value, as Value does, with the most that it may be.
func (b *Bench) Limit(name string, x, most float64) {
	b.Value(name, x)
	b.aims = append(b.aims, aim{name: name, x: x, required: most, most: true})
}

func (list aims) markdown() string {
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n### Results\n\n| | measured | required | goal | |\n| --- | ---: | ---: | ---: | --- |\n")
	for _, a := range list {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", a.name, number(a.x), a.demand(), optional(a.goal), a.verdict())
	}
	return b.String()
}

func (a aim) demand() string {
	if a.most {
		return "at most " + number(a.required)
	}
	return optional(a.required)
}

func optional(v float64) string {
	if v == 0 {
		return ""
	}
	return number(v)
}

func (a aim) verdict() string {
	switch {
	case a.most && a.x > a.required, !a.most && a.x < a.required:
		return "MISSED"
	case a.goal > 0 && a.x >= a.goal:
		return "goal reached"
	case a.required > 0:
		return "met"
	}
	return ""
}
