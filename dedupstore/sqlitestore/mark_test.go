package sqlitestore

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// commitAndStay is a process whose handler commits the run's transaction by itself, and does not return before it is killed.
func commitAndStay(ctx context.Context, s *Store) error {
	guard, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{Lease: 300 * time.Millisecond, MaxAttempts: 1000})
	if err != nil {
		return err
	}
	committed := false
	for !committed { // on a slow machine, the lease may end before that
		_, err = guard.Run(ctx, oncemill.Call{Key: request("1").Key, MaxWait: time.Second}, func(ctx context.Context) (dedupstore.Outcome, error) {
			err := errors.Join(charge(ctx, Tx(ctx), "1"), Tx(ctx).Commit())
			if committed = err == nil; committed {
				<-ctx.Done()
			}
			return dedupstore.Outcome{}, err
		})
		if ctx.Err() != nil {
			return err
		}
	}
	return err
}

// TestInbox_WhatAHandlerCommittedByItselfIsNotMadeAgainByAnother has a handler that commits by itself and does not come to its end:
// its process is killed, or stays, while heartbeats find nothing to do. Another process must not make its effect once more.
func TestInbox_WhatAHandlerCommittedByItselfIsNotMadeAgainByAnother(t *testing.T) {
	t.Parallel()
	for name, killed := range map[string]bool{"killed": true, "slow": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "shared.db")
			db := openAt(t, file)
			s := storeIn(t, db)
			newLedger(t, db)
			cmd, out := command(t, file, "commits", 1)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the other process commits", func() bool { return charges(t, db, "1") == 1 })
			if killed {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
			guard, err := oncemill.NewGuard(s.Inbox(), oncemill.Policy{Lease: time.Minute, MaxAttempts: 1000})
			if err != nil {
				t.Fatal(err)
			}
			call := oncemill.Call{Key: request("1").Key, MaxWait: 20 * time.Second}
			for range 2 {
				res, err := guard.Run(t.Context(), call, func(ctx context.Context) (dedupstore.Outcome, error) {
					return dedupstore.Outcome{}, charge(ctx, Tx(ctx), "1")
				})
				if err != nil || res.Outcome.Kind != dedupstore.Unknown {
					t.Errorf("the message ended as %+v, %v, want an unknown outcome", res.Outcome, err)
				}
			}
			if n := charges(t, db, "1"); n != 1 {
				t.Errorf("%d charges, want one", n)
			}
			if !killed {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
			if out.Len() > 0 {
				t.Errorf("the other process said %q", out)
			}
		})
	}
}
