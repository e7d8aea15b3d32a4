package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// noon is when the stories of these tests begin.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

// ran is a run with an effect and a lease of a second.
func ran(attempt int, found dedupstore.State, granted float64, end End) *Run {
	return &Run{
		ID: "m", PID: 1, Fence: uint64(granted*1000) + 1, Attempt: attempt, Found: found,
		Granted: at(granted), Until: at(granted + 1), Effect: at(granted), Effects: 1, End: end,
	}
}

// TestBooks_NameOneInTenThousand plants one fault among messages whose extra effects are all explained.
func TestBooks_NameOneInTenThousand(t *testing.T) {
	t.Parallel()
	const messages = 10_000
	victim := fmt.Sprintf("order-%06d", rand.IntN(messages))
	for name, tc := range map[string]struct {
		plant func(l *Ledger)
		want  []Fault // without their texts
	}{
		"nothing": {func(*Ledger) {}, nil},
		"an effect without an event": {func(l *Ledger) {
			l.of(victim).runs = append(l.of(victim).runs, ran(3, dedupstore.Running, 5, Recorded))
		}, []Fault{{ID: victim, Kind: Unexplained}}},
		"an effect without a claim": {func(l *Ledger) {
			l.Does(oncemill.Run{Key: dedupstore.Key{ID: victim}, Fence: 99})
		}, []Fault{{ID: victim, Kind: Unexplained}}},
		"two effects of one run": {func(l *Ledger) { l.of(victim).runs[0].Effects = 2 },
			[]Fault{{ID: victim, Kind: Unexplained}}},
		"no effect":       {func(l *Ledger) { l.of(victim).runs = nil }, []Fault{{ID: victim, Kind: Missing}}},
		"no outcome":      {func(l *Ledger) { l.of(victim).Over = false }, []Fault{{ID: victim, Kind: Missing}}},
		"never delivered": {func(l *Ledger) { l.Ask("none") }, []Fault{{ID: "none", Kind: Missing}}},
		"nobody asked": {func(l *Ledger) {
			l.Does(oncemill.Run{Key: dedupstore.Key{ID: "none"}})
		}, []Fault{{ID: "none", Kind: Phantom}}},
	} {
		l := New(nil)
		l.Happened(Event{Why: HolderKilled, Holder: 1, From: at(1), To: at(1.5)})
		for i := range messages {
			id := fmt.Sprintf("order-%06d", i)
			l.Ask(id)
			l.Over(id)
			a := l.of(id)
			a.runs = []*Run{ran(1, dedupstore.Absent, 0, ""), ran(2, dedupstore.Running, 3, Recorded)}
		}
		tc.plant(l)
		b := l.Balance(0)
		for i := range b.Faults {
			b.Faults[i].What = ""
		}
		if diff := cmp.Diff(tc.want, b.Faults); diff != "" {
			t.Errorf("%s: faults (-planted +found):\n%s", name, diff)
		}
		if n := b.Extra[HolderKilled]; n < messages-1 {
			t.Errorf("%s: %d effects explained by the kill, want those of all other messages", name, n)
		}
	}
}

