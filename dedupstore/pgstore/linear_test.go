package pgstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/lineartest"
)

// A losing proxy drops 3 % of the answers, and there may be several to an operation. It delays some requests, and
// freezes some so long that their clients have gone.
type losing struct {
	*proxy
	dropped, delayed atomic.Int64
}

func (l *losing) Dropped() int { return int(l.dropped.Load()) }
func (l *losing) Delayed() int { return int(l.delayed.Load()) }

func (l *losing) lose(seed uint64) {
	rnd := lineartest.Rand(seed)
	l.inject(func(int, string) fault {
		switch n := rnd.IntN(200); {
		case n < 1:
			lasts(50*time.Millisecond + time.Duration(rnd.IntN(50))*time.Millisecond)
		case n < 7:
			l.dropped.Add(1)
			return cutAfter
		case n < 20:
			l.delayed.Add(1)
			lasts(time.Duration(rnd.IntN(3000)) * time.Microsecond)
		}
		return faithful
	})
}

// A spoken store leaves out what the model does not know. A claim that meets a lock is Busy without a fence. A Finish
// of another kind than the owner's first, which may have got no answer, is lost: see sqlstore.Settle.
type spoken struct {
	dedupstore.Store
	kinds *sync.Map // of Finishes that were sent, by ownerKind
}

type ownerKind struct {
	owner string
	kind  dedupstore.Kind
}

var errUnheard = errors.New("not for the model")

func (s spoken) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := s.Store.Claim(ctx, requests)
	for i, r := range results {
		if r.Answer.Status == dedupstore.Busy && r.Answer.Fence == 0 {
			results[i] = dedupstore.ClaimResult{Err: errUnheard}
		}
	}
	return results
}

func (s spoken) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	var others []ownerKind // the other kind of Finish, for each settling
	for _, x := range settlings {
		var other ownerKind
		if f, is := x.Settlement.(dedupstore.Finish); is {
			s.kinds.Store(ownerKind{x.Claim.Owner, f.Outcome.Kind}, true)
			other = ownerKind{x.Claim.Owner, dedupstore.Failed}
			if f.Outcome.Kind == dedupstore.Failed {
				other.kind = dedupstore.Succeeded
			}
		}
		others = append(others, other)
	}
	errs := s.Store.Settle(ctx, settlings)
	for i, err := range errs {
		if _, sent := s.kinds.Load(others[i]); sent && errors.Is(err, dedupstore.ErrClaimLost) {
			errs[i] = errUnheard
		}
	}
	return errs
}

// TestLinearizable_WithLostAndDelayedReplies runs 200 histories of 200 operations.
func TestLinearizable_WithLostAndDelayedReplies(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
	l, history := histories(t, func(*Store) {})
	lineartest.Linearizable(t, 200, l, history)
}

// histories makes them of stores in one database. Change may break the stores.
func histories(t *testing.T, change func(*Store)) (*losing, func(seed uint64) lineartest.History) {
	t.Helper()
	direct := newPool(t)
	newStore(t, direct, Config{})
	var l losing
	var kinds sync.Map
	crowd := lineartest.Crowd{Network: func(err error) bool {
		_, record := errors.AsType[*dedupstore.RecordError](err)
		return !record && (codeOf(err) == "" || conflicts(err))
	}}
	pool, p := behind(t, direct)
	l.proxy = p
	for range lineartest.Workers {
		s := unmigrated(t, pool, Config{})
		change(s)
		crowd.Stores = append(crowd.Stores,
			lineartest.Impatient{Store: spoken{s, &kinds}, Timeout: 60 * time.Millisecond})
	}
	return &l, func(seed uint64) lineartest.History {
		l.lose(seed)
		defer l.inject(nil)
		return crowd.History(t, seed)
	}
}

// A checker that cannot fail proves nothing: stores that break one rule each are found out.
func TestLinearizable_BrokenStoresAreFoundOut(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
	for name, change := range map[string]func(*Store){
		"records are changed without a lock": func(s *Store) {
			s.sql.lock = strings.ReplaceAll(s.sql.lock, "FOR NO KEY UPDATE SKIP LOCKED", "")
		},
		"a plain success compares no fence": func(s *Store) {
			s.sql.settle = strings.ReplaceAll(s.sql.settle, "x.owner = u.owner AND x.fence = u.fence", "u.fence > 0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, history := histories(t, change)
			lineartest.FoundOut(t, 200, history)
		})
	}
}
