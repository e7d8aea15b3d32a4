package stocknats_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/transport/stocknats"
)

// newStream returns a server with the stream "orders".
func newStream(t *testing.T) (*testserver.NATSServer, jetstream.JetStream) {
	t.Helper()
	server := testserver.NATS(t)
	js := server.JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
		t.Fatal(err)
	}
	return server, js
}

func TestJetStream_ConsumersThatLoseAreRefusedWithWhatToSet(t *testing.T) {
	t.Parallel()
	server, _ := newStream(t)
	for want, config := range map[string]jetstream.ConsumerConfig{
		"Durable":    {Name: "forgets", AckPolicy: jetstream.AckExplicitPolicy},
		"AckPolicy":  {Durable: "acks-none", AckPolicy: jetstream.AckNonePolicy},
		"MaxDeliver": {Durable: "ends", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 5},

		"PriorityGroups":    {Durable: "groups", AckPolicy: jetstream.AckExplicitPolicy, PriorityPolicy: jetstream.PriorityPolicyOverflow, PriorityGroups: []string{"a"}},
		"MaxRequestExpires": {Durable: "hurries", AckPolicy: jetstream.AckExplicitPolicy, MaxRequestExpires: 500 * time.Millisecond},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			sub, err := stocknats.JetStream(server.Connect(), wmjetstream.SubscriberConfig{
				ResourceInitializer: func(ctx context.Context, js jetstream.JetStream, _ string) (jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error) {
					c, err := js.CreateConsumer(ctx, "orders", config)
					return c, nil, err
				},
			}, stocknats.Config{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Close()
			if _, err := sub.Subscribe(t.Context(), "orders"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one that names %s", err, want)
			}
		})
	}
}

func TestNATS_ConsumersThatLoseAreRefusedWithWhatToSet(t *testing.T) {
	t.Parallel()
	server, js := newStream(t)
	for want, config := range map[string]jetstream.ConsumerConfig{
		"AckPolicy":  {Durable: "acks-none", AckPolicy: jetstream.AckNonePolicy, DeliverSubject: "a"},
		"MaxDeliver": {Durable: "ends", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 5, DeliverSubject: "b"},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			if _, err := js.CreatePushConsumer(t.Context(), "orders", config); err != nil {
				t.Fatal(err)
			}
			sub, err := stocknats.NATS(server.Connect(), wmnats.SubscriberSubscriptionConfig{
				JetStream: wmnats.JetStreamConfig{DurablePrefix: config.Durable},
			}, stocknats.Config{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Close()
			if _, err := sub.Subscribe(t.Context(), "orders"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one that names %s", err, want)
			}
		})
	}
}

// The server tells it to the connection only, and a subscription that it has refused gets nothing, in silence.
func TestNATS_SubscriptionThatTheServerRefusesIsAnError(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limit func(*server.Options)
		want  error
	}{
		"right": {func(o *server.Options) {
			o.Users = []*server.User{{Username: "few", Password: "few", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}}}}}
		}, nats.ErrPermissionViolation},
		"limit": {func(o *server.Options) { o.MaxSubs = 1 }, nats.ErrMaxSubscriptionsExceeded}, // that of answers to requests
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.NATS(t, tc.limit)
			nc := s.Connect(nats.UserInfo("few", "few"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
				t.Fatal(err)
			}
			sub, err := stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{QueueGroupPrefix: "billing", JetStream: wmnats.JetStreamConfig{DurablePrefix: "billing"}}, stocknats.Config{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Close()
			for range 2 {
				if _, err := sub.Subscribe(t.Context(), "orders"); !errors.Is(err, tc.want) {
					t.Errorf("Subscribe: %v, want %v", err, tc.want)
				}
			}
		})
	}
}

