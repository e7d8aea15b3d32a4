package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// Full: 20,000 payments, three in ten of them with a duplicate (clients that ask again, messages that are published again),
// and one in ten acknowledgements lost to relays and from consumers; 300 consumer processes and PostgreSQL, five times,
// killed with SIGKILL.
func TestPayments_ConsumersAndPostgresKilledBookEachPaymentOnce(t *testing.T) {
	t.Parallel()
	payments, kills, crashes := full(20_000, 150), full(300, 6), full(5, 1)
	server := testserver.Postgres(t, "max_connections=200")
	run := startPayments(t, "-postgres", server.DSN(), "-nats", testserver.NATS(t).URL(), "-redis", "",
		"-payments", fmt.Sprint(payments), "-kills", fmt.Sprint(kills), "-run", "proof", "-keep")
	pool := server.Pool(t)
	var down time.Duration
	for n := range crashes {
		until(t, "payments to come in", func() bool {
			run.mustRun()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var booked int
			err := pool.QueryRow(ctx, `SELECT count(DISTINCT payment) FROM oncemill_proof.entries`).Scan(&booked)
			return err == nil && booked*(crashes+1) > payments*(n+1)
		})
		crashed := time.Now()
		server.Kill()
		lasts(rand.N(time.Second))
		server.Restart()
		down += time.Since(crashed)
	}
	b := run.finish(full(15*time.Minute, patience))
	b.mustBalance(t, payments, kills)
	for _, wrong := range auditPayments(t.Context(), pool, "oncemill_proof", payments, b.Charged) {
		t.Error(wrong)
	}
	t.Logf("PostgreSQL killed %d times, and away for %v in all", crashes, down)
}

// Full: 20,000 payments and 100 kills. All processes share one file.
func TestPayments_ConsumersOnSQLiteKilledBookEachPaymentOnce(t *testing.T) {
	t.Parallel()
	payments, kills := full(20_000, 150), full(100, 4)
	run := startPayments(t, "-embedded", "-payments", fmt.Sprint(payments), "-kills", fmt.Sprint(kills))
	run.finish(full(30*time.Minute, patience)).mustBalance(t, payments, kills)
}
