package natsjs_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

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
	b.stream(t, jetstream.StreamConfig{Name: "sealed", Subjects: []string{"sealed"}})
	b.stream(t, jetstream.StreamConfig{Name: "sealed", Subjects: []string{"sealed"}, Sealed: true})
	b.stream(t, jetstream.StreamConfig{Name: "counters", Subjects: []string{"counters"}, AllowMsgCounter: true})
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
		{producer.Message{ID: "b17", Topic: "orders", Key: "a", Header: producer.Header{"Oncemill-Key": "b"}}, "header Oncemill-Key", nil, false},
		{producer.Message{ID: "b18", Topic: "orders", Header: producer.Header{"Oncemill-Purpose": "retry", "ONCEMILL-PURPOSE": "replay"}}, "header oncemill-purpose", nil, false},
		{producer.Message{ID: "b19", Topic: "sealed"}, "", nil, true},
		{producer.Message{ID: "b20", Topic: "counters"}, "", nil, true},
		{producer.Message{ID: "b21", Topic: "orders." + strings.Repeat("x", 4096)}, "Message.Topic", nil, false},
	}
	good := orders(len(bad))
	var messages []producer.Message
	for i := range bad {
		messages = append(messages, bad[i].m, good[i])
	}
	start := time.Now()
	failures := failuresOf(t, b.pub.Publish(t.Context(), messages...))
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("a missing stream took %v to be noticed", took)
	}
	if len(failures) != len(bad) {
		t.Fatalf("%d failures, want %d: %v", len(failures), len(bad), failures)
	}
	for i, f := range failures {
		noStream := errors.Is(bad[i].is, jetstream.ErrNoStreamResponse) // says nothing about the message
		if f.Index != 2*i || f.ID != bad[i].m.ID || f.Unknown != noStream {
			t.Errorf("failure %d: %+v, want index %d of %q, unknown %v", i, f, 2*i, bad[i].m.ID, noStream)
		}
		var invalid *dedupstore.InvalidError
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

func TestPublisher_LongestSubjectDoesNotCloseTheConnection(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	js := b.server.JetStream(nats.CustomInboxPrefix("_INBOX." + strings.Repeat("x", 200)))
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m := orders(1)[0]
	m.Topic = "orders." + strings.Repeat("x", 3800-len("orders."))
	if err := pub.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	m.Topic += "x"
	var invalid *dedupstore.InvalidError
	if f := failuresOf(t, pub.Publish(t.Context(), m))[0]; f.Unknown || !errors.As(f.Err, &invalid) || js.Conn().IsClosed() {
		t.Errorf("%+v, want it to be refused here", f)
	}
	wantOnce(t, b.stored(t, "orders"), 1)
}

func TestPublisher_SaysWhyItsConnectionIsClosed(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	if err := b.js.Conn().Publish(strings.Repeat("x", 5000), nil); err != nil { // beyond max_control_line
		t.Fatal(err)
	}
	until(t, "the end of the connection", b.js.Conn().IsClosed)
	f := failuresOf(t, b.pub.Publish(t.Context(), orders(1)...))[0]
	if !f.Unknown || !errors.Is(f.Err, nats.ErrConnectionClosed) || !strings.Contains(strings.ToLower(f.Err.Error()), "control line") {
		t.Errorf("%+v does not say why", f)
	}
}

func TestPublisher_OrdersToTheStreamAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	b.stream(t, jetstream.StreamConfig{Name: "open", Subjects: []string{"open"}, AllowRollup: true, AllowMsgTTL: true, AllowMsgSchedules: true})
	messages := orders(3)
	for i := range messages {
		messages[i].Topic = "open"
	}
	if err := b.pub.Publish(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Nats-Rollup": "all", "Nats-TTL": "1s", "Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": "open",
		"Nats-Expected-Stream": "other", "Nats-Expected-Last-Sequence": "7", "Nats-Expected-Last-Subject-Sequence": "7",
		"Nats-Expected-Last-Msg-Id": "x", "Nats-Batch-Id": "x", "Nats-Incr": "1", "nats-rollup": "sub", "NATS-Of-A-Later-Server": "",
	} {
		err := b.pub.Publish(t.Context(), producer.Message{ID: "x", Topic: "open", Header: producer.Header{name: value}})
		var invalid *dedupstore.InvalidError
		if f := failuresOf(t, err)[0]; f.Unknown || !errors.As(f.Err, &invalid) || invalid.Field != `header "`+name+`"` {
			t.Errorf("%s: %+v, want it to be refused by its name", name, f)
		}
	}
	wantOnce(t, b.stored(t, "open"), 3)
}

func TestPublisher_KeyIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	m := producer.Message{ID: "o0", Topic: "orders", Key: "a", Header: producer.Header{producer.HeaderKey: "b"}}
	b := newBench(t, natsjs.PublisherConfig{})
	var invalid *dedupstore.InvalidError
	if f := failuresOf(t, b.pub.Publish(t.Context(), m))[0]; f.Unknown || !errors.As(f.Err, &invalid) || invalid.Field != "header oncemill-key" {
		t.Errorf("%+v, want the differing header to be refused", f)
	}
	m.Key = "b"
	if err := b.pub.Publish(t.Context(), m); err != nil {
		t.Error(err)
	}
	wantOnce(t, b.stored(t, "orders"), 1)
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

func TestNewPublisher_BadConfigIsNamed(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
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

func TestNewPublisher_WarnsOfAConnectionThatGivesUp(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	for name, tc := range map[string]struct {
		option nats.Option
		warns  bool
	}{
		"nats.go's default": {nats.MaxReconnects(nats.DefaultMaxReconnect), true},
		"never":             {nats.NoReconnect(), true},
		"for ever":          {nats.MaxReconnects(-1), false},
	} {
		js, err := jetstream.New(server.Connect(tc.option))
		if err != nil {
			t.Fatal(err)
		}
		var log lockedBuffer
		if _, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(log.String(), "nats.MaxReconnects(-1)"); warned != tc.warns {
			t.Errorf("%s: log %q, want a warning: %t", name, log.String(), tc.warns)
		}
	}
}