// One event explains one effect of a message: the next one needs its own.
func TestBooks_OneEventExplainsOneEffect(t *testing.T) {
	t.Parallel()
	lost := Event{Why: LostRecord, From: at(1), To: at(10)}
	early := Event{Why: LostRecord, From: at(-2), To: at(-1)}
	rerun := Event{Why: Redriven, ID: "m", From: at(1), To: at(10)}
	expired := Event{Why: Expired, ID: "m", From: at(1), To: at(10)}
	killed := Event{Why: HolderKilled, Holder: 1, From: at(0.5), To: at(10)}
	crashedTwice := []*Run{ran(1, "absent", 0, ""), ran(2, "running", 3, ""), ran(3, "running", 6, Recorded)}
	for name, tc := range map[string]struct {
		runs        []*Run
		events      []Event
		extra       map[Why]int
		unexplained int
	}{
		"one loss, one effect":   {forgot(2), []Event{lost}, map[Why]int{LostRecord: 1}, 0},
		"one loss, two effects":  {forgot(3), []Event{lost}, map[Why]int{LostRecord: 1}, 1},
		"two losses":             {forgot(3), []Event{lost, lost}, map[Why]int{LostRecord: 2}, 0},
		"a loss and an expiry":   {forgot(3), []Event{lost, expired}, map[Why]int{LostRecord: 1, Expired: 1}, 0},
		"one expiry":             {forgot(3), []Event{expired}, map[Why]int{Expired: 1}, 1},
		"expiry of another":      {forgot(2), []Event{{Why: Expired, ID: "n", From: at(1), To: at(10)}}, nil, 1},
		"a loss before":          {forgot(2), []Event{early}, nil, 1},
		"a loss before it asked": {asked(-0.5), []Event{early}, nil, 1},
		"a loss while it waited": {asked(-3), []Event{early}, map[Why]int{LostRecord: 1}, 0},
		"a loss after":           {forgot(2), []Event{{Why: LostRecord, From: at(8), To: at(9)}}, nil, 1},
		"one rerun, one effect":  {reran(2), []Event{rerun}, map[Why]int{Redriven: 1}, 0},
		"one rerun, two effects": {reran(3), []Event{rerun}, map[Why]int{Redriven: 1}, 1},
		"forgotten, one effect":  {forgot(2), []Event{rerun}, map[Why]int{Redriven: 1}, 0},
		"forgotten, two effects": {forgot(3), []Event{rerun}, map[Why]int{Redriven: 1}, 1},
		"one kill":               {crashedTwice, []Event{killed}, map[Why]int{HolderKilled: 1, LostLease: 1}, 0},
		"nothing was told":       {forgot(2), nil, nil, 1},
	} {
		l := New(nil)
		l.Ask("m")
		l.Over("m")
		l.of("m").runs = tc.runs
		for _, e := range tc.events {
			l.Happened(e)
		}
		b := l.Balance(0)
		if tc.extra == nil {
			tc.extra = map[Why]int{}
		}
		if diff := cmp.Diff(tc.extra, b.Extra); diff != "" || len(b.Of(Unexplained)) != tc.unexplained {
			t.Errorf("%s: %d unexplained, want %d; explained (-want +got):\n%s", name, len(b.Of(Unexplained)),
				tc.unexplained, diff)
		}
	}
}

// asked returns two such runs. The first got its answer late. The second found the record that its own call had made,
// because the call was repeated.
func asked(seconds float64) []*Run {
	runs := forgot(2)
	runs[0].Asked, runs[1].Found = at(seconds), dedupstore.Running
	return runs
}

// forgot are runs that each found no record.
func forgot(n int) (runs []*Run) {
	for i := range n {
		runs = append(runs, ran(1, dedupstore.Absent, float64(3*i), Recorded))
	}
	return runs
}

// reran are runs of which each one found an outcome.
func reran(n int) (runs []*Run) {
	for i := range n {
		runs = append(runs, ran(1, dedupstore.Finished, float64(3*i), Recorded))
	}
	return runs
}

