package franz_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

func nothing(context.Context, *kgo.Record) error { return nil }

func TestNewWorker_NamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	once := b.processor(consumer.Config{})
	for want, c := range map[string]franz.Config{
		"Config.Handler is":     {Handler: "~x"},
		"Config.Order":          {Order: "random"},
		"Config.MaxInFlight":    {MaxInFlight: -1},
		"Config.Grace":          {Grace: -1},
		"Config.Grace is 300h":  {Grace: 300 * time.Hour},
		"Config.Grace is 25":    {Grace: math.MaxInt64},
		"Config.CommitEvery":    {CommitEvery: time.Microsecond},
		"Config.Retry[0].Topic": {Retry: []franz.RetryTopic{{Topic: "a b"}}},
		"Config.Retry[0].Delay": {Retry: []franz.RetryTopic{{Topic: "a", Delay: -1}}},
		"Config.Retry[1].Delay": {Retry: []franz.RetryTopic{{Topic: "a", Delay: 2}, {Topic: "b", Delay: 1}}},
		"Config.Retry[1].Topic": {Retry: []franz.RetryTopic{{Topic: "a"}, {Topic: "a"}}},
	} {
		if c.Handler == "" {
			c.Handler = "charge"
		}
		if _, err := franz.NewWorker(once, nothing, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one that names %s", c, err, want)
		}
	}
	_, err := franz.NewWorker(once, nothing, franz.Config{})
	if want := "franz: Config.Handler is empty: records are kept under it, and another name runs everything again"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if _, err := franz.NewWorker(nil, nothing, franz.Config{Handler: "charge"}); err == nil {
		t.Error("no error without a Processor")
	}
	if _, err := franz.NewWorker(once, nil, franz.Config{Handler: "charge"}); err == nil {
		t.Error("no error without a Handler")
	}
}

func TestWorker_RefusesClientsThatWouldBreakItsPromises(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	once := b.processor(consumer.Config{})
	retry := franz.Config{Retry: []franz.RetryTopic{{Topic: "later"}}}
	theGroup, topics := kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders")
	hook := func(context.Context, *kgo.Client, map[string][]int32) {}
	for _, tc := range []struct {
		name, want string
		config     franz.Config
		opts       func(w *franz.Worker) []kgo.Opt
	}{
		{"without Opts", "worker's Opts", franz.Config{}, func(*franz.Worker) []kgo.Opt { return []kgo.Opt{theGroup, topics} }},
		{"without a group", "kgo.ConsumerGroup", franz.Config{}, func(*franz.Worker) []kgo.Opt { return []kgo.Opt{topics} }},
		{"of another worker", "worker's Opts", franz.Config{}, func(*franz.Worker) []kgo.Opt {
			other, err := franz.NewWorker(once, nothing, franz.Config{Handler: "charge"})
			if err != nil {
				t.Fatal(err)
			}
			return append(other.Opts(), theGroup, topics)
		}},
		{"with other callbacks", "OnPartitionsRevoked", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.OnPartitionsRevoked(hook))
		}},
		{"with another callback for lost partitions", "OnPartitionsLost", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.OnPartitionsLost(hook))
		}},
		{"without topics", "kgo.ConsumeTopics", franz.Config{}, func(w *franz.Worker) []kgo.Opt { return append(w.Opts(), theGroup) }},
		{"with too short a rebalance timeout", "kgo.RebalanceTimeout", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.RebalanceTimeout(10*time.Second))
		}},
		{"of uncommitted records", "kgo.FetchIsolationLevel", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.FetchIsolationLevel(kgo.ReadUncommitted()))
		}},
		{"of control records", "kgo.KeepControlRecords", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.KeepControlRecords())
		}},
		{"of errors that pass", "kgo.KeepRetryableFetchErrors", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.KeepRetryableFetchErrors())
		}},
		{"from the end", "kgo.ConsumeStartOffset", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()))
		}},
		{"from the end by the other option", "kgo.ConsumeStartOffset", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
		}},
		{"from the end when an offset is gone", "kgo.ConsumeResetOffset", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
		}},
		{"from a time", "kgo.ConsumeStartOffset", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.ConsumeStartOffset(kgo.NewOffset().AfterMilli(time.Now().UnixMilli())))
		}},
		{"from a while before the end", "kgo.ConsumeStartOffset", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.ConsumeStartOffset(kgo.LookbackOffset(time.Hour)))
		}},
		{"from a time when an offset is gone", "kgo.ConsumeResetOffset", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(kgo.LookbackOffset(time.Hour)))
		}},
		{"with a context that can end", "kgo.WithContext", franz.Config{}, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, topics, kgo.WithContext(t.Context()))
		}},
		{"of retry topics by pattern", "kgo.ConsumeRegex", retry, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, kgo.ConsumeRegex(), kgo.ConsumeTopics("^ord"))
		}},
		{"without the retry topic", `"later"`, retry, func(w *franz.Worker) []kgo.Opt { return append(w.Opts(), theGroup, topics) }},
		{"that weakens the copies in retry topics", "kgo.RequiredAcks", retry, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, kgo.ConsumeTopics("orders", "later"), kgo.RequiredAcks(kgo.LeaderAck()),
				kgo.DisableIdempotentWrite())
		}},
		{"with retry topics only", "source topics", retry, func(w *franz.Worker) []kgo.Opt {
			return append(w.Opts(), theGroup, kgo.ConsumeTopics("later"))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.config.Handler = "charge"
			w, err := franz.NewWorker(once, nothing, tc.config)
			if err != nil {
				t.Fatal(err)
			}
			cl := b.newClient(tc.opts(w)...)
			as[*dedupstore.SetupError](t, w.Run(t.Context(), cl))
			if err := w.Check(t.Context(), cl); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one that says %s", err, tc.want)
			}
		})
	}
}

