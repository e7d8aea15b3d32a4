package storetest

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Subject is a store to test, and what the suite may do with it.
type Subject struct {
	// Store is the store. Never nil.
	Store dedupstore.Store

	// Advance makes at least d pass on the store's clock, and returns then. It is called by one goroutine at a time
	// in a case, but by several cases at once. Nil: the suite waits for d, which suits real servers, and stores that
	// are tested by RunVirtual.
	Advance func(d time.Duration)

	// TTL says how much longer the store keeps the record of a key, and false if there is no record or it would stay
	// for ever. Nil: the store cannot tell; then only what is forgotten, and when, is tested.
	TTL func(key dedupstore.Key) (time.Duration, bool)

	// MaxBytes is how large a record may be, with its key. The store refuses larger ones with ErrTooLarge, and the
	// claim stays. Zero: larger than any that the suite stores.
	MaxBytes int

	// For RunStuck. Lock stands for a process that stands still in a transaction in which it changes the record of a
	// key, or makes it if there is none. Release ends that transaction, and the record is as it was; it may be called
	// again. Nil: no operation waits for another's transaction, or each waits for all of them.
	Lock func(key dedupstore.Key) (release func())

	// For RunStuck. Stall keeps one connection of the store waiting, that which commits next, until over is called,
	// which may be called again. If the commit arrives, its answer does not; else the server hears nothing more of the
	// connection, not even its end. Nil: the store has no transactions of several round trips.
	Stall func(arrives bool) (over func())
}

// Run tests a store. It calls open once for each case, in a subtest of its own; the subtests run in parallel. All of
// them may get the same store, unless its clock is moved by Advance: a clock is moved for one case only. What open
// needs closed it closes with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	each(t, cases, func(t *testing.T, c testCase) { c.check(t, open(t)) })
}

// RunVirtual tests a store whose clock is time.Now of this process: as Run does, but each case, and open with it, runs
// in a bubble of virtual time (package testing/synctest). What open starts has to end with the test; the store cannot
// use the network.
func RunVirtual(t *testing.T, open func(t *testing.T) Subject) {
	each(t, cases, func(t *testing.T, c testCase) {
		synctest.Test(t, func(t *testing.T) { c.check(t, open(t)) })
	})
}

// RunStuck tests a store on a database with transactions beside processes that stand still: a lock, or an answer that
// does not come, holds up nothing but its own record. It needs Subject.Lock, Subject.Stall or both, and otherwise does
// as Run does. Each case stalls its store, so none shares one.
func RunStuck(t *testing.T, open func(t *testing.T) Subject) {
	each(t, stuckCases, func(t *testing.T, c testCase) { c.check(t, open(t)) })
}

func each(t *testing.T, cases []testCase, test func(t *testing.T, c testCase)) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// cases are all cases, in the order in which to read their failures: a store that fails an early one fails many.
var cases = slices.Concat(
	claimCases, finishCases, releaseCases, extendCases, expiryCases, windowCases, exhaustionCases, publishCases,
	rerunCases, crashCases,
	mismatchCases, keyCases, concurrencyCases, contextCases, validationCases, limitCases,
	batchCases, evidenceCases, inspectCases, scopeCases,
)

type testCase struct {
	name  string // area/promise
	why   string // what goes wrong in a store that fails, as one sentence
	test  func(k *kit)
	needs func(s Subject) bool // nil: nothing
}

func (c testCase) check(tb testing.TB, s Subject) {
	tb.Helper()
	if s.Store == nil {
		tb.Fatal("Subject.Store is nil")
	}
	if c.needs != nil && !c.needs(s) {
		tb.Skip("the subject cannot make this fault: see Subject")
	}
	if s.Advance == nil {
		s.Advance = func(d time.Duration) { <-time.After(d) }
	}
	defer func() {
		if tb.Failed() {
			tb.Logf("why %s matters: %s", c.name, c.why)
		}
	}()
	c.test(newKit(tb, s))
}
