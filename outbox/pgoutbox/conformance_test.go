package pgoutbox_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/outboxtest"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

func TestOutbox_Conforms(t *testing.T) {
	t.Parallel()
	conforms(t, pgoutbox.Config{})
}

func TestOutbox_ConformsWhenItKeepsOrder(t *testing.T) {
	t.Parallel()
	conforms(t, pgoutbox.Config{Ordered: true})
}

func TestOutbox_ConformsBehindPgBouncer(t *testing.T) {
	t.Parallel()
	conformsOn(t, postgrestest.PgBouncerPool(t, postgrestest.Shared(t).NewDatabase(t).DSN()), pgoutbox.Config{Ordered: true})
}

func conforms(t *testing.T, cfg pgoutbox.Config) {
	t.Helper()
	conformsOn(t, newPool(t), cfg)
}

// conformsOn gives each case tables of its own, in one schema.
func conformsOn(t *testing.T, pool *pgxpool.Pool, cfg pgoutbox.Config) {
	t.Helper()
	var tables atomic.Int64
	t.Run("suite", func(t *testing.T) { // which ends when its cases have, before the pool is closed
		outboxtest.Run(t, func(t *testing.T) outboxtest.Subject {
			own := cfg
			own.Table = fmt.Sprintf("outbox_%d", tables.Add(1))
			box := boxIn(t, pool, own)
			return outboxtest.Subject{
				Store: box, Concurrent: true, Ordered: cfg.Ordered,
				Begin: func(ctx context.Context) (outboxtest.Tx, error) {
					tx, err := pool.Begin(ctx)
					return writerTx{box.In(tx), tx}, err
				},
				Far: func() (outbox.Store, outboxtest.Link) {
					at := pool.Config().ConnConfig
					link := relaytest.StartLink(t, net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))))
					config := pool.Config()
					config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
						return new(net.Dialer).DialContext(ctx, "tcp", link.Addr)
					}
					far, err := pgxpool.NewWithConfig(t.Context(), config)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(far.Close)
					return unmigrated(t, far, own), link
				},
				Reopen: func() outbox.Store { return unmigrated(t, pool, own) },
				Spoil: func(id string) error {
					_, err := pool.Exec(t.Context(), `UPDATE `+own.Table+` SET header = '[1]' WHERE id = $1`, id)
					return err
				},
			}
		})
	})
}

type writerTx struct {
	producer.Publisher
	tx pgx.Tx
}

func (w writerTx) Commit(ctx context.Context) error   { return w.tx.Commit(ctx) }
func (w writerTx) Rollback(ctx context.Context) error { return w.tx.Rollback(ctx) }
