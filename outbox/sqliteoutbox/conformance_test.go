package sqliteoutbox_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/outboxtest"
	"github.com/oncemill/oncemill/producer"
)

func TestOutbox_Conforms(t *testing.T) {
	t.Parallel()
	outboxtest.Run(t, func(t *testing.T) outboxtest.Subject {
		path := filepath.Join(t.TempDir(), "shop.db")
		db := open(t, path)
		box := boxIn(t, db)
		return outboxtest.Subject{
			Store: box,
			Begin: func(ctx context.Context) (outboxtest.Tx, error) {
				tx, err := db.BeginTx(ctx, nil)
				return writerTx{box.InSQL(tx), tx}, err
			},
			Reopen: func() outbox.Store { return boxIn(t, open(t, path)) },
			Spoil: func(id string) error {
				_, err := db.ExecContext(t.Context(), `UPDATE oncemill_outbox SET header = '[1]' WHERE id = ?`, id)
				return err
			},
		}
	})
}

type writerTx struct {
	producer.Publisher
	tx *sql.Tx
}

func (w writerTx) Commit(context.Context) error   { return w.tx.Commit() }
func (w writerTx) Rollback(context.Context) error { return w.tx.Rollback() }
