package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func TestWorker_CheckNamesWhatToSet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		consumer jetstream.ConsumerConfig
		config   natsjs.Config
		field    string // of the error; "" for none
		says     []string
	}{
		{name: "defaults"},
		{name: "AckNone", consumer: jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy}, field: "AckPolicy", says: []string{"AckNone", "AckExplicit"}},
		{name: "AckAll", consumer: jetstream.ConsumerConfig{AckPolicy: jetstream.AckAllPolicy}, field: "AckPolicy", says: []string{"AckAll", "AckExplicit"}},
		{name: "short AckWait", consumer: jetstream.ConsumerConfig{AckWait: 400 * time.Millisecond}, field: "AckWait", says: []string{"400ms", "500ms"}},
		{name: "short BackOff", consumer: jetstream.ConsumerConfig{BackOff: []time.Duration{time.Second, 300 * time.Millisecond}, MaxDeliver: 20}, field: "BackOff", says: []string{"300ms", "500ms"}},
		{name: "few deliveries", consumer: jetstream.ConsumerConfig{MaxDeliver: 10}, field: "MaxDeliver", says: []string{"is 10", "-1", "more than 10"}},
		{name: "enough deliveries", consumer: jetstream.ConsumerConfig{MaxDeliver: 11}},
		{name: "wide MaxInFlight", consumer: jetstream.ConsumerConfig{MaxAckPending: 99}, config: natsjs.Config{MaxInFlight: 100}, field: "MaxAckPending", says: []string{"is 99", "at least 100", "at most 99"}},
		{name: "default MaxInFlight", consumer: jetstream.ConsumerConfig{MaxAckPending: 99}},
		{name: "no MaxAckPending", consumer: jetstream.ConsumerConfig{MaxAckPending: -1}, config: natsjs.Config{MaxInFlight: 10000}},
		{name: "groups", consumer: jetstream.ConsumerConfig{PriorityPolicy: jetstream.PriorityPolicyOverflow, PriorityGroups: []string{"a"}}, field: "PriorityGroups", says: []string{"a"}},
		{name: "replay", consumer: jetstream.ConsumerConfig{ReplayPolicy: jetstream.ReplayOriginalPolicy}, field: "ReplayPolicy", says: []string{"original", "instant"}},
		{name: "limits of requests", consumer: jetstream.ConsumerConfig{MaxRequestBatch: 3, MaxRequestExpires: 200 * time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.consumer).withDeadLetters("dead.orders")
			if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "dead", Subjects: []string{"dead.>"}}); err != nil {
				t.Fatal(err)
			}
			r.config = c.config
			w := r.worker(succeed)
			err := w.Check(t.Context())
			if c.field == "" {
				if err != nil {
					t.Fatal(err)
				}
				r.publish(20, oneKey)
				stop := r.start(w)
				r.finishes(20)
				r.stops(stop)
				r.acked(20)
				if log := r.log.String(); strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
					t.Errorf("log:\n%s", log)
				}
				return
			}
			var wrong *dedupstore.SetupError
			if !errors.As(err, &wrong) || wrong.Subject != c.field+` of consumer "billing" of stream "orders"` {
				t.Fatalf("Check: %v, want a SetupError about %s", err, c.field)
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%q does not say %q", err, says)
				}
			}
			if again := w.Run(t.Context()); again == nil || again.Error() != err.Error() {
				t.Errorf("Run: %v, want what Check says", again)
			}
		})
	}
}

func TestWorker_PushConsumerIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	w := r.worker(succeed)
	if err := r.js.DeleteConsumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	js, err := r.js.Conn().JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddConsumer("orders", &nats.ConsumerConfig{Durable: "billing", DeliverSubject: "push", AckPolicy: nats.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	var wrong *dedupstore.SetupError
	if err := w.Check(t.Context()); !errors.As(err, &wrong) || !strings.HasPrefix(wrong.Subject, "DeliverSubject"+" of consumer ") {
		t.Errorf("Check: %v", err)
	}
}

func TestWorker_MissingStreamOrConsumerIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	w := r.worker(succeed)
	if err := r.js.DeleteConsumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); !errors.Is(err, jetstream.ErrConsumerNotFound) || !strings.Contains(err.Error(), `consumer "billing" of stream "orders"`) {
		t.Errorf("Run without a consumer: %v", err)
	}
	if err := r.js.DeleteStream(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("Run without a stream: %v", err)
	}
}

