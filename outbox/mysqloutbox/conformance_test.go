package mysqloutbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/outbox/outboxtest"
	"github.com/oncemill/oncemill/producer"
)

func TestOutbox_Conforms(t *testing.T) {
	t.Parallel()
	conforms(t, mysqloutbox.Config{})
}

func TestOutbox_ConformsWhenItKeepsOrder(t *testing.T) {
	t.Parallel()
	conforms(t, mysqloutbox.Config{Ordered: true})
}

// conforms gives each case tables of its own, in one database. Hosts vanish in a proof only: the server takes its time.
func conforms(t *testing.T, cfg mysqloutbox.Config) {
	t.Helper()
	server := mysqltest.Shared(t)
	database := server.NewDatabase(t)
	db := database.Open(t)
	db.SetMaxIdleConns(16)
	var tables atomic.Int64
	t.Run("suite", func(t *testing.T) { // which ends when its cases have, before the pool is closed
		outboxtest.Run(t, func(t *testing.T) outboxtest.Subject {
			own := cfg
			own.Table = fmt.Sprintf("outbox_%d", tables.Add(1))
			box := boxIn(t, db, own)
			return outboxtest.Subject{
				Store: box, Concurrent: true, Ordered: cfg.Ordered,
				Begin: func(ctx context.Context) (outboxtest.Tx, error) {
					tx, err := db.BeginTx(ctx, nil)
					return writerTx{box.InSQL(tx), tx}, err
				},
				Far: func() (outbox.Store, outboxtest.Link) {
					link := relaytest.StartLink(t, server.Addr())
					far := database.Open(t, func(c *mysql.Config) { c.Addr = link.Addr })
					return unmigrated(t, far, own), proofLink{t, link}
				},
				Reopen: func() outbox.Store { return unmigrated(t, db, own) },
				Spoil: func(id string) error {
					_, err := db.ExecContext(t.Context(), `UPDATE `+own.Table+` SET header = '[1]' WHERE id = ?`, id)
					return err
				},
			}
		})
	})
}

// A proofLink is one whose host vanishes in a proof only.
type proofLink struct {
	t *testing.T
	*relaytest.Link
}

func (l proofLink) Vanish(n int) <-chan struct{} {
	if full(1, 0) == 0 {
		l.t.Skip("skipped: ONCEMILL_PROOF=1 is not set, and the server waits 20 s for a vanished host, several times")
	}
	return l.Link.Vanish(n)
}

type writerTx struct {
	producer.Publisher
	tx *sql.Tx
}

func (w writerTx) Commit(context.Context) error { return w.tx.Commit() }
func (w writerTx) Rollback(context.Context) error {
	if err := w.tx.Rollback(); err != sql.ErrTxDone { //nolint:errorlint // it is not wrapped
		return err
	}
	return nil
}
