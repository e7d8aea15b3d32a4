package natskv

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// impatient is a store that gives up soon, and knows the server's time well: leases of a history are short.
func impatient(s *Store) lineartest.Impatient {
	return lineartest.Impatient{Store: s, Timeout: 60 * time.Millisecond, Before: func(ctx context.Context) {
		if last := s.clock.last.Load(); last == nil || time.Since(last.came) > 4*time.Millisecond {
			_, _ = s.look(ctx)
		}
	}}
}

// faults loses 7 % of the answers, delays some, and some requests so long that their clients have gone.
func faults(seed uint64) (answers, requests func() natstest.Fault) {
	draw := lineartest.Rand(seed).IntN
	return func() (f natstest.Fault) {
			switch n := draw(100); {
			case n < 7:
				f.Drop = true
			case n < 17:
				f.Delay = time.Duration(draw(3000)) * time.Microsecond
			}
			return f
		}, func() (f natstest.Fault) {
			if draw(100) == 0 {
				f.Delay = 50*time.Millisecond + time.Duration(draw(50))*time.Millisecond
			}
			return f
		}
}

// TestLinearizable_WithLostAndDelayedAnswers runs 200 histories of 200 operations of each kind.
func TestLinearizable_WithLostAndDelayedAnswers(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
	server := natstest.Start(t)
	newStore(t, server.JetStream(), Bucket("oncemill", 1))
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			t.Parallel()
			proxy := natstest.StartProxy(t, server)
			lineartest.Linearizable(t, 200, proxy, histories(t, proxy, shared, nil))
		})
	}
}

// histories makes them of stores on one bucket. Broken may change what they write to.
func histories(
	t *testing.T, proxy *natstest.Proxy, shared bool, broken func(*brokenJetStream),
) func(seed uint64) lineartest.History {
	crowd := lineartest.Crowd{
		Network: func(err error) bool { return errors.Is(err, context.DeadlineExceeded) },
	}
	for w := range lineartest.Workers {
		if w > 0 && shared {
			crowd.Stores = append(crowd.Stores, crowd.Stores[0])
			continue
		}
		js, err := jetstream.New(proxy.Connect())
		if err != nil {
			t.Fatal(err)
		}
		if broken != nil {
			b := &brokenJetStream{JetStream: js}
			broken(b)
			js = b
		}
		crowd.Stores = append(crowd.Stores, impatient(storeOf(t, js, "oncemill")))
	}
	return func(seed uint64) lineartest.History {
		proxy.Inject(faults(seed))
		return crowd.History(t, seed)
	}
}

// A checker that cannot fail proves nothing: stores on a JetStream that breaks one rule each are found out.
func TestLinearizable_BrokenStoresAreFoundOut(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
	server := natstest.Start(t)
	newStore(t, server.JetStream(), Bucket("oncemill", 1))
	for name, broken := range map[string]func(*brokenJetStream){
		"writes on no condition":    func(js *brokenJetStream) { js.unconditional = true },
		"conflicts taken for acks":  func(js *brokenJetStream) { js.deaf = true },
		"claims that are not there": func(js *brokenJetStream) { js.forgetful = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := natstest.StartProxy(t, server)
			lineartest.FoundOut(t, 200, histories(t, proxy, false, broken))
		})
	}
}

// A brokenJetStream breaks what the store relies on.
type brokenJetStream struct {
	jetstream.JetStream
	unconditional, deaf, forgetful bool
	published                      atomic.Int64
}

func (b *brokenJetStream) PublishMsg(
	ctx context.Context, m *nats.Msg, o ...jetstream.PublishOpt,
) (*jetstream.PubAck, error) {
	switch {
	case b.unconditional:
		m.Header.Del(jetstream.ExpectedLastSubjSeqHeader)
	case b.forgetful && b.published.Add(1)%20 == 0:
		return &jetstream.PubAck{Sequence: 1}, nil
	}
	ack, err := b.JetStream.PublishMsg(ctx, m, o...)
	if b.deaf && err != nil && conflict(err) {
		return &jetstream.PubAck{Sequence: 1}, nil
	}
	return ack, err
}
