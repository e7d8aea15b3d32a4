package kit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A Subject is measured on one server, holding nothing and holding [Options.Records] records. Where the server cannot
// be had, the error of Open is [ErrMissing].
type Subject[S any] struct {
	Name string
	Open func(ctx context.Context, b *Bench) (*Pair[S], error)
}

// A Pair has a subject in both forms. Its user runs the cleanups.
type Pair[S any] struct {
	Empty, Full S
	Cleanups
}

// Cleanups are what gives back what was taken, the last one first.
type Cleanups []func() error

// Cleanup adds some.
func (c *Cleanups) Cleanup(do ...func() error) { *c = append(*c, do...) }

// Clean runs them.
func (c *Cleanups) Clean() (err error) {
	for _, do := range slices.Backward(*c) {
		err = errors.Join(err, do())
	}
	*c = nil
	return err
}

// Quiet is a cleanup that cannot fail.
func Quiet(do func()) func() error { return func() error { do(); return nil } }

// An Operation is done again and again, for some milliseconds each time. It returns how much was done, and how long
// that took without what it had to prepare. Nothing: the subject cannot do it.
type Operation[S any] struct {
	Name string
	Do   func(ctx context.Context, s S) (done int, took time.Duration, err error)
}

// roundLimit is how long a round of an operation may take: what reads all records would never end.
const roundLimit = 3 * time.Minute

// leastOfFull is what a full subject has to reach of its rate when empty.
const leastOfFull = .8

// Records is an experiment: for each subject, by what factor each operation is faster or slower beside many records.
// Empty and full take turns, call by call. A subject that fails leaves the others their turn.
func Records[S any](subjects []Subject[S], operations []Operation[S]) Experiment {
	return Experiment{Name: "records", Run: func(ctx context.Context, b *Bench) (err error) {
		names := make([]string, len(subjects))
		for i, s := range subjects {
			names[i] = s.Name
		}
		chosen := names
		if b.Stores != "" {
			chosen = strings.Split(b.Stores, ",")
		}
		for _, name := range chosen {
			if !slices.Contains(names, name) {
				return fmt.Errorf("-stores has %q: there are %s", name, strings.Join(names, ", "))
			}
		}
		var ratios ratioTable
		for _, s := range subjects {
			if slices.Contains(chosen, s.Name) {
				err = errors.Join(err, compareRecords(ctx, b, s, operations, &ratios))
			}
		}
		title := fmt.Sprintf("Rates beside %d records, divided by those beside none", b.Records)
		return errors.Join(err, ratios.write(b.tables, title))
	}}
}

func compareRecords[S any](
	ctx context.Context, b *Bench, s Subject[S], operations []Operation[S], ratios *ratioTable,
) (err error) {
	begun := time.Now()
	pair, err := s.Open(ctx, b)
	if errors.Is(err, ErrMissing) || errors.Is(err, exec.ErrNotFound) {
		b.Progress("%s is left out: %v", s.Name, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	defer func() { err = errors.Join(err, pair.Clean()) }()
	b.Progress("%s: filled after %.0f s", s.Name, time.Since(begun).Seconds())
	const empty, full = "empty", "full"
	var t Table
	worst := 0.
	for _, o := range operations {
		for round := range b.Rounds {
			tooLong := fmt.Errorf("it takes longer than %v", roundLimit)
			bounded, cancel := context.WithTimeoutCause(ctx, roundLimit, tooLong)
			rates, err := takeTurns(bounded, b.Cell, o, [2]S{pair.Empty, pair.Full})
			late := context.Cause(bounded)
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %s, round %d: %w", s.Name, o.Name, round+1, errors.Join(err, late))
			}
			if rates[0] > 0 && rates[1] > 0 {
				t.Add(empty, Figure{o.Name, rates[0]})
				t.Add(full, Figure{o.Name, rates[1]})
			}
		}
		if !slices.Contains(t.columns, o.Name) {
			ratios.add(s.Name, o.Name, "")
			continue
		}
		ratio := t.Ratio(full, empty, o.Name)
		if worst == 0 || ratio < worst {
			worst = ratio
		}
		ratios.add(s.Name, o.Name, number(ratio))
		b.Progress("%s: %s: %s/s empty, %s/s full, ratio %s", s.Name, o.Name, number(t.Median(empty, o.Name)),
			number(t.Median(full, o.Name)), number(ratio))
	}
	b.Aim(s.Name+"_full_vs_empty_worst", worst, leastOfFull, 0)
	return nil
}

// takeTurns lets both do an operation until each has taken so long, and returns how much each did in a second.
func takeTurns[S any](
	ctx context.Context, cell time.Duration, o Operation[S], both [2]S,
) (rates [2]float64, err error) {
	var done [2]int
	var took [2]time.Duration
	for turn := 0; took[0] < cell || took[1] < cell; turn++ {
		for _, i := range [2]int{turn % 2, 1 - turn%2} {
			n, d, err := o.Do(ctx, both[i])
			if err != nil {
				return rates, fmt.Errorf("%s: %w", [2]string{"empty", "full"}[i], err)
			}
			if n == 0 {
				return rates, nil
			}
			done[i] += n
			took[i] += d
		}
	}
	for i := range rates {
		rates[i] = float64(done[i]) / took[i].Seconds()
	}
	return rates, nil
}

// A ratioTable has a row for each subject.
type ratioTable struct {
	rows, columns []string
	cells         map[place]string
}

func (t *ratioTable) add(row, column, value string) {
	if t.cells == nil {
		t.cells = map[place]string{}
	}
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
	}
	if !slices.Contains(t.columns, column) {
		t.columns = append(t.columns, column)
	}
	t.cells[place{row, column}] = value
}

func (t *ratioTable) write(w io.Writer, title string) error {
	if len(t.rows) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n| | %s |\n| ---%s |\n", title, strings.Join(t.columns, " | "),
		strings.Repeat(" | ---:", len(t.columns)))
	for _, row := range t.rows {
		b.WriteString("| " + row)
		for _, column := range t.columns {
			b.WriteString(" | " + t.cells[place{row, column}])
		}
		b.WriteString(" |\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
