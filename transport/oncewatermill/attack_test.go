package oncewatermill_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

func TestMiddleware_InputReturnedInShadowIsAsTheHandlerLeftIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, c := range map[string]consumer.Config{
			"shadow": {Policy: oncemill.Policy{Shadow: true}},
			"bypass": {Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}},
		} {
			p := newProcessor(t, newStore(t), c)
			msg := inRouter("", []byte("in"))
			outputs, err := oncewatermill.Middleware(p)(func(msg *message.Message) ([]*message.Message, error) {
				msg.Payload = message.Payload("out")
				return []*message.Message{msg}, nil
			})(msg)
			if err != nil || len(outputs) != 1 || string(outputs[0].Payload) != "out" || string(msg.Payload) != "in" {
				t.Errorf("%s: %v, %v", name, outputs, err)
			}
		}
	})
}

func TestMiddleware_ContextOfABypassedRunDoesNotBypassTheNext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		bypass := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}})
		var kept []context.Context
		if _, err := oncewatermill.Middleware(bypass)(func(msg *message.Message) ([]*message.Message, error) {
			kept = append(kept, msg.Context())
			return nil, nil
		})(inRouter("", nil)); err != nil {
			t.Fatal(err)
		}
		p := newProcessor(t, newStore(t), consumer.Config{})
		msg := order("o1")
		msg.SetContext(kept[0]) // brokers in memory can preserve it
		outputs, err := oncewatermill.Middleware(p)(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", nil)}, nil
		})(msg)
		msg.Ack()
		if err != nil || len(outputs) != 1 || outputs[0].UUID == "" {
			t.Errorf("%v, %v; want a recorded output", outputs, err)
		}
	})
}

func TestMiddleware_PreservedContextIsNotASecondGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{Backoff: oncemill.Backoff{Min: time.Millisecond}}})
		var kept []context.Context
		h := handler{then: func(msg *message.Message, run int) ([]*message.Message, error) {
			kept = append(kept, context.WithoutCancel(msg.Context()))
			if run == 1 {
				return nil, errors.New("again")
			}
			return nil, nil
		}}
		if _, err := oncewatermill.Middleware(p)(h.handle)(order("o1")); err == nil {
			t.Fatal("no error")
		}
		again := order("o1")
		again.SetContext(kept[0])
		if _, err := oncewatermill.Middleware(p)(h.handle)(again); err != nil {
			t.Errorf("requeued with its context: %v", err)
		}
	})
}

func TestMiddleware_OutputThatCannotBeStampedDoesNotRepeatTheEffect(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{MaxWait: consumer.NoWait})
		h := handler{then: func(*message.Message, int) ([]*message.Message, error) { return []*message.Message{nil}, nil }}
		for range 3 {
			_, err := oncewatermill.Middleware(p)(h.handle)(order("o1"))
			if e := answertest.Want(t, err, oncemill.StatusDone); !strings.Contains(e.Outcome.Reason, "output 0 is nil") {
				t.Errorf("%v", e)
			}
			time.Sleep(time.Hour)
		}
		h.want(t, 1)
	})
}

func TestMiddleware_TwoOutputsWithOneIDAreTwoMessages(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		out := func() *message.Message {
			m := message.NewMessage("", nil)
			m.Metadata.Set(producer.HeaderID, "mine")
			return m
		}
		msg := order("o1")
		got, err := oncewatermill.Middleware(p)(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{out(), out()}, nil
		})(msg)
		msg.Ack()
		if err != nil || len(got) != 2 || got[0].UUID != "mine" || got[1].UUID == "mine" {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestMiddleware_LostClaimIsNotAnAckAndNotAHotLoop(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, lossy{Store: newStore(t)}, consumer.Config{})
		start := time.Now()
		_, err := oncewatermill.Middleware(p)((&handler{}).handle)(order("o1"))
		answertest.Want(t, err, oncemill.StatusLost)
		if took := time.Since(start); took < time.Second {
			t.Errorf("nacked after %v: a zombie's nak brings the next copy at once", took)
		}
	})
}

