package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// Forty handlers that hang fill a group of two workers. Those that heed Policy.MaxRun end, and the group goes on. For
// the others the log of each worker names a run after a minute, and says how many there are; the group goes on when
// they do.
func TestJetStream_HandlersThatHang(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]hang{
		"limited, heeded":      {limit: 2 * time.Second, heeds: true},
		"limited, not heeded":  {limit: 2 * time.Second},
		"no limit, heeded":     {heeds: true},
		"no limit, not heeded": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !proof && !c.ends() {
				t.Skip("set ONCEMILL_PROOF=1: the log waits for a minute")
			}
			c.test(t)
		})
	}
}

type hang struct {
	limit time.Duration // Policy.MaxRun
	heeds bool          // its context
}

// ends reports whether runs end by themselves.
func (c hang) ends() bool { return c.limit > 0 && c.heeds }

func (c hang) test(t *testing.T) {
	const workers, places, behind = 2, 20, 10
	js := natstest.Start(t).JetStream()
	store, err := redisstore.New(client(t, redistest.Start(t).Addr), redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	for _, name := range []string{ordersStream, lettersStream} {
		createStream(t, js, jetstream.StreamConfig{Name: name, Subjects: []string{name}, MaxAge: time.Hour})
	}
	cons := natstest.Ask(t, "a consumer", func(ctx context.Context) (jetstream.Consumer, error) {
		return js.CreateConsumer(ctx, ordersStream, jetstream.ConsumerConfig{
			Durable: "charge", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxDeliver: -1,
		})
	})
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(kind string, n int) {
		for i := range n {
			id := fmt.Sprint(kind, "-", i)
			m := producer.Message{ID: id, Topic: ordersStream, Payload: []byte(id)}
			if err := pub.Publish(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	var hanging, done atomic.Int32
	release := make(chan struct{})
	handle := func(ctx context.Context, m jetstream.Msg) error {
		if !strings.HasPrefix(string(m.Data()), "hangs") {
			done.Add(1)
			return nil
		}
		heeded := ctx.Done()
		if !c.heeds {
			heeded = nil
		}
		hanging.Add(1)
		defer hanging.Add(-1)
		select {
		case <-release:
			return nil
		case <-heeded:
			return ctx.Err()
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	logs, ended := make([]hangLog, workers), make(chan error, workers)
	for i := range logs {
		once, err := consumer.New(store, consumer.Config{
			Group: "billing", DeadLetters: pub, DeadLetterTopic: lettersStream, Policy: oncemill.Policy{
				MaxRun: c.limit, MaxAttempts: 1, Logger: slog.New(slog.NewJSONHandler(&logs[i], nil)),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		w, err := natsjs.NewWorker(once, js, cons, handle, natsjs.Config{Handler: "charge", MaxInFlight: places})
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- w.Run(ctx) }()
	}
	began := time.Now()
	publish("hangs", workers*places)
	until(t, "forty handlers hang", func() bool {
		return hanging.Load() == workers*places || c.ends() && time.Since(began) > c.limit
	})
	publish("good", behind)
	if c.ends() {
		until(t, "the group goes on", func() bool { return done.Load() >= behind })
		t.Logf("the group went on after %v", time.Since(began).Round(time.Millisecond))
		until(t, "each that hung is a dead letter", func() bool {
			return lookAt(t, js, lettersStream).CachedInfo().State.Msgs == workers*places
		})
	} else {
		untilNamed(t, logs, places)
		t.Logf("named after %v", time.Since(began).Round(time.Millisecond))
		if n := done.Load(); n != 0 || hanging.Load() != workers*places {
			t.Errorf("%d hang and %d were handled behind them, want all to hang", hanging.Load(), n)
		}
		close(release)
		until(t, "the group goes on", func() bool { return done.Load() >= behind })
	}
	stop()
	for range logs {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// untilNamed waits until each log has a line that names a run that hangs, and says how many there are: all, once they
// have been at work for a minute.
func untilNamed(t *testing.T, logs []hangLog, runs int) {
	t.Helper()
	for i := range logs {
		var said map[string]any
		until(t, "the log names a run, and counts all", func() bool {
			lines := logs[i].lines(t)
			if len(lines) > 0 {
				said = lines[len(lines)-1]
			}
			return said["runs"] == float64(runs)
		})
		if atWork, _ := said["at_work"].(float64); said["handler"] != "charge" || time.Duration(atWork) < time.Minute ||
			!strings.HasPrefix(fmt.Sprint(said["id"]), "hangs-") {
			t.Errorf("the log says %v, want an ID, the handler and how long", said)
		}
		t.Logf("%v", said)
	}
}

// A hangLog keeps what is said of runs that hang.
type hangLog struct {
	mu   sync.Mutex
	said [][]byte
}

func (l *hangLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Contains(line, []byte("have been at work for long")) {
		l.said = append(l.said, slices.Clone(line))
	}
	return len(line), nil
}

func (l *hangLog) lines(t *testing.T) (all []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.said {
		m := map[string]any{}
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}