func TestWorker_StreamThatOutlivesTheWindowIsAWarning(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	if _, err := r.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, MaxAge: 25 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := r.worker(succeed).Check(t.Context()); err != nil {
		t.Error(err)
	}
	if log := r.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "maxAge=25h") || !strings.Contains(log, "window=24h") {
		t.Errorf("log:\n%s", log)
	}
}

func TestWorker_ConfigsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	once := r.processor()
	for says, make := range map[string]func() error{
		"Config.MaxInFlight is -1": func() error {
			_, err := natsjs.NewWorker(once, r.js, r.cons, succeed, natsjs.Config{Handler: "charge", MaxInFlight: -1})
			return err
		},
		"Config.Grace is -1s": func() error {
			_, err := natsjs.NewWorker(once, r.js, r.cons, succeed, natsjs.Config{Handler: "charge", Grace: -time.Second})
			return err
		},
		"Processor": func() error {
			_, err := natsjs.NewWorker(nil, r.js, r.cons, succeed, natsjs.Config{Handler: "charge"})
			return err
		},
		"JetStream": func() error {
			_, err := natsjs.NewWorker(once, nil, r.cons, succeed, natsjs.Config{Handler: "charge"})
			return err
		},
		"needs a consumer": func() error {
			_, err := natsjs.NewWorker(once, r.js, nil, succeed, natsjs.Config{Handler: "charge"})
			return err
		},
		"handler": func() error {
			_, err := natsjs.NewWorker(once, r.js, r.cons, nil, natsjs.Config{Handler: "charge"})
			return err
		},
		"SourceConfig.Consumer is nil": func() error { _, err := natsjs.NewSource(once, r.js, natsjs.SourceConfig{}); return err },
		"NewSource needs a Processor":  func() error { _, err := natsjs.NewSource(nil, r.js, natsjs.SourceConfig{}); return err },
		"SourceConfig.Handler": func() error {
			_, err := natsjs.NewSource(once, r.js, natsjs.SourceConfig{Config: natsjs.Config{Handler: "charge"}})
			return err
		},
		"natsjs: Config.Handler is empty: records are kept under it, and another name runs everything again": func() error {
			_, err := natsjs.NewWorker(once, r.js, r.cons, succeed, natsjs.Config{})
			return err
		},
		"Config.Handler is \"~x\"": func() error {
			_, err := natsjs.NewWorker(once, r.js, r.cons, succeed, natsjs.Config{Handler: "~x"})
			return err
		},
		"NewSource needs a JetStream": func() error { _, err := natsjs.NewSource(once, nil, natsjs.SourceConfig{}); return err },
	} {
		if err := make(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want it to say %q", err, says)
		}
	}
	s, err := natsjs.NewSource(once, r.js, natsjs.SourceConfig{Consumer: func(context.Context, string) (jetstream.Consumer, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context(), "orders.new"); err == nil || !strings.Contains(err.Error(), "orders.new") {
		t.Errorf("Check: %v", err)
	}
}

// limited starts a rig whose worker has a connection of its own, which must not publish to the subject, or subscribe.
func limited(t *testing.T, c jetstream.ConsumerConfig, publish, subscribe []string) *rig {
	t.Helper()
	r := newRig(t, c, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "all"},
			{Username: "few", Password: "few", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: publish}, Subscribe: &server.SubjectPermission{Deny: subscribe},
			}},
		}
		o.NoAuthUser = "all"
	})
	all := r.cons
	r.js = r.server.JetStream(nats.UserInfo("few", "few"))
	var err error
	if r.cons, err = r.js.Consumer(t.Context(), "orders", "billing"); err != nil {
		r.cons = all
	}
	return r
}

