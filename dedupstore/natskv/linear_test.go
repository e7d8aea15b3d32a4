package natskv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

const (
	linearWorkers = 5
	linearOps     = 40
	linearTimeout = 60 * time.Millisecond // after which an answer counts as lost
)

// An impatient store gives up soon, and knows the server's time well: leases of a history are short.
type impatient struct{ *Store }

func bounded[T any](ctx context.Context, s impatient, do func(ctx context.Context) T) T {
	ctx, cancel := context.WithTimeout(ctx, linearTimeout)
	defer cancel()
	if last := s.clock.last.Load(); last == nil || time.Since(last.came) > 4*time.Millisecond {
		_, _ = s.look(ctx)
	}
	return do(ctx)
}

func (s impatient) Claim(ctx context.Context, r []dedupstore.Request) []dedupstore.ClaimResult {
	return bounded(ctx, s, func(ctx context.Context) []dedupstore.ClaimResult { return s.Store.Claim(ctx, r) })
}

func (s impatient) Extend(ctx context.Context, x []dedupstore.Extension) []error {
	return bounded(ctx, s, func(ctx context.Context) []error { return s.Store.Extend(ctx, x) })
}

func (s impatient) Settle(ctx context.Context, x []dedupstore.Settling) []error {
	return bounded(ctx, s, func(ctx context.Context) []error { return s.Store.Settle(ctx, x) })
}

// faults loses 7 % of the answers, delays some, and some requests so long that their clients have gone.
func faults(seed uint64) (answers, requests func() natstest.Fault) {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 1))
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
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
	onlyProved(t)
	server := natstest.Start(t)
	newStore(t, server.JetStream(), Bucket("oncemill", 1))
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			t.Parallel()
			proxy := natstest.StartProxy(t, server)
			stores := make([]dedupstore.Store, linearWorkers)
			for w := range stores {
				if w > 0 && shared {
					stores[w] = stores[0]
					continue
				}
				js, err := jetstream.New(proxy.Connect())
				if err != nil {
					t.Fatal(err)
				}
				stores[w] = impatient{storeOf(t, js, "oncemill")}
			}
			linearizable(t, stores, proxy)
		})
	}
}

func linearizable(t *testing.T, stores []dedupstore.Store, proxy *natstest.Proxy) {
	const histories = 200
	seed := rand.Uint64()
	classes := map[string]int{}
	undecided, illegal := 0, 0
	for i := range histories {
		proxy.Inject(faults(seed + uint64(i)))
		history := history(t, stores, seed+uint64(i))
		for _, op := range history {
			classes[op.Output.(lineartest.Output).Class]++
		}
		switch porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute) {
		case porcupine.Unknown: // so much was unheard that all orders cannot be tried
			undecided++
		case porcupine.Illegal:
			illegal++
			t.Errorf("history %d (seed %d) is illegal", i, seed+uint64(i))
		}
	}
	proxy.Inject(nil, nil)
	t.Logf("seed %d: %d histories of %d operations, %d illegal, %d undecided; %d answers dropped, %d delayed; %v", seed,
		histories, linearWorkers*linearOps, illegal, undecided, proxy.Dropped(), proxy.Delayed(), classes)
	if undecided > 1+histories/50 {
		t.Errorf("%d of %d histories are undecided", undecided, histories)
	}
	if proxy.Dropped() < histories {
		t.Errorf("%d answers were dropped in %d histories", proxy.Dropped(), histories)
	}
	for _, class := range []dedupstore.Status{
		dedupstore.AcquiredRun, dedupstore.AcquiredPublish, dedupstore.Busy, dedupstore.Done, dedupstore.Mismatch,
	} {
		if classes[string(class)] == 0 {
			t.Errorf("no claim was answered %s", class)
		}
	}
}

func history(t *testing.T, stores []dedupstore.Store, seed uint64) []porcupine.Operation {
	pool := lineartest.Pool{Group: "linear-" + ids.New()}
	return pool.History(t.Context(), seed, stores, linearOps, func(err error) {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("not an error of the network: %v", err)
		}
	})
}

// A checker that cannot fail proves nothing: stores on a JetStream that breaks one rule each are found out.
func TestLinearizable_BrokenStoresAreFoundOut(t *testing.T) {
	t.Parallel()
	onlyProved(t)
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
			stores := make([]dedupstore.Store, linearWorkers)
			for w := range stores {
				js, err := jetstream.New(proxy.Connect())
				if err != nil {
					t.Fatal(err)
				}
				b := &brokenJetStream{JetStream: js}
				broken(b)
				stores[w] = impatient{storeOf(t, b, "oncemill")}
			}
			for i := range 60 {
				proxy.Inject(faults(rand.Uint64()))
				history := history(t, stores, rand.Uint64())
				if porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute) == porcupine.Illegal {
					t.Logf("found out by history %d", i+1)
					return
				}
			}
			t.Error("60 histories look linearizable")
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

// onlyProved skips what takes a quiet machine or minutes.
func onlyProved(t *testing.T) {
	t.Helper()
	if !proof {
		t.Skip("make proof-linearizability runs it")
	}
}
