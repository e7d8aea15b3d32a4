package kit

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A Bench is one run of a program: its options, and where its results go.
type Bench struct {
	Options

	tables, progress io.Writer
	results          []string
	aims             aims
	some             bool // only variants that Options.Only chooses are measured
}

// A Variant is one of several ways to do the same thing.
type Variant struct {
	Name    string
	Measure func(ctx context.Context) ([]Figure, error)
}

// Compare measures all variants in so many rounds and prints the table. Neighbours stay neighbours in every order, so
// variants that are divided by each other should stand side by side. If only some are chosen, the table has no others:
// see Table.Has.
func (b *Bench) Compare(ctx context.Context, title string, rounds int, variants ...Variant) (*Table, error) {
	table := &Table{}
	if b.some {
		variants = slices.DeleteFunc(slices.Clone(variants), func(v Variant) bool { return !strings.Contains(v.Name, b.Only) })
	}
	switch {
	case len(variants) == 0:
		return table, nil
	case len(variants) > 1 && (b.CPUProfile != "" || b.MemProfile != ""):
		return nil, fmt.Errorf("a profile is of one variant, and %s has %d: choose with -only", title, len(variants))
	}
	for _, v := range variants {
		table.rows = append(table.rows, v.Name)
	}
	begun, reported, total := time.Now(), time.Time{}, rounds*len(variants)
	for round := range rounds {
		for i, v := range order(variants, round) {
			figures, err := v.Measure(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", title, v.Name, err)
			}
			table.Add(v.Name, figures...)
			done := round*len(variants) + i + 1
			if time.Since(reported) < time.Second && done < total {
				continue
			}
			reported = time.Now()
			left := time.Since(begun) / time.Duration(done) * time.Duration(total-done)
			b.Progress("%d/%d, %.0f s left: %s: %s", done, total, left.Seconds(), v.Name, inline(figures))
		}
	}
	if err := table.write(b.tables, title); err != nil {
		return nil, err
	}
	return table, nil
}

// order begins each round with another variant, and goes backwards in every second.
func order(variants []Variant, round int) []Variant {
	first := round % len(variants)
	turned := slices.Concat(variants[first:], variants[:first])
	if round%2 == 1 {
		slices.Reverse(turned)
	}
	return turned
}

func inline(figures []Figure) string {
	parts := make([]string, len(figures))
	for i, f := range figures {
		parts[i] = number(f.Value) + " " + f.Name
	}
	return strings.Join(parts, ", ")
}

// Progress tells who waits what is going on.
func (b *Bench) Progress(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...) // nobody may be reading
}

// Ratio notes a result that compares two figures of this run. It is printed at the end.
func (b *Bench) Ratio(name string, x float64) { b.result("ratio", name, x) }

// Value notes a result that stands for itself. It is printed at the end.
func (b *Bench) Value(name string, x float64) { b.result("value", name, x) }

func (b *Bench) result(kind, name string, x float64) {
	b.results = append(b.results, fmt.Sprintf("%s %s %.3f\n", kind, name, x))
}
