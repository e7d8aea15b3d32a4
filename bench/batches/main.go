// Program batches measures what it costs that each input has the outputs of one run. A handler publishes two messages
// into a stream of three replicas, by Oncemill's inbox of natskv, by a leased claim in a bucket, and without Oncemill.
// Every variant has to handle each message exactly once, as nobody dies.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// Names of variants.
const (
	inbox   = "inbox, natskv"
	batched = "handler of up to 64 inputs, natskv's inbox"
	leased  = "leased, natskv"
	plain   = "publish, ack"
)

const (
	outputs  = 2
	window   = 256 // messages in flight
	size     = 200 // bytes of an output
	sent     = "sent/msg"
	deadline = 2 * time.Minute
)

var experiments = []kit.Experiment{
	{Name: "batches", Variants: []string{inbox, batched, leased, plain}, Run: compare},
}

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // workers say when they begin and end
	kit.Main(experiments...)
}

func compare(ctx context.Context, b *kit.Bench) (err error) {
	r := &rig{bench: b, messages: max(int(3000*b.Scale), 100)}
	giveBack, err := kit.Borrow(func(t testing.TB) {
		program := testserver.BuildProgram(t, "github.com/nats-io/nats-server/v2")
		r.cluster = natstest.StartClusterOfProcesses(t, 3, program)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, giveBack()) }()
	t, err := b.Compare(ctx, "JetStream to JetStream, three replicas, two outputs of 200 bytes", b.Rounds,
		r.variant(leased, overBucket), r.variant(inbox, overStream), r.variant(batched, batchesOverStream),
		r.variant(plain, byHand))
	if err != nil {
		return err
	}
	if t.Has(inbox, leased) {
		b.Aim("inbox_vs_leased", t.Ratio(inbox, leased, kit.Rate), 1.6, 0)
	}
	if t.Has(inbox, plain) {
		b.Aim("inbox_vs_plain", t.Ratio(inbox, plain, kit.Rate), .38, 0)
	}
	if t.Has(batched, leased) {
		b.Aim("batched_inbox_vs_leased", t.Ratio(batched, leased, kit.Rate), 1.6, 0)
	}
	if t.Has(batched, plain) {
		b.Aim("batched_inbox_vs_plain", t.Ratio(batched, plain, kit.Rate), .38, 0)
	}
	if t.Has(batched) {
		b.Limit("batched_inbox_sent", t.Median(batched, sent), 5.1)
	}
	if t.Has(inbox) {
		b.Limit("inbox_sent", t.Median(inbox, sent), 5.1)
	}
	return nil
}

type rig struct {
	bench    *kit.Bench
	cluster  *natstest.Cluster
	messages int
	round    int // streams have names of their own: one that is made again may have old messages
}

// A task is one measurement.
type task struct {
	js      jetstream.JetStream
	cons    jetstream.Consumer
	out     string // what the subjects of outputs begin with
	stream  string
	bucket  string
	handled chan error
}

// A way begins to consume, and returns what ends it.
type way func(ctx context.Context, j *task) (stop func() error, err error)

func (r *rig) variant(name string, run way) kit.Variant {
	return kit.Variant{Name: name, Measure: func(ctx context.Context) ([]kit.Figure, error) {
		ctx, cancel := context.WithTimeout(ctx, deadline)
		defer cancel()
		return r.measure(ctx, run)
	}}
}

func (r *rig) measure(ctx context.Context, run way) (figures []kit.Figure, err error) {
	r.round++
	name := fmt.Sprint(r.round)
	nc, err := nats.Connect(strings.Join(r.cluster.URLs(), ","))
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	j := &task{
		stream: "OUT" + name, bucket: "b" + name, out: "out." + name + ".",
		handled: make(chan error, r.messages+window),
	}
	if j.js, err = jetstream.New(nc); err != nil {
		return nil, err
	}
	in := jetstream.StreamConfig{Name: "IN" + name, Subjects: []string{"in." + name}, Replicas: 3}
	for _, c := range []jetstream.StreamConfig{in, natskv.Stream(j.stream, 3, "out."+name+".>"), natskv.Bucket(j.bucket, 3)} {
		stream, err := j.js.CreateStream(ctx, c)
		if err != nil {
			return nil, err
		}
		defer func() {
			err = errors.Join(err, j.js.DeleteStream(context.WithoutCancel(ctx), stream.CachedInfo().Config.Name))
		}()
	}
	for i := range r.messages {
		m := &nats.Msg{Subject: in.Subjects[0], Data: fmt.Append(nil, i),
			Header: nats.Header{producer.HeaderID: {fmt.Sprint("m", i)}}}
		if _, err := j.js.PublishMsgAsync(m); err != nil {
			return nil, err
		}
	}
	<-j.js.PublishAsyncComplete()
	if j.cons, err = j.js.CreateConsumer(ctx, in.Name, jetstream.ConsumerConfig{
		Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute, MaxAckPending: 2 * window,
	}); err != nil {
		return nil, err
	}
	before := nc.Stats().OutMsgs
	var stop func() error
	cpu := func(context.Context) (time.Duration, error) { return kit.ServersCPU() }
	servers := kit.Servers{{Name: "servers", CPU: cpu}}
	figures, err = servers.Cost(ctx, r.messages, func() (err error) {
		return r.bench.Profiled(func() (err error) {
			if stop, err = run(ctx, j); err != nil {
				return err
			}
			return j.await(ctx, r.messages)
		})
	})
	figures = append(figures, kit.Figure{Name: sent, Value: float64(nc.Stats().OutMsgs-before) / float64(r.messages)})
	if stop != nil {
		err = errors.Join(err, stop())
	}
	return figures, err
}

