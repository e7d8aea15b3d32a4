package natskv

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/recordstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/txctx"
	"github.com/oncemill/oncemill/producer"
)

func TestInbox_ConformsOnASingleServer(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	s := newInbox(t, js, Stream("RECORDS", 1, "records.>")).Store
	t.Run("leased", func(t *testing.T) {
		t.Parallel()
		conforms(t, s, s, "claim", "batch", "finish", "publish", "expiry", "change")
	})
	t.Run("inbox", func(t *testing.T) { t.Parallel(); inboxConforms(t, js, 1) })
}

func TestInbox_ConformsOnACluster(t *testing.T) {
	t.Parallel()
	conformsOn(t, natstest.StartCluster(t, 3))
}

// conformsOn tests records, whose lists must not lag, and batches in streams of their own.
func conformsOn(t *testing.T, cluster *natstest.Cluster) {
	s := newInbox(t, cluster.JetStream(), Stream("RECORDS", 3, "records.>")).Store
	t.Run("leased", func(t *testing.T) {
		t.Parallel()
		conforms(t, s, upToDate{s, cluster}, "batch", "concurrency", "list", "count")
	})
	t.Run("inbox", func(t *testing.T) { t.Parallel(); inboxConforms(t, cluster.JetStream(), 3) })
}

// ONCEMILL_TEST_NATS names the program of another nats-server, such as the oldest that may be used.
func TestInbox_ConformsOnAGivenServer(t *testing.T) {
	t.Parallel()
	program := os.Getenv("ONCEMILL_TEST_NATS")
	if program == "" {
		t.Skip("without ONCEMILL_TEST_NATS, a program")
	}
	conformsOn(t, natstest.StartClusterOfProcesses(t, 3, program))
}

// newInbox makes a stream, and its inbox.
func newInbox(t testing.TB, js jetstream.JetStream, c jetstream.StreamConfig) *Inbox {
	t.Helper()
	natstest.Ask(t, "a stream", func(ctx context.Context) (jetstream.Stream, error) { return js.CreateStream(ctx, c) })
	return inboxOf(t, js, c.Name)
}

func inboxOf(t testing.TB, js jetstream.JetStream, stream string) *Inbox {
	t.Helper()
	s, err := New(js, Config{Stream: stream, Subject: strings.ToLower(stream) + ".once"})
	if err != nil {
		t.Fatal(err)
	}
	s.warned.Store(true)
	return s.Inbox()
}

func inboxConforms(t *testing.T, js jetstream.JetStream, replicas int) {
	newInbox(t, js, Stream("ORDERS", replicas, "orders.>"))
	storetest.RunInbox(t, func(t *testing.T) storetest.InboxSubject { return inboxSubject(t, inboxOf(t, js, "ORDERS")) })
}

// inboxSubject counts effects as messages of a subject.
func inboxSubject(t *testing.T, in *Inbox) storetest.InboxSubject {
	faults := &commitFaults{}
	in.batches.fault = faults.at
	read := in.records.Read
	in.records.Read = func(ctx context.Context, key dedupstore.Key) (recordstore.Revision, error) {
		if faults.hides(key) {
			return recordstore.Revision{}, errHidden
		}
		return read(ctx, key)
	}
	topic := func(name string) string { return "orders.out." + hex.EncodeToString([]byte(name)) }
	return storetest.InboxSubject{
		Inbox: in,
		Effect: func(ctx context.Context, name string) error {
			if _, found := txctx.From[*run](ctx); !found {
				return errors.New("no run")
			}
			return in.Publish(ctx, producer.Message{ID: producer.NewID(), Topic: topic(name), Payload: []byte("1")})
		},
		Effects: func(_ context.Context, name string) (int, error) {
			info := natstest.Ask(t, "what a subject has", func(ctx context.Context) (*jetstream.StreamInfo, error) {
				stream, err := in.js.Stream(ctx, in.stream)
				if err != nil {
					return nil, err
				}
				return stream.Info(ctx, jetstream.WithSubjectFilter(topic(name)))
			})
			return int(info.State.Subjects[topic(name)]), nil
		},
		LoseCommit: faults.lose,
		HideRecord: func(c dedupstore.Claim, hidden bool) { faults.hide(c.Key, hidden) },
	}
}

var (
	errHidden = errors.New("the record cannot be read now")
	errLost   = errors.New("the connection was lost")
)

// commitFaults lose answers to batches, each once, by their runs.
type commitFaults struct {
	mu     sync.Mutex
	lost   map[*run]bool // whether the batch is applied all the same
	hidden map[dedupstore.Key]bool
}

func (f *commitFaults) lose(ctx context.Context, applied bool) {
	r, _ := txctx.From[*run](ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost == nil {
		f.lost = map[*run]bool{}
	}
	f.lost[r] = applied
}

func (f *commitFaults) at(messages []*nats.Msg, send func() (int64, error)) (int64, error) {
	f.mu.Lock()
	for r, applied := range f.lost {
		if len(r.messages) > 0 && r.messages[0] == messages[0] {
			delete(f.lost, r)
			f.mu.Unlock()
			if applied {
				_, _ = send()
			}
			return 0, errLost
		}
	}
	f.mu.Unlock()
	return send()
}

func (f *commitFaults) hide(key dedupstore.Key, hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hidden == nil {
		f.hidden = map[dedupstore.Key]bool{}
	}
	f.hidden[key] = hidden
}

func (f *commitFaults) hides(key dedupstore.Key) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hidden[key]
}