func TestWorker_RefusesRetryTopicsThatLoseRecords(t *testing.T) {
	t.Parallel()
	days := oncemill.Backoff{Min: 24 * time.Hour, Max: 48 * time.Hour}
	for name, tc := range map[string]struct {
		settings map[string]string
		backoff  oncemill.Backoff
		refused  bool
	}{
		"compacted":                           {map[string]string{"cleanup.policy": "compact"}, oncemill.Backoff{}, true},
		"compacted, too":                      {map[string]string{"cleanup.policy": "compact,delete"}, oncemill.Backoff{}, true},
		"deleted before they are due":         {map[string]string{"retention.ms": "3600000"}, oncemill.Backoff{}, true},
		"deleted before a late attempt":       {map[string]string{"retention.ms": "86400000"}, days, true},
		"of a backoff that is never so long":  {map[string]string{"retention.ms": "86400000"}, oncemill.Backoff{Max: 365 * 24 * time.Hour}, false},
		"deleted a while after they are due":  {map[string]string{"retention.ms": "86400000"}, oncemill.Backoff{}, false},
		"deleted a while after late attempts": {map[string]string{"retention.ms": "259200000"}, days, false},
		"never deleted":                       {map[string]string{"retention.ms": "-1"}, days, false},
		"as a broker has it by default":       {nil, oncemill.Backoff{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			values := map[string]*string{}
			for name, value := range tc.settings {
				values[name] = &value
			}
			if _, err := b.admin.CreateTopic(t.Context(), 1, 1, values, "later"); err != nil {
				t.Fatal(err)
			}
			once := b.processor(consumer.Config{Policy: oncemill.Policy{Backoff: tc.backoff}})
			w, err := franz.NewWorker(once, nothing, franz.Config{Handler: "charge",
				Retry: []franz.RetryTopic{{Topic: "later", Delay: time.Hour}}, Logger: b.logger,
			})
			if err != nil {
				t.Fatal(err)
			}
			err = w.Check(t.Context(), b.newClient(append(w.Opts(), kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders", "later"))...))
			if !tc.refused {
				if err != nil {
					t.Error(err)
				}
				return
			}
			as[*dedupstore.SetupError](t, err)
			for name := range tc.settings {
				if !strings.Contains(err.Error(), `"later"`) || !strings.Contains(err.Error(), name) {
					t.Errorf("error %q does not name topic and setting", err)
				}
			}
		})
	}
}

func TestWorker_RunsOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 1, 1, 0)
	w, err := franz.NewWorker(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{Handler: "charge", Logger: b.logger})
	if err != nil {
		t.Fatal(err)
	}
	cl := b.newClient(append(w.Opts(), kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders"))...)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx, cl); err != nil {
		t.Errorf("Run with a context that has ended: %v, want nil", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, cl) }()
	until(t, "the record", func() bool { return b.finished() == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	as[*dedupstore.SetupError](t, w.Run(t.Context(), cl))
}

func TestWorker_NamesWhatTheBrokerRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		topic string
		fault kfake.Fault
		want  []string
	}{
		{"topic that is missing", "refunds", kfake.Fault{Observe: true}, []string{`"refunds"`, "create the topic"}},
		{"topic that may not be described", "orders", kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "orders", Err: kerr.TopicAuthorizationFailed, Count: -1}, []string{`"orders"`, "Read and Describe"}},
		{"topic that may not be read", "orders", kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.TopicAuthorizationFailed, Count: -1}, []string{`"orders"`, "Read and Describe"}},
		{"group that may not be read", "orders", kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeGroups}, Group: group, Err: kerr.GroupAuthorizationFailed, Count: -1}, []string{group, "Read the group"}},
		{"group that may not be joined", "orders", kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Group: group, Err: kerr.GroupAuthorizationFailed, Count: -1}, []string{group, "Read the group"}},
		{"balancer that does not fit", "orders", kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Group: group, Err: kerr.InconsistentGroupProtocol, Count: -1}, []string{group, "balancers"}},
		{"group that may not be committed", "orders", kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: kerr.GroupAuthorizationFailed, Count: -1}, []string{group, "Read the group"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			b.produce(0, 3, 1, 0)
			fault := b.cluster.Fault(tc.fault)
			m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{}, kgo.ConsumeTopics(tc.topic))
			err := m.wait()
			as[*dedupstore.SetupError](t, err)
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %s", err, want)
				}
			}
			fault.Remove()
			if offset := b.committed("orders")[0]; offset > 0 {
				t.Errorf("committed %d", offset)
			}
		})
	}
}

