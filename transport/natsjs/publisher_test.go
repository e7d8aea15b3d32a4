package natsjs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A bench is a server with the stream "orders" on the subjects orders and orders.>, and a publisher to it.
type bench struct {
	server *testserver.NATSServer
	js     jetstream.JetStream
	pub    *natsjs.Publisher
	log    lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newBench(t *testing.T, config natsjs.PublisherConfig, configure ...func(*server.Options)) *bench {
	t.Helper()
	b := &bench{server: testserver.NATS(t, configure...)}
	b.js = b.server.JetStream()
	b.stream(t, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders", "orders.>"}})
	config.Logger = slog.New(slog.NewTextHandler(&b.log, nil))
	var err error
	if b.pub, err = natsjs.NewPublisher(b.js, config); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) stream(t testing.TB, config jetstream.StreamConfig) {
	t.Helper()
	if _, err := b.js.CreateOrUpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// stored returns how often each message ID is in a stream.
func (b *bench) stored(t testing.TB, stream string) map[string]int {
	t.Helper()
	s, err := b.js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		msg, err := s.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		counts[msg.Header.Get(producer.HeaderID)]++
	}
	return counts
}

func orders(n int) []producer.Message {
	messages := make([]producer.Message, n)
	for i := range messages {
		messages[i] = producer.Message{ID: fmt.Sprintf("o%d", i), Topic: "orders", Payload: []byte("x")}
	}
	return messages
}

func wantOnce(t testing.TB, got map[string]int, n int) {
	t.Helper()
	want := map[string]int{}
	for _, m := range orders(n) {
		want[m.ID] = 1
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

func failuresOf(t testing.TB, err error) []producer.Failure {
	t.Helper()
	var failed *producer.PublishError
	if !errors.As(err, &failed) {
		t.Fatalf("error %v (%T), want a *producer.PublishError", err, err)
	}
	return failed.Failures
}

func TestPublisher_NilMeansEveryMessageIsStored(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	err := b.pub.Publish(t.Context(), producer.Message{
		ID: "o1", Topic: "orders.created", Key: "customer 7", Payload: []byte("hello"),
		Header: producer.Header{"Color": "blue", "oncemill-name": "receipt", "empty": ""},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.js.Stream(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := s.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	id := msg.Header.Get("Nats-Msg-Id")
	want := nats.Header{"Color": {"blue"}, "empty": {""}, "oncemill-id": {"o1"}, "oncemill-key": {"customer 7"}, "Nats-Msg-Id": {id}}
	if diff := cmp.Diff(want, msg.Header); diff != "" || string(msg.Data) != "hello" || msg.Subject != "orders.created" {
		t.Errorf("subject %q, data %q, header (-want +got):\n%s", msg.Subject, msg.Data, diff)
	}
	if len(id) != 43 || strings.Contains(id, "o1") {
		t.Errorf("Nats-Msg-Id %q is no hash", id)
	}
	if err := b.pub.Publish(t.Context()); err != nil {
		t.Errorf("no messages: %v", err)
	}
}

func TestPublisher_ManyCallsShareOnePublisher(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{MaxPending: 16})
	all := orders(400)
	var calls sync.WaitGroup
	for i := range 8 {
		calls.Go(func() {
			if err := b.pub.Publish(t.Context(), all[i*50:(i+1)*50]...); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	wantOnce(t, b.stored(t, "orders"), 400)
}

func TestPublisher_RepeatIsStoredOnceAndReported(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	for range 2 {
		if err := b.pub.Publish(t.Context(), orders(3)...); err != nil {
			t.Fatal(err)
		}
	}
	wantOnce(t, b.stored(t, "orders"), 3)
	if n := b.pub.Duplicates(); n != 3 {
		t.Errorf("%d duplicates, want 3", n)
	}
	for _, want := range []string{"level=WARN", "stream=orders", "subject=orders", "id=o2"} {
		if !strings.Contains(b.log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, b.log.String())
		}
	}
}

func TestPublisher_DeadLetterRetryAndReplayAreNotSwallowed(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	var messages []producer.Message
	for _, h := range []producer.Header{
		nil,
		{producer.HeaderPurpose: producer.PurposeDeadLetter},
		{producer.HeaderPurpose: producer.PurposeRetry},
		{producer.HeaderPurpose: producer.PurposeReplay, producer.HeaderGeneration: "1"},
		{producer.HeaderPurpose: producer.PurposeReplay, producer.HeaderGeneration: "2"},
	} {
		messages = append(messages, producer.Message{ID: "o1", Topic: "orders", Header: h})
	}
	messages = append(messages, producer.Message{ID: "o1", Topic: "orders.dead"})
	if err := b.pub.Publish(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"o1": 6}, b.stored(t, "orders")); diff != "" || b.pub.Duplicates() != 0 {
		t.Errorf("%d duplicates, stored (-want +got):\n%s", b.pub.Duplicates(), diff)
	}
}

func TestPublisher_RefusedMessagesDoNotStopTheOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{}, func(o *server.Options) { o.MaxPayload = 2000 })
	b.stream(t, jetstream.StreamConfig{Name: "small", Subjects: []string{"small"}, MaxMsgSize: 300})
	big := bytes.Repeat([]byte("x"), 1000)
	bad := []struct {
		m     producer.Message
		field string // of an *InvalidError
		is    error
		api   bool
	}{
		{producer.Message{Topic: "orders"}, "Message.ID", nil, false},
		{producer.Message{ID: "b1", Topic: "nowhere"}, "", jetstream.ErrNoStreamResponse, false},
		{producer.Message{ID: "b2", Topic: "orders", Payload: append(big, big...)}, "", nats.ErrMaxPayload, false},
		{producer.Message{ID: "b3", Topic: "small", Payload: big}, "", nil, true},
		{producer.Message{ID: "b4"}, "Message.Topic", nil, false},
		{producer.Message{ID: "b5", Topic: "orders.*"}, "Message.Topic", nil, false},
		{producer.Message{ID: "b6", Topic: "orders..x"}, "Message.Topic", nil, false},
		{producer.Message{ID: "b7", Topic: "orders x"}, "Message.Topic", nil, false},
		{producer.Message{ID: "b8", Topic: "orders", NotBefore: time.Now().Add(time.Hour)}, "Message.NotBefore", nil, false},
		{producer.Message{ID: "b9", Topic: "orders", Header: producer.Header{"a:b": "c"}}, `header "a:b"`, nil, false},
		{producer.Message{ID: "b10", Topic: "orders", Header: producer.Header{"": "c"}}, `header ""`, nil, false},
		{producer.Message{ID: "b11", Topic: "orders", Header: producer.Header{"a": "b\r\nNats-Rollup: all"}}, `header "a"`, nil, false},
		{producer.Message{ID: "b12", Topic: "orders", Header: producer.Header{"a": " b"}}, `header "a"`, nil, false},
		{producer.Message{ID: "b13", Topic: "orders", Header: producer.Header{"nats-msg-id": "b"}}, `header "nats-msg-id"`, nil, false},
		{producer.Message{ID: "b14", Topic: "orders", Key: "a\n"}, "Message.Key", nil, false},
		{producer.Message{ID: "b15", Topic: "orders", Header: producer.Header{"oncemill-generation": "two"}}, "header oncemill-generation", nil, false},
		{producer.Message{ID: "b\x00", Topic: "orders"}, "Message.ID", nil, false},
	}
	good := orders(len(bad))
	var messages []producer.Message
	for i := range bad {
		messages = append(messages, bad[i].m, good[i])
	}
	start := time.Now()
	failures := failuresOf(t, b.pub.Publish(t.Context(), messages...))
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("a missing stream took %v to be noticed", took)
	}
	if len(failures) != len(bad) {
		t.Fatalf("%d failures, want %d: %v", len(failures), len(bad), failures)
	}
	for i, f := range failures {
		if f.Index != 2*i || f.ID != bad[i].m.ID || f.Unknown {
			t.Errorf("failure %d: %+v, want index %d of %q, and not unknown", i, f, 2*i, bad[i].m.ID)
		}
		var invalid *producer.InvalidError
		var api *jetstream.APIError
		switch {
		case bad[i].field != "" && (!errors.As(f.Err, &invalid) || invalid.Field != bad[i].field):
			t.Errorf("failure %d: %v, want it to name %s", i, f.Err, bad[i].field)
		case bad[i].is != nil && !errors.Is(f.Err, bad[i].is):
			t.Errorf("failure %d: %v, want %v", i, f.Err, bad[i].is)
		case bad[i].api && !errors.As(f.Err, &api):
			t.Errorf("failure %d: %v, want the server's refusal", i, f.Err)
		}
	}
	wantOnce(t, b.stored(t, "orders"), len(good))
}

func TestPublisher_ReasonForPeopleDoesNotHoldADeadLetterBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	err := b.pub.Publish(t.Context(), producer.Message{
		ID: "o0", Topic: "orders.dead", Header: producer.Header{producer.HeaderReason: "card stolen\nand lost\n"},
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOnce(t, b.stored(t, "orders"), 1)
}

func TestPublisher_LostAckIsUnknownAndRepeatIsNoSurprise(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: 300 * time.Millisecond})
	quiet := jetstream.StreamConfig{Name: "quiet", Subjects: []string{"quiet"}, NoAck: true}
	b.stream(t, quiet)
	messages := orders(3)
	for i := range messages {
		messages[i].Topic = "quiet"
	}
	failures := failuresOf(t, b.pub.Publish(t.Context(), messages...))
	for _, f := range failures {
		if !f.Unknown || !errors.Is(f.Err, jetstream.ErrAsyncPublishTimeout) {
			t.Errorf("failure %+v, want unknown because of a timeout", f)
		}
	}
	if len(failures) != 3 {
		t.Errorf("%d failures, want 3", len(failures))
	}
	quiet.NoAck = false
	b.stream(t, quiet)
	if err := b.pub.Publish(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
	wantOnce(t, b.stored(t, "quiet"), 3)
	if b.pub.Duplicates() != 0 || b.log.String() != "" {
		t.Errorf("%d duplicates were reported:\n%s", b.pub.Duplicates(), b.log.String())
	}
}

func TestPublisher_FullPipeIsNotUnknown(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: 200 * time.Millisecond, MaxPending: 2})
	b.stream(t, jetstream.StreamConfig{Name: "quiet", Subjects: []string{"quiet"}, NoAck: true})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	messages := orders(50)
	for i := range messages {
		messages[i].Topic = "quiet"
	}
	failures := failuresOf(t, b.pub.Publish(ctx, messages...))
	stored := b.stored(t, "quiet")
	for _, f := range failures {
		if !f.Unknown && stored[f.ID] != 0 {
			t.Errorf("message %s is stored, and was reported as not sent: %v", f.ID, f.Err)
		}
	}
	if last := failures[len(failures)-1]; len(failures) != 50 || last.Unknown || !errors.Is(last.Err, context.DeadlineExceeded) {
		t.Errorf("%d failures, the last one %+v", len(failures), last)
	}
}

func TestPublisher_EndedContext(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: time.Minute})
	b.stream(t, jetstream.StreamConfig{Name: "quiet", Subjects: []string{"quiet"}, NoAck: true})
	why := errors.New("shutting down")

	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.pub.Publish(ctx, producer.Message{ID: "o0", Topic: "quiet"}) }()
	for len(b.stored(t, "quiet")) == 0 { // a round trip to the server each time
	}
	cancel(why)
	if f := failuresOf(t, <-ended)[0]; !f.Unknown || !errors.Is(f.Err, why) {
		t.Errorf("while waiting for the ack: %+v, want unknown because of the context", f)
	}
	if f := failuresOf(t, b.pub.Publish(ctx, orders(1)...))[0]; f.Unknown || !errors.Is(f.Err, why) {
		t.Errorf("before it was sent: %+v, want it not to be unknown", f)
	}
	if n := len(b.stored(t, "orders")); n != 0 {
		t.Errorf("%d messages were sent", n)
	}
}

