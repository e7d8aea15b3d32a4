package console

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// mostBeats is how many samples of deliveries are kept.
const mostBeats = 150

// A series is a counter without its count.
type series struct{ group, handler, outcome, cause string }

// A meter makes rates of counters.
type meter struct {
	last  map[series]int64 // nil: there was no sample yet
	at    time.Time
	beats []beat
}

// A beat is what came between two samples.
type beat struct {
	took time.Duration
	came map[series]int64
}

// add takes in a sample. A count that is lower than before says nothing: one of its processes was restarted.
func (m *meter) add(counters []Counter, at time.Time) {
	sums := map[series]int64{}
	for _, c := range counters {
		sums[series{c.Group, c.Handler, c.Outcome, c.Cause}] += c.Count
	}
	if m.last != nil {
		b := beat{at.Sub(m.at), map[series]int64{}}
		for s, n := range sums {
			if before := m.last[s]; n > before {
				b.came[s] = n - before
			}
		}
		b.blame()
		m.beats = append(m.beats, b)
		if len(m.beats) > mostBeats {
			m.beats = slices.Clone(m.beats[1:])
		}
	}
	m.last, m.at = sums, at
}

// blame takes the runs that failed from those that were granted, so that a delivery counts once.
func (b beat) blame() {
	for s, failed := range b.came {
		if s.outcome != Failed && s.outcome != Parked {
			continue
		}
		for _, outcome := range []string{"claimed", "reclaimed", "publish_only"} {
			granted := series{group: s.group, handler: s.handler, outcome: outcome}
			some := min(failed, b.came[granted])
			if failed -= some; some > 0 {
				b.came[granted] -= some
			}
		}
	}
}

// A traffic is what the last samples say of deliveries.
type traffic struct {
	Problem    string
	Over       time.Duration // what the counts below are of
	Rate       float64       // deliveries a second, now
	Deliveries int64
	Duplicates int64
	Columns    [][]float64 // a second, by class, oldest first
	Outcomes   []amount
	Causes     []amount
	scopes     map[string]scopeTraffic
}

// An amount is a part of something.
type amount struct {
	Name, Tone, About string
	N                 int64
}

type scopeTraffic struct {
	Rate      float64
	Share     string // of duplicates
	duplicate int64
	all       int64
}

// outcomes are the answers to deliveries, in the order of a chart.
var outcomes = []struct{ name, tone, about string }{
	{"claimed", "good", "first runs"},
	{"publish_only", "good", "published only: the outcome was known, its messages were not out"},
	{"reclaimed", "wait", "further runs, after a failure or a lost lease"},
	{"not_due", "wait", "retries that came too early"},
	{"duplicate_completed", "quiet", "duplicates of a success, suppressed"},
	{"duplicate_failed", "quiet", "duplicates of a failure, suppressed"},
	{"duplicate_unknown", "quiet", "duplicates of an unknown outcome, suppressed"},
	{"duplicate_in_progress", "busy", "duplicates of a message that was being handled"},
	{"fingerprint_mismatch", "bad", "the same ID with other content"},
	{"rejected", "bad", "no usable ID"},
	{Failed, "bad", "runs that failed for good"},
	{Parked, "doubt", "runs of unknown outcome"},
	{"store_error", "bad", "the store did not answer"},
	{"bypassed", "doubt", "ran without a guard"},
}

// causes say what made duplicates.
var causes = map[string]string{
	"broker_redelivery": "the broker delivered this copy before",
	"producer_retry":    "the producer sent another copy",
	"relay_resend":      "the relay sent another copy",
	"operator":          "somebody asked for it",
	"unknown":           "nothing tells",
}

var tones = []string{"good", "wait", "busy", "quiet", "doubt", "bad"}

func (m *meter) view(err error) *traffic {
	t := &traffic{Problem: problemOf(err), scopes: map[string]scopeTraffic{}}
	byOutcome, byCause := map[string]int64{}, map[string]int64{}
	toneOf := map[string]int{}
	for _, o := range outcomes {
		toneOf[o.name] = slices.Index(tones, o.tone)
	}
	recent, recentTime := int64(0), time.Duration(0)
	for i, b := range m.beats {
		column := make([]float64, len(tones))
		for s, n := range b.came {
			at, known := toneOf[s.outcome]
			if !known {
				at = len(tones) - 1
			}
			column[at] += float64(n) / max(b.took.Seconds(), 0.001)
			byOutcome[s.outcome] += n
			t.Deliveries += n
			of := t.scopes[s.group+"\x00"+s.handler]
			of.all += n
			if strings.HasPrefix(s.outcome, "duplicate_") {
				t.Duplicates += n
				of.duplicate += n
				byCause[cmp.Or(s.cause, "unknown")] += n
			}
			t.scopes[s.group+"\x00"+s.handler] = of
			if i >= len(m.beats)-5 {
				recent += n
			}
		}
		if i >= len(m.beats)-5 {
			recentTime += b.took
		}
		t.Over += b.took
		t.Columns = append(t.Columns, column)
	}
	if recentTime > 0 {
		t.Rate = float64(recent) / recentTime.Seconds()
	}
	for name, of := range t.scopes {
		of.Rate = float64(of.all) / max(t.Over.Seconds(), 0.001)
		of.Share = percent(float64(of.duplicate), float64(of.all))
		t.scopes[name] = of
	}
	for _, o := range outcomes {
		if n := byOutcome[o.name]; n > 0 {
			t.Outcomes = append(t.Outcomes, amount{strings.ReplaceAll(o.name, "_", " "), o.tone, o.about, n})
		}
		delete(byOutcome, o.name)
	}
	for _, name := range slices.Sorted(maps.Keys(byOutcome)) {
		t.Outcomes = append(t.Outcomes, amount{name, "bad", "not known to this console", byOutcome[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(byCause)) {
		t.Causes = append(t.Causes, amount{strings.ReplaceAll(name, "_", " "), "quiet", causes[name], byCause[name]})
	}
	slices.SortStableFunc(t.Causes, func(a, b amount) int { return cmp.Compare(b.N, a.N) })
	return t
}

// Ratio is the share of duplicates.
func (t *traffic) Ratio() string { return percent(float64(t.Duplicates), float64(t.Deliveries)) }

// Window is what a chart of all samples spans, as far as they come as often as the last ones.
func (t *traffic) Window() time.Duration {
	return t.Over / time.Duration(max(1, len(t.Columns))) * mostBeats
}

// Peak is the highest rate.
func (t *traffic) Peak() float64 { return slices.Max(append(t.Totals(), 0)) }

// Totals are deliveries a second over time.
func (t *traffic) Totals() (sums []float64) {
	for _, column := range t.Columns {
		sum := 0.0
		for _, v := range column {
			sum += v
		}
		sums = append(sums, sum)
	}
	return sums
}
