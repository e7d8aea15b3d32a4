package franz_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/transport/franz"
)

func TestNewShareWorker_NamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	once := newBench(t, 1).processor(consumer.Config{})
	for want, c := range map[string]franz.ShareConfig{
		"ShareConfig.Handler is empty":    {RetryTopic: "later"},
		"ShareConfig.RetryTopic is empty": {Handler: "charge"},
		"ShareConfig.RetryTopic is \"a b": {Handler: "charge", RetryTopic: "a b"},
		"ShareConfig.MaxInFlight":         {Handler: "charge", RetryTopic: "later", MaxInFlight: -1},
		"ShareConfig.Grace":               {Handler: "charge", RetryTopic: "later", Grace: -1},
	} {
		if _, err := franz.NewShareWorker(once, nothing, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one that names %s", c, err, want)
		}
	}
	if _, err := franz.NewShareWorker(nil, nothing, franz.ShareConfig{Handler: "charge", RetryTopic: "later"}); err == nil {
		t.Error("no error without a Processor")
	}
	if _, err := franz.NewShareWorker(once, nil, franz.ShareConfig{Handler: "charge", RetryTopic: "later"}); err == nil {
		t.Error("no error without a Handler")
	}
}

func TestShareWorker_RefusesToConsumeItsOwnDeadLetters(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "later", "dead"))
	shareGroup(b, nil)
	once := b.processor(consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "dead"})
	w, err := franz.NewShareWorker(once, nothing, franz.ShareConfig{Handler: "charge", RetryTopic: "later", Logger: b.logger})
	if err != nil {
		t.Fatal(err)
	}
	cl := b.newClient(append(w.Opts(), kgo.ShareGroup("sharers"), kgo.ConsumeTopics("orders", "later", "dead"))...)
	if err := as[*dedupstore.SetupError](t, w.Check(t.Context(), cl)); !strings.Contains(err.Error(), `"dead"`) {
		t.Errorf("error %q does not name the topic", err)
	}
}

// shareGroup is a share group of a fake cluster, with settings that win over good ones.
func shareGroup(b *bench, settings map[string]string) {
	good := map[string]string{
		"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed",
		"share.record.lock.duration.ms": "30000", "share.delivery.count.limit": "5",
	}
	for name, value := range settings {
		good[name] = value
	}
	b.cluster.SetGroupConfigs("sharers", good)
}

func TestShareWorker_RefusesClientsThatWouldBreakItsPromises(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "later"))
	shareGroup(b, nil)
	once := b.processor(consumer.Config{})
	theGroup, topics := kgo.ShareGroup("sharers"), kgo.ConsumeTopics("orders", "later")
	for _, tc := range []struct {
		name, want string
		opts       func(w *franz.ShareWorker) []kgo.Opt
	}{
		{"without Opts", "worker's Opts", func(*franz.ShareWorker) []kgo.Opt { return []kgo.Opt{theGroup, topics} }},
		{"of another worker", "worker's Opts", func(*franz.ShareWorker) []kgo.Opt {
			other, err := franz.NewShareWorker(once, nothing, franz.ShareConfig{Handler: "charge", RetryTopic: "later"})
			if err != nil {
				t.Fatal(err)
			}
			return append(other.Opts(), theGroup, topics)
		}},
		{"in a consumer group", "kgo.ShareGroup", func(*franz.ShareWorker) []kgo.Opt {
			return []kgo.Opt{kgo.ConsumerGroup("classic"), topics} // it may join before it is refused
		}},
		{"with another callback", "kgo.ShareAckCallback", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.ShareAckCallback(func(*kgo.Client, kgo.ShareAckResults) {}))
		}},
		{"that fetches ahead", "kgo.MaxConcurrentFetches", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.MaxConcurrentFetches(1))
		}},
		{"that keeps errors that pass", "kgo.KeepRetryableFetchErrors", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.KeepRetryableFetchErrors())
		}},
		{"that is a static member", "kgo.InstanceID", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.InstanceID("a"))
		}},
		{"with a context that can end", "kgo.WithContext", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.WithContext(t.Context()))
		}},
		{"with a pattern", "kgo.ConsumeRegex", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.ConsumeRegex())
		}},
		{"without the retry topic", "retry topic \"later\"", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, kgo.ConsumeTopics("orders"))
		}},
		{"with nothing else", "nothing but retry topics", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, kgo.ConsumeTopics("later"))
		}},
		{"with weak copies", "kgo.RequiredAcks", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
		}},
		{"with a long wait", "kgo.FetchMaxWait", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.FetchMaxWait(6*time.Second))
		}},
		{"with a topic that is missing", "missing", func(w *franz.ShareWorker) []kgo.Opt {
			return append(w.Opts(), theGroup, kgo.ConsumeTopics("orders", "later", "missing"))
		}},
	} {
		w, err := franz.NewShareWorker(once, nothing, franz.ShareConfig{Handler: "charge", RetryTopic: "later", Logger: b.logger})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Run(t.Context(), b.newClient(tc.opts(w)...)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("a client %s: %v, want an error with %q", tc.name, err, tc.want)
		}
	}
	w, err := franz.NewShareWorker(once, nothing, franz.ShareConfig{Handler: "charge", RetryTopic: "later", Logger: b.logger})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Check(t.Context(), nil); err == nil {
		t.Error("no client is accepted")
	}
	if err := w.Check(t.Context(), b.newClient(append(w.Opts(), theGroup, topics)...)); err != nil {
		t.Errorf("a good client: %v", err)
	}
}

func TestShareWorker_RefusesGroupsThatWouldLoseRecords(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	once := b.processor(consumer.Config{})
	check := func() error {
		w, err := franz.NewShareWorker(once, nothing, franz.ShareConfig{Handler: "charge", RetryTopic: b.retry, Logger: b.logger})
		if err != nil {
			t.Fatal(err)
		}
		cl := b.newClient(append(w.Opts(), b.opts()...)...)
		defer cl.Close()
		return w.Check(t.Context(), cl)
	}
	if err := check(); err != nil {
		t.Fatalf("good settings: %v", err)
	}
	for _, tc := range []struct{ bad, good string }{
		{"share.auto.offset.reset=latest", "share.auto.offset.reset=earliest"},
		{"share.isolation.level=read_uncommitted", "share.isolation.level=read_committed"},
		{"share.record.lock.duration.ms=2000", "share.record.lock.duration.ms=3000"},
		{"share.delivery.count.limit=3", "share.delivery.count.limit=4"},
		{"share.renew.acknowledge.enable=false", "share.renew.acknowledge.enable=true"},
	} {
		b.set(tc.bad)
		err := check()
		if problem := as[*dedupstore.SetupError](t, err).Problem; !strings.Contains(problem, tc.bad) || !strings.Contains(problem, "set it to") {
			t.Errorf("%s: %q, want what is wrong and what to set", tc.bad, problem)
		}
		b.set(tc.good)
	}
}

func TestShareWorker_RefusesAGroupOfConsumers(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	b.put(0, 1, 1)
	consumers := b.newClient(kgo.ConsumerGroup(b.group), kgo.ConsumeTopics(b.topic))
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := consumers.PollFetches(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	m := b.begin(b.processor(consumer.Config{}), nothing, franz.ShareConfig{})
	if problem := as[*dedupstore.SetupError](t, m.wait()).Problem; !strings.Contains(problem, "set another kgo.ShareGroup") {
		t.Errorf("%q, want what to set", problem)
	}
}