// As in a rolling update, which begins with the new process.
func TestNATS_SecondProcessNeedsAQueueGroup(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"", "billing"} {
		s, _ := newStream(t)
		for process := range 2 {
			sub, err := stocknats.NATS(s.Connect(), wmnats.SubscriberSubscriptionConfig{QueueGroupPrefix: group, JetStream: wmnats.JetStreamConfig{DurablePrefix: "billing"}}, stocknats.Config{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Close()
			if _, err := sub.Subscribe(t.Context(), "orders"); (err != nil) != (group == "" && process == 1) {
				t.Errorf("group %q, process %d: %v", group, process, err)
			}
		}
	}
}

func TestNATS_RefusalOfAnotherRightIsNotOne(t *testing.T) {
	t.Parallel()
	s := testserver.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "few", Password: "few", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"forbidden"}}}}}
	})
	nc := s.Connect(nats.UserInfo("few", "few"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
		t.Fatal(err)
	}
	var others sync.WaitGroup
	defer others.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	others.Go(func() {
		for ctx.Err() == nil {
			if nc.Publish("forbidden", nil) != nil || nc.FlushTimeout(patience) != nil {
				return
			}
		}
	})
	sub, err := stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{QueueGroupPrefix: "billing", JetStream: wmnats.JetStreamConfig{DurablePrefix: "billing"}}, stocknats.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for range 20 {
		if _, err := sub.Subscribe(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
	}
}

// The adapter sends on a closed channel, which ends the process, if a message comes when its context has ended.
func TestNATS_MessagesOfASubscriptionRefusedInPartAreGivenBack(t *testing.T) {
	t.Parallel()
	const limit = 5
	r := newRig(t, setup{adapter: "nats", subscribers: limit, config: stocknats.Config{MaxAckPending: 10_000}})
	r.server = testserver.NATS(t, func(o *server.Options) { o.MaxSubs = limit })
	r.js = r.server.JetStream()
	r.must(r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}))
	for range 20 {
		for i := range 100 {
			r.publish(strconv.Itoa(i))
		}
		sub := r.subscriber()
		if _, err := sub.Subscribe(t.Context(), "orders"); !errors.Is(err, nats.ErrMaxSubscriptionsExceeded) {
			t.Errorf("Subscribe: %v, want %v", err, nats.ErrMaxSubscriptionsExceeded)
		}
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestStock_ConfigErrorsNameTheField(t *testing.T) {
	t.Parallel()
	nc, other := testserver.NATS(t).Connect(), testserver.NATS(t).Connect()
	durable := wmnats.JetStreamConfig{DurablePrefix: "billing"}
	plan := stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) { return "orders", jetstream.ConsumerConfig{} })
	second := func(_ any, err error) error { return err }
	for want, err := range map[string]error{
		"nc is nil":     second(stocknats.NATS(nil, wmnats.SubscriberSubscriptionConfig{JetStream: durable}, stocknats.Config{})),
		"Config.Grace":  second(stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{JetStream: durable}, stocknats.Config{Grace: -1})),
		"Config.Lease":  second(stocknats.JetStream(nc, wmjetstream.SubscriberConfig{ResourceInitializer: plan}, stocknats.Config{Lease: -time.Second})),
		"MaxAckPending": second(stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{JetStream: durable}, stocknats.Config{MaxAckPending: -1})),
		"Disabled":      second(stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{JetStream: wmnats.JetStreamConfig{Disabled: true}}, stocknats.Config{})),
		"DurablePrefix": second(stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{}, stocknats.Config{})),
		"Initializer":   second(stocknats.JetStream(nc, wmjetstream.SubscriberConfig{}, stocknats.Config{})),
		"Conn":          second(stocknats.JetStream(nc, wmjetstream.SubscriberConfig{Conn: other, ResourceInitializer: plan}, stocknats.Config{})),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that names %s", err, want)
		}
	}
}

func TestNATS_DurableConsumerOutlivesTheSubscriberThatMadeIt(t *testing.T) {
	t.Parallel()
	server, js := newStream(t)
	newSubscriber := func() func() {
		sub, err := stocknats.NATS(server.Connect(), wmnats.SubscriberSubscriptionConfig{
			QueueGroupPrefix: "billing", JetStream: wmnats.JetStreamConfig{DurablePrefix: "billing"},
		}, stocknats.Config{AckWait: 7 * time.Second, MaxAckPending: 3, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		messages, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for msg := range messages {
				msg.Ack()
			}
		}()
		return func() { sub.Close() }
	}
	stop := newSubscriber()
	if _, err := js.Publish(t.Context(), "orders", []byte("x")); err != nil {
		t.Fatal(err)
	}
	var info *jetstream.ConsumerInfo
	acked := func() bool {
		c, err := js.PushConsumer(t.Context(), "orders", "billing")
		if err != nil {
			t.Fatal(err)
		}
		info = c.CachedInfo()
		return info.AckFloor.Stream == 1
	}
	until(t, "the ack", acked)
	stop()
	if !acked() {
		t.Error("the ack is forgotten")
	}
	if c := info.Config; c.AckWait != 7*time.Second || c.MaxAckPending != 3 || c.MaxDeliver != -1 {
		t.Errorf("AckWait %v, MaxAckPending %d, MaxDeliver %d", c.AckWait, c.MaxAckPending, c.MaxDeliver)
	}
	newSubscriber()() // and it is found again
}

func TestDurable_MakesAMissingConsumerAndTakesAnExistingOneAsItIs(t *testing.T) {
	t.Parallel()
	_, js := newStream(t)
	initialise := func(config jetstream.ConsumerConfig) *jetstream.ConsumerInfo {
		t.Helper()
		c, _, err := stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) { return "orders", config })(t.Context(), js, "orders")
		if err != nil {
			t.Fatal(err)
		}
		return c.CachedInfo()
	}
	made := initialise(jetstream.ConsumerConfig{Durable: "billing", AckWait: 7 * time.Second}).Config
	if made.AckWait != 7*time.Second || made.FilterSubject != "orders" || made.AckPolicy != jetstream.AckExplicitPolicy || made.MaxDeliver != -1 {
		t.Errorf("made %+v", made)
	}
	if found := initialise(jetstream.ConsumerConfig{Durable: "billing", AckWait: time.Minute}).Config; found.AckWait != 7*time.Second {
		t.Errorf("AckWait was changed to %v", found.AckWait)
	}
	_, _, err := stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) {
		return "missing", jetstream.ConsumerConfig{Durable: "billing"}
	})(t.Context(), js, "orders")
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("error %v, want ErrStreamNotFound", err)
	}
}

