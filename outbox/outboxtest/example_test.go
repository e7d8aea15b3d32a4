package outboxtest_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/outboxtest"
	"github.com/oncemill/oncemill/producer"
)

// The test of an outbox of yours, in a table of its own for each case.
func ExampleRun() {
	testOutbox := func(t *testing.T) {
		outboxtest.Run(t, func(t *testing.T) outboxtest.Subject {
			box := openOutbox(t)
			return outboxtest.Subject{
				Store: box, Concurrent: true, Ordered: true,
				Begin: func(ctx context.Context) (outboxtest.Tx, error) {
					tx, err := box.db.BeginTx(ctx, nil)
					return writerTx{box.in(tx), tx}, err
				},
			}
		})
	}
	_ = testOutbox
}

// writerTx is a transaction of a writer.
type writerTx struct {
	producer.Publisher
	tx *sql.Tx
}

func (w writerTx) Commit(context.Context) error   { return w.tx.Commit() }
func (w writerTx) Rollback(context.Context) error { return w.tx.Rollback() }

// yourOutbox stands for the type under test.
type yourOutbox struct {
	outbox.Store
	db *sql.DB
}

func (yourOutbox) in(*sql.Tx) producer.Publisher { return nil }

func openOutbox(*testing.T) yourOutbox { return yourOutbox{} }