// await waits until all inputs are acknowledged.
func (j *task) await(ctx context.Context, messages int) error {
	for range messages {
		select {
		case err := <-j.handled:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		info, err := j.cons.Info(ctx)
		if err != nil || info.NumPending+uint64(info.NumAckPending) == 0 {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (j *task) messages(id func(name string) string) []producer.Message {
	all := make([]producer.Message, outputs)
	for i := range all {
		all[i] = producer.Message{ID: id(fmt.Sprint(i)), Topic: j.out + fmt.Sprint(i), Payload: make([]byte, size)}
	}
	return all
}

func overStream(ctx context.Context, j *task) (func() error, error) {
	store, err := natskv.New(j.js, natskv.Config{Stream: j.stream, Subject: j.out + "once"})
	if err != nil {
		return nil, err
	}
	return j.work(ctx, store.Inbox(), store)
}

// batchesOverStream gives the handler several inputs: one atomic batch has the outputs and records of all.
func batchesOverStream(ctx context.Context, j *task) (func() error, error) {
	store, err := natskv.New(j.js, natskv.Config{Stream: j.stream, Subject: j.out + "once"})
	if err != nil {
		return nil, err
	}
	once, err := consumer.New(store.Inbox(), consumer.Config{Group: "bench"})
	if err != nil {
		return nil, err
	}
	handle := func(ctx context.Context, _ []jetstream.Msg) []error {
		var all []producer.Message
		runs := oncemill.RunsFromContext(ctx)
		for _, run := range runs {
			all = append(all, j.messages(run.ID)...)
		}
		err := store.Publish(ctx, all...)
		for range runs {
			j.handled <- err
		}
		if err != nil {
			return []error{err}
		}
		return nil
	}
	return j.run(ctx)(natsjs.NewBatchWorker(once, j.js, j.cons, handle, natsjs.BatchConfig{
		Config: natsjs.Config{Handler: "price", MaxInFlight: window}, MaxBatch: 64,
	}))
}

func overBucket(ctx context.Context, j *task) (func() error, error) {
	store, err := natskv.New(j.js, natskv.Config{Bucket: j.bucket})
	if err != nil {
		return nil, err
	}
	pub, err := natsjs.NewPublisher(j.js, natsjs.PublisherConfig{})
	if err != nil {
		return nil, err
	}
	return j.work(ctx, store, pub)
}

func (j *task) work(ctx context.Context, store dedupstore.Store, pub producer.Publisher) (func() error, error) {
	once, err := consumer.New(store, consumer.Config{Group: "bench"})
	if err != nil {
		return nil, err
	}
	handle := func(ctx context.Context, _ jetstream.Msg) error {
		err := pub.Publish(ctx, j.messages(oncemill.FromContext(ctx).ID)...)
		j.handled <- err
		return err
	}
	return j.run(ctx)(natsjs.NewWorker(once, j.js, j.cons, handle,
		natsjs.Config{Handler: "price", MaxInFlight: window}))
}

// run begins a worker.
func (*task) run(ctx context.Context) func(*natsjs.Worker, error) (func() error, error) {
	return func(w *natsjs.Worker, err error) (func() error, error) {
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		return func() error {
			cancel()
			return <-ended
		}, nil
	}
}

// byHand publishes and acknowledges.
func byHand(_ context.Context, j *task) (func() error, error) {
	room := make(chan struct{}, window)
	cc, err := j.cons.Consume(func(m jetstream.Msg) {
		room <- struct{}{}
		go func() {
			defer func() { <-room }()
			var acks []jetstream.PubAckFuture
			for _, o := range j.messages(func(name string) string { return name }) {
				ack, err := j.js.PublishMsgAsync(&nats.Msg{Subject: o.Topic, Data: o.Payload})
				if err != nil {
					j.handled <- err
					return
				}
				acks = append(acks, ack)
			}
			for _, ack := range acks {
				select {
				case <-ack.Ok():
				case err := <-ack.Err():
					j.handled <- err
					return
				}
			}
			j.handled <- m.Ack()
		}()
	}, jetstream.PullMaxMessages(window))
	if err != nil {
		return nil, err
	}
	return func() error {
		cc.Stop()
		<-cc.Closed()
		return nil
	}, nil
}