// A second effect is explained by what the store did to the first, or by an event, and by nothing else.
func TestExplain_NoEffectWithoutAReason(t *testing.T) {
	t.Parallel()
	loss := Event{Why: LostRecord, From: at(0.5), To: at(100)}
	kill := Event{Why: HolderKilled, Holder: 1, From: at(0.5), To: at(0.6)}
	killed := Event{Why: HolderKilled, Holder: 1, From: at(0), To: at(0.1)} // within the lease
	stop := Event{Why: HolderStopped, Holder: 1, From: at(0.5), To: at(3)}
	away := Event{Why: StoreAway, From: at(0.5), To: at(3)}
	first := func(pid int, end End, failed bool) Run {
		r := ran(1, "absent", 0, end)
		r.PID, r.Failed = pid, failed
		return *r
	}
	second := func(found dedupstore.State, attempt int, granted float64) Run {
		return *ran(attempt, found, granted, "")
	}
	later := second("running", 2, 60)
	for name, tc := range map[string]struct {
		first, second Run // the lease of the first was a second
		event         Event
		want          Why
	}{
		"nothing is found where a run was":         {first(2, Unrecorded, false), second("absent", 1, 0.9), loss, LostRecord},
		"nothing is found, and nobody knows why":   {first(2, Unrecorded, false), second("absent", 1, 0.9), kill, ""},
		"a run is found that was finished":         {first(2, Recorded, false), later, loss, LostRecord},
		"attempts did not grow":                    {first(2, "", false), second("retryable", 1, 0.9), loss, LostRecord},
		"a run was finished, and nobody knows why": {first(2, Recorded, false), later, kill, ""},
		"attempts did not grow, nobody knows why":  {first(2, "", false), second("retryable", 1, 0.9), kill, ""},
		"not recorded in time":                     {first(2, Unrecorded, false), later, loss, LostOutcome},
		"the outcome was refused":                  {first(1, Refused, false), later, kill, LostLease},
		"the run went on":                          {first(2, "", false), later, loss, LostLease},
		"two owners at once":                       {first(2, "", false), second("running", 2, 0.1), loss, ""},
		"not recorded, and taken over at once":     {first(2, Unrecorded, false), second("running", 2, 0.1), loss, ""},
		"not recorded, the store was away":         {first(2, Unrecorded, false), later, away, StoreAway},
		"a handler that runs without a claim":      {first(2, Recorded, false), second("", 0, 60), loss, ""},
		"without a claim, after a crash":           {first(1, "", false), second("", 2, 60), kill, ""},
		"without a claim, after a failure":         {first(2, Released, true), second("", 2, 60), kill, ""},
		"killed":                                   {first(1, "", false), later, kill, HolderKilled},
		"stopped":                                  {first(1, "", false), later, stop, HolderStopped},
		"stopped, and refused":                     {first(1, Refused, false), later, stop, HolderStopped},
		"stopped, taken over too early":            {first(1, "", false), second("running", 2, 0.1), stop, ""},
		"another process was stopped":              {first(2, "", false), later, stop, LostLease},
		"the store was away":                       {first(2, "", false), later, away, StoreAway},
		"killed, taken over too early":             {first(1, "", false), second("running", 2, 0.1), kill, ""},
		"killed after its outcome":                 {first(1, Recorded, false), later, kill, ""},
		"killed after its outcome, which is lost":  {first(1, Recorded, false), later, loss, LostRecord},
		"another process was killed":               {first(2, "", false), later, kill, LostLease},
		"killed later": {first(1, "", false), later,
			Event{Why: HolderKilled, Holder: 1, From: at(90), To: at(91)}, LostLease},
		"failed":                         {first(2, Released, true), second("retryable", 2, 0.1), kill, HandlerFailed},
		"failed, its attempt given back": {first(2, Released, true), second("retryable", 1, 0.1), kill, HandlerFailed},
		"failed, its release unknown": {
			first(2, Unrecorded, true), second("retryable", 2, 0.1), kill, HandlerFailed,
		},
		"failed, killed at its release":  {first(1, "", true), second("retryable", 2, 0.1), killed, HandlerFailed},
		"failed, and its lease ended":    {first(2, "", true), later, loss, HandlerFailed},
		"failed, taken over too early":   {first(2, "", true), second("running", 2, 0.1), killed, ""},
		"failed, and refused too early":  {first(1, Refused, true), second("running", 2, 0.1), killed, ""},
		"failed, and the record is gone": {first(2, Released, true), second("absent", 2, 0.9), loss, LostRecord},
		"released although it succeeded": {first(2, Released, false), second("retryable", 2, 0.1), kill, ""},
	} {
		if got := explain(tc.first, tc.second, &evidence{"m", []Event{tc.event}, map[int]bool{}}); got != tc.want {
			t.Errorf("%s: explained by %q, want %q", name, got, tc.want)
		}
	}
}

