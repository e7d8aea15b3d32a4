package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
)

// A writer writes messages from one number to another in a transaction.
type writer func(t *testing.T, from, to int)

func messages(topic string, from, to int) (all []producer.Message) {
	for i := from; i < to; i++ {
		all = append(all, producer.Message{ID: fmt.Sprint("order-", i), Topic: topic, Payload: []byte("{}")})
	}
	return all
}

// in makes the outbox at an address, for messages to a topic.
func in(t *testing.T, address, topic string) writer {
	t.Helper()
	a := &app{settings: settings{servers: servers{Outbox: address}}}
	t.Cleanup(a.close)
	opened, err := a.reachBox(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	at, _, err := split(address)
	if err != nil {
		t.Fatal(err)
	}
	var db *sql.DB
	if at.Scheme == "sqlite" {
		db, err = a.database(t.Context(), at)
	} else {
		db, err = sql.Open("pgx", address)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	box := opened.(interface {
		InSQL(tx *sql.Tx) producer.Publisher
	})
	return func(t *testing.T, from, to int) {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		err = box.InSQL(tx).Publish(t.Context(), messages(topic, from, to)...)
		if err := errors.Join(err, tx.Commit()); err != nil {
			t.Fatal(err)
		}
	}
}

// A daemon is a relay in a process of its own.
type daemon struct {
	t       *testing.T
	process *exec.Cmd
	log     strings.Builder
	at      string
}

func startDaemon(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := newDaemon(t, args...)
	d.start()
	return d
}

func newDaemon(t *testing.T, args ...string) *daemon {
	t.Helper()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, at: testserver.Loopback(port)}
	d.process = exec.CommandContext(t.Context(), "oncemill", append([]string{
		"relay", "--listen", d.at, "--poll", "100ms", "--publish-timeout", "1s", "--lease", "3s",
	}, args...)...)
	d.process.Stdout, d.process.Stderr = &d.log, &d.log
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	if err := d.process.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if d.process.ProcessState == nil {
			_ = d.process.Process.Kill()
			_ = d.process.Wait()
		}
		if d.t.Failed() {
			d.t.Logf("log of %s: %s", d.at, d.log.String())
		}
	})
}

// ends sends a signal, and returns how the process ended.
func (d *daemon) ends(with syscall.Signal) error {
	if err := d.process.Process.Signal(with); err != nil {
		d.t.Error(err)
	}
	return d.process.Wait()
}

// asked is the status of a probe, and what it says.
func (d *daemon) asked(path string) (int, string) {
	request, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, "http://"+d.at+path, http.NoBody)
	if err != nil {
		d.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

func (d *daemon) awaitReady(want int, why string) {
	d.t.Helper()
	soon(d.t, func() error {
		if got, text := d.asked("/readyz"); got != want || !strings.Contains(text, why) {
			return fmt.Errorf("/readyz is %d, %s; want %d, %q", got, text, want, why)
		}
		return nil
	})
}

func soon(t *testing.T, step func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testserver.WaitLimit)
	defer cancel()
	if err := testserver.Until(ctx, step); err != nil {
		t.Fatal(err)
	}
}

// A published is the IDs of what a broker has.
type published func() map[string]int

func TestRelay_DaemonsThatDieAndStopLoseNothing(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) ([]string, writer, published){
		"postgres to nats": func(t *testing.T) ([]string, writer, published) {
			dsn := postgrestest.Shared(t).NewDatabase(t).DSN()
			server := natstest.Start(t)
			ids := streamed(t, server)
			return []string{"--outbox", dsn, "--nats", server.URL()}, in(t, dsn, "orders"), ids
		},
		"sqlite to kafka": func(t *testing.T) ([]string, writer, published) {
			path := filepath.Join(t.TempDir(), "shop.db")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			brokers, topic, ids := topical(t)
			return []string{"--outbox", "sqlite:" + path, "--kafka", brokers}, in(t, "sqlite:"+path, topic), ids
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, size := 4000, 20
			if proof {
				n, size = 100_000, 200
			}
			args, write, ids := start(t)
			args = append(args, "--batch", fmt.Sprint(size))
			if proof { // the machine is busy
				args = append(args, "--publish-timeout", "5s", "--lease", "15s")
			}
			atLeast := func(want int) {
				t.Helper()
				for got := len(ids()); got < want; { // as long as there are more
					before := got
					soon(t, func() error {
						if got = len(ids()); got == before {
							return fmt.Errorf("%d are published, want %d", got, want)
						}
						return nil
					})
				}
			}
			first, second := startDaemon(t, args...), startDaemon(t, args...)
			first.awaitReady(http.StatusOK, "ready")
			second.awaitReady(http.StatusOK, "ready")
			write(t, 0, n/2)
			atLeast(n / 8)
			if err := first.ends(syscall.SIGKILL); err == nil {
				t.Error("a killed relay ended well")
			}
			write(t, n/2, n*3/4)
			atLeast(n * 5 / 8)
			if err := second.ends(syscall.SIGTERM); err != nil {
				t.Errorf("a relay that was told to stop ended with %v", err)
			}
			if !strings.Contains(second.log.String(), "relay: stopped") {
				t.Error("the relay does not say that it stopped")
			}
			write(t, n*3/4, n)
			third := startDaemon(t, args...)
			third.awaitReady(http.StatusOK, "ready")
			atLeast(n)
			copies := 0
			for id, times := range ids() {
				copies += times - 1
				if times > 2 {
					t.Errorf("%s is there %d times", id, times)
				}
			}
			if copies > 3*size { // the batches that the killed one had in its hands
				t.Errorf("%d copies, want those of three batches at most", copies)
			}
			t.Logf("%d rows, %d copies", n, copies)
			if err := third.ends(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		})
	}
}

