package faults_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// A ledger stands before a store, and notes what the store granted and confirmed, and what handlers and workers did.
// All of it is seen from outside: what the store forgets, the ledger knows. It takes dead letters, too.
type ledger struct {
	dedupstore.Store

	mu       sync.Mutex
	accounts map[string]*account // by message ID
	claims   int                 // that were asked for
	effects  int
	renewals int                // that the store confirmed
	failures map[string]failure // errors that callers got, by operation and text; not ErrClaimLost, which is an answer
}

type failure struct {
	err   error // the first of this text
	times int
}

// An account is what happened to one message.
type account struct {
	asked       map[string]time.Time // when an owner first asked
	runs        []*run               // in the order in which they were granted
	deadLetters int                  // dead letters
	acked       bool
}

// A run is what the store granted once.
type run struct {
	dedupstore.Claim
	found   dedupstore.State
	granted time.Time // when the answer came
	until   time.Time // before this the lease cannot have ended
	effect  time.Time // zero: there was none
	end     end
}

// end is how the store answered when the outcome of a run was to be stored.
type end string

const (
	recorded   end = "recorded"   // confirmed
	refused    end = "refused"    // another owner had come
	unrecorded end = "unrecorded" // it did not answer
)

func newLedger(s dedupstore.Store) *ledger {
	return &ledger{Store: s, accounts: map[string]*account{}, failures: map[string]failure{}}
}

// of is the account of a message. The ledger is locked.
func (l *ledger) of(id string) *account {
	if l.accounts[id] == nil {
		l.accounts[id] = &account{asked: map[string]time.Time{}}
	}
	return l.accounts[id]
}

// run is the run of a fence, nil if it was not seen. The ledger is locked.
func (a *account) run(fence uint64) *run {
	for _, r := range a.runs {
		if r.Fence == fence {
			return r
		}
	}
	return nil
}

// fails notes an error that a caller got. The ledger is locked.
func (l *ledger) fails(operation string, err error) {
	if err != nil && !errors.Is(err, dedupstore.ErrClaimLost) && !errors.Is(err, context.Canceled) {
		text := operation + ": " + err.Error()
		l.failures[text] = failure{err, l.failures[text].times + 1}
	}
}

func (l *ledger) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	l.look(func() {
		l.claims += len(requests)
		for _, r := range requests {
			if account := l.of(r.Key.ID); account.asked[r.Owner].IsZero() {
				account.asked[r.Owner] = time.Now()
			}
		}
	})
	results := l.Store.Claim(ctx, requests)
	l.look(func() {
		for i, r := range requests {
			l.answers(r, &results[i])
		}
	})
	return results
}

// answers notes how the store answered a claim. The ledger is locked.
func (l *ledger) answers(r dedupstore.Request, result *dedupstore.ClaimResult) {
	l.fails("claim", result.Err)
	a, account := &result.Answer, l.of(r.Key.ID)
	if result.Err == nil && a.Status == dedupstore.AcquiredRun && account.run(a.Claim.Fence) == nil {
		account.runs = append(account.runs, &run{
			Claim: a.Claim, found: a.Found, granted: time.Now(), until: account.asked[r.Owner].Add(r.Lease),
		})
	}
}

func (l *ledger) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	sent := time.Now()
	errs := l.Store.Extend(ctx, extensions)
	l.look(func() {
		for i, x := range extensions {
			l.fails("extend", errs[i])
			if r := l.of(x.Claim.Key.ID).run(x.Claim.Fence); errs[i] == nil && r != nil {
				r.until = sent.Add(x.Lease)
				l.renewals++
			}
		}
	})
	return errs
}

func (l *ledger) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	sent := time.Now()
	errs := l.Store.Settle(ctx, settlings)
	l.look(func() {
		for i, s := range settlings {
			l.settled(s, sent, errs[i])
		}
	})
	return errs
}

// settled notes how the store answered a settlement. The ledger is locked.
//
// A release may end the lease from when it was sent. A run with an effect is released if its handler was cancelled
// while it waited for the answer to its effect.
func (l *ledger) settled(s dedupstore.Settling, sent time.Time, err error) {
	l.fails("settle", err)
	r := l.of(s.Claim.Key.ID).run(s.Claim.Fence)
	if r == nil {
		return
	}
	if _, released := s.Settlement.(dedupstore.Release); released && sent.Before(r.until) {
		r.until = sent
	}
	if _, finish := s.Settlement.(dedupstore.Finish); !finish {
		return
	}
	switch {
	case err == nil:
		r.end = recorded
	case errors.Is(err, dedupstore.ErrClaimLost):
		r.end = refused
	default:
		r.end = unrecorded
	}
}