func TestPublisher_ServerDiesMidway_RepeatLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: 2 * time.Second, MaxPending: 50})
	const n = 5000
	all := orders(n)
	s, err := b.js.Stream(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- b.pub.Publish(t.Context(), all...) }()
	for {
		info, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Msgs > 100 {
			break
		}
	}
	b.server.Shutdown()
	b.server.Restart()

	// What failed is repeated until all is acknowledged, as a relay does.
	left, unknown := all, false
	for round := 0; ; round++ {
		err := <-ended
		if err == nil {
			break
		}
		var again []producer.Message
		for _, f := range failuresOf(t, err) {
			unknown = unknown || f.Unknown
			again = append(again, left[f.Index])
		}
		if round == 20 {
			t.Fatalf("%d messages are left: %v", len(again), err)
		}
		left = again
		ended <- b.pub.Publish(t.Context(), left...)
	}
	if !unknown {
		t.Error("no message was in flight when the server died")
	}
	wantOnce(t, b.stored(t, "orders"), n)
}

func TestPublisher_ClosedConnectionIsNotUnknown(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	b.js.Conn().Close()
	if f := failuresOf(t, b.pub.Publish(t.Context(), orders(1)...))[0]; f.Unknown || !errors.Is(f.Err, nats.ErrConnectionClosed) {
		t.Errorf("got %+v", f)
	}
}

