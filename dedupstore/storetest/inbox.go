package storetest

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// An InboxSubject is a transactional store to test, and a table in its database that the cases write to. Fields that
// may be nil are for faults; the cases that need them are skipped without, and say so. Those that are given the context
// of a transaction mean that transaction only: other cases go on beside it.
type InboxSubject struct {
	// Inbox is the store. Never nil. What it does without transactions is tested by Run.
	Inbox dedupstore.Transactor

	// Effect writes one more row of a name, in the transaction that the context carries. Never nil.
	Effect func(ctx context.Context, name string) error

	// Effects counts the rows of a name that are committed, outside of any transaction. It waits for none. Never nil.
	Effects func(ctx context.Context, name string) (int, error)

	// Advance is as in Subject.
	Advance func(d time.Duration)

	// InUse counts the connections, or transactions, that are in use. Only given if nobody else uses them.
	InUse func() int

	// Conflict makes the database refuse the transaction because of others, as by a serialization failure, and returns
	// the error of the statement that met it.
	Conflict func(ctx context.Context) error

	// Abort makes a statement fail in a way after which the transaction cannot be committed. Nil also if no failed
	// statement does that to a transaction.
	Abort func(ctx context.Context)

	// LoseCommit makes the connection fail at the commit of the transaction: after it was applied, or before.
	LoseCommit func(ctx context.Context, applied bool)

	// HideRecord makes the store unable to read a claim's record from now on, as by a database that is away, until it
	// is called again with false. It is used with LoseCommit, which is needed for it, and of which nothing may remain
	// then if the transaction does not come to its commit.
	HideRecord func(c dedupstore.Claim, hidden bool)

	// Vanish takes a lock in the transaction, and lets its connection fall silent without an end, as that of a host
	// that has lost its power. It returns nil when another transaction has got the lock, or an error when ctx ends.
	Vanish func(ctx context.Context) error

	// VanishWithin is how long the locks of such a host may last at most, with a short lease.
	VanishWithin time.Duration
}

// RunInbox tests the transactional form of a store, in the way in which Run tests the leased one; give Run the same
// store, too. Cases wait for the end of a lease within a transaction, and claim others' keys beside open transactions.
// They hold no transaction open until another one is: one at a time is enough.
func RunInbox(t *testing.T, open func(t *testing.T) InboxSubject) {
	eachInbox(t, func(t *testing.T, c inboxCase) { c.check(t, open(t)) })
}

// RunInboxVirtual is to RunInbox what RunVirtual is to Run.
func RunInboxVirtual(t *testing.T, open func(t *testing.T) InboxSubject) {
	eachInbox(t, func(t *testing.T, c inboxCase) {
		synctest.Test(t, func(t *testing.T) { c.check(t, open(t)) })
	})
}

func eachInbox(t *testing.T, test func(t *testing.T, c inboxCase)) {
	for _, c := range inboxCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

var inboxCases = slices.Concat(inboxCommitCases, inboxErrorCases, inboxOwnerCases, inboxTwinCases, inboxCrowdCases,
	inboxFaultCases, inboxKeepCases, inboxLostCases, inboxVanishCases, inboxManyCases, inboxFirstCases)

type inboxCase struct {
	name  string // inbox/promise
	why   string // what goes wrong in a store that fails, as one sentence
	test  func(k *inboxKit)
	needs func(s InboxSubject) bool // nil: nothing
}

func (c inboxCase) check(tb testing.TB, s InboxSubject) {
	tb.Helper()
	if s.Inbox == nil || s.Effect == nil || s.Effects == nil {
		tb.Fatal("InboxSubject.Inbox, Effect or Effects is nil")
	}
	if c.needs != nil && !c.needs(s) {
		tb.Skip("the subject cannot make this fault: see InboxSubject")
	}
	leased := testCase{name: c.name, why: c.why, test: func(k *kit) { c.test(&inboxKit{k, s}) }}
	leased.check(tb, Subject{Store: s.Inbox, Advance: s.Advance})
}

// An inboxKit is what a case works with.
type inboxKit struct {
	*kit
	in InboxSubject
}

type work = func(ctx context.Context) (dedupstore.Settlement, error)

// name is the name of a key's effects.
func (k *inboxKit) name(key dedupstore.Key) string { return k.group + "/" + key.ID }

// charge is work that writes an effect and succeeds.
func (k *inboxKit) charge(c dedupstore.Claim) work {
	return func(ctx context.Context) (dedupstore.Settlement, error) {
		if err := k.in.Effect(ctx, k.name(c.Key)); err != nil {
			return nil, err
		}
		return finish(succeeded("paid")), nil
	}
}

// effects wants a key's committed effects to be as many.
func (k *inboxKit) effects(c dedupstore.Claim, want int) {
	k.Helper()
	got, err := k.in.Effects(k.Context(), k.name(c.Key))
	if err != nil {
		k.Fatalf("count the effects of %q: %v", c.Key.ID, err)
	}
	if got != want {
		k.Errorf("%d effects of %q are committed, want %d", got, c.Key.ID, want)
	}
}

// commits wants a transaction to be committed.
func (k *inboxKit) commits(c dedupstore.Claim, w work) {
	k.Helper()
	if err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c, w); err != nil {
		k.Fatalf("the transaction returned %v, want nil", err)
	}
}

// losesClaim wants a transaction to be refused because the claim does not hold, and to leave nothing.
func (k *inboxKit) losesClaim(c dedupstore.Claim, who string) {
	k.Helper()
	k.lost(dedupstore.InTxOne(k.Context(), k.in.Inbox, c, k.charge(c)), "the transaction of %s", who)
}

// untouched wants nothing to be committed, and the claim to hold as it did.
func (k *inboxKit) untouched(r dedupstore.Request, c dedupstore.Claim) {
	k.Helper()
	k.effects(c, 0)
	k.found(k.claim(k.request(c.Key.ID), dedupstore.Busy), dedupstore.Running)
	if again := k.claim(r, dedupstore.AcquiredRun).Claim; again != c {
		k.Errorf("after the rollback the claim is %+v, want %+v", again, c)
	}
	k.extend(c, long)
}

// within is as for stores.
func (k *inboxKit) within(limit time.Duration, part func(k *inboxKit, limit time.Duration)) {
	k.Helper()
	k.kit.within(limit, func(inner *kit, limit time.Duration) { part(&inboxKit{inner, k.in}, limit) })
}
