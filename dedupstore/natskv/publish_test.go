package natskv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
)

func message(id, topic string) producer.Message {
	return producer.Message{ID: id, Topic: topic, Payload: []byte(id)}
}

func many(n int) (all []producer.Message) {
	for i := range n {
		all = append(all, message(fmt.Sprint("m", i), "orders.out."+fmt.Sprint(i%7)))
	}
	return all
}

// stored are the subjects of what a stream has, without records.
func stored(t *testing.T, in *Inbox) (subjects []string) {
	t.Helper()
	s := natstest.Ask(t, "the stream", func(ctx context.Context) (jetstream.Stream, error) {
		return in.js.Stream(ctx, in.stream)
	})
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		if err == nil && !strings.HasPrefix(m.Subject, in.prefix) {
			subjects = append(subjects, m.Subject)
			if m.Header.Get(producer.HeaderID) == "" {
				t.Errorf("message %d has no ID", seq)
			}
		}
	}
	return subjects
}

func wantStored(t *testing.T, in *Inbox, want ...string) {
	t.Helper()
	if got := stored(t, in); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the stream has %q, want %q", got, want)
	}
}

func TestPublish_OutsideOfARunIsAllOrNothing(t *testing.T) {
	t.Parallel()
	in := newInbox(t, natstest.Start(t).JetStream(), Stream("ORDERS", 1, "orders.>"))
	batch := []producer.Message{message("1", "orders.a"), message("2", "orders.b")}
	for range 2 { // the second is a repetition
		if err := in.Publish(t.Context(), batch...); err != nil {
			t.Fatal(err)
		}
	}
	wantStored(t, in, "orders.a", "orders.b")
	for range 2 {
		if err := in.Publish(t.Context(), message("1", "orders.a")); err != nil { // alone it is another one
			t.Fatal(err)
		}
	}
	wantStored(t, in, "orders.a", "orders.b", "orders.a")
	if err := in.Publish(t.Context(), message("3", "orders.c"), message("4", "other.d")); err == nil {
		t.Error("a message of no subject of the stream was published")
	}
	wantStored(t, in, "orders.a", "orders.b", "orders.a")
}

