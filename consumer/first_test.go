package consumer_test

import (
	"context"
	"testing"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/producer"
)

// A firstCounter is an inbox that counts first runs, and answers them with a claim.
type firstCounter struct {
	*storetest.MemoryInbox
	firsts int
}

// TakesFirst implements [dedupstore.Transactor].
func (*firstCounter) TakesFirst() bool { return true }

// InTx implements [dedupstore.Transactor].
func (f *firstCounter) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if runs[0].First == nil {
		return f.MemoryInbox.InTx(ctx, runs, work)
	}
	f.firsts++
	a, err := dedupstore.ClaimOne(ctx, f, *runs[0].First)
	return []dedupstore.Answer{a}, err
}

// A message that nobody counts, or that came before, needs a claim: it may end its process each time.
func TestProcessor_OnlyWhatTheBrokerCountsAsTheFirstNeedsNoClaim(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		delivery consumer.Delivery
		want     int
	}{
		"the first":     {consumer.Delivery{Count: 1}, 1},
		"the second":    {consumer.Delivery{Count: 2}, 0},
		"not counted":   {consumer.Delivery{}, 0},
		"Kafka's first": {consumer.Delivery{Count: 1, System: "kafka"}, 0},
	} {
		memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		inbox := &firstCounter{MemoryInbox: storetest.NewMemoryInbox(memory)}
		once, err := consumer.New(inbox, consumer.Config{Group: "billing"})
		if err != nil {
			t.Fatal(err)
		}
		d := c.delivery
		d.Handler, d.Topic, d.Header = "charge", "orders", producer.Header{producer.HeaderID: "m1"}
		calls := 0
		decision := once.Process(t.Context(), d, func(context.Context) error { calls++; return nil })
		if decision.Action != consumer.Ack || calls != 1 || inbox.firsts != c.want {
			t.Errorf("%s: %s, %d calls, %d without a claim, want %d", name, decision.Action, calls, inbox.firsts, c.want)
		}
	}
}
