package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
)

// A writer writes messages from one number to another in a transaction.
type writer func(t *testing.T, from, to int)

func messages(from, to int) (all []producer.Message) {
	for i := from; i < to; i++ {
		all = append(all, producer.Message{ID: fmt.Sprint("order-", i), Topic: "orders", Payload: []byte("{}")})
	}
	return all
}

// in makes the outbox at an address.
func in(t *testing.T, address string) writer {
	t.Helper()
	a := &app{settings: settings{servers: servers{Outbox: address}}}
	t.Cleanup(a.close)
	opened, err := a.box(t.Context(), false)
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
		if err := errors.Join(box.InSQL(tx).Publish(t.Context(), messages(from, to)...), tx.Commit()); err != nil {
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
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, at: testserver.Loopback(port)}
	d.process = exec.CommandContext(t.Context(), "oncemill", append([]string{
		"relay", "--listen", d.at, "--batch", "20", "--poll", "100ms", "--publish-timeout", "1s", "--lease", "3s",
	}, args...)...)
	d.process.Stdout, d.process.Stderr = &d.log, &d.log
	if err := d.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.process.ProcessState == nil {
			_ = d.process.Process.Kill()
			_ = d.process.Wait()
		}
		if t.Failed() {
			t.Logf("log of %s: %s", d.at, d.log.String())
		}
	})
	return d
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
			return []string{"--outbox", dsn, "--nats", server.URL()}, in(t, dsn), ids
		},
		"sqlite to kafka": func(t *testing.T) ([]string, writer, published) {
			path := filepath.Join(t.TempDir(), "shop.db")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			brokers, ids := topical(t)
			return []string{"--outbox", "sqlite:" + path, "--kafka", brokers}, in(t, "sqlite:"+path), ids
		},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 4000
			args, write, ids := start(t)
			atLeast := func(want int) {
				t.Helper()
				soon(t, func() error {
					if got := len(ids()); got < want {
						return fmt.Errorf("%d are published, want %d", got, want)
					}
					return nil
				})
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
			if copies > 100 { // the batches that the killed one had in its hands: a few of 20
				t.Errorf("%d copies", copies)
			}
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
func topical(t *testing.T) (brokers string, ids published) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	brokers = strings.Join(cluster.ListenAddrs(), ",")
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	found := map[string]int{}
	return brokers, func() map[string]int {
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

func TestRelay_ReadinessFollowsServers(t *testing.T) {
	t.Parallel()
	database := postgrestest.Start(t)
	server := natstest.Start(t)
	ids := streamed(t, server)
	server.Shutdown()
	d := startDaemon(t, "--outbox", database.DSN(), "--nats", server.URL())
	d.awaitReady(http.StatusServiceUnavailable, "run oncemill migrate")
	write := in(t, database.DSN())
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