func TestPublish_RefusesWhatTheStreamWould(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	config := Stream("ORDERS", 1, "orders.>")
	config.MaxMsgSize = 10_000
	in := newInbox(t, js, config)
	bucket := newStore(t, js, Bucket("oncemill", 1))
	large := message("1", "orders.a")
	large.Payload = make([]byte, 10_000)
	headed := message("1", "orders.a")
	headed.Header = producer.Header{"Nats-Rollup": "all"}
	for want, messages := range map[string][]producer.Message{
		"is no subject of stream":  {message("1", "other.a")},
		"where the records are":    {message("1", "orders.once.a.b.c.d")},
		"makes a message of":       {large},
		"is an order to the NATS":  {headed},
		"want at most 1000 in one": many(1001),
		"is empty: use Stamp":      {message("", "orders.a")},
	} {
		var invalid *dedupstore.InvalidError
		if err := in.Publish(t.Context(), messages...); !errors.As(err, &invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	wantStored(t, in)
	err := bucket.Publish(t.Context(), message("1", "a"))
	if err == nil || !strings.Contains(err.Error(), "Config.Stream") {
		t.Errorf("over a bucket: %v", err)
	}
}

func TestPublish_ARunHasAtMost999Messages(t *testing.T) {
	t.Parallel()
	in := newInbox(t, natstest.Start(t).JetStream(), Stream("ORDERS", 1, "orders.>"))
	run := func(id string, n int) error {
		c := claim(t, in, request(id), dedupstore.AcquiredRun).Claim
		return dedupstore.InTxOne(t.Context(), in, c, func(ctx context.Context) (dedupstore.Settlement, error) {
			half := n / 2
			if err := in.Publish(ctx, many(n)[:half]...); err != nil {
				return nil, err
			}
			return succeeded(""), in.Publish(ctx, many(n)[half:]...)
		})
	}
	var invalid *dedupstore.InvalidError
	if err := run("1", 1000); !errors.As(err, &invalid) {
		t.Errorf("1,000 outputs: %v", err)
	}
	wantStored(t, in)
	if err := run("2", 999); err != nil {
		t.Errorf("999 outputs: %v", err)
	}
	if n := len(stored(t, in)); n != 999 {
		t.Errorf("the stream has %d outputs", n)
	}
}

// processorOf is a processor over the inbox.
func processorOf(t *testing.T, in *Inbox, dead producer.Publisher) *consumer.Processor {
	t.Helper()
	p, err := consumer.New(in, consumer.Config{Group: "pricing", DeadLetters: dead, DeadLetterTopic: "dead.pricing"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestInbox_ReturnedOutputsOfTheStreamAreInTheBatch(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	in := newInbox(t, js, Stream("ORDERS", 1, "orders.>"))
	p := processorOf(t, in, in)
	d := consumer.Delivery{Handler: "price", Header: producer.Header{producer.HeaderID: "1"}, Payload: []byte("x")}
	outputs := func(ctx context.Context) ([]producer.Message, error) {
		if err := in.Publish(ctx, message(oncemill.FromContext(ctx).ID("a"), "orders.a")); err != nil {
			return nil, err
		}
		return []producer.Message{{Topic: "orders.b"}, {Topic: "mails.c"}, {Topic: "orders.d"}}, nil
	}
	decision := p.ProcessOutputs(t.Context(), d, outputs)
	if decision.Action != consumer.Ack || decision.Result.Publication == nil {
		t.Fatalf("decided %+v", decision)
	}
	rest := decision.Result.Publication.Messages()
	if len(rest) != 1 || rest[0].Topic != "mails.c" {
		t.Errorf("left to publish: %+v, want the message of another stream", rest)
	}
	if err := decision.Result.Publication.Done(); err != nil {
		t.Error(err)
	}
	wantStored(t, in, "orders.a", "orders.b", "orders.d")

	late := d // its handler ends when its time is over, and has not talked to the server for long
	late.Header = producer.Header{producer.HeaderID: "2"}
	ctx, cancel := context.WithCancel(t.Context())
	decision = p.ProcessOutputs(ctx, late, func(context.Context) ([]producer.Message, error) {
		cancel()
		in.clock.last.Store(nil)
		return []producer.Message{{Topic: "orders.e"}}, nil
	})
	if decision.Action != consumer.Ack || decision.Result.Publication != nil {
		t.Errorf("decided %+v, want that the batch has the output", decision)
	}
	wantStored(t, in, "orders.a", "orders.b", "orders.d", "orders.e")
	again := p.ProcessOutputs(t.Context(), d, outputs)
	if again.Action != consumer.Ack || again.Result.Publication != nil {
		t.Errorf("a duplicate: %+v", again)
	}
	wantStored(t, in, "orders.a", "orders.b", "orders.d", "orders.e")
}

func TestGuard_RefusesLeasesThatAreShorterThanThreeAnswers(t *testing.T) {
	t.Parallel()
	in := inboxOf(t, natstest.Start(t).JetStream(), "ORDERS")
	policy := oncemill.LowValue()
	for lease, fits := range map[time.Duration]bool{14 * time.Second: false, 15 * time.Second: true} {
		policy.Lease = lease
		if _, err := oncemill.NewGuard(in, policy); (err == nil) != fits {
			t.Errorf("a lease of %v: %v", lease, err)
		}
	}
}

func TestPublish_LostAnswers(t *testing.T) {
	t.Parallel()
	in := newInbox(t, natstest.Start(t).JetStream(), Stream("ORDERS", 1, "orders.>"))
	var lose atomic.Bool
	in.batches.fault = func(_ []*nats.Msg, send func() (int64, error)) (int64, error) {
		n, err := send()
		if lose.Load() {
			return 0, errLost
		}
		return n, err
	}
	batch := []producer.Message{message("1", "orders.a"), message("2", "orders.b")}
	lose.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err := in.Publish(ctx, batch...)
	failures, ok := producer.Failures(err, len(batch))
	if !ok || len(failures) != 2 || !failures[0].Unknown || !failures[1].Unknown {
		t.Errorf("without any answer: %v, want unknown failures of both", err)
	}
	lose.Store(false)
	if err := in.Publish(t.Context(), batch...); err != nil {
		t.Errorf("called again: %v", err)
	}
	wantStored(t, in, "orders.a", "orders.b")
}

func TestInbox_AMissingRightIsSaid(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "pw"}, {Username: "app", Password: "pw",
			Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{"orders.once.>", "orders.a", "$JS.API.STREAM.INFO.ORDERS",
					"$JS.API.STREAM.MSG.GET.ORDERS"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}}}
	})
	newInbox(t, s.JetStream(nats.UserInfo("admin", "pw")), Stream("ORDERS", 1, "orders.>"))
	in := inboxOf(t, s.JetStream(nats.UserInfo("app", "pw")), "ORDERS")
	if _, err := in.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for topic, allowed := range map[string]bool{"orders.a": true, "orders.b": false} {
		c := claim(t, in, request(topic), dedupstore.AcquiredRun).Claim
		err := dedupstore.InTxOne(t.Context(), in, c, func(ctx context.Context) (dedupstore.Settlement, error) {
			return succeeded(""), in.Publish(ctx, message("1", "orders.a"), message("2", topic))
		})
		var setup *dedupstore.SetupError
		said := errors.As(err, &setup) && strings.Contains(err.Error(), "lacks a right")
		if allowed != (err == nil) || allowed == said {
			t.Errorf("%s: %v", topic, err)
		}
	}
}

// A commit that the server refuses until the lease is over says what was refused, not that a deadline was exceeded.
func TestInbox_AnEndedCommitSaysWhy(t *testing.T) {
	t.Parallel()
	in := newInbox(t, natstest.Start(t).JetStream(), Stream("ORDERS", 1, "orders.>"))
	r := request("1")
	r.Lease = 300 * time.Millisecond
	c := claim(t, in, r, dedupstore.AcquiredRun).Claim
	in.batches.within = 100 * time.Millisecond
	in.batches.fault = func([]*nats.Msg, func() (int64, error)) (int64, error) {
		return 0, &jetstream.APIError{Code: 400, ErrorCode: codeBatchIncomplete, Description: "incomplete"}
	}
	err := dedupstore.InTxOne(t.Context(), in, c, func(ctx context.Context) (dedupstore.Settlement, error) {
		return succeeded(""), in.Publish(ctx, message("1", "orders.a"))
	})
	if err == nil || !isCode(err, codeBatchIncomplete) {
		t.Errorf("%v, want what the server refused", err)
	}
}

// A batch that is answered as incomplete, as by a leader that has just changed, is sent again, whatever others on its
// connection are refused meanwhile.
func TestInbox_WhatOthersMayNotDoEndsNoBatch(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "app", Password: "pw", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"elsewhere"}},
		}}}
	})
	in := newInbox(t, s.JetStream(nats.UserInfo("app", "pw")), Stream("ORDERS", 1, "orders.>"))
	sent := 0
	in.batches.fault = func(messages []*nats.Msg, send func() (int64, error)) (int64, error) {
		if sent++; sent > 1 {
			return send()
		}
		messages[0].Header.Set(batchSeq, "9")
		if err := in.js.Conn().Publish("elsewhere", nil); err != nil {
			t.Error(err)
		}
		last, err := send()
		if !isCode(err, codeBatchIncomplete) {
			t.Errorf("%d, %v, want an answer that says that the batch is incomplete", last, err)
		}
		if said := in.js.Conn().LastError(); !errors.Is(said, nats.ErrPermissionViolation) {
			t.Errorf("the connection says %v, want a refusal", said)
		}
		return last, err
	}
	c := claim(t, in, request("1"), dedupstore.AcquiredRun).Claim
	if err := dedupstore.InTxOne(t.Context(), in, c, func(ctx context.Context) (dedupstore.Settlement, error) {
		return succeeded(""), in.Publish(ctx, message("1", "orders.a"), message("2", "orders.b"))
	}); err != nil {
		t.Error(err)
	}
	if sent < 2 {
		t.Errorf("sent %d times, want it again", sent)
	}
	wantStored(t, in, "orders.a", "orders.b")
}

