package pgstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Two claims of a key are in one call. Somebody has the key's lock when the first looks, and rolls back before the
// second does: only the second makes the record, and has the run.
func TestClaim_OnlyWhoMadeTheRecordHasTheRun(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]time.Duration{"one statement": long, "two statements": long + time.Second} {
		direct := newPool(t)
		newStore(t, direct, Config{})
		mustExec(t, direct, `CREATE SEQUENCE tries`)
		mustExec(t, direct, `CREATE FUNCTION pg_try_advisory_xact_lock(k bigint) RETURNS boolean LANGUAGE sql VOLATILE AS
			$$ SELECT nextval('tries') > 1 AND pg_catalog.pg_try_advisory_xact_lock(k) $$`)
		pool := poolIn(t, direct.Config().ConnConfig.RuntimeParams["search_path"]+", pg_catalog")
		first, second := request("1"), request("1")
		first.Lease, second.Lease = long, lease
		results := unmigrated(t, pool, Config{}).Claim(t.Context(), []dedupstore.Request{first, second})
		runs := 0
		for _, r := range results {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			if r.Answer.Status == dedupstore.AcquiredRun {
				runs++
			}
		}
		if runs != 1 {
			t.Errorf("%s: %d of two claims of a key have the run, want 1", name, runs)
		}
	}
}

// A row that nobody can read, as one that an operator has written by hand, is its own claim's error.
func TestClaim_AnUnreadableRowFailsItsOwnClaimOnly(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "poison")
	mustExec(t, pool, `UPDATE oncemill_dedup SET expires_at = 'infinity' WHERE key LIKE '%poison'`)
	s.known.Store(true)
	results := s.Claim(t.Context(), []dedupstore.Request{request("poison"), request("good")})
	if results[0].Err == nil || results[1].Err != nil || results[1].Answer.Status != dedupstore.AcquiredRun {
		t.Errorf("the claims were answered %+v", results)
	}
}

func TestClaim_AnExpiredRecordOfAnotherVersionCountsAsNone(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for id, set := range map[string]string{
		"state": `state = 'odd'`, "kind": `state = 'done', kind = 'odd'`, "stubs": `stubs = '\x02'`,
	} {
		runOf(t, s, id)
		mustExec(t, pool,
			`UPDATE oncemill_dedup SET expires_at = now() - interval '1 s', `+set+` WHERE key LIKE '%:`+id+`'`)
		claim(t, s, request(id), dedupstore.AcquiredRun)
	}
}

// A settlement that changes nothing does not outlive its context.
func TestSettle_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	direct := newPool(t)
	s := newStore(t, direct, Config{})
	pool, p := behind(t, direct)
	far := unmigrated(t, pool, Config{})
	c := runOf(t, s, "1")
	f := dedupstore.Finish{
		Retention: long, Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Reason: "with a reason"},
	}
	if err := dedupstore.SettleOne(t.Context(), far, c, f); err != nil {
		t.Fatal(err)
	}
	p.inject(func(_ int, request string) fault {
		if strings.Contains(request, "rollback") || strings.Contains(request, "commit") {
			return lateRequest
		}
		return faithful
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_ = dedupstore.SettleOne(ctx, far, c, f)
	if took := time.Since(start); took > sqlstore.EndTimeout-time.Second {
		t.Errorf("it took %v, and its context 200ms", took)
	}
}

// A run whose record says that it has failed is not a success.
func TestInbox_TakesNoFailureForItsSuccess(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	c := runOf(t, s.Inbox(), "1")
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		f := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Retention: long}
		if err := dedupstore.SettleOne(t.Context(), s, c, f); err != nil {
			t.Error(err)
		}
		return success, effect(ctx, c)
	})
	if !errors.Is(err, dedupstore.ErrClaimLost) || effects(t, pool, "1") != 0 {
		t.Errorf("the run returned %v, and left %d effects; want ErrClaimLost and none", err, effects(t, pool, "1"))
	}
}
