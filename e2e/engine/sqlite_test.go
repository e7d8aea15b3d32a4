package engine_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// A store that answers with the cause of the context, as those in SQLite do, says nothing of the claim.
func TestGuard_ClaimOfAnotherThatIsLostIsNotThisOneWhateverTheStoreAnswers(t *testing.T) {
	t.Parallel()
	db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "claims.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	records, err := sqlitestore.New(db, sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := records.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, guard := range map[string]func(end func()) *oncemill.Guard{
		"before it is marked as started": func(end func()) *oncemill.Guard {
			return newGuard(t, endsBeforeExtend{records, end}, oncemill.Irreversible())
		},
		"before its transaction begins": func(end func()) *oncemill.Guard {
			return newGuard(t, endsBeforeInTx{records.Inbox(), end}, oncemill.Policy{})
		},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		g := guard(func() { cancel(oncemill.ErrClaimLost) })
		h := counter{}
		if _, err := g.Run(ctx, call(name), h.run); !errors.Is(err, oncemill.ErrClaimLost) {
			t.Errorf("%s: %v", name, err)
		}
		h.want(t, 0)
		answer, err := dedupstore.ClaimOne(t.Context(), records, dedupstore.Request{
			Key: call(name).Key, Owner: ids.Token(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 3,
		})
		if err != nil || answer.Status != dedupstore.AcquiredRun || answer.Claim.Attempt != 1 {
			t.Errorf("%s: then %+v, %v; want attempt 1 at once", name, answer, err)
		}
	}
}

type endsBeforeExtend struct {
	dedupstore.Store
	end func()
}

func (s endsBeforeExtend) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, s.extendOne)
}

func (s endsBeforeExtend) extendOne(ctx context.Context, x dedupstore.Extension) error {
	s.end()
	return dedupstore.ExtendOne(ctx, s.Store, x)
}

type endsBeforeInTx struct {
	dedupstore.Transactor
	end func()
}

func (s endsBeforeInTx) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	s.end()
	return s.Transactor.InTx(ctx, runs, work)
}