// Half a batch of a process that died is in nobody's way, and sixty connections that publish at once neither.
func TestInbox_ManyConnectionsBesideHalfABatch(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	in := newInbox(t, server.JetStream(), Stream("ORDERS", 1, "orders.>"))
	half := &nats.Msg{Subject: "orders.half", Header: nats.Header{batchID: {"half"}, batchSeq: {"1"}}}
	if err := in.js.Conn().PublishMsg(half); err != nil {
		t.Fatal(err)
	}
	const connections = 60
	failed := make(chan error, connections)
	for i := range connections {
		js := server.JetStream()
		go func() {
			own := inboxOf(t, js, "ORDERS")
			all := []dedupstore.Request{request(fmt.Sprint(i))}
			results := own.Claim(t.Context(), all)
			for range 20 { // on a busy machine an answer may take too long
				if err := results[0].Err; err == nil || !strings.Contains(err.Error(), "no answer within") {
					break
				}
				results = own.Claim(t.Context(), all)
			}
			if results[0].Err != nil {
				failed <- results[0].Err
				return
			}
			failed <- dedupstore.InTxOne(t.Context(), own, results[0].Answer.Claim,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					return succeeded(""), own.Publish(ctx, message("1", "orders.a"), message("2", "orders.b"))
				})
		}()
	}
	for range connections {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if n := len(stored(t, in)); n != 2*connections {
		t.Errorf("the stream has %d outputs, want %d", n, 2*connections)
	}
}

