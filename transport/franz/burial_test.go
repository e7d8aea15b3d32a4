package franz_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// A publisher to another system.
type elsewhere struct{ producer.Publisher }

func (elsewhere) MessagingSystem() string { return "nats" }

func TestWorker_RefusesToConsumeItsOwnDeadLetters(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "dead", "orders-dead"))
	pub := b.publisher()
	for _, tc := range []struct {
		name    string
		letters producer.Publisher
		topics  kgo.Opt
		more    []kgo.Opt
		refused bool
	}{
		{"by name", pub, kgo.ConsumeTopics("orders", "orders-dead"), nil, true},
		{"by pattern", pub, kgo.ConsumeTopics("^orders"), []kgo.Opt{kgo.ConsumeRegex()}, true},
		{"by a pattern with exceptions", pub, kgo.ConsumeTopics("^orders"), []kgo.Opt{kgo.ConsumeRegex(), kgo.ConsumeExcludeTopics("dead$")}, false},
		{"not", pub, kgo.ConsumeTopics("orders", "dead"), nil, false},
		{"of another system", elsewhere{}, kgo.ConsumeTopics("orders", "orders-dead"), nil, false},
		{"by way of whom nobody knows", struct{ producer.Publisher }{pub}, kgo.ConsumeTopics("orders", "orders-dead"), nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, err := franz.NewWorker(b.processor(consumer.Config{DeadLetters: tc.letters, DeadLetterTopic: "orders-dead"}), nothing, franz.Config{Handler: "charge", Logger: b.logger})
			if err != nil {
				t.Fatal(err)
			}
			cl := b.newClient(append(append(w.Opts(), kgo.ConsumerGroup(group), tc.topics), tc.more...)...)
			err = w.Check(t.Context(), cl)
			if !tc.refused {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if as[*franz.SetupError](t, err); !strings.Contains(err.Error(), `"orders-dead"`) {
				t.Errorf("error %q does not name the topic", err)
			}
		})
	}
}

// A dead letter in a retry topic is no copy of a record.
func TestSource_RunsNothingForItsOwnDeadLetters(t *testing.T) {
	t.Parallel()
	const n = 3
	b := newBench(t, 1, kfake.SeedTopics(1, "later"))
	b.produce(0, n, 1, 0)
	once := b.processor(consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "later", Policy: oncemill.Policy{Logger: b.logger}})
	s := b.source(once, franz.SourceConfig{Config: franz.Config{Retry: []franz.RetryTopic{{Topic: "later"}}, RetryPublisher: b.publisher()}})
	run := b.handler(byRecord, func(context.Context, string, int) error { return oncemill.Permanent(errors.New("declined")) })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, "orders", func(ctx context.Context, d consumer.Delivery) consumer.Decision {
			d.Handler = "charge"
			return once.Process(ctx, d, func(ctx context.Context) error { return run(ctx, &kgo.Record{Value: d.Payload}) })
		})
	}()
	until(t, "the commits", func() bool { return b.committed("orders")[0] == n && b.committed("later")[0] >= n })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if runs, letters := b.started(), len(b.records("later")); runs != n || letters != n {
		t.Errorf("%d runs and %d dead letters of %d records", runs, letters, n)
	}
	wantLog(t, b, "level=ERROR", "own dead letter came back", "topic=later")
}

func TestWorker_DeadLettersThatGoNowhereAreSaidAtTheStart(t *testing.T) {
	t.Parallel()
	const missing, forbidden, compacted, none = "DeadLetterTopic is not there", "DeadLetterTopic may not be written to", "DeadLetterTopic is compacted", "no consumer.Config.DeadLetters"
	for name, tc := range map[string]struct {
		config func(b *bench) consumer.Config
		want   string
	}{
		"missing topic": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "nowhere"}
		}, missing},
		"topic that publishing makes": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: b.publisher(kgo.AllowAutoTopicCreation()), DeadLetterTopic: "nowhere"}
		}, ""},
		"topic": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "dead"}
		}, ""},
		"topic that keeps one of a key": {func(b *bench) consumer.Config {
			if _, err := b.admin.CreateTopic(b.t.Context(), 1, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, "compacted"); err != nil {
				b.t.Fatal(err)
			}
			return consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "compacted"}
		}, compacted},
		"topic that may not be written to": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: limitedPublisher(b), DeadLetterTopic: "dead"}
		}, forbidden},
		"topic that may be written to and nothing else": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: limitedPublisher(b, kfake.ACL{
				Resource: kmsg.ACLResourceTypeTopic, Name: "dead", Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationWrite, Allow: true,
			}), DeadLetterTopic: "dead"}
		}, ""},
		"none":    {func(*bench) consumer.Config { return consumer.Config{} }, none},
		"a trial": {func(*bench) consumer.Config { return consumer.Config{Policy: oncemill.Policy{Shadow: true}} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1, kfake.SeedTopics(1, "dead"))
			b.produce(0, 1, 1, 0)
			m := b.start(b.processor(tc.config(b)), b.handler(byPartition, nil), franz.Config{})
			until(t, "the record", func() bool { return b.finished() == 1 })
			m.leave()
			for _, text := range []string{missing, forbidden, compacted, none} {
				want := 0
				if text == tc.want {
					want = 1
				}
				if said := strings.Count(b.log.String(), text); said != want {
					t.Errorf("%q was said %d times, want %d:\n%s", text, said, want, b.log.String())
				}
			}
		})
	}
}

// limitedPublisher returns a publisher to a cluster with topic "dead", whose user has these rights alone.
func limitedPublisher(b *bench, rights ...kfake.ACL) *franz.Publisher {
	b.t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "dead"), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", "secret"), kfake.User("PLAIN", "app", "secret", rights...))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(cluster.Close)
	return b.publisher(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.SASL(plain.Auth{User: "app", Pass: "secret"}.AsMechanism()))
}
