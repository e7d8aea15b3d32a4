package natsjs_test

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func TestSource_DeliveriesHoldWhatTheMessageDoes(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	long := strings.Repeat("h", 60<<10) // nearly all that a stream takes
	for _, msg := range []*nats.Msg{
		{Subject: "orders.plain", Data: []byte("body")},
		{Subject: "orders.header", Header: nats.Header{
			"oncemill-id": {"o1"}, "OnceMill-Key": {"k"}, "accept": {"a", "b, c", "d"}, "Empty": {""},
			"_watermill_message_uuid": {"u1"},
		}},
		{Subject: "orders.long", Header: nats.Header{"Long": {long}}},
	} {
		if _, err := r.js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan consumer.Delivery, 3)
	r.config.MaxInFlight = 1
	stop := r.start(deciding{r.source(), func(_ context.Context, d consumer.Delivery) consumer.Decision {
		got <- d
		return consumer.Decision{Action: consumer.Ack}
	}})
	for _, want := range []consumer.Delivery{
		{Topic: "orders.plain", Position: "1", Payload: []byte("body")},
		{Topic: "orders.header", Position: "2", UUID: "u1", Header: producer.Header{
			"oncemill-id": "o1", "OnceMill-Key": "k", "accept": "a, b, c, d", "Empty": "",
		}},
		{Topic: "orders.long", Position: "3", Header: producer.Header{"Long": long}},
	} {
		want.Origin, want.System, want.Count = "orders", "nats", 1
		d := <-got
		d.Position, _, _ = strings.Cut(d.Position, "@") // the time
		if d.WaitLimit == nil || d.Stopping == nil {
			t.Error("no bound of waits")
		}
		bounds := cmpopts.IgnoreFields(consumer.Delivery{}, "WaitLimit", "Stopping")
		if diff := cmp.Diff(want, d, cmpopts.EquateEmpty(), bounds); diff != "" {
			t.Errorf("(-want +got):\n%.2000s", diff)
		}
	}
	r.acked(3)
	r.stops(stop)
}

func TestWorker_ForeignMessagesHaveTheirIDs(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	for _, h := range []nats.Header{
		{"Nats-Msg-Id": {"m1"}}, {"_watermill_message_uuid": {"8d3f7bd5-0a43-4e8e-9d4b-5d1a5f0b6a11"}},
		{"ce-id": {"c1"}, "ce-source": {"/shop"}, "ce-specversion": {"1.0"}, "ce-type": {"order"}},
	} {
		for range 2 { // the second one is a duplicate
			if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders.new", Header: h, Data: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders.new", Data: []byte("no ID")}); err != nil {
		t.Fatal(err)
	}
	runs := make(chan nats.Header, 10)
	stop := r.start(r.worker(func(_ context.Context, msg jetstream.Msg) error { runs <- msg.Headers(); return nil }))
	r.acked(6) // the stream itself has dropped the copy of m1; the last one is rejected
	r.stops(stop)
	if len(runs) != 3 {
		t.Errorf("%d runs, want 3", len(runs))
	}
}

// A stream that is made again counts from one again: its messages are not those of before.
func TestWorker_PositionsOfAStreamThatIsMadeAgainAreOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	once, err := consumer.New(r.store, consumer.Config{Group: "billing", Extractors: []producer.Extractor{producer.ExtractPosition}})
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	for range 2 {
		w, err := natsjs.NewWorker(once, r.js, r.cons, func(context.Context, jetstream.Msg) error { runs++; return nil }, natsjs.Config{Handler: "charge", MaxInFlight: 1})
		if err != nil {
			t.Fatal(err)
		}
		stop := r.start(w)
		for range 2 {
			if _, err := r.js.Publish(t.Context(), "orders.all", []byte("one more")); err != nil {
				t.Fatal(err)
			}
		}
		r.acked(2)
		r.stops(stop)
		if err := r.js.DeleteConsumer(t.Context(), "orders", "billing"); err != nil { // and what is in the stream comes again
			t.Fatal(err)
		}
		r.open(jetstream.ConsumerConfig{})
		stop = r.start(w)
		r.acked(2)
		r.stops(stop)
		if err := r.js.DeleteStream(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		r.open(jetstream.ConsumerConfig{})
	}
	if runs != 4 {
		t.Errorf("%d runs of 4 messages", runs)
	}
}

