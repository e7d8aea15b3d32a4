package watermill_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A stock publisher makes all metadata headers, as that of Watermill's adapters does.
type stock struct{ js jetstream.JetStream }

func (s stock) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		msg := &nats.Msg{Subject: topic, Header: nats.Header{}, Data: m.Payload}
		for name, value := range m.Metadata {
			msg.Header.Set(name, value)
		}
		if _, err := s.js.PublishMsg(m.Context(), msg); err != nil {
			return err
		}
	}
	return nil
}

func (stock) Close() error { return nil }

// Publishers are those that poison may go to.
var publishers = map[string]func(*testing.T, jetstream.JetStream) message.Publisher{
	"stock": func(_ *testing.T, js jetstream.JetStream) message.Publisher { return stock{js} },
	"natsjs": func(t *testing.T, js jetstream.JetStream) message.Publisher {
		p, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return oncewatermill.NewPublisher(p)
	},
}

// What somebody else has told the stream is said of the message, not of its poison: as a duplicate of the message it would be lost.
func TestNATS_PoisonGivesNoOrdersToTheStream(t *testing.T) {
	t.Parallel()
	for kind, publisher := range publishers {
		for name, value := range map[string]string{"Nats-Msg-Id": "m1", "Nats-Rollup": "all", "Nats-Expected-Last-Subject-Sequence": "0"} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, jetstream.ConsumerConfig{FilterSubject: "orders.new"})
				if _, err := r.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, AllowRollup: true}); err != nil {
					t.Fatal(err)
				}
				once := r.processor()
				mws, err := oncewatermill.Chain(oncewatermill.PoisonQueue(publisher(t, r.js), "orders.poison"), oncewatermill.Guarded(once))
				if err != nil {
					t.Fatal(err)
				}
				r.poisons(r.sourceOf(once), mws, errors.New("bad"))
				msg := &nats.Msg{Subject: "orders.new", Header: nats.Header{name: {value}}, Data: []byte("x")}
				if name != jetstream.MsgIDHeader {
					msg.Header.Set(producer.HeaderID, "m1")
				}
				if _, err := r.js.PublishMsg(t.Context(), msg); err != nil {
					t.Fatal(err)
				}
				r.acked(1)
				stream, err := r.js.Stream(t.Context(), "orders")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := stream.GetLastMsgForSubject(t.Context(), "orders.poison"); err != nil {
					t.Errorf("the poison is not there: %v", err)
				}
				if _, err := stream.GetLastMsgForSubject(t.Context(), "orders.new"); err != nil {
					t.Errorf("the message is not there any more: %v", err)
				}
			})
		}
	}
}

// Handlers often make an output of what came in, with all its metadata. The guard takes out what the server has put
// there, also for a message that it bypasses. Otherwise the output would be lost as a duplicate of the input.
func TestNATS_OutputsOfABypassGiveNoOrdersToTheStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{FilterSubject: "orders.new"})
	r.policy.MissingID = oncemill.MissingIDBypass
	once, err := consumer.New(r.store, consumer.Config{Group: "billing", Policy: r.policy, Extractors: []producer.Extractor{producer.ExtractMessageID}})
	if err != nil {
		t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(oncewatermill.Middleware(once))
	router.AddHandler("charge", "orders", subscriber(r.t, r.sourceOf(once)), "orders.charged", stock{r.js}, func(msg *message.Message) ([]*message.Message, error) {
		return message.Messages{msg}, nil
	})
	r.routes(router)
	if _, err := r.js.Publish(t.Context(), "orders.new", []byte("x"), jetstream.WithMsgID("m1")); err != nil {
		t.Fatal(err)
	}
	r.acked(1)
	stream, err := r.js.Stream(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.GetLastMsgForSubject(t.Context(), "orders.charged"); err != nil {
		t.Errorf("the output is not there: %v", err)
	}
}

// poisons runs a Router over a source until the test ends, whose handler refuses everything for good. It counts the runs.
func (r *rig) poisons(source consumer.Source, mws []message.HandlerMiddleware, reason error) *atomic.Int32 {
	r.t.Helper()
	runs := new(atomic.Int32)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		r.t.Fatal(err)
	}
	router.AddMiddleware(mws...)
	router.AddConsumerHandler("charge", "orders", subscriber(r.t, source), func(*message.Message) error {
		runs.Add(1)
		return oncemill.Permanent(reason)
	})
	r.routes(router)
	return runs
}

