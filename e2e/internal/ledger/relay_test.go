package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSender_ExplainsNoCopyWithoutAReason(t *testing.T) {
	t.Parallel()
	s := sender{lease: 5 * time.Second, events: []Event{
		{Why: RelayKilled, Holder: 1, From: at(3), To: at(3.1)}, {Why: RelayKilled, Holder: 4, From: at(0), To: at(0.1)},
		{Why: LeaseStopped, Holder: 2, From: at(4), To: at(20)}, {Why: LeaseCrashed, From: at(100), To: at(101)},
	}}
	sent := func(relay int, leased, sent float64) Sending {
		return Sending{Relay: relay, Leased: at(leased), Sent: at(sent)}
	}
	settled := func(relay int, second float64) Sending {
		of := sent(relay, 1, 2)
		of.Answered, of.Settled = at(3), at(second)
		return of
	}
	open := func(relay int, answer Why) Sending { of := sent(relay, 1, 2); of.Answer = answer; return of }
	next := sent(9, 30, 31)
	for name, tc := range map[string]struct {
		before, again Sending
		want          Why
	}{
		"acknowledged and settled":          {settled(9, 4), next, ""},
		"settled, and killed later":         {settled(1, 2), next, ""},
		"killed":                            {open(1, ""), next, RelayKilled},
		"never settled":                     {open(3, ""), next, LeaseSlow},
		"never settled, too early":          {open(3, ""), sent(9, 4, 5), ""},
		"killed, taken over too early":      {open(1, ""), sent(9, 4, 5), ""},
		"killed before":                     {open(4, ""), next, LeaseSlow},
		"no answer":                         {open(9, AnswerUnknown), next, AnswerUnknown},
		"refused":                           {open(9, AnswerRefused), next, AnswerRefused},
		"stopped before it settled":         {settled(2, 21), next, LeaseStopped},
		"slow":                              {settled(9, 7), next, LeaseSlow},
		"the other one was stopped":         {settled(9, 4), sent(2, 1, 25), LeaseStopped},
		"the other one, in time":            {settled(9, 4), sent(2, 1, 5), ""},
		"the database crashed":              {sent(0, 99, 100), sent(0, 102, 103), LeaseCrashed},
		"the database crashed, but settled": {settled(9, 4), sent(0, 102, 103), ""},
	} {
		if got := s.explain(tc.before, tc.again).why; got != tc.want {
			t.Errorf("%s: explained by %q, want %q", name, got, tc.want)
		}
	}
}

// What ended one sending explains one more.
func TestBooks_OneFateExplainsOneSending(t *testing.T) {
	t.Parallel()
	sent := func(relay int, leased, sent, settled float64) Sending {
		return Sending{Relay: relay, Leased: at(leased), Sent: at(sent), Answered: at(settled), Settled: at(settled)}
	}
	lost := Sending{Relay: 1, Leased: at(1), Sent: at(2), Answered: at(3), Answer: AnswerUnknown}
	for name, tc := range map[string]struct {
		sendings    []Sending
		unexplained int
	}{
		"one lost answer, one more":             {[]Sending{lost, sent(2, 10, 11, 12)}, 0},
		"one lost answer, two more":             {[]Sending{lost, sent(2, 10, 11, 12), sent(3, 20, 21, 22)}, 1},
		"one lease that ended, one more":        {[]Sending{sent(1, 1, 2, 9), sent(2, 7, 8, 9)}, 0},
		"one lease that ended, two more":        {[]Sending{sent(1, 1, 2, 9), sent(2, 7, 8, 9), sent(3, 20, 21, 22)}, 1},
		"one that was late, again and again":    {[]Sending{sent(2, 7, 8, 9), sent(1, 1, 21, 22), sent(1, 1, 23, 24)}, 1},
		"each earlier sending must let it come": {[]Sending{sent(2, 1, 2, 3), lost, sent(3, 20, 21, 22)}, 2},
	} {
		l := New(nil)
		l.Ask("m")
		l.of("m").Sendings = tc.sendings
		l.Relayed(5*time.Second, []string{"m"})
		if got := l.Balance(0).Of(Unexplained); len(got) != tc.unexplained {
			t.Errorf("%s: %d unexplained, want %d", name, len(got), tc.unexplained)
		}
	}
}