func TestMiddleware_NacksThatNoRecordSlowsDownAreDelayed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := deadLetters{Fail: errors.New("broker is down")}
		dead := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		reject := newProcessor(t, newStore(t), consumer.Config{MaxWait: consumer.NoWait})
		nameless := newProcessor(t, newStore(t), consumer.Config{})
		for name, p := range map[string]*consumer.Processor{"dead letter fails": dead, "rejected": reject, "no handler name": nameless} {
			start := time.Now()
			if _, err := oncewatermill.Middleware(p)((&handler{}).handle)(message.NewMessage("", nil)); err == nil {
				t.Errorf("%s: acked", name)
			}
			if took := time.Since(start); took < 500*time.Millisecond || took > 11*time.Second {
				t.Errorf("%s: nacked after %v", name, took)
			}
		}
	})
}

func TestMiddleware_OutputsAreNotCancelledWithTheRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		msg := order("o1")
		got, err := oncewatermill.Middleware(p)(func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessageWithContext(msg.Context(), "", nil)}, nil
		})(msg)
		msg.Ack()
		if err != nil || got[0].Context().Err() != nil {
			t.Errorf("%v, context %v", err, got[0].Context().Err())
		}
	})
}

func TestProcess_DeadLetterIsTheMessageAsItCame(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		msg := order("o1")
		msg.Metadata["color"], msg.Metadata["size"] = "blue", "7"
		before := maps.Clone(msg.Metadata)
		if _, err := oncewatermill.Middleware(p)(func(msg *message.Message) ([]*message.Message, error) {
			copy(msg.Payload, "XXXXX") // in place
			msg.Metadata["color"], msg.Metadata["new"] = "red", "yes"
			delete(msg.Metadata, "size")
			return nil, oncemill.Permanent(errors.New("no"))
		})(msg); err != nil {
			t.Fatal(err)
		}
		got := l.Only(t)
		if string(got.Payload) != "order o1" || got.Header["color"] != "blue" || got.Header["size"] != "7" || got.Header["new"] != "" {
			t.Errorf("dead letter %q with %v", got.Payload, got.Header)
		}
		if string(msg.Payload) != "order o1" || !maps.Equal(msg.Metadata, before) {
			t.Errorf("message %q with %v", msg.Payload, msg.Metadata)
		}
	})
}

func TestShadow_SuppressesNothingAroundALiveGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		shadow := newProcessor(t, store, consumer.Config{Policy: oncemill.Policy{Shadow: true}})
		live := newProcessor(t, store, consumer.Config{})
		var h handler
		for range 2 {
			if _, err := oncewatermill.Middleware(shadow)(oncewatermill.Middleware(live)(h.handle))(order("o1")); err != nil {
				t.Error(err)
			}
		}
		h.want(t, 1)
	})
}

func TestClose_SecondCallerKeepsItsOwnDeadline(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		if _, err := oncewatermill.Middleware(p)(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", nil)}, nil
		})(order("o1")); err != nil {
			t.Fatal(err)
		}
		patient := make(chan error)
		go func() { patient <- p.Close(context.Background()) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the deadline", err)
		}
		if err := <-patient; err != nil {
			t.Error(err)
		}
	})
}