func TestPublisher_LeavesNoGoroutineBehind(t *testing.T) { // not parallel: it counts goroutines
	b := newBench(t, natsjs.PublisherConfig{})
	before := goleak.IgnoreCurrent()
	nc, err := nats.Connect(b.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish(t.Context(), append(orders(10), producer.Message{ID: "x", Topic: "nowhere"})...); err == nil {
		t.Error("no error")
	}
	nc.Close()
	goleak.VerifyNone(t, before)
}

func TestNewPublisher_BadConfigIsNamed(t *testing.T) {
	t.Parallel()
	js := testserver.NATS(t).JetStream()
	for _, tc := range []struct {
		js     jetstream.JetStream
		config natsjs.PublisherConfig
		want   string
	}{
		{js, natsjs.PublisherConfig{AckTimeout: -time.Second}, "PublisherConfig.AckTimeout is -1s"},
		{js, natsjs.PublisherConfig{AckTimeout: time.Nanosecond}, "PublisherConfig.AckTimeout is 1ns"},
		{js, natsjs.PublisherConfig{MaxPending: -1}, "PublisherConfig.MaxPending is -1"},
		{nil, natsjs.PublisherConfig{}, "needs a JetStream"},
	} {
		if _, err := natsjs.NewPublisher(tc.js, tc.config); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: error %v, want it to say %q", tc.config, err, tc.want)
		}
	}
}