// The client would ask for 30 s, be refused, and say nothing.
func TestJetStream_RequestsAreAsShortAsTheConsumerWants(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{adapter: "jetstream", handle: func(*message.Message, int) error { return nil }})
	r.must(r.js.UpdateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, MaxRequestExpires: time.Second, InactiveThreshold: time.Hour,
	}))
	r.serve()
	r.publish("a", "b", "c")
	r.settled()
	if !r.log.has("inactiveThreshold=1h0m0s") {
		t.Error("no warning of the InactiveThreshold")
	}
	if r.log.has("trouble with the consumer") {
		t.Error("requests are refused")
	}
}

// A subscription that gets nothing says why.
func TestJetStream_ConsumerThatIsPausedIsAWarning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		until  time.Time
		paused bool
	}{
		"never paused":  {},
		"paused":        {until: time.Now().Add(time.Hour), paused: true},
		"time has come": {until: time.Now().Add(-time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{adapter: "jetstream", handle: func(*message.Message, int) error { return nil }})
			if !c.until.IsZero() {
				r.must(r.js.PauseConsumer(t.Context(), "orders", "billing", c.until))
			}
			r.publish("a")
			r.serve()
			if said := r.log.has("is paused"); said != c.paused {
				t.Errorf("said that it is paused: %v, want %v", said, c.paused)
			}
			if c.paused {
				r.must(r.js.ResumeConsumer(t.Context(), "orders", "billing"))
			}
			r.settled()
		})
	}
}

// A request that whoever leads the consumer now does not know of is made again when nothing has come for two heartbeats.
func TestJetStream_RequestsWantAHeartbeatSoon(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit   time.Duration              // the consumer's MaxRequestExpires
		options []jetstream.PullConsumeOpt // the user's
		longest time.Duration
	}{
		"by default":                          {longest: 5 * time.Second},
		"of a consumer that wants short ones": {limit: 4 * time.Second, longest: 2 * time.Second},
		"of a user who wants short ones":      {options: []jetstream.PullConsumeOpt{jetstream.PullExpiry(3 * time.Second)}, longest: 3 * time.Second / 2},
		"of a user who says it":               {options: []jetstream.PullConsumeOpt{jetstream.PullHeartbeat(time.Second)}, longest: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{adapter: "jetstream"})
			config := jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, MaxRequestExpires: c.limit}
			r.must(r.js.UpdateConsumer(t.Context(), "orders", config))
			requests := make(chan *nats.Msg, 10)
			r.must(r.js.Conn().ChanSubscribe("$JS.API.CONSUMER.MSG.NEXT.orders.billing", requests))
			r.must(nil, r.js.Conn().Flush())
			sub, err := stocknats.JetStream(r.server.Connect(), wmjetstream.SubscriberConfig{
				ResourceInitializer: stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) { return "orders", config }),
				ConsumeOptions:      c.options,
			}, stocknats.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Close()
			r.must(sub.Subscribe(t.Context(), "orders"))
			var request struct {
				Heartbeat time.Duration `json:"idle_heartbeat"`
			}
			r.must(nil, json.Unmarshal((<-requests).Data, &request))
			if request.Heartbeat <= 0 || request.Heartbeat > c.longest {
				t.Errorf("the request wants a heartbeat every %v, want one every %v", request.Heartbeat, c.longest)
			}
		})
	}
}

func TestJetStream_WhatTheClientHasToSayIsLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{adapter: "jetstream", handle: func(*message.Message, int) error { return nil }})
	r.serve()
	r.publish("a")
	r.settled()
	r.must(r.js.UpdateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, MaxRequestExpires: time.Second,
	}))
	r.publish("b") // ends the request that is outstanding
	until(t, "the refusal of the next", func() bool { return r.log.has("MaxRequestExpires") })
}

// A reload may take a right away for a while. The server drops the subscription then, nats.go does not make it again, and the client
// asks for ever to be answered there.
func TestJetStream_SubscriptionWhoseAnswersWereRefusedForAWhileEnds(t *testing.T) {
	t.Parallel()
	users := func(few *server.Permissions) func(*server.Options) {
		return func(o *server.Options) {
			o.Users = []*server.User{{Username: "all", Password: "all"}, {Username: "few", Password: "few", Permissions: few}}
			o.NoAuthUser = "all"
		}
	}
	r := newRig(t, setup{adapter: "jetstream"})
	r.server = testserver.NATS(t, users(nil))
	r.js = r.server.JetStream()
	r.must(r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}))
	nc := r.server.Connect(nats.UserInfo("few", "few"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	sub, err := stocknats.JetStream(nc, wmjetstream.SubscriberConfig{
		ResourceInitializer: stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) {
			return "orders", jetstream.ConsumerConfig{Durable: "billing"}
		}),
	}, stocknats.Config{Logger: slog.New(slog.NewTextHandler(&r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	stocknats.LookEvery(sub, 20*time.Millisecond)
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	r.server.Reload(users(&server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"_INBOX.>"}}}))
	until(t, "the refusal", func() bool { return errors.Is(nc.LastError(), nats.ErrPermissionViolation) })
	r.server.Reload(users(nil))
	select {
	case _, open := <-messages:
		if open {
			t.Error("a message came")
		}
	case <-time.After(patience):
		t.Error("the subscription goes on, and nothing comes")
	}
	if !r.log.has("level=ERROR") || !r.log.has("Permissions Violation for Subscription") {
		t.Errorf("log:\n%s", r.log.b.String())
	}
}

// A server that takes nearly as long as a look may, beside something else that it has refused, is slow, and nothing more.
func TestJetStream_SlowServerEndsNoSubscription(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{adapter: "jetstream"})
	r.server = testserver.NATS(t, func(o *server.Options) {
		few := &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"secret"}}}
		o.Users = []*server.User{{Username: "all", Password: "all"}, {Username: "few", Password: "few", Permissions: few}}
		o.NoAuthUser = "all"
	})
	r.js = r.server.JetStream()
	r.must(r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}))
	line := &slowLine{since: time.Now()}
	nc := r.server.Connect(nats.UserInfo("few", "few"), nats.SetCustomDialer(line), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	sub, err := stocknats.JetStream(nc, wmjetstream.SubscriberConfig{
		ResourceInitializer: stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) {
			return "orders", jetstream.ConsumerConfig{Durable: "billing"}
		}),
	}, stocknats.Config{Logger: slog.New(slog.NewTextHandler(&r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	stocknats.LookEvery(sub, 20*time.Millisecond)
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.SubscribeSync("secret"); err != nil {
		t.Fatal(err)
	}
	until(t, "the refusal", func() bool { return errors.Is(nc.LastError(), nats.ErrPermissionViolation) })
	line.slow.Store(true)
	select {
	case <-messages:
		t.Fatalf("the subscription has ended:\n%s", r.log.b.String())
	case <-time.After(4 * slowness):
	}
	line.slow.Store(false)
	r.must(r.js.Publish(t.Context(), "orders", []byte("one")))
	select {
	case msg, open := <-messages:
		if !open {
			t.Fatalf("the subscription has ended:\n%s", r.log.b.String())
		}
		msg.Ack()
	case <-time.After(patience):
		t.Error("nothing comes")
	}
}

// slowness is how long what a server says may be on its way over a slowLine.
const slowness = 1900 * time.Millisecond

// A slowLine makes connections on which what the server says comes every now and then, while it is slow.
type slowLine struct {
	since time.Time
	slow  atomic.Bool
}

func (l *slowLine) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return slowConn{c, l}, err
}

type slowConn struct {
	net.Conn
	line *slowLine
}

func (c slowConn) Read(p []byte) (int, error) {
	if c.line.slow.Load() {
		<-time.After(slowness - time.Since(c.line.since)%slowness)
	}
	return c.Conn.Read(p)
}
