package pgwal_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// While the server decodes a large transaction, of whatever tables, it does not answer.
func TestRelay_WaitsForAServerThatIsBusy(t *testing.T) {
	t.Parallel()
	g := newRigOn(t, testserver.Postgres(t, "wal_sender_timeout=1s", "max_wal_size=4GB")) // a heartbeat each 250 ms
	g.exec(`CREATE TABLE large (n bigint)`)
	g.exec(`INSERT INTO large SELECT n FROM generate_series(1, 1000000) AS n`)
	r := g.relay()
	r.WaitForServer(200 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	g.write(message("order"))
	published := func() bool { return len(g.broker.got()) == 1 }
	for range 10 { // by then it waits for minutes
		n := strings.Count(g.log.String(), "does not answer any more")
		until(t, "the message, or the end of another connection", func() bool {
			return published() || strings.Count(g.log.String(), "does not answer any more") > n
		})
	}
	if !published() {
		t.Error("no connection was long enough")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !strings.Contains(g.log.String(), "does not answer any more") {
		t.Log("the server was never busy for long enough")
	}
}