func TestWorker_MissingRightsAreNamed(t *testing.T) {
	t.Parallel()
	for name, subject := range map[string]string{
		"next": "$JS.API.CONSUMER.MSG.NEXT.orders.billing",
		"ack":  "$JS.ACK.orders.billing.>",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := limited(t, jetstream.ConsumerConfig{}, []string{subject}, nil)
			r.publish(10, oneKey)
			ctx, cancel := context.WithTimeout(t.Context(), longWait)
			defer cancel()
			err := r.worker(succeed).Run(ctx)
			if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), strings.TrimSuffix(subject, ">")) {
				t.Errorf("Run: %v, want it to name the right", err)
			}
		})
	}
}

// Acks that are refused without a word would fill MaxAckPending, and nothing would come any more.
func TestWorker_RightToAckThatIsGoneAfterAReconnectIsNamed(t *testing.T) {
	t.Parallel()
	var options *server.Options
	r := newRig(t, jetstream.ConsumerConfig{MaxAckPending: 10, AckWait: time.Second}, func(o *server.Options) {
		o.Users = []*server.User{{Username: "all", Password: "all"}, {Username: "few", Password: "few"}}
		o.NoAuthUser = "all"
		options = o
	})
	r.publish(1, oneKey)
	all := r.js
	r.js = r.server.JetStream(nats.UserInfo("few", "few"))
	w := r.worker(succeed)
	w.LookEvery(lookEvery)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	r.acked(1)
	r.server.Shutdown()
	options.Users[1].Permissions = &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.ACK.>"}}}
	r.server.Restart()
	r.js = all
	until(t, "the server", func() bool { _, err := r.cons.Info(t.Context()); return err == nil })
	r.publish(30, oneKey)
	select {
	case err := <-ended:
		if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), "$JS.ACK.orders.billing.") {
			t.Errorf("Run: %v, want it to name the right", err)
		}
	case <-time.After(longWait):
		t.Errorf("the run goes on; %d acks are pending; log:\n%s", r.info().NumAckPending, r.log.String())
	}
}

func TestWorker_RightToLookIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "all"},
			{Username: "few", Password: "few", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.CONSUMER.INFO.orders.billing"}}}},
		}
		o.NoAuthUser = "all"
	})
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	js := r.server.JetStream(nats.UserInfo("few", "few"))
	config := r.config
	config.Handler = "charge"
	w, err := natsjs.NewWorker(r.processor(), js, r.cons, succeed, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Check(ctx); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), "CONSUMER.INFO.orders.billing") {
		t.Errorf("Check: %v", err)
	}
}

func TestWorker_WorksWithoutOptionalRights(t *testing.T) {
	t.Parallel()
	r := limited(t, jetstream.ConsumerConfig{MaxDeliver: 20}, []string{"$JS.API.STREAM.INFO.orders"}, []string{"$JS.EVENT.>"})
	r.dead = consumer.Config{DeadLetters: elsewhere{}, DeadLetterTopic: "dead"} // or there is a second
	r.publish(10, oneKey)
	stop := r.start(r.worker(succeed))
	r.finishes(10)
	r.stops(stop)
	r.acked(10)
	log := r.log.String()
	if n := strings.Count(log, "level=WARN"); n != 1 || !strings.Contains(log, "MaxAge") {
		t.Errorf("%d warnings:\n%s", n, log)
	}
}

func TestWorker_MessagesThatTheServerGivesUpAreReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{MaxDeliver: 2, AckWait: time.Second})
	r.policy.MaxAttempts = 1
	r.publish(3, oneKey)
	s := r.source()
	stop := r.start(deciding{s, func(_ context.Context, d consumer.Delivery) consumer.Decision {
		if idOf(d) == "o1" {
			return consumer.Decision{Action: consumer.Leave, Err: errors.New("crashed")}
		}
		return consumer.Decision{Action: consumer.Ack}
	}})
	until(t, "the advisory", func() bool { return s.MaxDeliveries() == 1 })
	r.stops(stop)
	if log := r.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, fmt.Sprint("sequence=", 2)) {
		t.Errorf("log:\n%s", log)
	}
}

