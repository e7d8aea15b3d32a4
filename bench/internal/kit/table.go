package kit

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A Figure is one number that a measurement gave.
type Figure struct {
	Name  string // with its unit, such as "msgs/s"
	Value float64
}

// A Table holds what variants, its rows, gave for each figure, its columns, over the rounds.
type Table struct {
	rows, columns []string
	values        map[place][]float64
}

type place struct{ row, column string }

// Add appends the figures of one round.
func (t *Table) Add(row string, figures ...Figure) {
	if t.values == nil {
		t.values = map[place][]float64{}
	}
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
	}
	for _, f := range figures {
		if !slices.Contains(t.columns, f.Name) {
			t.columns = append(t.columns, f.Name)
		}
		at := place{row, f.Name}
		t.values[at] = append(t.values[at], f.Value)
	}
}

// Has tells whether all these rows were measured.
func (t *Table) Has(rows ...string) bool {
	return !slices.ContainsFunc(rows, func(row string) bool { return !slices.Contains(t.rows, row) })
}

// Median is the median of a figure over the rounds. It panics if there is no such figure.
func (t *Table) Median(row, column string) float64 { return Median(t.must(row, column)) }

// Ratio divides a figure of one row by that of another, within each round, and returns the median of the quotients: what
// slows a whole round cancels out. It panics if there is no such figure.
func (t *Table) Ratio(row, by, column string) float64 {
	return t.paired(row, by, column, func(a, b float64) float64 { return a / b })
}

// Difference subtracts as Ratio divides.
func (t *Table) Difference(row, by, column string) float64 {
	return t.paired(row, by, column, func(a, b float64) float64 { return a - b })
}

func (t *Table) paired(row, by, column string, f func(a, b float64) float64) float64 {
	a, b := t.must(row, column), t.must(by, column)
	results := make([]float64, len(a))
	for round := range a {
		results[round] = f(a[round], b[round])
	}
	return Median(results)
}

func (t *Table) must(row, column string) []float64 {
	values, ok := t.values[place{row, column}]
	if !ok {
		panic(fmt.Sprintf("kit: the table has no %q of %q", column, row))
	}
	return values
}

// write writes the medians in Markdown, with the range of the first column and the number of rounds.
func (t *Table) write(w io.Writer, title string) error {
	var b strings.Builder
	line := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	fmt.Fprintf(&b, "\n### %s\n\n", title)
	head := slices.Concat([]string{""}, t.columns, []string{"range of " + t.columns[0], "rounds"})
	line(head...)
	line(slices.Concat([]string{"---"}, slices.Repeat([]string{"---:"}, len(head)-1))...)
	for _, row := range t.rows {
		cells := []string{row}
		for _, column := range t.columns {
			if values := t.values[place{row, column}]; len(values) > 0 {
				cells = append(cells, number(Median(values)))
			} else {
				cells = append(cells, "")
			}
		}
		first := t.must(row, t.columns[0])
		line(append(cells, number(slices.Min(first))+" to "+number(slices.Max(first)), strconv.Itoa(len(first)))...)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// number writes three digits that matter, and never an exponent.
func number(v float64) string {
	digits := 0
	for limit := 100.0; digits < 2 && v < limit && v > -limit; limit /= 10 {
		digits++
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}