// Handlers give their message's metadata to outputs, and to goroutines that outlive them. What becomes of it there does
// not become of the message, which would come again as another.
func TestMiddleware_MetadataThatTheHandlerGaveAwayIsNotTheMessages(t *testing.T) {
	for name, c := range map[string]struct {
		config consumer.Config
		id     string
		err    error
	}{
		"shadow":        {config: consumer.Config{Policy: oncemill.Policy{Shadow: true}}, id: "o1"},
		"bypass":        {config: consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}}},
		"guarded":       {id: "o1"},
		"failed":        {id: "o1", err: errors.New("too slow")},
		"failed bypass": {config: consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}}, err: errors.New("too slow")},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p := newProcessor(t, newStore(t), c.config)
				msg := inRouter("", []byte("order"))
				if c.id != "" {
					msg.Metadata.Set(producer.HeaderID, c.id)
				}
				var given message.Metadata
				outputs, err := oncewatermill.Middleware(p)(func(msg *message.Message) ([]*message.Message, error) {
					given = msg.Metadata
					if c.err != nil {
						return nil, c.err
					}
					out := message.NewMessage("out", msg.Payload)
					out.Metadata = msg.Metadata
					return []*message.Message{out}, nil
				})(msg)
				if !errors.Is(err, c.err) {
					t.Fatal(err)
				}
				msg.Ack()
				given.Set(producer.HeaderID, "another")
				for _, out := range outputs { // as decorators of publishers do it
					out.Metadata.Set(producer.HeaderID, "another")
				}
				if got := msg.Metadata.Get(producer.HeaderID); got != c.id {
					t.Errorf("the message is %q now, want %q", got, c.id)
				}
			})
		})
	}
}

// Changes that a handler makes to its message are undone before anybody sees it again. A run in a transaction may be
// repeated, or fail after the handler has returned nil.
func TestMiddleware_ATransactionThatIsRepeatedOrFailsGetsTheMessageAsItCame(t *testing.T) {
	for name, always := range map[string]bool{"repeated": false, "failed": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var l deadLetters
				inbox := conflicted{storetest.NewMemoryInbox(newStore(t)), always}
				p := newProcessor(t, inbox, consumer.Config{
					DeadLetters: &l, DeadLetterTopic: "dead", Policy: oncemill.Policy{MaxAttempts: 1},
				})
				h := handler{then: func(msg *message.Message, _ int) ([]*message.Message, error) {
					if msg.Metadata.Get("seen") != "" {
						t.Error("the handler finds what it wrote in the run before")
					}
					msg.Metadata.Set("seen", "yes")
					return nil, nil
				}}
				if _, err := oncewatermill.Middleware(p)(h.handle)(order("o1")); err != nil {
					t.Fatal(err)
				}
				if !always {
					h.want(t, 2)
					return
				}
				if letter := l.Only(t); letter.Header.Get("seen") != "" {
					t.Error("the dead letter has what the handler wrote")
				}
			})
		})
	}
}

// A conflicted inbox refuses the first transaction because of others, or all of them.
type conflicted struct {
	*storetest.MemoryInbox
	always bool
}

func (c conflicted) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if _, err := work(ctx, []dedupstore.Claim{runs[0].Claim}); err != nil {
		return nil, err
	}
	if c.always {
		return nil, errors.New("commit refused")
	}
	return c.MemoryInbox.InTx(ctx, runs, work)
}

// A handler that ends its goroutine (runtime.Goexit, as assertions of tests do) returns to nobody. Unless the message
// is nacked, its broker waits for ever.
func TestMiddleware_HandlerThatEndsItsGoroutineIsNacked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{MaxWait: time.Minute, Policy: oncemill.Policy{Lease: 10 * time.Second}})
		h := handler{then: func(_ *message.Message, run int) ([]*message.Message, error) {
			if run == 1 {
				runtime.Goexit()
			}
			return nil, nil
		}}
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			r.AddMiddleware(oncewatermill.Middleware(p))
			r.AddHandler("charge", "orders", ps, "receipts", ps, h.handle)
		})
		if err := r.pubsub.Publish("orders", order("o1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		h.want(t, 2)
		r.stop(t, p)
	})
}

// A panic is for whoever recovers it outside: who has made an error of it may acknowledge the message.
func TestShadow_PanicIsNotNackedByTheMiddleware(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{Shadow: true}})
		msg := order("o1")
		_, err := middleware.Recoverer(oncewatermill.Middleware(p)(func(*message.Message) ([]*message.Message, error) { panic("on purpose") }))(msg)
		if err == nil || !strings.Contains(err.Error(), "on purpose") {
			t.Errorf("error %v", err)
		}
		select {
		case <-msg.Nacked():
			t.Error("the message is nacked already")
		default:
		}
	})
}