// The JetStream given asks for the messages: it must be the one in which the consumer is.
func TestWorker_CheckRefusesConsumersOfAnotherJetStream(t *testing.T) {
	t.Parallel()
	namesake := natstest.Start(t).JetStream()
	for name, other := range map[string]func(*testing.T, *rig) jetstream.JetStream{
		"of a domain that is not there": func(t *testing.T, r *rig) jetstream.JetStream {
			js, err := jetstream.NewWithDomain(r.js.Conn(), "leaf")
			if err != nil {
				t.Fatal(err)
			}
			return js
		},
		"without it":      func(t *testing.T, _ *rig) jetstream.JetStream { return natstest.Start(t).JetStream() },
		"with a namesake": func(*testing.T, *rig) jetstream.JetStream { return namesake },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			mine := r.cons
			if r.js = other(t, r); r.js == namesake {
				r.open(jetstream.ConsumerConfig{})
			}
			r.cons = mine
			ctx, cancel := context.WithTimeout(t.Context(), longWait)
			defer cancel()
			var refused *dedupstore.SetupError
			if err := r.worker(succeed).Run(ctx); !errors.As(err, &refused) || !strings.Contains(err.Error(), "is not one of the JetStream given") {
				t.Errorf("Run: %v, want a SetupError", err)
			}
		})
	}
	t.Run("on another connection", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, jetstream.ConsumerConfig{})
		r.js = r.server.JetStream()
		if err := r.worker(succeed).Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The contexts of most programs have no deadline.
func TestWorker_CheckNamesAMissingRightWithoutADeadline(t *testing.T) {
	t.Parallel()
	r := limited(t, jetstream.ConsumerConfig{}, []string{"$JS.API.CONSUMER.MSG.NEXT.orders.billing"}, nil)
	err := r.worker(succeed).Check(context.Background())
	if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), "CONSUMER.MSG.NEXT.orders.billing") {
		t.Errorf("Check: %v, want it to name the right", err)
	}
}

// Somebody else on the connection is refused all the time, which says nothing about what the worker may do.
func TestWorker_RefusalsOfOthersOnTheConnectionAreNotItsOwn(t *testing.T) {
	t.Parallel()
	r := limited(t, jetstream.ConsumerConfig{}, []string{"metrics.>"}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = r.js.Conn().Publish("metrics.cpu", nil)
			_ = r.js.Conn().Flush()
		}
	}()
	defer func() { cancel(); <-ended }()
	until(t, "a refusal", func() bool { return errors.Is(r.js.Conn().LastError(), nats.ErrPermissionViolation) })
	r.publish(20, oneKey)
	stop := r.start(r.worker(succeed))
	r.finishes(20)
	r.stops(stop)
}

func TestWorker_ConsumerThatTheServerDeletesIsAWarning(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	ephemeral, err := r.js.CreateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	const says = "inactiveThreshold=5s"
	if err := r.worker(succeed).Check(t.Context()); err != nil || strings.Contains(r.log.String(), says) {
		t.Errorf("Check of a durable consumer: %v, log:\n%s", err, r.log.String())
	}
	r.cons = ephemeral
	if err := r.worker(succeed).Check(t.Context()); err != nil || !strings.Contains(r.log.String(), says) {
		t.Errorf("Check: %v, log:\n%s", err, r.log.String())
	}
}

func TestWorker_ConsumerThatIsKeptInMemoryIsAWarning(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "volatile", Subjects: []string{"volatile"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		stream string
		memory bool
		want   bool
	}{{"orders", false, false}, {"orders", true, true}, {"volatile", true, false}} { // with such a stream, its messages are gone, too
		cons, err := r.js.CreateConsumer(t.Context(), c.stream, jetstream.ConsumerConfig{Durable: fmt.Sprint("memory-", c.memory), AckPolicy: jetstream.AckExplicitPolicy, MemoryStorage: c.memory})
		if err != nil {
			t.Fatal(err)
		}
		r.cons = cons
		before := len(r.log.String())
		if err := r.worker(succeed).Check(t.Context()); err != nil || strings.Contains(r.log.String()[before:], "MemoryStorage") != c.want {
			t.Errorf("%+v: %v, log:\n%s", c, err, r.log.String()[before:])
		}
	}
}

// A worker that gets nothing says why.
func TestWorker_ConsumerThatIsPausedIsAWarning(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	for _, until := range []time.Time{{}, time.Now().Add(time.Hour), time.Now().Add(-time.Hour)} {
		if !until.IsZero() {
			if _, err := r.js.PauseConsumer(t.Context(), "orders", "billing", until); err != nil {
				t.Fatal(err)
			}
		}
		before := len(r.log.String())
		if err := r.worker(succeed).Check(t.Context()); err != nil || strings.Contains(r.log.String()[before:], "is paused") != until.After(time.Now()) {
			t.Errorf("paused until %v: %v, log:\n%s", until, err, r.log.String()[before:])
		}
	}
}

