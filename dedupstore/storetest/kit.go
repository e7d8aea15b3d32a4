package storetest

import (
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recorder"
)

// Leases and windows are one of these. A long one never ends within a case. A short one is only used where a case
// waits for its end.
const (
	long  = time.Hour
	short = 60 * time.Millisecond
)

// margin is how much longer a case waits than it has to: some stores count in milliseconds, or know their server's
// time only that well.
const margin = 100 * time.Millisecond

// twice is a window that has not ended after short has passed once, but after it has passed twice.
const twice = 2*short + margin

// A kit is what a case works with: the store, and helpers that fail the case.
type kit struct {
	testing.TB
	Subject
	group string // random: the case's keys are its own
}

func newKit(tb testing.TB, s Subject) *kit {
	return &kit{TB: tb, Subject: s, group: "storetest-" + rand.Text()}
}

func (k *kit) key(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "acme", Group: k.group, Handler: "charge", ID: id}
}

// newOwner returns an owner token: 26 letters and digits.
func newOwner() string { return rand.Text() }

// request returns a claim by a new owner, with a long lease and a long retention.
func (k *kit) request(id string) dedupstore.Request {
	return dedupstore.Request{Key: k.key(id), Owner: newOwner(), Lease: long, Retention: long, MaxAttempts: 3}
}

// brief returns a claim by a new owner whose lease is short.
func (k *kit) brief(id string) dedupstore.Request {
	r := k.request(id)
	r.Lease = short
	return r
}

// ask claims and returns whatever the answer is.
func (k *kit) ask(r dedupstore.Request) dedupstore.Answer {
	k.Helper()
	a, err := k.patient(r, moments)
	if err != nil {
		k.Fatalf("claim of %q: %v", r.Key.ID, err)
	}
	return a
}

// patient claims, and again while the answer is that somebody is making or changing the record, and may be for so long.
// A store may say so of another claim, or when a lock took long, as beside a slow disk.
func (k *kit) patient(r dedupstore.Request, most time.Duration) (a dedupstore.Answer, err error) {
	for range 100 {
		a, err = dedupstore.ClaimOne(k.Context(), k.Store, r)
		if err != nil || a.Status != dedupstore.Busy || a.Fence != 0 || a.Wait > most {
			break
		}
		time.Sleep(min(a.Wait, moments))
	}
	return a, err
}

const moments = 10 * time.Millisecond

// claim claims and wants the answer.
func (k *kit) claim(r dedupstore.Request, want dedupstore.Status) dedupstore.Answer {
	k.Helper()
	a := k.ask(r)
	if a.Status != want {
		k.Fatalf("a claim was answered %s (found %s, fence %d, attempt %d, wait %v, outcome %q), want %s",
			a.Status, a.Found, a.Claim.Fence, a.Claim.Attempt, a.Wait, a.Outcome.Kind, want)
	}
	return a
}

// run claims a run by a new owner.
func (k *kit) run(id string) dedupstore.Claim {
	k.Helper()
	return k.claim(k.request(id), dedupstore.AcquiredRun).Claim
}

// expired claims and lets the lease end.
func (k *kit) expired(r dedupstore.Request, want dedupstore.Status) dedupstore.Answer {
	k.Helper()
	a := k.claim(r, want)
	k.pass(r.Lease)
	return a
}

// crashed is a run whose holder died: its lease has ended.
func (k *kit) crashed(id string) dedupstore.Claim {
	k.Helper()
	return k.expired(k.brief(id), dedupstore.AcquiredRun).Claim
}

func (k *kit) settle(c dedupstore.Claim, s dedupstore.Settlement) {
	k.Helper()
	if err := dedupstore.SettleOne(k.Context(), k.Store, c, s); err != nil {
		k.Fatalf("settle with %T: %v", s, err)
	}
}

// refused settles and wants ErrClaimLost.
func (k *kit) refused(c dedupstore.Claim, s dedupstore.Settlement, who string) {
	k.Helper()
	k.lost(dedupstore.SettleOne(k.Context(), k.Store, c, s), "settle with %T by %s", s, who)
}

func (k *kit) extend(c dedupstore.Claim, lease time.Duration) {
	k.Helper()
	if err := k.tryExtend(c, lease); err != nil {
		k.Fatalf("extend: %v", err)
	}
}

// tryExtend extends the lease of a run that has started.
func (k *kit) tryExtend(c dedupstore.Claim, lease time.Duration) error {
	x := dedupstore.Extension{Claim: c, Lease: lease, Started: true}
	return dedupstore.ExtendOne(k.Context(), k.Store, x)
}

// extendUnstarted extends the lease of a run whose handler has not been called.
func (k *kit) extendUnstarted(c dedupstore.Claim, lease time.Duration) {
	k.Helper()
	if err := dedupstore.ExtendOne(k.Context(), k.Store, dedupstore.Extension{Claim: c, Lease: lease}); err != nil {
		k.Fatalf("extend: %v", err)
	}
}

func (k *kit) lost(err error, what string, args ...any) {
	k.Helper()
	if !errors.Is(err, dedupstore.ErrClaimLost) {
		k.Errorf(what+" returned %v, want ErrClaimLost", append(args, err)...)
	}
}

// pass lets d go by on the store's clock, and the margin.
func (k *kit) pass(d time.Duration) { k.Advance(d + margin) }

// finish stores an outcome that produced nothing, or has published what it did.
func finish(o dedupstore.Outcome) dedupstore.Finish {
	return dedupstore.Finish{Outcome: o, Retention: long, Published: true}
}

// finishTo stores an outcome that has something to publish.
func finishTo(o dedupstore.Outcome, produced ...dedupstore.Produced) dedupstore.Finish {
	o.Produced = produced
	return dedupstore.Finish{Outcome: o, Retention: long}
}

func published() dedupstore.Published { return dedupstore.Published{Retention: long} }

func succeeded(result string) dedupstore.Outcome {
	return dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte(result)}
}

func failed(reason string) dedupstore.Outcome {
	return dedupstore.Outcome{Kind: dedupstore.Failed, Reason: reason}
}

var receipt = dedupstore.Produced{
	ID: "receipt-1", Topic: "receipts", Key: "customer-7", Header: map[string]string{"currency": "EUR"},
	Payload: []byte("12.50"),
}

// within runs a part of a case that has to be over within the limit, on a store whose clock cannot be stopped. If it
// fails and took longer, that says nothing, and it gets more time. It uses keys of its own in each try.
func (k *kit) within(limit time.Duration, part func(k *kit, limit time.Duration)) {
	k.Helper()
	for tries := 4; ; tries-- {
		start := time.Now()
		r := recorder.Record(k.TB, func(tb testing.TB) { part(newKit(tb, k.Subject), limit) })
		if r.Failed() && time.Since(start) >= limit && tries > 1 {
			limit *= 4
			continue
		}
		for _, line := range r.Lines() {
			k.Log(line)
		}
		if r.Failed() {
			k.FailNow()
		}
		return
	}
}