// streamed makes a stream that keeps copies, and tells the IDs in it.
func streamed(t *testing.T, server *natstest.Server) published {
	t.Helper()
	js := server.JetStream()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "orders", Subjects: []string{"orders"}, Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	next := uint64(1)
	return func() map[string]int {
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for ; next <= info.State.LastSeq; next++ {
			m, err := stream.GetMsg(t.Context(), next)
			if err != nil {
				t.Fatal(err)
			}
			found[m.Header.Get(producer.HeaderID)]++
		}
		return found
	}
}

// topical makes a topic, and tells the IDs in it.
func topical(t *testing.T) (brokers, topic string, ids published) {
	t.Helper()
	server := kafkatest.Shared(t)
	topic = "orders-" + rand.Text()
	server.CreateTopic(topic, 3)
	cl := server.Client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	found := map[string]int{}
	return server.Addr, topic, func() map[string]int {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				if h.Key == producer.HeaderID {
					found[string(h.Value)]++
				}
			}
		})
		return found
	}
}

// A collector notes what was sent to it.
type collector struct {
	mu   sync.Mutex
	seen map[string]bool // paths of what tells the relay's name
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[r.URL.Path] = c.seen[r.URL.Path] || bytes.Contains(body, []byte("orders-relay"))
}

func TestRelay_SendsTelemetryWhereTheEnvironmentSays(t *testing.T) {
	t.Parallel()
	c := &collector{seen: map[string]bool{}}
	receiver := httptest.NewServer(c)
	defer receiver.Close()
	path := filepath.Join(t.TempDir(), "shop.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	server := natstest.Start(t)
	ids := streamed(t, server)
	write := in(t, "sqlite:"+path, "orders")
	d := newDaemon(t, "--outbox", "sqlite:"+path, "--nats", server.URL())
	d.process.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "OTEL_SERVICE_NAME=orders-relay")
	d.start()
	write(t, 0, 10)
	soon(t, func() error {
		if got := len(ids()); got < 10 {
			return fmt.Errorf("%d are published", got)
		}
		return nil
	})
	soon(t, func() error {
		_, scraped := d.asked("/metrics")
		for _, name := range []string{"oncemill_outbox_", "messaging_client_sent_messages_total"} {
			if !strings.Contains(scraped, name) {
				return fmt.Errorf("/metrics has no %s: %s", name, scraped)
			}
		}
		return nil
	})
	if err := d.ends(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if !c.seen["/v1/metrics"] || !c.seen["/v1/traces"] {
		t.Errorf("the collector got %v, want metrics and traces", c.seen)
	}
}

func TestRelay_ReadinessFollowsServers(t *testing.T) {
	t.Parallel()
	database := postgrestest.Start(t)
	server := natstest.Start(t)
	ids := streamed(t, server)
	server.Shutdown()
	d := startDaemon(t, "--outbox", database.DSN(), "--nats", server.URL())
	d.awaitReady(http.StatusServiceUnavailable, "run oncemill migrate")
	write := in(t, database.DSN(), "orders")
	d.awaitReady(http.StatusServiceUnavailable, "broker: ")
	server.Restart()
	d.awaitReady(http.StatusOK, "ready")
	server.Shutdown()
	d.awaitReady(http.StatusServiceUnavailable, "broker: ")
	write(t, 0, 100)
	server.Restart()
	d.awaitReady(http.StatusOK, "ready")
	soon(t, func() error {
		if got := len(ids()); got < 100 {
			return fmt.Errorf("%d are published", got)
		}
		return nil
	})
	database.Kill()
	d.awaitReady(http.StatusServiceUnavailable, "outbox: ")
	if status, _ := d.asked("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz is %d while the database is away", status)
	}
	database.Restart()
	d.awaitReady(http.StatusOK, "ready")
	if err := d.ends(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
