package pgwal_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox/pgwal"
	"github.com/oncemill/oncemill/producer"
)

// With these variables the test program is a relay that says on its standard output what it publishes.
const (
	childDSN  = "PGWAL_TEST_CHILD_DSN"
	childSlot = "PGWAL_TEST_CHILD_SLOT"
)

// teller tells what it publishes, and takes its time.
type teller struct{ mu sync.Mutex }

func (p *teller) Publish(_ context.Context, messages ...producer.Message) error {
	p.mu.Lock()
	for _, m := range messages {
		fmt.Println(m.ID)
	}
	p.mu.Unlock()
	<-time.After(3 * time.Millisecond)
	return nil
}

func child() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv(childDSN))
	fail(err)
	config := pgwal.Config{
		Pool: pool, Slot: os.Getenv(childSlot), BatchSize: 5,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	r, err := pgwal.New(config, &teller{})
	fail(err)
	fail(r.Run(ctx))
}

// A program is a relay in a process of its own.
type program struct {
	cmd  *exec.Cmd
	said sync.WaitGroup
}

// startProgram runs a relay whose publications go to the rig's broker.
func (g *rig) startProgram() *program {
	g.t.Helper()
	u, err := url.Parse(postgrestest.Shared(g.t).DSN())
	if err != nil {
		g.t.Fatal(err)
	}
	q := u.Query()
	for name, value := range g.pool.Config().ConnConfig.RuntimeParams {
		q.Set(name, value)
	}
	q.Set("wal_sender_timeout", "500")
	u.RawQuery = q.Encode()
	p := &program{cmd: exec.Command(os.Args[0], "-test.run=^$")}
	p.cmd.Env = append(os.Environ(), childDSN+"="+u.String(), childSlot+"="+g.config.Slot)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	var problems strings.Builder
	p.cmd.Stderr = &problems
	if err := p.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	p.said.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			g.broker.Publish(context.Background(), producer.Message{ID: lines.Text()})
		}
	})
	g.t.Cleanup(func() {
		p.kill()
		if s := problems.String(); s != "" {
			g.t.Errorf("the program says: %s", s)
		}
	})
	return p
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	p.said.Wait()
	_ = p.cmd.Wait()
}

// firstCopies are the first copies of each key, in their order.
func (g *rig) firstCopies(keyOf func(id string) string) map[string][]string {
	seen, order := map[string]bool{}, map[string][]string{}
	for _, id := range g.broker.got() {
		if !seen[id] {
			seen[id] = true
			order[keyOf(id)] = append(order[keyOf(id)], id)
		}
	}
	return order
}

func TestRelay_KilledRelayLosesNothing(t *testing.T) {
	t.Parallel()
	for name, standby := range map[string]bool{"started again": false, "another stands by": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killedLosesNothing(t, standby)
		})
	}
}

// killedLosesNothing kills relays while messages of ten keys are written. The first copies of each key keep its order.
func killedLosesNothing(t *testing.T, standby bool) {
	n, kills := full(300, 5000), full(3, 50)
	g := newRig(t)
	keyOf := func(id string) string { return id[len(id)-1:] }
	var writer sync.WaitGroup
	writer.Go(func() {
		for _, m := range numbered(n) {
			m.Key = keyOf(m.ID)
			g.write(m)
		}
	})
	var waiting []*program
	next := func() (p *program) {
		for len(waiting) == 0 || standby && len(waiting) < 2 {
			waiting = append(waiting, g.startProgram())
		}
		p, waiting = waiting[0], waiting[1:]
		return p
	}
	for i := range kills {
		p := next()
		until(t, "some progress", func() bool { return len(g.broker.copies()) > n*(i+1)/(kills+2) })
		p.kill()
	}
	writer.Wait()
	p := next()
	g.awaitConfirmed()
	p.kill()
	got := g.broker.got()
	if copies := len(g.broker.copies()); copies != n {
		t.Errorf("published %d of %d", copies, n)
	}
	for key, ids := range g.firstCopies(keyOf) {
		for i := range ids[1:] {
			if ids[i] > ids[i+1] {
				t.Errorf("key %s: %s before %s", key, ids[i], ids[i+1])
			}
		}
	}
	t.Logf("%d messages, %d kills, %d copies more", n, kills, len(got)-n)
}

func TestRelay_StoppedRelayIsGivenUpByTheServer(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.startProgram()
	g.write(message("first"))
	g.awaitConfirmed()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	g.start()
	g.write(message("second"))
	until(t, "the other relay", func() bool { return g.broker.attempts("second") > 0 })
	t.Logf("took over after %v, wal_sender_timeout 500ms", time.Since(began))
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	g.write(message("third"))
	g.awaitConfirmed()
	if got := len(g.broker.copies()); got != 3 {
		t.Errorf("published %d of 3", got)
	}
}