func TestWorker_ConsumerWithHeadersOnlyIsAWarning(t *testing.T) {
	t.Parallel()
	for _, bare := range []bool{false, true} {
		r := newRig(t, jetstream.ConsumerConfig{HeadersOnly: bare})
		if err := r.worker(succeed).Check(t.Context()); err != nil || strings.Contains(r.log.String(), "dead letters have none") != bare {
			t.Errorf("HeadersOnly %v: %v, log:\n%s", bare, err, r.log.String())
		}
	}
}

// A reload may take the right to answers away for a while. The worker subscribes to those that it fetches anew each time, and the
// client's own subscription stays refused.
func TestWorker_RightToAnswersThatIsGoneForAWhileIsNamedAndOutlived(t *testing.T) {
	t.Parallel()
	users := func(few *server.Permissions) func(*server.Options) {
		return func(o *server.Options) {
			o.Users = []*server.User{{Username: "all", Password: "all"}, {Username: "few", Password: "few", Permissions: few}}
			o.NoAuthUser = "all"
		}
	}
	r := newRig(t, jetstream.ConsumerConfig{}, users(nil))
	all := r.js
	r.js = r.server.JetStream(nats.UserInfo("few", "few"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	var err error
	if r.cons, err = r.js.Consumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	w := r.worker(succeed)
	w.LookEvery(lookEvery)
	stop := r.start(w)
	r.js = all
	r.publish(1, oneKey)
	r.finishes(1)
	r.server.Reload(users(&server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"_INBOX.>"}}}))
	r.publish(5, oneKey)
	says := func(text string) func() bool {
		return func() bool {
			for line := range strings.Lines(r.log.String()) {
				if strings.Contains(line, text) && strings.Contains(line, "Permissions Violation for Subscription") {
					return true
				}
			}
			return false
		}
	}
	until(t, "the reason why nothing is fetched", says("messages cannot be fetched"))
	r.server.Reload(users(nil))
	r.finishes(5)
	until(t, "word of looks that get no answer", says("the consumer cannot be looked at"))
	r.stops(stop)
}

// A message that the stream deleted while nobody was there is never handled, and only the start can say so.
func TestWorker_MessagesThatTheStreamDeletedBeforeTheyWereHandledAreSaid(t *testing.T) {
	t.Parallel()
	const said = "the stream has deleted messages before the consumer was done with them"
	for name, c := range map[string]struct {
		perSubject int64
		filter     string
		want       string // in the log; empty: nothing of it
	}{
		"oldest":             {want: "first=6 last=15"},
		"replaced":           {perSubject: 10},
		"perhaps of another": {filter: "orders.all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{FilterSubject: c.filter})
			stream := jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, MaxAge: time.Hour, MaxMsgs: 10, MaxMsgsPerSubject: c.perSubject}
			if _, err := r.js.UpdateStream(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			r.publish(5, oneKey)
			stop := r.start(r.worker(succeed))
			r.acked(5)
			r.stops(stop)
			r.publish(10, oneKey)
			if err := r.worker(succeed).Check(t.Context()); err != nil || strings.Contains(r.log.String(), said) {
				t.Fatalf("Check: %v, with nothing lost; log:\n%s", err, r.log.String())
			}
			r.publish(10, oneKey)
			if err := r.worker(succeed).Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			log := r.log.String()
			if got := strings.Contains(log, said); got != (c.want != "") || !strings.Contains(log, c.want) {
				t.Errorf("want %q, log:\n%s", c.want, log)
			}
			stop = r.start(r.worker(succeed))
			r.acked(25)
			r.stops(stop)
			before := strings.Count(r.log.String(), said)
			if err := r.worker(succeed).Check(t.Context()); err != nil || strings.Count(r.log.String(), said) != before {
				t.Errorf("Check: %v, said again although all that is there is done; log:\n%s", err, r.log.String())
			}
		})
	}
}
