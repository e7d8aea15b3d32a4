package faults_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestRelayAudit_ExplainsNoCopyWithoutAReason(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	a := relayAudit{
		lease:   5 * time.Second,
		killed:  map[int]time.Time{1: at(3), 4: at(0)},
		stopped: map[int][]outage{2: {{from: at(4), to: at(20)}}},
		crashes: []outage{{from: at(100), to: at(101)}},
	}
	settled := func(relay, second int) attempt {
		return attempt{relay: relay, leased: at(1), sent: at(2), answered: at(3), settled: at(second)}
	}
	open := func(relay int, answer string) attempt {
		return attempt{relay: relay, leased: at(1), sent: at(2), answer: answer}
	}
	next := attempt{relay: 9, leased: at(30), sent: at(31)}
	for name, tc := range map[string]struct {
		before, again attempt
		want          string
	}{
		"acknowledged and settled":          {settled(9, 4), next, ""},
		"settled, and killed later":         {settled(1, 2), next, ""},
		"killed":                            {open(1, ""), next, relayKilled},
		"never settled":                     {open(3, ""), next, leaseSlow},
		"never settled, too early":          {open(3, ""), attempt{relay: 9, leased: at(4), sent: at(5)}, ""},
		"killed, taken over too early":      {open(1, ""), attempt{relay: 9, leased: at(4), sent: at(5)}, ""},
		"killed before":                     {open(4, ""), next, leaseSlow},
		"no answer":                         {open(9, answerUnknown), next, answerUnknown},
		"refused":                           {open(9, answerRefused), next, answerRefused},
		"stopped before it settled":         {settled(2, 21), next, leaseStopped},
		"slow":                              {settled(9, 7), next, leaseSlow},
		"the other one was stopped":         {settled(9, 4), attempt{relay: 2, leased: at(1), sent: at(25)}, leaseStopped},
		"the other one, in time":            {settled(9, 4), attempt{relay: 2, leased: at(1), sent: at(5)}, ""},
		"the database crashed":              {attempt{leased: at(99), sent: at(100)}, attempt{leased: at(102), sent: at(103)}, leaseCrashed},
		"the database crashed, but settled": {settled(9, 4), attempt{leased: at(102), sent: at(103)}, ""},
	} {
		if got := a.explain(tc.before, tc.again); got != tc.want {
			t.Errorf("%s: explained by %q, want %q", name, got, tc.want)
		}
	}
}

func TestRelayAudit_CountsWhatMustNotBe(t *testing.T) {
	t.Parallel()
	a := relayAudit{dir: t.TempDir(), lease: time.Minute}
	text := `{"Relay":1,"What":"leased","At":"2026-01-01T00:00:00Z","IDs":["once","twice"],"Token":"x"}
{"Relay":1,"What":"sent","At":"2026-01-01T00:00:01Z","IDs":["once","twice"],"Call":1}
{"Relay":1,"What":"answered","At":"2026-01-01T00:00:02Z","IDs":["once","twice"],"Call":1}
{"Relay":1,"What":"settled","At":"2026-01-01T00:00:03Z","IDs":["once","twice"],"Token":"x"}
{"Relay":1,"What":"leased","At":"2026-01-01T00:00:04Z","IDs":["twice"],"Token":"y"}
{"Relay":1,"What":"sent","At":"2026-01-01T00:00:05Z","IDs":["twice"],"Call":2}
{"Relay":1,"Wha`
	if err := os.WriteFile(filepath.Join(a.dir, "1.relay"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	committed := map[string]bool{"once": true, "twice": true, "never": true}
	b := a.balance(a.attempts(t), committed, nil, []string{"once", "once", "twice", "twice", "phantom"})
	if !slices.Equal(b.lost, []string{"never"}) || !slices.Equal(b.phantom, []string{"phantom"}) || len(b.unsent) != 2 ||
		len(b.unexplained) != 1 || b.attempts != 3 || len(b.extra) != 0 {
		t.Errorf("%v: %+v", b, b)
	}
}

func TestRelayAudit_FirstCopiesOfAKeyHaveItsOrder(t *testing.T) {
	t.Parallel()
	places := map[string]place{"a1": {"a", 1}, "a2": {"a", 2}, "a3": {"a", 3}, "b1": {"b", 1}}
	if wrong := disordered(places, []string{"a1", "b1", "a2", "a1", "a3", "a2"}); wrong != nil {
		t.Errorf("later copies are out of order: %q", wrong)
	}
	if wrong := disordered(places, []string{"a1", "a3", "b1", "a2", "a3"}); len(wrong) != 1 {
		t.Errorf("out of order: %q, want a2", wrong)
	}
}
