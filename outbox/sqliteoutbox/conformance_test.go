package sqliteoutbox_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/oncemill/oncemill/outbox/outboxtest"
	"github.com/oncemill/oncemill/producer"
)

func TestOutbox_Conforms(t *testing.T) {
	t.Parallel()
	outboxtest.Run(t, func(t *testing.T) outboxtest.Subject {
		box, db := newBox(t)
		return outboxtest.Subject{Store: box, Begin: func(ctx context.Context) (outboxtest.Tx, error) {
			tx, err := db.BeginTx(ctx, nil)
			return writerTx{box.InSQL(tx), tx}, err
		}}
	})
}

type writerTx struct {
	producer.Publisher
	tx *sql.Tx
}

func (w writerTx) Commit(context.Context) error   { return w.tx.Commit() }
func (w writerTx) Rollback(context.Context) error { return w.tx.Rollback() }
