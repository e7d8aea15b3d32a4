package faults_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
)

// killed is the load under which a server is killed n times.
func killed(t *testing.T, fsync string, n int) ledger.Books {
	server := newDurable(t, fsync)
	r := newRig(t, client(t, server.Addr), setup{
		rate: 500, lease: 10 * time.Second, keep: 5 * time.Second,
		work: func(context.Context, oncemill.Run) { lasts(2 * time.Millisecond) }, // so that some are under way
	})
	for range n {
		r.progress(200)
		kill := ledger.Event{Why: ledger.LostRecord, From: time.Now()}
		server.Kill()
		lasts(rand.N(500 * time.Millisecond))
		server.Restart()
		kill.To = time.Now()
		r.Happened(kill)
	}
	r.progress(200)
	return r.finish()
}

// Full: 20 kills. The file is written before each answer. So the death of the process, unlike that of its machine,
// loses only what was held back during an fsync: usually nothing.
func TestRedis_KilledWithFsyncEverySecondRepeatsNoMoreThanItsRecordsLost(t *testing.T) {
	t.Parallel()
	b := killed(t, "everysec", full(20, 2))
	b.MustExplain(t, ledger.LostRecord, ledger.LostOutcome, ledger.LostLease)
}

// Full: 20 kills. The leases are longer than the server is away: every outcome can be recorded, and nothing runs twice.
func TestRedis_KilledWithFsyncAlwaysRepeatsNothing(t *testing.T) {
	t.Parallel()
	killed(t, "always", full(20, 2)).MustExplain(t)
}