// routes runs a Router until the test ends.
func (r *rig) routes(router *message.Router) {
	r.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	r.t.Cleanup(func() {
		if err := errors.Join(router.Close(), <-ended); err != nil {
			r.t.Error(err)
		}
	})
	<-router.Running()
}

// As it is means with its headers. To the guard it is a duplicate of the failure, wherever its ID was, and it becomes
// poison again. The stream may take neither for a duplicate.
func TestNATS_PoisonThatIsSentBackIsPoisonAgainWithoutARun(t *testing.T) {
	t.Parallel()
	for kind, publisher := range publishers {
		for _, name := range []string{jetstream.MsgIDHeader, "Idempotency-Key", producer.HeaderID} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, jetstream.ConsumerConfig{FilterSubject: "orders.new"})
				pub := publisher(t, r.js)
				once := r.processor()
				mws, err := oncewatermill.Chain(oncewatermill.PoisonQueue(pub, "orders.poison"), oncewatermill.Guarded(once))
				if err != nil {
					t.Fatal(err)
				}
				runs := r.poisons(r.sourceOf(once), mws, errors.New("bad"))
				if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders.new", Header: nats.Header{name: {"m1"}}, Data: []byte("x")}); err != nil {
					t.Fatal(err)
				}
				stream, err := r.js.Stream(t.Context(), "orders")
				if err != nil {
					t.Fatal(err)
				}
				last := func() uint64 {
					m, err := stream.GetLastMsgForSubject(t.Context(), "orders.poison")
					if err != nil {
						return 0
					}
					return m.Sequence
				}
				until(t, "the poison", func() bool { return last() == 2 })
				poison, err := stream.GetMsg(t.Context(), 2)
				if err != nil {
					t.Fatal(err)
				}
				back := message.NewMessage("", poison.Data)
				for name := range poison.Header {
					if name != jetstream.MsgIDHeader {
						back.Metadata.Set(name, poison.Header.Get(name))
					}
				}
				if err := pub.Publish("orders.new", back); err != nil {
					t.Fatal(err)
				}
				until(t, "the poison again", func() bool { return last() == 4 })
				if n := runs.Load(); n != 1 {
					t.Errorf("%d runs", n)
				}
			})
		}
	}
}

// Why it is poison stands in its metadata. No text of an error may keep it from leaving: its message would come again for ever.
func TestNATS_PoisonLeavesWhateverItsErrorSays(t *testing.T) {
	t.Parallel()
	for kind, publisher := range publishers {
		for name, tc := range map[string]struct{ permanent, content error }{
			"nothing":             {permanent: errors.New("")},
			"cut before a word":   {permanent: errors.New(strings.Repeat("x ", 2000))},
			"of content, 2 lines": {content: errors.Join(errors.New("no amount"), errors.New("no customer"))},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, jetstream.ConsumerConfig{FilterSubject: "orders.new"})
				once, err := consumer.New(r.store, consumer.Config{Group: "billing", Policy: r.policy, Fingerprint: func(payload []byte) (dedupstore.Fingerprint, error) {
					return dedupstore.Fingerprint{}, tc.content
				}})
				if err != nil {
					t.Fatal(err)
				}
				mws, err := oncewatermill.Chain(oncewatermill.PoisonQueue(publisher(t, r.js), "orders.poison"), oncewatermill.Guarded(once))
				if err != nil {
					t.Fatal(err)
				}
				r.poisons(r.sourceOf(once), mws, tc.permanent)
				if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders.new", Header: nats.Header{"Idempotency-Key": {"m1"}}}); err != nil {
					t.Fatal(err)
				}
				r.acked(1)
				stream, err := r.js.Stream(t.Context(), "orders")
				if err != nil {
					t.Fatal(err)
				}
				poison, err := stream.GetLastMsgForSubject(t.Context(), "orders.poison")
				if err != nil {
					t.Fatalf("the poison is not there: %v", err)
				}
				if id := poison.Header.Get(producer.HeaderID); id != "~idem,orders,m1" {
					t.Errorf("the poison has the ID %q", id)
				}
			})
		}
	}
}

