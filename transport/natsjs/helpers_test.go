package natsjs_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A bench is a server with the stream "orders" on the subjects orders and orders.>, and a publisher to it.
type bench struct {
	server *natstest.Server
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
	b := &bench{server: natstest.Start(t, configure...)}
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
