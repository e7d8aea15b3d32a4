package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// odd errors must come back as they are: some look like the store's own.
var workErrors = map[string]error{
	"plain":      errors.New("card refused"),
	"wrapping":   fmt.Errorf("charge: %w", context.DeadlineExceeded),
	"cancelled":  context.Canceled,
	"lost":       fmt.Errorf("a claim of another key: %w", dedupstore.ErrClaimLost),
	"unsettled":  &dedupstore.InvalidError{Field: "Refund.Amount", Problem: "is negative"},
	"comparable": valueError("a value, not a pointer"),
}

type valueError string

func (e valueError) Error() string { return string(e) }

var inboxErrorCases = []inboxCase{
	{
		name: "inbox/error-rolls-back",
		why:  "a handler that fails has had no effect, and whether it may run again is not for the store to say",
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			_ = dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					s, err := k.charge(c)(ctx)
					return s, errors.Join(err, errors.New("card refused"))
				})
			k.untouched(r, c)
			k.settle(c, dedupstore.Release{})
			next := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.attempt(next, 2)
			k.commits(next.Claim, k.charge(c))
			k.effects(c, 1)
		},
	},
	{
		name: "inbox/error-is-returned-itself",
		why:  "what a handler's error is decides whether it runs again",
		test: func(k *inboxKit) {
			for id, want := range workErrors {
				r := k.request(id)
				c := k.claim(r, dedupstore.AcquiredRun).Claim
				calls := 0
				err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
					func(ctx context.Context) (dedupstore.Settlement, error) {
						calls++
						return nil, want
					})
				if err != want { //nolint:errorlint // itself
					k.Errorf("work returned %#v, the transaction %#v", want, err)
				}
				if calls != 1 {
					k.Errorf("work that failed by itself was called %d times, want once", calls)
				}
				k.untouched(r, c)
			}
		},
	},
	{
		name: "inbox/failure-is-settled-afterwards",
		why:  "a permanent failure is an outcome, although its effects are rolled back",
		test: func(k *inboxKit) {
			c := k.run("1")
			boom := errors.New("card refused")
			_ = dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					_, err := k.charge(c)(ctx)
					return nil, errors.Join(err, boom)
				})
			o := dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "card refused", Result: []byte("no")}
			k.settle(c, finish(o))
			k.sameOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, o)
			k.effects(c, 0)
		},
	},
	{
		name: "inbox/panic-rolls-back",
		why:  "a handler that panics must not leave a transaction open, nor its connection unusable",
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			for range 30 { // more than a pool of connections has
				k.soon("a transaction that panics", func(ctx context.Context) error {
					return k.panics(ctx, c)
				})
			}
			k.untouched(r, c)
			k.soon("a transaction after panics",
				func(ctx context.Context) error { return dedupstore.InTxOne(ctx, k.in.Inbox, c, k.charge(c)) })
			k.effects(c, 1)
			if k.in.InUse != nil {
				k.free()
			}
		},
	},
	{
		name: "inbox/ended-context-begins-nothing",
		why:  "at shutdown no handler is to be started any more",
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			ctx, cancel := context.WithCancel(k.Context())
			cancel()
			err := dedupstore.InTxOne(ctx, k.in.Inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				k.Error("work was called")
				return k.charge(c)(ctx)
			})
			if !errors.Is(err, context.Canceled) {
				k.Errorf("the transaction returned %v, want %v", err, context.Canceled)
			}
			k.untouched(r, c)
		},
	},
	{
		name: "inbox/context-that-ends-rolls-back",
		why:  "a handler that is cancelled cannot write any more, and what it has written goes with its error",
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			ctx, cancel := context.WithCancel(k.Context())
			defer cancel()
			var work error
			err := dedupstore.InTxOne(ctx, k.in.Inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				if err := k.in.Effect(ctx, k.name(c.Key)); err != nil {
					k.Errorf("a write before the end of the context: %v", err)
				}
				cancel()
				if ctx.Err() == nil {
					k.Error("work's context did not end with the caller's")
				}
				if work = k.in.Effect(ctx, k.name(c.Key)); work == nil {
					k.Error("a write after the end of the context returned nil")
					work = ctx.Err()
				}
				return nil, work
			})
			if err != work { //nolint:errorlint // itself
				k.Errorf("work returned %v, the transaction %v", work, err)
			}
			k.untouched(r, c)
		},
	},
	{
		name: "inbox/context-that-ended-decides-once",
		why: "shutdown may come at any moment of a handler that does not look: effect and outcome are there, or " +
			"neither",
		test: func(k *inboxKit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			ctx, cancel := context.WithCancel(k.Context())
			defer cancel()
			err := dedupstore.InTxOne(ctx, k.in.Inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				s, err := k.charge(c)(ctx)
				cancel()
				<-time.After(20 * time.Millisecond) // clients notice it in goroutines of their own
				return s, err
			})
			if err != nil {
				k.untouched(r, c)
				return
			}
			k.effects(c, 1)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "inbox/claims-are-validated",
		why:  "a claim that nobody granted must not reach the database",
		test: func(k *inboxKit) {
			good := k.run("1")
			for field, spoil := range map[string]func(c *dedupstore.Claim){
				"Key.Tenant":  func(c *dedupstore.Claim) { c.Key.Tenant = "" },
				"Claim.Owner": func(c *dedupstore.Claim) { c.Owner = "" },
				"Claim.Fence": func(c *dedupstore.Claim) { c.Fence = 0 },
				"Claim.Lease": func(c *dedupstore.Claim) { c.Lease = 0 },
			} {
				c := good
				spoil(&c)
				err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
					func(ctx context.Context) (dedupstore.Settlement, error) {
						k.Errorf("%s: work was called", field)
						return k.charge(c)(ctx)
					})
				if invalid, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || invalid.Field != field {
					k.Errorf("the transaction returned %v, want an InvalidError of %s", err, field)
				}
			}
			k.effects(good, 0)
		},
	},
}

// panics begins a transaction whose work panics, and wants the panic to go on when the transaction is over.
func (k *inboxKit) panics(ctx context.Context, c dedupstore.Claim) (err error) {
	defer func() {
		if v := recover(); v != "on purpose" {
			err = fmt.Errorf("work panicked, what could be recovered is %v", v)
		}
	}()
	return dedupstore.InTxOne(ctx, k.in.Inbox, c, func(ctx context.Context) (dedupstore.Settlement, error) {
		if _, err := k.charge(c)(ctx); err != nil {
			return nil, err
		}
		panic("on purpose")
	})
}

// free wants no connection to stay in use.
func (k *inboxKit) free() {
	k.Helper()
	n := 0
	for start := time.Now(); time.Since(start) < waitLimit; <-time.After(time.Millisecond) {
		if n = k.in.InUse(); n == 0 {
			return
		}
	}
	k.Errorf("%d connections are still in use", n)
}
