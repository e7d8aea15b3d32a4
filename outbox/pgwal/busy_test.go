package pgwal_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
)

// The server decodes a transaction in one of its own, which lasts for as long as the relay takes it in.
func TestRelay_ATimeoutForTransactionsDoesNotEndTheLog(t *testing.T) {
	t.Parallel()
	g := newRigOn(t, postgrestest.Start(t), func(c *settings) { c.BatchSize, c.MaxPending, c.MaxInFlight = 100, 200, 1 })
	if version := value[int](g, `SELECT current_setting('server_version_num')::int`); version < 170000 {
		t.Skip("transaction_timeout came with PostgreSQL 17")
	}
	const n = 2000
	messages := numbered(n)
	for i := range messages {
		messages[i].Payload = make([]byte, 20<<10) // together more than fits on the way
	}
	g.write(messages...)
	user := value[string](g, `SELECT current_user`)
	g.exec(`ALTER ROLE ` + user + ` SET transaction_timeout = '2s'`)
	hang := make(chan struct{})
	g.broker.set(func(context.Context, []producer.Message) error {
		<-hang
		return nil
	})
	g.start()
	until(t, "the first call", func() bool { return g.broker.attempts("order-00000") == 1 })
	lasts(4 * time.Second)
	close(hang)
	until(t, "all", func() bool { return len(g.broker.got()) >= n })
	if log := g.log.String(); strings.Contains(log, "transaction timeout") {
		t.Errorf("the server ended the connection: %s", log)
	}
}