func TestMiddleware_HandlerNeverRunsForItsOwnDeadLetters(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var charge, bury handler
		decline := func(_ *message.Message, run int) ([]*message.Message, error) {
			if run > 10 {
				return nil, nil // enough is known
			}
			return nil, errDeclined
		}
		charge.then, bury.then = decline, decline
		var p *consumer.Processor
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			p = newProcessor(t, newStore(t), consumer.Config{DeadLetters: sameTopic{ps}, DeadLetterTopic: "orders"})
			r.AddMiddleware(oncewatermill.Middleware(p))
			for name, h := range map[string]*handler{"charge": &charge, "bury": &bury} {
				r.AddConsumerHandler(name, "orders", ps, func(m *message.Message) error {
					_, err := h.handle(m)
					return err
				})
			}
		})
		if err := r.pubsub.Publish("orders", order("o1")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		charge.want(t, 2) // the order, and the dead letter of the other
		bury.want(t, 2)
		r.stop(t, p)
	})
}

// sameTopic publishes dead letters as Watermill messages.
type sameTopic struct{ to message.Publisher }

func (s sameTopic) Publish(_ context.Context, messages ...producer.Message) error {
	for _, m := range messages {
		out := message.NewMessage(m.ID, m.Payload)
		out.Metadata = message.Metadata(m.Header)
		if err := s.to.Publish(m.Topic, out); err != nil {
			return err
		}
	}
	return nil
}

func TestMiddleware_BeginningWithoutDeadLettersIsAWarning(t *testing.T) {
	t.Parallel()
	next := message.HandlerFunc(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for name, tc := range map[string]struct {
		config consumer.Config
		chain  []oncewatermill.Step
		want   int
	}{
		"none":                {want: 1},
		"dead letters":        {config: consumer.Config{DeadLetters: &deadLetters{}, DeadLetterTopic: "dead"}},
		"a trial":             {config: consumer.Config{Policy: oncemill.Policy{Shadow: true}}},
		"inside a poison one": {chain: []oncewatermill.Step{oncewatermill.PoisonQueue(&flaky{}, "poison")}},
		"a chain without one": {chain: []oncewatermill.Step{}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, log := logged(t, tc.config)
			mws := []message.HandlerMiddleware{oncewatermill.Middleware(p)}
			if tc.chain != nil {
				var err error
				if mws, err = oncewatermill.Chain(append(tc.chain, oncewatermill.Guarded(p))...); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // handlers of a Router
				for _, mw := range mws {
					mw(next)
				}
			}
			if n := strings.Count(log.String(), "no Config.DeadLetters"); n != tc.want || (n > 0 && !strings.Contains(log.String(), "level=WARN")) {
				t.Errorf("warned %d times, want %d:\n%s", n, tc.want, log)
			}
		})
	}
}

// A Router's handler may have stored outputs that it could not publish. They stay when its messages go to a worker
// under the same names. The log must say so: nothing else tells why the message comes again and again.
func TestProcess_StoredOutputsOfARouterAreKeptAndSaid(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		router := newProcessor(t, store, consumer.Config{})
		h := handler{then: func(*message.Message, int) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", message.Payload("receipt"))}, nil
		}}
		route := oncewatermill.Middleware(router)(h.handle)
		send := func() (outputs []*message.Message, msg *message.Message) {
			msg = inRouter("o1", delivery("o1").Payload)
			msg.Metadata.Set(producer.HeaderID, "o1")
			outputs, err := route(msg)
			if err != nil {
				t.Fatal(err)
			}
			return outputs, msg
		}
		_, msg := send()
		msg.Nack() // the broker of the outputs is away
		synctest.Wait()

		var log strings.Builder
		worker := newProcessor(t, store, consumer.Config{Policy: oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
		d := delivery("o1")
		d.Handler = "charge"
		got := worker.Process(t.Context(), d, func(context.Context) error { t.Error("the handler ran again"); return nil })
		if got.Action != consumer.RetryLater || got.Delay <= 0 {
			t.Errorf("%+v, want it to be kept", got)
		}
		for _, want := range []string{"level=ERROR", "message waits for its stored outputs", "id=o1", "from=orders", "outputs=1"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, &log)
			}
		}

		outputs, msg := send()
		if len(outputs) != 1 || string(outputs[0].Payload) != "receipt" {
			t.Errorf("back in the Router its outputs are %v", outputs)
		}
		msg.Ack()
		if err := router.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.want(t, 1)
	})
}