// A mirror has other names: only a handler that is named is the same one there.
func TestWorker_MirrorRunsNothingAgainUnderTheSameHandler(t *testing.T) {
	t.Parallel()
	for handler, want := range map[string]int{"charge": 3, "another": 6} {
		r := newRig(t, jetstream.ConsumerConfig{})
		r.publish(3, oneKey)
		if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "mirror", Mirror: &jetstream.StreamSource{Name: "orders"}}); err != nil {
			t.Fatal(err)
		}
		mirror, err := r.js.CreateConsumer(t.Context(), "mirror", jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		once, err := consumer.New(r.store, consumer.Config{Group: "billing"})
		if err != nil {
			t.Fatal(err)
		}
		runs, name := 0, "charge"
		for _, r.cons = range []jetstream.Consumer{r.cons, mirror} {
			w, err := natsjs.NewWorker(once, r.js, r.cons, func(context.Context, jetstream.Msg) error { runs++; return nil }, natsjs.Config{Handler: name, MaxInFlight: 1})
			if err != nil {
				t.Fatal(err)
			}
			stop := r.start(w)
			r.acked(3)
			r.stops(stop)
			name = handler
		}
		if runs != want {
			t.Errorf("%d runs with handler %q over the mirror, want %d", runs, handler, want)
		}
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	msg := fake{subject: "orders.c7.created", header: nats.Header{"oncemill-key": {"k1", "k2"}, "B": nil, "X-Key": {"low"}, "x-key": {"lower"}}}
	for name, c := range map[string]struct {
		order func(jetstream.Msg) string
		want  string
	}{
		"subject": {natsjs.BySubject, "orders.c7.created"}, "token": {natsjs.BySubjectToken(1), "c7"}, "no token": {natsjs.BySubjectToken(3), ""},
		"header": {natsjs.ByHeader("Oncemill-Key"), "k1"}, "no header": {natsjs.ByHeader("A"), ""}, "no value": {natsjs.ByHeader("B"), ""},
		"spellings": {natsjs.ByHeader("X-KEY"), "low"}, "exact": {natsjs.ByHeader("x-key"), "lower"},
	} {
		if got := c.order(msg); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := natsjs.ByHeader("A")(fake{}); got != "" {
		t.Errorf("without headers: %q", got)
	}
}

// fake is a message that has only what an order looks at.
type fake struct {
	jetstream.Msg
	subject string
	header  nats.Header
}

func (f fake) Subject() string      { return f.subject }
func (f fake) Headers() nats.Header { return f.header }

func TestWorker_PanicOfOrderIsAnOrderKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.Order = func(jetstream.Msg) string { panic("no") }
	r.publish(5, oneKey)
	stop := r.start(r.worker(succeed))
	r.finishes(5)
	r.stops(stop)
	r.inOrder(5)
}

// A stream makes messages of schedules, with all headers of the schedule but its own and Nats-Msg-Id.
func TestWorker_MessagesOfASchedule(t *testing.T) {
	t.Parallel()
	const times = 3
	for name, c := range map[string]struct {
		header nats.Header
		runs   func(n int) bool
	}{
		"without an ID each runs":   {nil, func(n int) bool { return n >= times }},
		"with an ID only the first": {nats.Header{producer.HeaderID: {"o0"}}, func(n int) bool { return n == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{FilterSubject: "orders.new"})
			if _, err := r.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>", "plans"}, AllowMsgSchedules: true, MaxAge: time.Hour}); err != nil {
				t.Fatal(err)
			}
			plan := &nats.Msg{Subject: "plans", Header: nats.Header{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {"orders.new"}}, Data: []byte("x")}
			maps.Copy(plan.Header, c.header)
			if _, err := r.js.PublishMsg(t.Context(), plan); err != nil {
				t.Fatal(err)
			}
			once, err := consumer.New(r.store, consumer.Config{Group: "billing", Extractors: append(producer.DefaultExtractors(), producer.ExtractPosition)})
			if err != nil {
				t.Fatal(err)
			}
			var runs atomic.Int32
			w, err := natsjs.NewWorker(once, r.js, r.cons, func(context.Context, jetstream.Msg) error { runs.Add(1); return nil }, natsjs.Config{Handler: "charge", Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			stop := r.start(w)
			until(t, "some messages", func() bool { return r.info().AckFloor.Consumer >= times })
			if n := int(runs.Load()); !c.runs(n) {
				t.Errorf("%d runs of %d messages", n, times)
			}
			r.stops(stop)
		})
	}
}