func TestWorker_RefusesAGroupOfAnotherKind(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	cl := b.newClient()
	join := kmsg.NewPtrJoinGroupRequest()
	join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = group, "connect", 30_000, 30_000
	protocol := kmsg.NewJoinGroupRequestProtocol()
	protocol.Name = "compatible"
	join.Protocols = append(join.Protocols, protocol)
	for {
		resp, err := join.RequestWith(t.Context(), cl)
		if err != nil {
			t.Fatal(err)
		}
		if resp.ErrorCode == 0 {
			break
		}
		join.MemberID = resp.MemberID
	}
	m := b.start(b.processor(consumer.Config{}), nothing, franz.Config{})
	if err := as[*dedupstore.SetupError](t, m.wait()); !strings.Contains(err.Error(), "connect") {
		t.Errorf("error %q does not name the other type", err)
	}
}

func TestWorker_WarnsOfTopicsThatOutliveTheWindow(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 1, 1, 0)
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{})
	until(t, "the record", func() bool { return b.finished() == 1 })
	m.leave()
	wantLog(t, b, "level=WARN", "topic=orders", "retention=168h", "window=24h")
}

// Its retention.ms is of no effect.
func TestWorker_WarnsOfCompactedTopicsThatOutliveTheWindow(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	settings := map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "retention.ms": kadm.StringPtr("60000")}
	if _, err := b.admin.CreateTopic(t.Context(), 1, 1, settings, "latest"); err != nil {
		t.Fatal(err)
	}
	w, err := franz.NewWorker(b.processor(consumer.Config{}), nothing, franz.Config{Handler: "charge", Logger: b.logger})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Check(t.Context(), b.newClient(append(w.Opts(), kgo.ConsumerGroup(group), kgo.ConsumeTopics("latest"))...)); err != nil {
		t.Fatal(err)
	}
	wantLog(t, b, "level=WARN", "topic keeps records for longer", "topic=latest", `retention="for ever"`)
}

