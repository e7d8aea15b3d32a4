package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// Names of the stream that has what handlers publish, and the records of their runs.
const (
	pricesStream  = "PRICES"
	pricesSubject = "prices.out."
	pricesRecords = "prices.once"
)

// An inboxTask is what a worker over the inbox of natskv does.
type inboxTask struct {
	URLs    []string
	Faults  float64 // of a batch or run, one of the faults, in all
	Control bool    // the server hears nothing of batches
}

// A price is an output. No two runs have equal ones.
type price struct {
	Input, Run string
	N, Of      int
}

// prices is how many outputs a run has: at random, but some inputs have none.
func prices(input string) int {
	if strings.HasSuffix(input, "13") {
		return 0
	}
	return 1 + rand.IntN(5)
}

// TestJetStreamInbox_Worker is no test: see TestJetStream_WorkerProcess.
func TestJetStreamInbox_Worker(t *testing.T) {
	j := taskOf[inboxTask](t)
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	for ctx.Err() == nil {
		if err := j.run(ctx); err != nil {
			fmt.Println(time.Now().Format(time.TimeOnly), err) // servers are away on purpose
			lasts(200 * time.Millisecond)
		}
	}
}

func (j inboxTask) run(ctx context.Context) error {
	dialer := &spoiler{task: j}
	nc, err := nats.Connect(strings.Join(j.URLs, ","), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(), nats.SetCustomDialer(dialer),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	store, err := natskv.New(js, natskv.Config{Stream: pricesStream, Subject: pricesRecords})
	if err != nil {
		return err
	}
	policy := oncemill.LowValue()
	policy.Lease, policy.MaxAttempts = 15*time.Second, 10_000
	once, err := consumer.New(store.Inbox(), consumer.Config{Group: "pricing", Policy: policy})
	if err != nil {
		return err
	}
	cons, err := find(ctx, js)
	if err != nil {
		return err
	}
	w, err := natsjs.NewWorker(once, js, cons, func(ctx context.Context, msg jetstream.Msg) error {
		if rand.Float64() < j.Faults/4 {
			endProcess()
		}
		run, input := oncemill.FromContext(ctx), string(msg.Data())
		n := prices(input)
		outputs, id := make([]producer.Message, n), rand.Uint64()
		for i := range outputs {
			data, err := json.Marshal(price{Input: input, Run: fmt.Sprint(id), N: i, Of: n})
			if err != nil {
				return err
			}
			outputs[i] = producer.Message{ID: run.ID(fmt.Sprint(i)), Topic: pricesSubject + fmt.Sprint(i), Payload: data}
		}
		return store.Publish(ctx, outputs...)
	}, natsjs.Config{Handler: "price", MaxInFlight: 40, Grace: time.Second})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

func endProcess() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// A spoiler dials connections that die, fall deaf or are cut in the middle of batches.
type spoiler struct{ task inboxTask }

func (s *spoiler) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return nil, err
	}
	return &spoiltConn{Conn: conn, task: s.task}, nil
}

type spoiltConn struct {
	net.Conn
	task inboxTask
	deaf atomic.Bool
	once sync.Once
}

// Read reads nothing more when the connection is deaf, so that answers are lost.
func (c *spoiltConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}

var (
	batchHeader = []byte("Nats-Batch-")
	batchEnds   = []byte("Nats-Batch-Commit")
	published   = []byte("\r\nHPUB ")
)

// Write sends. What holds batches may be sent in part, up to the end of a message.
func (c *spoiltConn) Write(p []byte) (int, error) {
	batch := bytes.Contains(p, batchEnds)
	if c.task.Control {
		p = bytes.ReplaceAll(p, batchHeader, []byte("Lost-Batch-"))
	}
	if !batch || rand.Float64() >= c.task.Faults {
		return c.Conn.Write(p)
	}
	fault := rand.IntN(4)
	if at := bytes.LastIndex(p, published); fault < 2 && at > 0 {
		_, _ = c.Conn.Write(p[:at+2]) // behind a message, and before another one
		if fault == 0 {
			endProcess()
		}
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(p)
	switch {
	case err != nil:
	case fault == 2:
		time.AfterFunc(rand.N(8*time.Millisecond), endProcess) // about when the answer comes
	default:
		c.deaf.Store(true)
		time.AfterFunc(30*time.Millisecond, func() { c.once.Do(func() { _ = c.Close() }) })
	}
	return n, err
}