// Rows are made once, whatever happens.
func TestBooks_Rows(t *testing.T) {
	t.Parallel()
	over := func(l *Ledger) { l.Ask("m"); l.Over("m") }
	for name, tc := range map[string]struct {
		tell func(l *Ledger)
		want []string
	}{
		"twice, and asked for": {func(l *Ledger) {
			l.Happened(Event{Why: Redriven, ID: "m", From: at(0), To: at(1)})
			l.Want("m", "a")
			l.Found("m", "a")
			l.Found("m", "a")
		}, nil},
		"as wanted":        {func(l *Ledger) { l.Want("m", "a", "b"); l.Found("m", "b"); l.Found("m", "a") }, nil},
		"none wanted":      {func(l *Ledger) { l.Want("m") }, nil},
		"none wanted, one": {func(l *Ledger) { l.Want("m"); l.Found("m", "a") }, []string{"m unexplained"}},
		"one missing":      {func(l *Ledger) { l.Want("m", "a", "b"); l.Found("m", "b") }, []string{"m missing"}},
		"twice": {func(l *Ledger) { l.Want("m", "a"); l.Found("m", "a"); l.Found("m", "a") },
			[]string{"m unexplained"}},
		"another":      {func(l *Ledger) { l.Want("m", "a"); l.Found("m", "b") }, []string{"m missing", "m unexplained"}},
		"nobody asked": {func(l *Ledger) { l.Found("n", "a") }, []string{"n phantom"}},
		"any one":      {func(l *Ledger) { over(l); l.Found("m", "a") }, nil},
		"any two":      {func(l *Ledger) { over(l); l.Found("m", "a"); l.Found("m", "b") }, []string{"m unexplained"}},
		"any one, and a dead letter": {func(l *Ledger) { over(l); l.Found("m", "a"); l.DeadLettered("m", 1) },
			[]string{"m unexplained"}},
		"a dead letter":      {func(l *Ledger) { over(l); l.DeadLettered("m", 1) }, nil},
		"without an outcome": {func(l *Ledger) { l.Ask("m"); l.Found("m", "a") }, []string{"m missing"}},
	} {
		l := New(nil)
		tc.tell(l)
		var got []string
		for _, f := range l.Balance(0).Faults {
			got = append(got, fmt.Sprint(f.ID, " ", f.Kind))
		}
		slices.Sort(got)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: faults (-want +got):\n%s", name, diff)
		}
	}
}

// The ledger notes what the store before it answers, whatever a worker makes of that.
func TestLedger_NotesWhatTheStoreAnswers(t *testing.T) {
	t.Parallel()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	l := Keep(t, store, filepath.Join(dir, "1.journal"))
	claim := func(id string) dedupstore.Claim {
		a, err := dedupstore.ClaimOne(t.Context(), l, dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "t", Group: "g", Handler: "h", ID: id},
			Owner: "owner-of-the-key-" + id, Lease: time.Hour, Retention: time.Hour, MaxAttempts: 9,
		})
		if err != nil {
			t.Fatal(err)
		}
		return a.Claim
	}
	recorded, released, refused, open := claim("recorded"), claim("released"), claim("refused"), claim("open")
	l.Does(oncemill.Run{Key: recorded.Key, Fence: recorded.Fence})
	l.Receives(oncemill.Run{Key: recorded.Key, Fence: recorded.Fence}, 7)
	l.Fails(oncemill.Run{Key: released.Key, Fence: released.Fence})
	refused.Owner = "another-owner-of-it"
	if err := dedupstore.ExtendOne(t.Context(), l, dedupstore.Extension{Claim: open, Lease: 2 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	finish := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour}
	for _, s := range []dedupstore.Settling{
		{Claim: recorded, Settlement: finish}, {Claim: refused, Settlement: finish},
		{Claim: released, Settlement: dedupstore.Release{}},
	} {
		err := dedupstore.SettleOne(t.Context(), l, s.Claim, s.Settlement)
		if err != nil && !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Fatal(err)
		}
	}
	letter := producer.Message{Header: producer.Header{producer.HeaderOriginalID: "buried"}}
	if err := l.Publish(context.Background(), letter); err != nil {
		t.Fatal(err)
	}
	want := map[string]End{"recorded": Recorded, "released": Released, "refused": Refused, "open": ""}
	other := New(nil) // which reads the journal
	if err := other.Read(dir); err != nil {
		t.Fatal(err)
	}
	for _, known := range []*Ledger{l, other} {
		got := map[string]End{}
		for r := range known.Runs {
			got[r.ID] = r.End
			if r.Attempt != 1 || r.Found != dedupstore.Absent || r.Granted.IsZero() || r.PID != os.Getpid() {
				t.Errorf("%+v", r)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ends (-want +got):\n%s", diff)
		}
		r := known.Message("recorded").Runs[0]
		if !r.Did() || r.Effects != 1 || r.Delivered != 7 || known.Done() != 1 || !known.Message("released").Runs[0].Failed {
			t.Errorf("%+v, and %d effects in all", r, known.Done())
		}
		if rest := time.Until(known.Message("open").Runs[0].Until); rest < 90*time.Minute {
			t.Errorf("the lease that was extended lasts %v", rest)
		}
	}
	defer func() { // what is forgotten is in the journal
		l.Forget(time.Now().Add(90 * time.Minute)) // when the lease of the open one still holds
		if l.Message("recorded").Owners != 0 || l.Message("open").Owners != 1 {
			t.Errorf("%v, %v", l.Message("recorded"), l.Message("open"))
		}
	}()
	for _, known := range []*Ledger{l, other} {
		if a := known.Message("buried"); a.DeadLetters != 1 || !a.Finished() || known.Message("open").Finished() {
			t.Errorf("%v", a)
		}
	}
	if s := l.Sum(); s != (Sum{Claims: 4, Renewals: 1, Effects: 1, Runs: 4}) {
		t.Errorf("%+v", s)
	}
}

