package faults_test

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A second effect is explained by what the store did to the first, and by nothing else.
func TestLedger_ExplainsNoEffectWithoutAReason(t *testing.T) {
	t.Parallel()
	start := time.Now()
	second := func(found dedupstore.State, attempt int, after time.Duration) run {
		return run{Claim: dedupstore.Claim{Attempt: attempt}, found: found, granted: start.Add(after)}
	}
	for name, tc := range map[string]struct {
		end    end // of the first run, whose lease was a second
		second run
		want   string
	}{
		"nothing is found where a run was":         {unrecorded, second(dedupstore.Absent, 1, 0), lostRecord},
		"a run is found that was finished":         {recorded, second(dedupstore.Running, 2, time.Hour), lostRecord},
		"attempts did not grow":                    {"", second(dedupstore.Retryable, 1, 0), lostRecord},
		"the outcome was not recorded in time":     {unrecorded, second(dedupstore.Running, 2, time.Minute), lostOutcome},
		"the outcome was refused":                  {refused, second(dedupstore.Running, 2, time.Minute), lostLease},
		"the run went on":                          {"", second(dedupstore.Running, 2, time.Minute), lostLease},
		"two owners at once":                       {"", second(dedupstore.Running, 2, time.Millisecond), ""},
		"not recorded, and taken over at once":     {unrecorded, second(dedupstore.Running, 2, time.Millisecond), ""},
		"a handler that runs without a claim":      {recorded, second("", 0, time.Minute), ""},
		"a handler without a claim, after a crash": {"", second("", 2, time.Minute), ""},
	} {
		first := run{Claim: dedupstore.Claim{Attempt: 1}, granted: start, until: start.Add(time.Second), end: tc.end}
		if got := explain(&first, &tc.second); got != tc.want {
			t.Errorf("%s: explained by %q, want %q", name, got, tc.want)
		}
	}
}

func TestLedger_CountsWhatIsLost(t *testing.T) {
	t.Parallel()
	l := newLedger(nil)
	ran := &run{effect: time.Now()}
	l.accounts["done"] = &account{runs: []*run{ran}, acked: true}
	l.accounts["buried"] = &account{deadLetters: 1, acked: true}
	l.accounts["acknowledged without an effect"] = &account{runs: []*run{{}}, acked: true}
	l.accounts["never acknowledged"] = &account{runs: []*run{ran}}
	b := l.balance(4)
	if len(b.lost) != 2 || b.deadLetters != 1 || b.extras() != 0 {
		t.Errorf("%v, lost %q", b, b.lost)
	}
}
