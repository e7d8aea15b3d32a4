package main

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer/webhook"
)

// childEnv holds the path of the database for a service that is a process of its own.
const childEnv = "ONCEMILL_WEBHOOK_CHILD"

func serveChild(path string) int {
	return run(context.Background(), []string{"-listen", "127.0.0.1:0", "-db", path, "-lease", "1500ms"}, readmeEnv, os.Stdout, os.Stderr, func(net.Addr) {})
}

// spawn starts a service, and returns its address and how to kill it.
func spawn(t *testing.T, path string) (address string, kill func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env, cmd.Stderr = append(os.Environ(), childEnv+"="+path), os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		t.Fatal("the service said nothing")
	}
	_, address, _ = strings.Cut(lines.Text(), "http://")
	address, _, _ = strings.Cut(address, "/")
	var read sync.WaitGroup
	read.Go(func() {
		for lines.Scan() { // what it prints is not to block it
		}
	})
	return address, func() {
		_ = cmd.Process.Kill()
		read.Wait()
		_ = cmd.Wait()
	}
}

// sendUntil is a sender: it repeats until it was told so many times that the event is known.
func sendUntil(t *testing.T, address *atomic.Value, id string, copies int) {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for copies > 0 {
		if status := tryOnce(t, address.Load().(string), id); status == http.StatusOK {
			copies--
		}
		select {
		case <-pause.C:
		case <-t.Context().Done():
			return
		}
	}
}

// tryOnce returns 0 if there was no answer.
func tryOnce(t *testing.T, address, id string) int {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	r := gitHubRequest(ctx, address, id, "body of "+id)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}

func TestWebhook_KilledServiceLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	defer http.DefaultClient.CloseIdleConnections()
	kills, events := 2, 30
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		kills, events = 60, 2000
	}
	path := filepath.Join(t.TempDir(), "hooks.db")
	var address atomic.Value
	first, kill := spawn(t, path)
	address.Store(first)

	var senders sync.WaitGroup
	var sent atomic.Int64
	ids := make(chan string)
	for range 8 {
		senders.Go(func() {
			for id := range ids {
				sendUntil(t, &address, id, 2)
				sent.Add(1)
			}
		})
	}
	senders.Go(func() {
		defer close(ids)
		for n := range events {
			ids <- fmt.Sprint("d", n)
		}
	})
	killed := 0
	look := time.NewTicker(time.Millisecond)
	for ; killed < kills; killed++ { // spread over the events
		for sent.Load() < int64(events*killed/kills+rand.IntN(events/kills)) {
			<-look.C
		}
		kill()
		var next string
		next, kill = spawn(t, path)
		address.Store(next)
	}
	look.Stop()
	senders.Wait()
	kill()

	rows, claims := audit(t, path)
	for n := range events {
		id := webhook.MessageID("", "github", fmt.Sprint("d", n))
		if rows[id] != 1 {
			t.Errorf("d%d: %d rows", n, rows[id])
		}
	}
	if len(rows) != events || claims != events {
		t.Errorf("%d messages and %d claims, want %d of each", len(rows), claims, events)
	}
	t.Logf("%d events, each told twice that it is known; %d kills; %d rows", events, killed, len(rows))
}

// audit returns the rows of the outbox by message ID, and the number of claims.
func audit(t *testing.T, path string) (rows map[string]int, claims int) {
	t.Helper()
	db, err := sqliteoutbox.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows = map[string]int{}
	each(t, db, `SELECT id FROM oncemill_outbox`, func(id string) { rows[id]++ })
	each(t, db, `SELECT 'x' FROM oncemill_dedup`, func(string) { claims++ })
	return rows, claims
}

func each(t *testing.T, db *sql.DB, query string, f func(string)) {
	t.Helper()
	found, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var s string
		if err := found.Scan(&s); err != nil {
			t.Fatal(err)
		}
		f(s)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
}
