package mysqloutbox_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
)

// A commitLink keeps the answer to the first commit of a lease from its client, once it is armed.
type commitLink struct {
	testserver.Bridge
	armed, kept atomic.Bool
}

func (l *commitLink) pass(client, server net.Conn) {
	var leases, silent atomic.Bool
	answered := make(chan struct{})
	l.Go(func() {
		defer close(answered)
		defer client.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			if silent.Load() {
				continue
			}
			if _, err := client.Write(b[:n]); err != nil {
				return
			}
		}
	})
	b := make([]byte, 1<<20)
	for {
		n, err := client.Read(b)
		if err != nil {
			break
		}
		switch query := b[:n]; {
		case bytes.Contains(query, []byte("unknowns = unknowns + (token IS NOT NULL)")):
			leases.Store(true)
		case bytes.Contains(query, []byte("COMMIT")) || bytes.Contains(query, []byte("autocommit = 1")):
			if leases.Swap(false) && l.armed.Load() && l.kept.CompareAndSwap(false, true) {
				silent.Store(true)
			}
		}
		if _, err := server.Write(b[:n]); err != nil {
			break
		}
	}
	server.Close()
	<-answered
}

// TestLease_CommitWithoutAnswerHoldsUpNoRelay: the server has committed, and other connections work.
func TestLease_CommitWithoutAnswerHoldsUpNoRelay(t *testing.T) {
	t.Parallel()
	server := mysqltest.Shared(t)
	database := server.NewDatabase(t)
	db := database.Open(t)
	box := boxIn(t, db, mysqloutbox.Config{})
	link := new(commitLink)
	link.Start(t, server.Addr(), link.pass)
	far := database.Open(t, func(c *mysql.Config) { c.Addr = link.Addr })
	far.SetMaxIdleConns(8)
	var b relaytest.Broker
	cfg := relaytest.Quick()
	cfg.PublishTimeout, cfg.Lease = time.Minute, 90*time.Second // an operation of the store may take 10 s
	relaytest.Start(t, unmigrated(t, far, mysqloutbox.Config{}), &b, cfg)
	mustWrite(t, box, db, message("", "before"))
	relaytest.Eventually(t, "the relay works", func() bool { return len(b.Messages()) == 1 })
	link.armed.Store(true)
	mustWrite(t, box, db, message("", "kept from the relay"))
	relaytest.Eventually(t, "an answer is kept", link.kept.Load)
	began := time.Now()
	mustWrite(t, box, db, message("", "other"))
	relaytest.Eventually(t, "another message is published", func() bool { return b.Copies()["other"] == 1 })
	// The relay passes the operation after 2 s. The operation itself would end after 10 s.
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("another message was published after %v", took)
	}
	relaytest.Eventually(t, "all are published", func() bool { return len(b.Copies()) == 3 })
}

// TestOutbox_SessionsEndWhenTheirHostHasVanished: in the outbox's own transactions the server waits for a client no
// longer than 20 s, and afterwards as long as before.
func TestOutbox_SessionsEndWhenTheirHostHasVanished(t *testing.T) {
	t.Parallel()
	var inside []string
	database := mysqltest.Shared(t).NewDatabase(t)
	db := recorded(t, database, func(ctx context.Context, query string, c conn) {
		if strings.Contains(query, "oncemill_outbox`") && !strings.Contains(query, "CREATE") {
			inside = append(inside, query+": "+waitTimeout(ctx, t, c))
		}
	})
	db.SetMaxOpenConns(1)
	mustExec(t, db, "SET SESSION wait_timeout = 1234")
	box := boxIn(t, db, mysqloutbox.Config{})
	work(t, box, db)
	transactions := 0
	for _, line := range inside {
		own := strings.Contains(line, "FOR UPDATE SKIP LOCKED") || strings.HasPrefix(line, "DELETE")
		if own {
			transactions++
		}
		writer := strings.HasPrefix(line, "INSERT") // its transaction is the caller's
		if own && !strings.HasSuffix(line, ": 20 0") || writer && !strings.HasSuffix(line, ": 1234 1") {
			t.Error("wait_timeout and autocommit after ", line)
		}
	}
	if transactions == 0 {
		t.Error("no transaction was seen")
	}
	after := func(what string) {
		var wait, auto int
		if err := db.QueryRow("SELECT @@wait_timeout, @@autocommit").Scan(&wait, &auto); err != nil || wait != 1234 ||
			auto != 1 {
			t.Errorf("%s: wait_timeout %d, autocommit %d, %v; want 1234 and 1", what, wait, auto, err)
		}
	}
	after("after the work")
	mustExec(t, db, "ALTER TABLE oncemill_outbox CHANGE last_error gone VARBINARY(4096)")
	mustWrite(t, box, db, message("", "last"))
	rows := relaytest.Lease(t, box, "t", time.Minute)
	if err := box.Settle(t.Context(), "t", []outbox.Result{{Number: rows[0].Number, State: outbox.Failed}}); err == nil {
		t.Error("no error without a column")
	}
	after("after an error")
}
