package franz_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/transport/franz"
)

func TestWorker_HandlesOnlyWhatTransactionsHaveCommitted(t *testing.T) {
	t.Parallel()
	topic := fmt.Sprintf("transactions-%d", topics.Add(1)) // of the shared broker
	server := kafkatest.Shared(t)
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, ledger: newLedger(), store: store, addrs: []string{server.Addr}}
	b.logger = slog.New(slog.NewTextHandler(&b.log, nil))
	b.admin = kadm.NewClient(b.newClient())
	server.CreateTopic(topic, 1)
	put := func(cl *kgo.Client, i int) {
		t.Helper()
		rec := order(i)
		rec.Topic = topic
		if err := cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(cl *kgo.Client, i int) {
		t.Helper()
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		put(cl, i)
	}
	end := func(cl *kgo.Client, commit bool) {
		t.Helper()
		if err := cl.EndTransaction(t.Context(), kgo.TransactionEndTry(commit)); err != nil {
			t.Fatal(err)
		}
	}
	upstream := b.newClient(kgo.TransactionalID(topic))
	for i := range 6 { // offsets 0 to 11: each ends with a record of the broker's
		begin(upstream, i)
		end(upstream, i%2 == 0)
	}
	begin(upstream, 6)    // offset 12
	put(b.newClient(), 7) // offset 13, behind a transaction that is open
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{}, kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic))
	until(t, "what is committed", func() bool { return b.finished() == 3 })
	lasts(200 * time.Millisecond)
	if b.runsOf(orderID(7)) > 0 {
		t.Error("a record overtook a transaction that is open")
	}
	end(upstream, true) // offset 14
	until(t, "what was open, and what is behind it", func() bool { return b.finished() == 5 })
	m.leave()
	if started := b.started(); started != 5 {
		t.Errorf("%d runs, want 5: of four committed records, and one without a transaction", started)
	}
	found, err := b.admin.FetchOffsets(t.Context(), topic)
	if at := found[topic][0].At; err != nil || at != 14 {
		t.Errorf("committed %d, %v, want 14: behind the last record, before the end of the last transaction", at, err)
	}
}
