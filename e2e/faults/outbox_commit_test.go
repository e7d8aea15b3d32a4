package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// Full: 200 commits: the backend is ended by pg_terminate_backend at 140 of them and by SIGKILL at 50, and the whole server
// by SIGKILL at 10. Half of the commits are on disk and wait for a replica that never answers when that happens, so that the
// writer hears nothing of them.
func TestOutbox_BackendsKilledAtCommitPublishWhatIsInTheTable(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "synchronous_standby_names=nobody", "synchronous_commit=local")
	broker := natstest.Start(t)
	m := newMint(t, server.DSN(), []string{broker.URL()}, broker.JetStream(), jetstream.StreamConfig{}, true, shortLease())
	relays := m.startAll(2)
	c := &commits{mint: m, server: server, ends: map[string]int{}}
	for i := range full(200, 10) {
		switch {
		case i%20 == 9:
			c.round(i, c.killServer)
		case i%4 == 3:
			c.round(i, c.killBackend)
		default:
			c.round(i, c.terminate)
		}
	}
	b := m.finish(relays...)
	b.MustExplain(t, ledger.AnswerUnknown, ledger.LeaseSlow, ledger.LeaseCrashed)
	t.Logf("%v", c.ends)
	if c.ends["unknown, committed"] == 0 || proof && c.ends["unknown, rolled back"] == 0 {
		t.Error("no commit was unknown in each of both ways")
	}
}

// A commits kills who commits.
type commits struct {
	*mint
	server *postgrestest.Server
	ends   map[string]int // what became of transactions
}

// round lets a fault meet the commit of a transaction, and finds out by reading what became of it.
func (c *commits) round(i int, fault func(victim uint32, other *pgx.Conn)) {
	c.t.Helper()
	victim, other := c.connect(), c.connect()
	defer victim.Close(context.Background())
	defer other.Close(context.Background())
	s := c.newSale(1 + rand.N(3))
	tx, err := victim.Begin(c.t.Context())
	c.fatal(err)
	if i%8 < 4 {
		_, err := tx.Exec(c.t.Context(), `SET LOCAL synchronous_commit = on`)
		c.fatal(err)
	}
	c.fatal(c.write(c.t.Context(), tx, s))
	result := make(chan error, 1)
	committing, cancel := context.WithTimeout(c.t.Context(), waitLimit)
	defer cancel()
	go func() {
		lasts(rand.N(time.Millisecond))
		result <- tx.Commit(committing)
	}()
	lasts(rand.N(2 * time.Millisecond))
	fault(victim.PgConn().PID(), other)
	err = <-result
	c.resolve(s, err)
}

// connect connects when the server lets it.
func (c *commits) connect() (conn *pgx.Conn) {
	c.t.Helper()
	until(c.t, "a connection to PostgreSQL", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
		defer cancel()
		var err error
		conn, err = pgx.Connect(ctx, c.server.DSN())
		return err == nil
	})
	return conn
}

func (c *commits) terminate(victim uint32, other *pgx.Conn) {
	c.t.Helper()
	_, err := other.Exec(c.t.Context(), `SELECT pg_terminate_backend($1)`, int64(victim))
	c.fatal(err)
}

// killBackend kills one backend, whereupon PostgreSQL ends all of them and recovers. Until that has begun, the killed
// transaction looks as if it ran.
func (c *commits) killBackend(victim uint32, other *pgx.Conn) {
	c.t.Helper()
	p, err := os.FindProcess(int(victim))
	c.fatal(err)
	c.server.Process() // ours to kill
	crash := ledger.Event{Why: ledger.LeaseCrashed, From: time.Now()}
	c.fatal(p.Kill())
	until(c.t, "the server to notice", func() bool { return other.Ping(c.t.Context()) != nil })
	c.fatal(c.connect().Close(c.t.Context())) // until all have ended, one of them may lease rows, which is forgotten
	crash.To = time.Now()
	c.Happened(crash)
}

func (c *commits) killServer(uint32, *pgx.Conn) {
	c.t.Helper()
	crash := ledger.Event{Why: ledger.LeaseCrashed, From: time.Now()}
	c.server.Kill()
	crash.To = time.Now()
	c.Happened(crash)
	c.server.Restart()
}

// resolve reads whether a transaction was committed: all of it or nothing, and all of it if the writer was told so.
func (c *commits) resolve(s sale, reported error) {
	c.t.Helper()
	var ids []string
	for _, message := range s.messages {
		ids = append(ids, message.ID)
	}
	conn := c.connect()
	defer conn.Close(context.Background())
	var orders, rows int
	c.fatal(conn.QueryRow(c.t.Context(), `SELECT (SELECT count(*) FROM orders WHERE id = ANY($1)), (SELECT count(*) FROM oncemill_outbox WHERE id = ANY($1))`, ids).Scan(&orders, &rows))
	if orders != rows || orders != 0 && orders != len(ids) || reported == nil && orders == 0 {
		c.t.Errorf("of %d orders %d are there, and %d messages; the writer was told %v", len(ids), orders, rows, reported)
	}
	if orders == 0 {
		for _, id := range ids {
			c.rolledBack[id] = true
		}
	}
	c.ends[fmt.Sprintf("%s, %s", map[bool]string{true: "confirmed", false: "unknown"}[reported == nil], map[bool]string{true: "committed", false: "rolled back"}[orders > 0])]++
}
