package outboxtest

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A Subject is an empty outbox to test, and how to write to it.
type Subject struct {
	// Store is the store. Never nil.
	Store outbox.Store

	// Begin begins a transaction of a writer. Never nil. It may be called while another transaction is open only if
	// Concurrent is set.
	Begin func(ctx context.Context) (Tx, error)

	// Concurrent says that several writers may have open transactions while relays work.
	Concurrent bool

	// Ordered says that the store keeps the order of messages with a key: the key is their lane.
	Ordered bool

	// Reopen returns the same outbox as another process has it. Nil: Store.
	Reopen func() outbox.Store

	// Spoil makes the header of a message's row unreadable, as somebody else may. Nil: the case for that is skipped.
	Spoil func(id string) error

	// Far returns the same outbox as another host has it, and the link between that host and the server. Nil: the cases
	// about links are skipped.
	Far func() (outbox.Store, Link)

	// Advance returns after at least d has passed on the store's clock. Nil: the suite waits for d, which suits real
	// servers and RunVirtual.
	Advance func(d time.Duration)
}

// A Tx is a transaction of a writer. After Commit, Rollback does nothing.
type Tx interface {
	producer.Publisher
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// A Link is a network between a store and its server. n counts answers of the server from 1, beginning now, over all
// connections. Both methods return a channel that is closed when the n-th one comes. It does not arrive, and neither
// does what follows on its connection. Other connections work.
type Link interface {
	// Silence is for an answer that is late: the server learns when the client closes the connection.
	Silence(n int) (silent <-chan struct{})

	// Vanish is for a host that vanishes: nothing reaches the server on that connection any more, not even its end.
	Vanish(n int) (silent <-chan struct{})
}

// Run tests a store. It calls open once for each case, in a parallel subtest with its own outbox. open cleans up with
// t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	each(t, func(t *testing.T, c testCase) { c.check(t, open(t)) })
}

// RunVirtual is Run for a store whose clock is this process's time.Now. Each case, with its open, runs in a bubble of
// virtual time (package testing/synctest).
func RunVirtual(t *testing.T, open func(t *testing.T) Subject) {
	each(t, func(t *testing.T, c testCase) {
		synctest.Test(t, func(t *testing.T) { c.check(t, open(t)) })
	})
}

func each(t *testing.T, test func(t *testing.T, c testCase)) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// cases are all cases. Read failures in this order: a store that fails an early case fails many.
var cases = slices.Concat(writeCases, leaseCases, settleCases, concurrencyCases, cleanCases, inspectCases, replayCases,
	orderCases, contextCases, linkCases, relayCases)

type testCase struct {
	name string // area/promise
	why  string // what goes wrong in a store that fails, as one sentence
	test func(k *kit)
}

func (c testCase) check(tb testing.TB, s Subject) {
	tb.Helper()
	if s.Store == nil || s.Begin == nil {
		tb.Fatal("Subject.Store or Subject.Begin is nil")
	}
	if s.Advance == nil {
		s.Advance = func(d time.Duration) { <-time.After(d) }
	}
	defer func() {
		if tb.Failed() {
			tb.Logf("why %s matters: %s", c.name, c.why)
		}
	}()
	c.test(&kit{TB: tb, Subject: s})
}
