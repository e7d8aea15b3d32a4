package pgoutbox_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A gate makes connections stop reading, as those of a stopped process do.
type gate struct {
	sync.Mutex
	net.Dialer
}

func (g *gate) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := g.DialContext(ctx, network, addr)
	return gated{conn, g}, err
}

type gated struct {
	net.Conn
	gate *gate
}

func (c gated) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), 1024)])
	c.gate.Lock()
	defer c.gate.Unlock()
	return n, err
}

func TestLease_RelayThatStopsReadingHoldsUpNobody(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	box := boxIn(t, pool, pgoutbox.Config{})
	var g gate
	slow := boxIn(t, poolIn(t, schemaOf(t, pool), func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = g.dial
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // it would wait for the answer
	}), pgoutbox.Config{})
	lease(t, slow, "warm", time.Minute) // its statements are prepared now
	for range 50 {
		write(t, box, pool, producer.Message{Topic: "large", Payload: make([]byte, 1<<20)})
	}

	g.Lock()
	open := sync.OnceFunc(g.Unlock)
	t.Cleanup(open)
	taken := make(chan []outbox.Row, 1)
	go func() {
		rows, err := slow.Lease(context.Background(), outbox.LeaseRequest{Token: "slow", Limit: 50, Lease: time.Minute})
		if err != nil {
			t.Error(err)
		}
		taken <- rows
	}()
	relaytest.Eventually(t, "the slow relay has its lease", func() bool { return leased(t, pool) == 50 })
	write(t, box, pool, message("1"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	rows, err := box.Lease(ctx, outbox.LeaseRequest{Token: "other", Limit: 10, Lease: time.Minute})
	if err != nil || len(rows) != 1 || rows[0].Message.ID != "1" {
		t.Errorf("another relay got %v, %v, want the new row", idsOf(rows), err)
	}
	open()
	if rows := <-taken; len(rows) != 50 {
		t.Errorf("the slow relay got %d rows, want 50", len(rows))
	}
}