// A killed process may have written half a line. A journal of an earlier version does not count effects.
func TestLedger_ReadsWhatAKilledProcessWrote(t *testing.T) {
	t.Parallel()
	l, dir := New(nil), t.TempDir()
	text := `{"ID":"done","Fence":1,"Attempt":1,"Found":"absent"}
{"ID":"done","Fence":1,"Attempt":1,"Found":"absent","Effect":"2026-01-01T00:00:00Z","End":"recorded"}
{"ID":"no effect","Fence":1,"Attempt":1,"Found":"absent","End":"recorded"}
{"ID":"no outcome","Fence":1,"Attempt":1,"Found":"absent","Effect":"2026-01-01T00:00:00Z"}
{"ID":"cut off","Fence":1,"Attem`
	if err := os.WriteFile(filepath.Join(dir, "1.journal"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ids := []string{"done", "no effect", "no outcome", "cut off", "buried", "never seen"}
	l.Ask(ids...)
	for _, id := range ids {
		if id != "no outcome" {
			l.Over(id)
		}
	}
	l.DeadLettered("buried", 1)
	for range 2 { // what was read is not read again
		if err := l.Read(dir); err != nil {
			t.Fatal(err)
		}
	}
	b := l.Balance(0)
	want := []string{"cut off", "never seen", "no effect", "no outcome"}
	if diff := cmp.Diff(want, b.Of(Missing)); diff != "" || len(b.Faults) != len(want) ||
		b.Effects != 2 || b.DeadLetters != 1 || l.Done() != 2 {
		t.Errorf("%v; missing (-want +got):\n%s", b, diff)
	}
}

// An operator forgot an outcome, and the next run came within 60 ms: its fence may be older. Nobody else's may.
func TestLedger_RunsAfterAForgottenOneMayHaveAnOlderFence(t *testing.T) {
	t.Parallel()
	for found, want := range map[dedupstore.State]int{dedupstore.Absent: 0, dedupstore.Running: 1} {
		l, dir := New(nil), t.TempDir()
		l.Ask("m")
		l.Over("m")
		l.Happened(Event{Why: Redriven, ID: "m", From: at(1.005), To: at(1.006)})
		first, next := ran(1, dedupstore.Absent, 1, Recorded), ran(1, found, 1.01, Recorded)
		first.Fence, next.Fence = 1_000_700, 1_000_100
		var text []byte
		for _, r := range []*Run{next, first} {
			line, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			text = append(append(text, line...), '\n')
		}
		if err := os.WriteFile(filepath.Join(dir, "1.journal"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.Read(dir); err != nil {
			t.Fatal(err)
		}
		if b := l.Balance(0); len(b.Faults) != want {
			t.Errorf("the next run found it %s: %v, want %d faults", found, b, want)
		}
	}
}

// What is closed is forgotten: an effect that comes later is one that nobody asked for.
func TestLedger_Close(t *testing.T) {
	t.Parallel()
	l := New(nil)
	for _, id := range []string{"m", "n"} {
		l.Ask(id)
		l.Over(id)
		l.of(id).runs = []*Run{ran(1, dedupstore.Absent, 0, Recorded)}
	}
	b := l.Close("m")
	l.Does(oncemill.Run{Key: dedupstore.Key{ID: "m"}})
	b.Add(l.Balance(0))
	if b.Messages != 2 || b.Effects != 3 || len(b.Faults) != 1 || b.Faults[0].Kind != Phantom {
		t.Errorf("%+v", b)
	}
}

func TestTally_AddsUp(t *testing.T) {
	t.Parallel()
	l := New(nil)
	l.Note("runs", "panic")
	l.Note("runs", "panic")
	l.Note("answers", "busy")
	all := Tally{}
	for range 2 {
		all.AddAll(l.Tally())
	}
	want := Tally{"runs": {"panic": 4}, "answers": {"busy": 2}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
