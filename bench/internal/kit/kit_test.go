package kit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func TestMedian_IsTheMiddleOrTheMeanOfTheMiddleTwo(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 9, 2}, 3},
	} {
		if got := Median(tc.values); got != tc.want {
			t.Errorf("Median(%v) = %v, want %v", tc.values, got, tc.want)
		}
	}
}

func TestPercentile_IsTheNearestRank(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		n     int
		share float64
		want  time.Duration
	}{
		{100, 0, 1}, {100, .5, 50}, {100, .501, 51}, {100, .55, 55}, {100, .99, 99}, {100, 1, 100},
		{3, .5, 2}, {3, .99, 3}, {1, .5, 1},
	} {
		var d []time.Duration
		for i := range tc.n {
			d = append(d, time.Duration(tc.n-i))
		}
		if got := Percentile(d, tc.share); got != tc.want {
			t.Errorf("Percentile(1 to %d, %v) = %v, want %v", tc.n, tc.share, got, tc.want)
		}
	}
	if got := Percentile(nil, .5); got != 0 {
		t.Errorf("Percentile of nothing = %v, want 0", got)
	}
}

func TestTable_RatioComparesWithinRounds(t *testing.T) {
	t.Parallel()
	var table Table
	for _, noise := range []float64{1, 10, 5} { // a round that is slow as a whole changes nothing
		table.Add("ours", Figure{"msgs/s", 6 * noise})
		table.Add("theirs", Figure{"msgs/s", 2 * noise})
	}
	if got := table.Ratio("ours", "theirs", "msgs/s"); got != 3 {
		t.Errorf("ratio %v, want 3", got)
	}
	if got := table.Difference("ours", "theirs", "msgs/s"); got != 20 {
		t.Errorf("difference %v, want 20, that of the middle round", got)
	}
	if got := table.Median("ours", "msgs/s"); got != 30 {
		t.Errorf("median %v, want 30", got)
	}
}

func TestCompare_MeasuresEveryVariantInEachRoundInAnOrderThatChanges(t *testing.T) {
	t.Parallel()
	var rounds []string
	variant := func(name string) Variant {
		return Variant{Name: name, Measure: func(context.Context) ([]Figure, error) {
			if len(rounds) == 0 || len(rounds[len(rounds)-1]) == 3 {
				rounds = append(rounds, "")
			}
			rounds[len(rounds)-1] += name
			return []Figure{{"x", 1}}, nil
		}}
	}
	var out bytes.Buffer
	b := &Bench{tables: &out, progress: io.Discard}
	if _, err := b.Compare(t.Context(), "Title", 4, variant("a"), variant("b"), variant("c")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"abc", "acb", "cab", "cba"}; !slices.Equal(rounds, want) {
		t.Errorf("orders %v, want %v", rounds, want)
	}
	if want := "| a | 1.00 | 1.00 to 1.00 | 4 |\n"; !strings.Contains(out.String(), want) {
		t.Errorf("the table is %s\nwant a line %s", out.String(), want)
	}
}

func TestRun_ResultsComeLast(t *testing.T) {
	t.Parallel()
	work := Experiment{Name: "work", Run: func(ctx context.Context, b *Bench) error {
		b.Ratio("first", 1.5)
		b.Value("second", 2)
		_, err := b.Compare(ctx, "Title", 1, Variant{"a", func(context.Context) ([]Figure, error) { return []Figure{{"x", 1}}, nil }})
		return err
	}}
	idle := Experiment{Name: "idle", Run: func(context.Context, *Bench) error { return errors.New("runs although it was not asked for") }}
	var stdout bytes.Buffer
	if err := Run(t.Context(), []string{"-only", "wor"}, &stdout, io.Discard, idle, work); err != nil {
		t.Fatal(err)
	}
	if want := "\n\nratio first 1.500\nvalue second 2.000\n"; !strings.HasSuffix("\n"+stdout.String(), want) {
		t.Errorf("standard output is %q, want it to end with %q", stdout.String(), want)
	}
}

func TestRun_RefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	e := Experiment{Name: "clients", Run: func(context.Context, *Bench) error { return errors.New("began") }}
	for _, tc := range []struct{ args, want string }{
		{"-rounds 0", "-rounds is 0"},
		{"-cell 0s", "-cell is 0s"},
		{"-records 10", "-records is 10"},
		{"-n 0", "-n is 0"},
		{"-only nobody", "there are clients"},
		{"quick", `"quick"`},
	} {
		err := Run(t.Context(), strings.Fields(tc.args), io.Discard, io.Discard, e)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.args, err, tc.want)
		}
	}
}

func TestMain(m *testing.M) {
	ServeIfAsked()
	os.Exit(m.Run())
}

func TestRun_OnlyChoosesVariantsToo(t *testing.T) {
	t.Parallel()
	var measured []string
	variant := func(name string) Variant {
		return Variant{Name: name, Measure: func(context.Context) ([]Figure, error) {
			measured = append(measured, name)
			return []Figure{{"x", 1}}, nil
		}}
	}
	work := Experiment{Name: "work", Variants: []string{"ours", "theirs"}, Run: func(ctx context.Context, b *Bench) error {
		table, err := b.Compare(ctx, "Title", 1, variant("ours"), variant("theirs"))
		if table.Has("ours", "theirs") {
			b.Aim("ours_vs_theirs", table.Ratio("ours", "theirs", "x"), .5, 1)
		}
		return err
	}}
	for _, tc := range []struct {
		args string
		want []string
		aim  string
	}{
		{"-only their", []string{"theirs"}, "\n\n"},
		{"-only work", []string{"ours", "theirs"}, "| ours_vs_theirs | 1.00 | 0.50 | 1.00 | goal reached |\n\nratio ours_vs_theirs 1.000\n"},
	} {
		var stdout bytes.Buffer
		measured = nil
		if err := Run(t.Context(), strings.Fields(tc.args), &stdout, io.Discard, work); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(measured, tc.want) || !strings.HasSuffix("\n"+stdout.String(), tc.aim) {
			t.Errorf("%s: measured %v, want %v; standard output is %q, want it to end with %q", tc.args, measured, tc.want, stdout.String(), tc.aim)
		}
	}
}

func TestRun_AProfileIsOfOneVariant(t *testing.T) {
	t.Parallel()
	work := Experiment{Name: "work", Run: func(ctx context.Context, b *Bench) error {
		_, err := b.Compare(ctx, "Title", 1, Variant{Name: "a"}, Variant{Name: "b"})
		return err
	}}
	err := Run(t.Context(), []string{"-cpuprofile", "x"}, io.Discard, io.Discard, work)
	if err == nil || !strings.Contains(err.Error(), "has 2") {
		t.Errorf("error %v, want one that says how many there are", err)
	}
}

func TestNATS_TellsItsCPUAndEnds(t *testing.T) {
	t.Parallel()
	s, err := StartNATS()
	if err != nil {
		t.Fatal(err)
	}
	if used, err := s.CPU(t.Context()); err != nil || used <= 0 {
		t.Errorf("CPU %v, %v, want more than nothing", used, err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := nats.Connect(s.URL); err == nil {
		t.Error("the server still takes connections")
	}
}