// Publish takes dead letters.
func (l *ledger) Publish(_ context.Context, messages ...producer.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		l.of(m.Header.Get(producer.HeaderOriginalID)).deadLetters++
	}
	return nil
}

// does notes the effect of a handler.
func (l *ledger) does(r oncemill.Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.effects++
	account := l.of(r.Key.ID)
	granted := account.run(r.Fence)
	if granted == nil { // a handler without a claim: no explanation will be found for it
		granted = &run{Claim: dedupstore.Claim{Key: r.Key, Fence: r.Fence, Attempt: r.Attempt}}
		account.runs = append(account.runs, granted)
	}
	granted.effect = time.Now()
}

func (l *ledger) acks(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(id).acked = true
}

// look calls a function with the ledger locked.
func (l *ledger) look(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// each calls a function for every run that there was.
func (l *ledger) each(f func(*run)) {
	l.look(func() {
		for _, a := range l.accounts {
			for _, r := range a.runs {
				f(r)
			}
		}
	})
}

// Explanations of an effect after the first of its message.
const (
	lostRecord  = "the store lost its record"
	lostOutcome = "the outcome could not be recorded before the lease ended"
	lostLease   = "the lease ended during the run"
)

// explain says why a run came after another one with an effect; "" if nothing explains it.
func explain(before, r *run) string {
	switch {
	case r.found == "": // the store did not grant it
		return ""
	case before.end == recorded, r.found == dedupstore.Absent, r.Attempt <= before.Attempt:
		return lostRecord
	case r.granted.Before(before.until): // a double claim
		return ""
	case before.end == unrecorded:
		return lostOutcome
	}
	return lostLease
}

// books are what the ledger comes to.
type books struct {
	messages, deliveries, effects, deadLetters int
	lost                                       []string          // IDs without an effect and without a dead letter
	extra                                      map[string]int    // effects after the first of their message, by explanation
	latest                                     map[string]string // of them
	unexplained                                []string
}

// balance closes the ledger.
func (l *ledger) balance(deliveries int) books {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := books{messages: len(l.accounts), deliveries: deliveries, effects: l.effects, extra: map[string]int{},
		latest: map[string]string{}}
	for id, a := range l.accounts {
		b.deadLetters += a.deadLetters
		var before *run
		for _, r := range a.runs {
			if r.effect.IsZero() {
				continue
			}
			if before != nil {
				if why := explain(before, r); why != "" {
					b.latest[why] = fmt.Sprintf("%s: %+v after %+v", id, *r, *before)
					b.extra[why]++
				} else {
					b.unexplained = append(b.unexplained, fmt.Sprintf("%s: %+v after %+v", id, *r, *before))
				}
			}
			before = r
		}
		if !a.acked || before == nil && a.deadLetters == 0 {
			b.lost = append(b.lost, id)
		}
	}
	return b
}

// extras is how many effects there were after the first of their message.
func (b books) extras() int {
	n := len(b.unexplained)
	for _, k := range b.extra {
		n += k
	}
	return n
}

func (b books) String() string {
	var why []string
	for _, k := range slices.Sorted(maps.Keys(b.extra)) {
		why = append(why, fmt.Sprintf("%d because %s", b.extra[k], k))
	}
	return fmt.Sprintf("%d messages in %d deliveries: %d effects, %d dead letters, %d lost; extra: %s, %d unexplained",
		b.messages, b.deliveries, b.effects, b.deadLetters, len(b.lost), cmp.Or(strings.Join(why, ", "), "0"),
		len(b.unexplained))
}

// mustExplain fails the test for each lost message, and for each extra effect that has none of the explanations.
func (b books) mustExplain(t *testing.T, allowed ...string) {
	t.Helper()
	t.Log(b)
	if len(b.lost) > 0 {
		t.Errorf("%d messages are lost, such as %q", len(b.lost), b.lost[0])
	}
	if len(b.unexplained) > 0 {
		t.Errorf("%d extra effects are unexplained, such as %s", len(b.unexplained), b.unexplained[0])
	}
	for why, n := range b.extra {
		if !slices.Contains(allowed, why) {
			t.Errorf("%d extra effects because %s, want none, such as %s", n, why, b.latest[why])
		}
	}
}

// ended is how many runs ended in a way.
func (l *ledger) ended(how end) (n int) {
	l.each(func(r *run) {
		if r.end == how {
			n++
		}
	})
	return n
}

// overtaken is how many of the keys have a run with an effect after the given fence.
func (l *ledger) overtaken(fences map[dedupstore.Key]uint64) (n int) {
	l.look(func() {
		for key, fence := range fences {
			if slices.ContainsFunc(l.of(key.ID).runs, func(r *run) bool { return r.Fence > fence && !r.effect.IsZero() }) {
				n++
			}
		}
	})
	return n
}