func TestNewPublisher_RefusesClientsThatWeakenIt(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	for want, opts := range map[string][]kgo.Opt{
		"RequiredAcks":              {kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()},
		"DisableIdempotentWrite":    {kgo.DisableIdempotentWrite()},
		"AllowIdempotentProduce":    {kgo.AllowIdempotentProduceCancellation()},
		"TransactionalID":           {kgo.TransactionalID("t")},
		"ManualFlushing":            {kgo.ManualFlushing()},
		"DefaultProduceTopicAlways": {kgo.DefaultProduceTopic("orders"), kgo.DefaultProduceTopicAlways()},
	} {
		_, err := franz.NewPublisher(b.newClient(opts...), franz.PublisherConfig{})
		if as[*dedupstore.SetupError](t, err); !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
	if _, err := franz.NewPublisher(nil, franz.PublisherConfig{}); err == nil {
		t.Error("no error without a client")
	}
	if _, err := franz.NewPublisher(b.client, franz.PublisherConfig{AckTimeout: -1}); err == nil {
		t.Error("no error for a negative AckTimeout")
	}
	if _, err := franz.NewPublisher(b.newClient(franz.PublisherOpts()...), franz.PublisherConfig{}); err != nil {
		t.Errorf("with PublisherOpts: %v", err)
	}
}

var _ producer.Publisher = (*franz.Publisher)(nil)

// Before Kafka 4.2 a commit looks at its topics first: one that may not be described any more is no namesake.
func TestWorker_RightThatTheLastCommitLacksIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.MaxVersions(kversion.V4_1_0()))
	b.produce(0, 1, 1, 0)
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{CommitEvery: time.Hour})
	until(t, "the record", func() bool { return b.finished() == 1 })
	for _, key := range []kmsg.Key{kmsg.Metadata, kmsg.OffsetCommit} {
		b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Topic: "orders", Err: kerr.TopicAuthorizationFailed, Count: -1})
	}
	m.stop()
	err := m.wait()
	m.cl.CloseAllowingRebalance()
	if wantUnconfirmed(t, err); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("error %v, want one that names the right", err)
	}
}

// With kgo 1.22.2 a client is a member from when it is made on, also where no worker may run on it. If this fails with
// a later kgo, change rows of docs/brokers.md.
func TestWorker_RefusedClientKeepsPartitionsUntilItIsClosed(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	refused, err := franz.NewWorker(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{Handler: "charge", Logger: b.logger})
	if err != nil {
		t.Fatal(err)
	}
	left := b.newClient(append(refused.Opts(), kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders"), kgo.RebalanceTimeout(time.Second), kgo.HeartbeatInterval(50*time.Millisecond))...)
	if _, ok := errors.AsType[*dedupstore.SetupError](refused.Run(t.Context(), left)); !ok {
		t.Fatal("the client is not refused")
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{})
	b.stable(2, 2)
	b.produce(0, 20, 2, 2)
	until(t, "half of the records", func() bool { return b.finished() == 10 })
	lasts(300 * time.Millisecond) // several heartbeats
	if n := b.finished(); n != 10 {
		t.Errorf("handled %d records, want half of them: docs/brokers.md says that the client keeps partitions", n)
	}
	left.CloseAllowingRebalance()
	until(t, "all records", func() bool { return b.finished() == 20 })
	m.leave()
}

func wantUnconfirmed(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, franz.ErrUnconfirmed) {
		t.Fatalf("error %v, want ErrUnconfirmed", err)
	}
}
