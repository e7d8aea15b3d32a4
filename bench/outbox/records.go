package main

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/oncemill/oncemill/bench/internal/filled"
	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// records measures outboxes beside many rows that are published and kept, a few of them dead or delayed. The log relay
// is not among them: it reads rows where pgoutbox does, and else the log.
var records = kit.Records([]kit.Subject[*box]{
	{Name: "postgres", Open: openPostgresBoxes}, {Name: "mysql", Open: openMySQLBoxes},
	{Name: "sqlite", Open: openSQLiteBoxes},
}, []kit.Operation[*box]{
	{Name: "write", Do: writeEach},
	{Name: "lease and settle", Do: relayBatch},
	{Name: "clean", Do: cleanPage},
	{Name: "list", Do: listPage},
})

// A box is an outbox of one of the databases.
type box struct {
	anyOutbox
	db     *sql.DB
	expire func(ctx context.Context) error // makes rows that were published long ago
	next   string                          // where the next page of a list begins
}

type anyOutbox interface {
	outbox.Store
	outbox.Inspector
	Migrate(ctx context.Context) error
	InSQL(tx *sql.Tx) producer.Publisher
}

const (
	writersAtOnce = 4
	writesEach    = 16
	leased        = 256 // rows of a batch
	kept          = 24 * time.Hour
)

// publish writes messages in one transaction.
func (b *box) publish(ctx context.Context, messages ...producer.Message) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := b.InSQL(tx).Publish(ctx, messages...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func numbered(number int) producer.Message {
	return producer.Message{Topic: topic, Payload: payload(number)}
}

// writeEach commits messages, each in a transaction of its own, and publishes them.
func writeEach(ctx context.Context, b *box) (int, time.Duration, error) {
	errs := make([]error, writersAtOnce)
	begun := time.Now()
	var all sync.WaitGroup
	for w := range errs {
		all.Go(func() {
			for i := 0; i < writesEach && errs[w] == nil; i++ {
				errs[w] = b.publish(ctx, numbered(i))
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	_, err := b.settle(ctx, writersAtOnce*writesEach, nil)
	return writersAtOnce * writesEach, took, errors.Join(append(errs, err)...) //nolint:makezero // the last one
}

// relayBatch does what a relay does with a batch.
func relayBatch(ctx context.Context, b *box) (int, time.Duration, error) {
	messages := make([]producer.Message, leased)
	for i := range messages {
		messages[i] = numbered(i)
	}
	if err := b.publish(ctx, messages...); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	n, err := b.settle(ctx, leased, nil)
	return n, time.Since(begun), err
}

// settle leases rows. All of them are published, but for those that become something else.
func (b *box) settle(ctx context.Context, limit int, others map[int]outbox.State) (int, error) {
	token := producer.NewID()
	rows, err := b.Lease(ctx, outbox.LeaseRequest{Token: token, Limit: limit, Lease: time.Minute})
	if err != nil {
		return 0, err
	}
	results := make([]outbox.Result, len(rows))
	for i, r := range rows {
		results[i] = outbox.Result{Number: r.Number, State: outbox.Published}
		if other, is := others[i]; is {
			results[i].State, results[i].Error = other, "the broker refused it"
		}
	}
	return len(rows), b.Settle(ctx, token, results)
}

func cleanPage(ctx context.Context, b *box) (int, time.Duration, error) {
	if err := b.expire(ctx); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	n, err := b.Clean(ctx, kept, filled.Seeds)
	return n, time.Since(begun), err
}

// listPage reads a page, the next one each time.
func listPage(ctx context.Context, b *box) (int, time.Duration, error) {
	begun := time.Now()
	page, err := b.List(ctx, outbox.Filter{}, b.next)
	took := time.Since(begun)
	b.next = page.Next
	return max(page.Looked, 1), took, err // a page behind the last row has none
}

// seed writes the first rows: of fifty, one is dead and one is delayed.
func (b *box) seed(ctx context.Context) error {
	messages, dead := make([]producer.Message, filled.Seeds), map[int]outbox.State{}
	for i := range messages {
		messages[i] = numbered(i)
		messages[i].ID = "seed-" + strconv.Itoa(i)
		switch i % 50 {
		case 0:
			messages[i].NotBefore = time.Now().Add(kept)
		case 1:
			dead[i] = outbox.Dead
		}
	}
	if err := b.publish(ctx, messages...); err != nil {
		return err
	}
	_, err := b.settle(ctx, filled.Seeds, dead)
	return err
}

// boxes makes two outboxes in one database.
func boxes(
	ctx context.Context, b *kit.Bench, d *filled.Database, differ filled.Differing,
	open func(table string) (anyOutbox, error),
) (*kit.Pair[*box], error) {
	return filled.Pair(ctx, b, d, differ, func(
		ctx context.Context, table string, expire func(context.Context) error,
	) (*box, error) {
		opened, err := open(table)
		if err != nil {
			return nil, err
		}
		if err := opened.Migrate(ctx); err != nil {
			return nil, err
		}
		made := &box{anyOutbox: opened, db: d.DB, expire: expire}
		return made, made.seed(ctx)
	})
}

func openPostgresBoxes(ctx context.Context, b *kit.Bench) (*kit.Pair[*box], error) {
	d, err := filled.Postgres(ctx)
	if err != nil {
		return nil, err
	}
	return boxes(ctx, b, d, filled.Differing{
		Columns: map[string]string{
			"number": "hashint8extended(x.number, n.i)", "id": "lpad(n.i::text, 10, '0') || '-' || x.id",
			"published_at": "x.published_at - n.i * interval '1 second'",
		},
		Expired: map[string]string{
			"published_at": "now() - interval '2 days'", "dead_at": "NULL", "due_at": "NULL", "not_before": "NULL",
		},
	}, func(table string) (anyOutbox, error) {
		return pgoutbox.New(d.Pool, pgoutbox.Config{Table: table})
	})
}

func openMySQLBoxes(ctx context.Context, b *kit.Bench) (*kit.Pair[*box], error) {
	d, err := filled.MySQL(ctx)
	if err != nil {
		return nil, err
	}
	return boxes(ctx, b, d, filled.Differing{
		Columns: map[string]string{
			"number": "NULL", // names as those of IDs that begin with a time
			"name":   "CONCAT(UNHEX(LPAD(HEX(n.i), 12, '0')), LEFT(UNHEX(SHA2(CONCAT(x.number, '-', n.i), 256)), 26))",
			"id":     "CONCAT(LPAD(n.i, 10, '0'), '-', x.id)",
			"at":     "x.at - n.i * 1000000 * (x.state = 3)",
		},
		Expired: map[string]string{"state": "3", "at": "1"},
	}, func(table string) (anyOutbox, error) {
		return mysqloutbox.New(d.DB, mysqloutbox.Config{Table: table})
	})
}

func openSQLiteBoxes(ctx context.Context, b *kit.Bench) (*kit.Pair[*box], error) {
	d, err := filled.SQLite(ctx)
	if err != nil {
		return nil, err
	}
	return boxes(ctx, b, d, filled.Differing{
		Columns: map[string]string{
			"number": "NULL", "id": "printf('%010d', n.i) || '-' || x.id", "published_at": "x.published_at - n.i * 1000000",
		},
		Expired: map[string]string{"published_at": "1", "dead_at": "NULL"},
	}, func(table string) (anyOutbox, error) {
		return sqliteoutbox.New(d.DB, sqliteoutbox.Config{Table: table})
	})
}