// A Router's message is one trace, whether or not a tracing middleware stands outside.
func TestMiddleware_SpanBelongsToTheMessagesTrace(t *testing.T) {
	t.Parallel()
	for name, outside := range map[string]bool{"alone": false, "within a tracing middleware": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, spans, tracer := traced()
			msg := order("o1")
			msg.Metadata.Set("traceparent", "00-"+messageTrace+"-00f067aa0ba902b7-01")
			msg.Metadata.Set("correlation_id", "c1")
			if outside {
				ctx, _ := tracer.Start(msg.Context(), "middleware")
				msg.SetContext(ctx)
			}
			var within trace.SpanContext
			handle := oncewatermill.Middleware(newProcessor(t, newStore(t), c))(func(m *message.Message) ([]*message.Message, error) {
				within = trace.SpanContextFromContext(m.Context())
				return []*message.Message{message.NewMessage("", []byte("out"))}, nil
			})
			out, err := handle(msg)
			if err != nil || len(out) != 1 {
				t.Fatal(out, err)
			}
			msg.Nack()
			span := spans.Ended()[0]
			if !within.Equal(span.SpanContext()) {
				t.Error("the handler does not work within the process span")
			}
			if got := out[0].Metadata.Get("traceparent"); !strings.Contains(got, span.SpanContext().SpanID().String()) {
				t.Errorf("the output was made by %q, want the process span", got)
			}
			if inTrace := within.TraceID().String() == messageTrace; inTrace == outside {
				t.Errorf("part of the message's trace: %t", inTrace)
			}
			if len(span.Links()) != 1 || span.Links()[0].SpanContext.TraceID().String() != messageTrace {
				t.Errorf("links %v, want one to where the message was made", span.Links())
			}
			got := attributesOf(span)
			for key, want := range map[string]string{
				"messaging.system": "rabbitmq", "messaging.message.id": "o1", "messaging.message.conversation_id": "c1",
				"messaging.consumer.group.name": "billing", "oncemill.handler": "charge", "oncemill.key.source": "message_id",
				"oncemill.outcome": "claimed", "oncemill.action": "ack", "oncemill.attempt": "1",
			} {
				if got[key] != want {
					t.Errorf("%s is %q, want %q", key, got[key], want)
				}
			}
		})
	}
}

// A message without an ID runs unguarded. Without dead letters its permanent failure is poison: nothing else keeps it.
// The failure of a guard that its handler used says nothing of this message.
func TestChain_PoisonUnderABypass(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		poison int
	}{
		"permanent": {oncemill.Permanent(errors.New("no such account")), 1},
		"nested":    {&oncemill.Error{Result: oncemill.Result{Status: oncemill.StatusDone}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p := newProcessor(t, newStore(t),
					consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}})
				b := &broker{}
				steps, err := oncewatermill.Chain(oncewatermill.PoisonQueue(b, "poison"), oncewatermill.Guarded(p))
				if err != nil {
					t.Fatal(err)
				}
				s := newSource(p, consumer.Delivery{Topic: "orders", Payload: []byte("x")})
				stop := over(t, s, func(*message.Message) error { return c.err }, steps...)
				time.Sleep(10 * time.Second) // virtual
				synctest.Wait()
				if n := len(b.by["poison"]); n != c.poison {
					t.Errorf("%d copies of it are poison, want %d", n, c.poison)
				}
				stop()
				if c.poison > 0 {
					s.want(t, consumer.Ack)
				}
			})
		})
	}
}
