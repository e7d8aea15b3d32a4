package pgoutbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

// listen runs Listen until the test ends.
func listen(t *testing.T, box *pgoutbox.Outbox) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- box.Listen(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Listen returned %v, want nil", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestListen_NotificationsOfOtherProcessesWakeARelay(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	writer, reader := boxIn(t, pool, pgoutbox.Config{}), boxIn(t, pool, pgoutbox.Config{})
	b := &relaytest.Broker{}
	cfg := relaytest.Quick()
	cfg.PollInterval = time.Hour
	relaytest.Start(t, reader, b, cfg)
	stop := listen(t, reader)
	for i := range 5 {
		write(t, writer, pool, message(fmt.Sprint(i)))
		relaytest.Eventually(t, "a notified relay publishes", func() bool {
			if err := writer.Notify(t.Context()); err != nil {
				t.Fatal(err)
			}
			return len(b.Copies()) == i+1
		})
	}
	stop()
}

func TestListen_ReconnectsAndLooks(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "listener " + t.Name() })
	box := boxIn(t, pool, pgoutbox.Config{})
	listen(t, box)
	receive(t, box) // connected
	for range 2 {
		relaytest.Eventually(t, "the listener's connection is cut", func() bool {
			var cut bool
			err := poolIn(t, "public").QueryRow(context.Background(), `SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
				WHERE application_name = $1 AND query LIKE 'LISTEN%'`, "listener "+t.Name()).Scan(&cut)
			return err == nil && cut
		})
		receive(t, box) // the new connection looks at what was missed
	}
}

func receive(t *testing.T, box *pgoutbox.Outbox) {
	t.Helper()
	select {
	case <-box.Woken():
	case <-time.After(2 * time.Minute):
		t.Fatal("nobody was woken")
	}
}
