package natskv

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
)

// batched finishes by batches of an output and the record.
type batched struct{ *Inbox }

func (b batched) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings,
		func(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
			if _, finishes := s.(dedupstore.Finish); !finishes {
				return dedupstore.SettleOne(ctx, b.Inbox, c, s)
			}
			return dedupstore.InTxOne(ctx, b, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				output := message(fmt.Sprint(c.Key.ID, "-", c.Fence), "orders.out.linear")
				return s, b.Publish(ctx, output)
			})
		})
}

func batchHistories(
	t *testing.T, proxy *natstest.Proxy, broken batchFault,
) func(seed uint64) lineartest.History {
	crowd := lineartest.Crowd{Network: func(err error) bool {
		var undecided *dedupstore.UndecidedError
		return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &undecided)
	}}
	for range lineartest.Workers {
		js, err := jetstream.New(proxy.Connect())
		if err != nil {
			t.Fatal(err)
		}
		in := inboxOf(t, js, "ORDERS")
		in.batches.within, in.batches.fault = 60*time.Millisecond, broken
		patient := impatient(in.Store)
		patient.Store = batched{in}
		crowd.Stores = append(crowd.Stores, patient)
	}
	return func(seed uint64) lineartest.History {
		proxy.Inject(faults(seed))
		return crowd.History(t, seed)
	}
}

// TestLinearizable_BatchesWithLostAndDelayedAnswers runs 200 histories of 200 operations. Each run that was finished has
// one output, whatever was sent again.
func TestLinearizable_BatchesWithLostAndDelayedAnswers(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
	server := natstest.Start(t)
	in := newInbox(t, server.JetStream(), Stream("ORDERS", 1, "orders.>"))
	proxy := natstest.StartProxy(t, server)
	lineartest.Linearizable(t, 200, proxy, batchHistories(t, proxy, nil))
	outputs := map[string]int{}
	s := natstest.Ask(t, "the stream", func(ctx context.Context) (jetstream.Stream, error) {
		return in.js.Stream(ctx, in.stream)
	})
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		if err == nil && m.Subject == "orders.out.linear" {
			outputs[m.Header.Get(producer.HeaderID)]++
		}
	}
	for id, n := range outputs {
		if n > 1 {
			t.Errorf("run %s has %d outputs", id, n)
		}
	}
	t.Logf("%d runs were finished by batches", len(outputs))
}

func TestLinearizable_BrokenBatchesAreFoundOut(t *testing.T) {
	t.Parallel()
	lineartest.OnlyProved(t)
	server := natstest.Start(t)
	newInbox(t, server.JetStream(), Stream("ORDERS", 1, "orders.>"))
	for name, broken := range map[string]batchFault{
		"no condition": func(messages []*nats.Msg, send func() (int64, error)) (int64, error) {
			messages[len(messages)-1].Header.Del(jetstream.ExpectedLastSubjSeqHeader)
			return send()
		},
		"conflicts taken for answers": func(_ []*nats.Msg, send func() (int64, error)) (int64, error) {
			last, err := send()
			if conflict(err) {
				return 1, nil
			}
			return last, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := natstest.StartProxy(t, server)
			lineartest.FoundOut(t, 200, batchHistories(t, proxy, broken))
		})
	}
}
