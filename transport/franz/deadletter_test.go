package franz_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
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
		name        string
		deadLetters producer.Publisher
		topics      kgo.Opt
		more        []kgo.Opt
		refused     bool
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
			w, err := franz.NewWorker(b.processor(consumer.Config{DeadLetters: tc.deadLetters, DeadLetterTopic: "orders-dead"}), nothing, franz.Config{Handler: "charge", Logger: b.logger})
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
			if as[*dedupstore.SetupError](t, err); !strings.Contains(err.Error(), `"orders-dead"`) {
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
	once := b.processor(consumer.Config{
		DeadLetters: elsewhere{b.publisher()}, DeadLetterTopic: "later", Policy: oncemill.Policy{Logger: b.logger},
	})
	s := b.source(once, franz.SourceConfig{Config: franz.Config{Retry: []franz.RetryTopic{{Topic: "later"}}}})
	run := b.handler(byRecord, func(context.Context, string, int) error { return oncemill.Permanent(errors.New("declined")) })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, "orders", consumertest.Blocking(func(ctx context.Context, d consumer.Delivery) consumer.Decision {
			d.Handler = "charge"
			return once.Process(ctx, d, func(ctx context.Context) error { return run(ctx, &kgo.Record{Value: d.Payload}) })
		}))
	}()
	until(t, "the commits", func() bool { return b.committed("orders")[0] == n && b.committed("later")[0] >= n })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if runs, deadLetters := b.started(), len(b.records("later")); runs != n || deadLetters != n {
		t.Errorf("%d runs and %d dead letters of %d records", runs, deadLetters, n)
	}
	wantLog(t, b, "level=ERROR", "own dead letter came back", "topic=later")
}

func TestCheck_DeadLettersThatGoNowhere(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config func(b *bench) consumer.Config
		want   string // of the error; "": none
	}{
		"missing topic": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "nowhere"}
		}, `DeadLetterTopic "nowhere" is not there: create it`},
		"topic that publishing makes": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: b.publisher(kgo.AllowAutoTopicCreation()), DeadLetterTopic: "nowhere"}
		}, ""},
		"topic": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "dead"}
		}, ""},
		"topic that keeps one of a key": {func(b *bench) consumer.Config {
			compact := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
			if _, err := b.admin.CreateTopic(b.t.Context(), 1, 1, compact, "compacted"); err != nil {
				b.t.Fatal(err)
			}
			return consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "compacted"}
		}, `DeadLetterTopic "compacted" is compacted`},
		"topic that may not be written to": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: limitedPublisher(b), DeadLetterTopic: "dead"}
		}, `DeadLetterTopic "dead" may not be written to`},
		"topic that may be looked at alone": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: limitedPublisher(b, kfake.ACL{
				Resource: kmsg.ACLResourceTypeTopic, Name: "dead", Pattern: kmsg.ACLResourcePatternTypeLiteral,
				Operation: kmsg.ACLOperationDescribe, Allow: true,
			}), DeadLetterTopic: "dead"}
		}, `DeadLetterTopic "dead" may not be written to`},
		"topic that may be written to and nothing else": {func(b *bench) consumer.Config {
			return consumer.Config{DeadLetters: limitedPublisher(b, kfake.ACL{
				Resource: kmsg.ACLResourceTypeTopic, Name: "dead", Pattern: kmsg.ACLResourcePatternTypeLiteral,
				Operation: kmsg.ACLOperationWrite, Allow: true,
			}), DeadLetterTopic: "dead"}
		}, ""},
		"none":    {func(*bench) consumer.Config { return consumer.Config{} }, ""},
		"a trial": {func(*bench) consumer.Config { return consumer.Config{Policy: oncemill.Policy{Shadow: true}} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1, kfake.SeedTopics(1, "dead"))
			b.produce(0, 1, 1, 0)
			once := b.processor(tc.config(b))
			s := b.source(once, franz.SourceConfig{})
			if tc.want == "" {
				m := b.start(once, b.handler(byPartition, nil), franz.Config{})
				until(t, "the record", func() bool { return b.finished() == 1 })
				m.leave()
				if err := s.Check(t.Context(), "orders"); err != nil {
					t.Error(err)
				}
				warned := strings.Contains(b.log.String(), "no consumer.Config.DeadLetters")
				if log := b.log.String(); warned != (name == "none") {
					t.Errorf("log:\n%s", log)
				}
				return
			}
			for who, err := range map[string]error{
				"Worker.Run": b.start(once, nothing, franz.Config{}).wait(),
				"Source.Run": s.Run(t.Context(), "orders", func(_ context.Context, _ consumer.Delivery, done func(consumer.Decision)) {
					done(consumer.Decision{Action: consumer.Ack})
				}),
				"Source.Check": s.Check(t.Context(), "orders"),
			} {
				if as[*dedupstore.SetupError](t, err); !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: %q, want %q", who, err, tc.want)
				}
			}
			if offset := b.committed("orders")[0]; offset > 0 {
				t.Errorf("committed %d", offset)
			}
		})
	}
}

// limitedPublisher returns a publisher to a cluster with topic "dead", whose user has these rights alone.
func limitedPublisher(b *bench, rights ...kfake.ACL) *franz.Publisher {
	b.t.Helper()
	addrs, user := limitedCluster(b, rights...)
	return b.publisher(addrs, user)
}

// limitedCluster returns how to reach a cluster as a user that has these rights alone.
func limitedCluster(b *bench, rights ...kfake.ACL) (addrs, user kgo.Opt) {
	b.t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "dead", "orders", "later"),
		kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", "secret"), kfake.User("PLAIN", "app", "secret", rights...))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(cluster.Close)
	return kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.SASL(plain.Auth{User: "app", Pass: "secret"}.AsMechanism())
}

func TestCheck_RightsToRetryTopics(t *testing.T) {
	t.Parallel()
	right := func(resource kmsg.ACLResourceType, name string, op kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{
			Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true,
		}
	}
	read := []kfake.ACL{
		right(kmsg.ACLResourceTypeTopic, "orders", kmsg.ACLOperationRead),
		right(kmsg.ACLResourceTypeTopic, "later", kmsg.ACLOperationRead),
		right(kmsg.ACLResourceTypeGroup, group, kmsg.ACLOperationRead),
	}
	for name, tc := range map[string]struct {
		rights []kfake.ACL
		want   string // of the error; "": none
	}{
		"all":           {append(slices.Clone(read), right(kmsg.ACLResourceTypeTopic, "later", kmsg.ACLOperationWrite)), ""},
		"none to write": {read, `retry topic "later" may not be written to`},
		"none to read the source": {
			[]kfake.ACL{right(kmsg.ACLResourceTypeTopic, "orders", kmsg.ACLOperationDescribe), read[1], read[2]},
			`topic "orders" cannot be consumed by group "` + group + `": allow its user to Read`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			addrs, user := limitedCluster(b, tc.rights...)
			w, err := franz.NewWorker(b.processor(consumer.Config{}), nothing,
				franz.Config{Handler: "charge", Logger: b.logger, Retry: []franz.RetryTopic{{Topic: "later"}}})
			if err != nil {
				t.Fatal(err)
			}
			cl := b.newClient(append(w.Opts(), addrs, user, kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders", "later"))...)
			err = w.Check(t.Context(), cl)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if as[*dedupstore.SetupError](t, err); !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q, want %q", err, tc.want)
			}
		})
	}
}
