package pgoutbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/pace"
)

const (
	shortestRetry = 100 * time.Millisecond
	longestRetry  = 10 * time.Second
	endTimeout    = time.Second
)

// channel is where processes tell each other of commits. It is a hash, because two long names are more than PostgreSQL
// takes.
func (o *Outbox) channel() string { return fmt.Sprintf("oncemill_outbox_%016x", o.cfg.hash()) }

// Notify makes the relays of all processes that Listen look at the outbox now. Call it after the commit: inside the
// transaction, NOTIFY makes all commits of the database wait for each other. It is a separate statement on a connection
// of the pool. If it is lost, that only costs time.
func (o *Outbox) Notify(ctx context.Context) error {
	_, err := o.pool.Exec(ctx, `SELECT pg_notify($1, '')`, o.channel())
	return err
}

// Listen turns the notifications of other processes into Woken, until ctx ends; then it returns nil. It takes a
// connection out of the pool for itself, and another one when that fails, and logs errors. It does not work behind
// PgBouncer in transaction mode. If the network silently loses the connection, TCP's keepalive notices; relays poll
// meanwhile.
func (o *Outbox) Listen(ctx context.Context) error {
	retry := pace.Pace{Shortest: shortestRetry, Longest: longestRetry}
	var news pace.News
	for {
		began := time.Now()
		err := o.listen(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was to end
		}
		if time.Since(began) > longestRetry {
			retry.Reset()
		}
		pause := retry.Next()
		line := "outbox: listening for notifications failed, will try again"
		if news.Is(line, err.Error()) {
			o.cfg.Logger.WarnContext(ctx, line, "table", o.cfg.Table, "error", err)
		}
		pace.Sleep(ctx, pause)
	}
}

// listen listens on one connection until that fails.
func (o *Outbox) listen(ctx context.Context) error {
	pooled, err := o.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack() // the pool forgets it
	defer closeConn(ctx, conn)
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{o.channel()}.Sanitize()); err != nil {
		return err
	}
	o.Wake() // what was told before is lost
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
		o.Wake()
	}
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_ = conn.Close(ctx) // it has done its job
}