func TestLedger_ReadsWhatRelaysWrote(t *testing.T) {
	t.Parallel()
	l, dir := New(nil), t.TempDir()
	text := `{"Relay":1,"What":"leased","At":"2026-01-01T00:00:00Z","IDs":["once","twice"],"Token":"x"}
{"Relay":1,"What":"sent","At":"2026-01-01T00:00:01Z","IDs":["once","twice"],"Call":1}
{"Relay":1,"What":"answered","At":"2026-01-01T00:00:02Z","IDs":["once","twice"],"Call":1}
{"Relay":1,"What":"settled","At":"2026-01-01T00:00:03Z","IDs":["once","twice"],"Token":"x"}
{"Relay":1,"What":"leased","At":"2026-01-01T00:00:04Z","IDs":["twice"],"Token":"y"}
{"Relay":1,"What":"sent","At":"2026-01-01T00:00:05Z","IDs":["twice"],"Call":2}
{"Relay":1,"Wha`
	if err := os.WriteFile(filepath.Join(dir, "1.relay"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l.Ask("once", "twice", "never")
	if err := l.ReadRelays(dir); err != nil {
		t.Fatal(err)
	}
	l.Relayed(time.Minute, []string{"once", "once", "twice", "twice", "phantom"})
	b := l.Balance(0)
	for kind, want := range map[Kind][]string{
		Missing: {"never"}, Phantom: {"phantom"}, Unsent: {"once", "phantom"}, Unexplained: {"twice"},
	} {
		if diff := cmp.Diff(want, b.Of(kind)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
	if len(b.Extra) != 0 || b.Effects != 5 || len(l.Message("twice").Sendings) != 2 {
		t.Errorf("%v: %+v", b, l.Message("twice").Sendings)
	}
}

// A relay that leases a row again, after a lease that it did not settle, sends it under the new lease.
func TestLedger_EachLeaseOfARelaySendsOnce(t *testing.T) {
	t.Parallel()
	l, dir := New(nil), t.TempDir()
	text := ""
	for _, s := range []struct {
		what, token string
		second      float64
	}{
		{"leased", "x", 1}, {"sent", "", 2}, {"answered", "", 2.5}, // the database is away
		{"leased", "y", 9}, {"sent", "", 10}, {"answered", "", 10.5}, {"settled", "y", 11},
	} {
		text += fmt.Sprintf(`{"Relay":1,"What":%q,"At":%q,"IDs":["m"],"Token":%q,"Call":%.0f}`+"\n", s.what,
			at(s.second).Format(time.RFC3339Nano), s.token, s.second)
	}
	if err := os.WriteFile(filepath.Join(dir, "1.relay"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.ReadRelays(dir); err != nil {
		t.Fatal(err)
	}
	var got []time.Time
	for _, s := range l.Message("m").Sendings {
		got = append(got, s.Leased)
	}
	if diff := cmp.Diff([]time.Time{at(1), at(9)}, got); diff != "" {
		t.Errorf("leases of the sendings (-want +got):\n%s", diff)
	}
}

func TestBooks_FirstCopiesOfAKeyHaveItsOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ stream, want []string }{
		"later copies": {[]string{"a1", "b1", "a2", "a1", "a3", "a2"}, nil},
		"a2":           {[]string{"a1", "a3", "b1", "a2", "a3"}, []string{"a2"}},
	} {
		l := New(nil)
		for id, p := range map[string]Place{"a1": {"a", 1}, "a2": {"a", 2}, "a3": {"a", 3}, "b1": {"b", 1}} {
			l.AskInOrder(id, p)
		}
		l.Relayed(time.Minute, tc.stream)
		if got := l.Balance(0).Of(Disorder); !slices.Equal(got, tc.want) {
			t.Errorf("out of order: %q, want %q", got, name)
		}
	}
}