// Handlers of several groups may share a poison queue.
func TestNATS_PoisonOfTwoGroupsIsNoDuplicateToTheStream(t *testing.T) {
	t.Parallel()
	for kind, publisher := range publishers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{FilterSubject: "orders.new"})
			pub := publisher(t, r.js)
			for _, group := range []string{"billing", "shipping"} {
				once, err := consumer.New(r.store, consumer.Config{Group: group, Policy: r.policy})
				if err != nil {
					t.Fatal(err)
				}
				source, err := natsjs.NewSource(once, r.js, natsjs.SourceConfig{Consumer: func(ctx context.Context, _ string) (jetstream.Consumer, error) {
					return r.js.CreateOrUpdateConsumer(ctx, "orders", jetstream.ConsumerConfig{Durable: group, FilterSubject: "orders.new", AckPolicy: jetstream.AckExplicitPolicy})
				}})
				if err != nil {
					t.Fatal(err)
				}
				mws, err := oncewatermill.Chain(oncewatermill.PoisonQueue(pub, "orders.poison"), oncewatermill.Guarded(once))
				if err != nil {
					t.Fatal(err)
				}
				r.poisons(source, mws, errors.New("bad"))
			}
			m := &nats.Msg{Subject: "orders.new", Header: nats.Header{producer.HeaderID: {"m1"}}, Data: []byte("x")}
			if _, err := r.js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			stream, err := r.js.Stream(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			until(t, "poison of both", func() bool {
				info, err := stream.Info(t.Context())
				return err == nil && info.State.LastSeq == 3
			})
		})
	}
}

// Nor may what a message has, which its stream took: others check neither headers nor IDs.
func TestNATS_PoisonLeavesWhateverItsMessageHas(t *testing.T) {
	t.Parallel()
	const id = producer.HeaderID
	long := strings.Repeat("m", dedupstore.MaxID+1)
	for kind, publisher := range publishers {
		for name, tc := range map[string]struct{ header, want nats.Header }{
			"an ID that is too long":     {nats.Header{id: {long}}, nats.Header{producer.HeaderEscaped + id: {long}}},
			"an ID as of others":         {nats.Header{id: {"~m1"}}, nats.Header{producer.HeaderEscaped + id: {"~m1"}}},
			"an ID in two spellings":     {nats.Header{"ONCEMILL-ID": {"m1"}, "Oncemill-Id": {"m2"}}, nats.Header{producer.HeaderEscaped + "Oncemill-Id": {"m2"}}},
			"a purpose in two spellings": {nats.Header{id: {"m1"}, "ONCEMILL-PURPOSE": {"a"}, "Oncemill-Purpose": {"b"}}, nats.Header{id: {"m1"}}},
			"a name that NATS forbids":   {nats.Header{id: {"m1"}, "Idempotency-Key": {"k"}}, nats.Header{id: {"m1"}, producer.HeaderEscaped + "x%2Fy": {"z+"}}},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, jetstream.ConsumerConfig{FilterSubject: "orders.new"})
				named := func(next message.HandlerFunc) message.HandlerFunc { // nats.go sends no such header, other clients do
					return func(msg *message.Message) ([]*message.Message, error) {
						if msg.Metadata.Get("Idempotency-Key") != "" {
							msg.Metadata.Set("x/y", "z ")
						}
						return next(msg)
					}
				}
				if kind == "stock" && tc.header["Idempotency-Key"] != nil {
					t.Skip("nats.go refuses it")
				}
				once := r.processor()
				mws, err := oncewatermill.Chain(oncewatermill.Other("named", named), oncewatermill.PoisonQueue(publisher(t, r.js), "orders.poison"), oncewatermill.Guarded(once))
				if err != nil {
					t.Fatal(err)
				}
				r.poisons(r.sourceOf(once), mws, errors.New("bad"))
				if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders.new", Header: tc.header, Data: []byte("x")}); err != nil {
					t.Fatal(err)
				}
				r.acked(1)
				stream, err := r.js.Stream(t.Context(), "orders")
				if err != nil {
					t.Fatal(err)
				}
				poison, err := stream.GetLastMsgForSubject(t.Context(), "orders.poison")
				if err != nil || string(poison.Data) != "x" {
					t.Fatalf("the poison is not there: %v", err)
				}
				want := tc.want
				if kind == "stock" { // it takes all
					want = tc.header
				}
				for name := range want {
					if got := poison.Header.Get(name); got != want.Get(name) {
						t.Errorf("the poison's header %s is %q, want %q", name, got, want.Get(name))
					}
				}
			})
		}
	}
}
