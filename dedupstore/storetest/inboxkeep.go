package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// removal is how long a server may take to remove what has expired, and to show what lay below.
const removal = 5 * time.Second

var inboxKeepCases = []inboxCase{
	{
		name: "inbox/outcome-is-kept-for-its-window",
		why: "an outcome that is forgotten early lets a duplicate have its effect again, one that stays fills the " +
			"database",
		test: func(k *inboxKit) {
			k.within(40*short, func(k *inboxKit, window time.Duration) {
				c := k.run("1")
				k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
					return dedupstore.Finish{Outcome: succeeded("paid"), Retention: window},
						k.in.Effect(ctx, k.name(c.Key))
				})
				k.pass(window / 2)
				k.claim(k.request("1"), dedupstore.Done)
				k.pass(window / 2)
				k.found(k.claim(k.request("1"), dedupstore.AcquiredRun), dedupstore.Absent)
			})
		},
	},
	{
		name: "inbox/forgotten-outcome-leaves-nothing",
		why:  "the claim before an outcome that is forgotten comes back, as a run that nobody makes",
		test: func(k *inboxKit) {
			c := k.run("1")
			k.commits(c, func(ctx context.Context) (dedupstore.Settlement, error) {
				return dedupstore.Finish{Outcome: succeeded("paid"), Retention: short}, k.in.Effect(ctx, k.name(c.Key))
			})
			k.pass(short + removal)
			k.found(k.claim(k.request("1"), dedupstore.AcquiredRun), dedupstore.Absent)
		},
	},
	{
		name: "inbox/outcome-is-kept-whole",
		why:  "duplicates get what the run ended in, whatever that was",
		test: func(k *inboxKit) {
			for id, f := range map[string]dedupstore.Finish{
				"failed": finish(dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true, Reason: "declined",
					Result: []byte("no"), Truncated: true}),
				"unknown": finish(dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: "timeout"}),
				"truncated": finish(dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("pa"),
					Truncated: true}),
				"published": {
					Outcome:   dedupstore.Outcome{Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{receipt}},
					Retention: long, Published: true,
				},
			} {
				k.commits(k.run(id), func(context.Context) (dedupstore.Settlement, error) { return f, nil })
				k.keptOutcome(k.claim(k.request(id), dedupstore.Done).Outcome, f.Outcome)
			}
		},
	},
	{
		name: "inbox/errors-free-the-connection",
		why:  "handlers fail all day: a connection that each of them takes along is soon the last",
		test: func(k *inboxKit) {
			c := k.run("1")
			boom := errors.New("card refused")
			for range 30 { // more than a pool of connections has
				k.soon("a transaction that fails", func(ctx context.Context) error {
					err := dedupstore.InTxOne(ctx, k.in.Inbox, c,
						func(context.Context) (dedupstore.Settlement, error) { return nil, boom })
					if err == boom { //nolint:errorlint // itself
						return nil
					}
					return errors.Join(errors.New("it did not return the work's error"), err)
				})
			}
			k.freeAgain("1", c)
		},
	},
	{
		name: "inbox/lost-claims-free-the-connection",
		why:  "zombies come in crowds, after an outage: a connection that each of them takes along is soon the last",
		test: func(k *inboxKit) {
			zombie := k.crashed("1")
			c := k.claim(k.request("1"), dedupstore.AcquiredRun).Claim
			for range 30 {
				k.soon("the transaction of a zombie", func(ctx context.Context) error {
					err := dedupstore.InTxOne(ctx, k.in.Inbox, zombie, k.charge(zombie))
					if errors.Is(err, dedupstore.ErrClaimLost) {
						return nil
					}
					return errors.Join(errors.New("it did not return ErrClaimLost"), err)
				})
			}
			k.freeAgain("1", c)
		},
	},
}

// freeAgain wants a transaction to find a connection, and none to be left in use.
func (k *inboxKit) freeAgain(id string, c dedupstore.Claim) {
	k.Helper()
	k.soon("a transaction after them", func(ctx context.Context) error { return dedupstore.InTxOne(ctx, k.in.Inbox, c, k.charge(c)) })
	k.effects(c, 1)
	k.claim(k.request(id), dedupstore.Done)
	if k.in.InUse != nil {
		k.free()
	}
}