// A store of the same stream's name elsewhere is another one, and what it publishes is no output of the run.
func TestPublish_ByAStoreOfAnotherServerJoinsNoRun(t *testing.T) {
	t.Parallel()
	a := newInbox(t, natstest.Start(t).JetStream(), Stream("ORDERS", 1, "orders.>"))
	b := newInbox(t, natstest.Start(t).JetStream(), Stream("ORDERS", 1, "orders.>"))
	c := claim(t, a, request("1"), dedupstore.AcquiredRun).Claim
	if err := dedupstore.InTxOne(t.Context(), a, c, func(ctx context.Context) (dedupstore.Settlement, error) {
		return succeeded(""), b.Publish(ctx, message("1", "orders.b"))
	}); err != nil {
		t.Fatal(err)
	}
	wantStored(t, b, "orders.b")
	wantStored(t, a)
}

func TestPublish_ByAStoreOfOtherRecordsLeavesThoseOfTheRunAlone(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	a := newInbox(t, js, Stream("ORDERS", 1, "orders.>"))
	b, err := New(js, Config{Stream: "ORDERS", Subject: "orders.second"})
	if err != nil {
		t.Fatal(err)
	}
	c := claim(t, a, request("1"), dedupstore.AcquiredRun).Claim
	err = dedupstore.InTxOne(t.Context(), a, c, func(ctx context.Context) (dedupstore.Settlement, error) {
		return succeeded(""), b.Publish(ctx, message("1", "orders.once.a.b.c.d"))
	})
	if _, is := errors.AsType[*dedupstore.InvalidError](err); !is {
		t.Errorf("it returned %v, want an InvalidError", err)
	}
	wantStored(t, a)
}

// The client would keep what it gets while it has no connection, and send it when it has one again.
func TestPublish_WithoutAConnectionLeavesNothingForLater(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.JetStream()
	in := newInbox(t, js, Stream("ORDERS", 1, "orders.>"))
	if _, err := in.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	connected := func(want bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); js.Conn().IsConnected() != want; <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the connection does not become %v", want)
			}
		}
	}
	server.Shutdown()
	connected(false)
	for _, all := range [][]producer.Message{
		{message("1", "orders.a")}, {message("2", "orders.a"), message("3", "orders.b")},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := in.Publish(ctx, all...); err == nil {
			t.Error("it is published")
		}
		cancel()
	}
	server.Restart()
	connected(true)
	if err := in.Publish(t.Context(), message("4", "orders.c")); err != nil {
		t.Fatal(err)
	}
	wantStored(t, in, "orders.c")
}
