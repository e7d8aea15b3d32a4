package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// Each payment is booked once, whatever is killed. Reduced it is a look at whether all of it works.
func TestPayments_KilledConsumersBookEachPaymentOnce(t *testing.T) {
	t.Parallel()
	program := buildPayments(t)
	for name, kill := range map[string]func(t *testing.T, program string, batch int){
		"PostgreSQL": killOnPostgres, "MySQL": killOnMySQL, "SQLite": killOnSQLite,
	} {
		for _, batch := range []int{1, 64} {
			t.Run(fmt.Sprintf("%s, batches of up to %d", name, batch), func(t *testing.T) {
				t.Parallel()
				kill(t, program, batch)
			})
		}
	}
}

// Full: 20,000 payments. Three in ten have a duplicate: clients ask again, messages are published again. Relays and
// consumers lose one acknowledgement in ten. SIGKILL ends 300 consumer processes, and PostgreSQL five times. A
// transaction books at most a batch of payments.
func killOnPostgres(t *testing.T, program string, batch int) {
	payments, kills, crashes := full(20_000, 60), full(300, 3), full(5, 1)
	server := postgrestest.Start(t, "max_connections=200")
	run := startPayments(t, program, "-postgres", server.DSN(), "-nats", natstest.Start(t).URL(),
		"-payments", fmt.Sprint(payments), "-kills", fmt.Sprint(kills), "-batch", fmt.Sprint(batch), "-keep", "proof")
	pool := server.Pool(t)
	var down time.Duration
	for n := range crashes {
		untilPaid(t, func() bool {
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
	b := run.finish(full(15*time.Minute, paymentsPatience))
	b.mustBalance(t, payments, kills)
	auditPayments(t, inPostgres(t, pool, "oncemill_proof"), payments, b.Charged)
	t.Logf("PostgreSQL killed %d times, and away for %v in all", crashes, down)
}

// Full: 5,000 payments, 100 kills, and MariaDB is killed five times.
func killOnMySQL(t *testing.T, program string, batch int) {
	payments, kills, crashes := full(5_000, 60), full(100, 3), full(5, 1)
	server := mysqltest.Start(t, "--max-connections=300")
	run := startPayments(t, program, "-mysql", "mysql://root@"+server.Addr(), "-nats", natstest.Start(t).URL(),
		"-payments", fmt.Sprint(payments), "-kills", fmt.Sprint(kills), "-batch", fmt.Sprint(batch), "-keep", "proof")
	db := server.Database("oncemill_proof").Open(t)
	var down time.Duration
	for n := range crashes {
		untilPaid(t, func() bool {
			run.mustRun()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var booked int
			err := db.QueryRowContext(ctx, `SELECT count(DISTINCT payment) FROM entries`).Scan(&booked)
			return err == nil && booked*(crashes+1) > payments*(n+1)
		})
		crashed := time.Now()
		server.Kill()
		lasts(rand.N(time.Second))
		server.Restart()
		down += time.Since(crashed)
	}
	b := run.finish(full(15*time.Minute, paymentsPatience))
	b.mustBalance(t, payments, kills)
	auditPayments(t, inMySQL(db), payments, b.Charged)
	t.Logf("MariaDB killed %d times, and away for %v in all", crashes, down)
}

// Full: 20,000 payments and 100 kills. All processes share one file, which is audited like the other database.
func killOnSQLite(t *testing.T, program string, batch int) {
	payments, kills := full(20_000, 60), full(100, 2)
	file := filepath.Join(t.TempDir(), "payments.db")
	run := startPayments(t, program, "-sqlite", file, "-nats", natstest.Start(t).URL(),
		"-payments", fmt.Sprint(payments), "-kills", fmt.Sprint(kills), "-batch", fmt.Sprint(batch))
	b := run.finish(full(30*time.Minute, paymentsPatience))
	b.mustBalance(t, payments, kills)
	auditPayments(t, inSQLite(openFile(t, file)), payments, b.Charged)
}
