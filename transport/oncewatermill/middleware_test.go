package oncewatermill_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

func TestMiddleware_FirstAttemptFailsAndTheRedeliveryRuns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		h := handler{then: func(_ *message.Message, run int) ([]*message.Message, error) {
			if run == 1 {
				return nil, errors.New("gateway timeout")
			}
			return nil, nil
		}}
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			r.AddMiddleware(oncewatermill.Middleware(p))
			r.AddHandler("charge", "orders", ps, "receipts", ps, h.handle)
		})
		for range 3 { // two of them are duplicates
			if err := r.pubsub.Publish("orders", order("o1")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		h.want(t, 2)
		r.stop(t, p)
	})
}

func TestMiddleware_FailedPublishOfOutputsIsRepeatedByTheRedeliveryWithoutARun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
		h := handler{then: func(msg *message.Message, _ int) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("invented", msg.Payload)}, nil
		}}
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			r.AddMiddleware(oncewatermill.Middleware(p))
			r.AddHandler("charge", "orders", ps, "receipts", &flaky{Publisher: ps, fails: 3}, h.handle)
		})
		if err := r.pubsub.Publish("orders", order("o1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := r.pubsub.Publish("orders", order("o1")); err != nil { // a duplicate when all is done
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		got := r.received(t, "receipts")
		if len(got) != 1 || string(got[0].Payload) != "order o1" || got[0].UUID == "invented" || got[0].UUID != got[0].Metadata.Get(producer.HeaderID) {
			t.Errorf("outputs %v, want one with an ID of its own", got)
		}
		h.want(t, 1)
		r.stop(t, p)
		if said := strings.Count(log.String(), "outputs were not published"); said != 3 || !strings.Contains(log.String(), "topic=orders to=receipts") {
			t.Errorf("said %d times, want 3:\n%s", said, log.String())
		}
	})
}

func TestMiddleware_ClaimIsHeldUntilTheRouterHasPublished(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{MaxWait: consumer.NoWait})
		h := handler{then: func(*message.Message, int) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", nil)}, nil
		}}
		mw := oncewatermill.Middleware(p)(h.handle)
		first := order("o1")
		outputs, err := mw(first)
		if err != nil || len(outputs) != 1 {
			t.Fatal(outputs, err)
		}
		time.Sleep(10 * time.Minute) // a slow publish
		_, err = mw(order("o1"))
		answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)
		first.Ack()
		synctest.Wait()
		if outputs, err = mw(order("o1")); err != nil || outputs != nil {
			t.Errorf("a duplicate after the ack: %v, %v; want nothing to do", outputs, err)
		}
		h.want(t, 1)
	})
}

func TestMiddleware_HandlerThatReturnsItsInput(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		h := handler{then: func(msg *message.Message, _ int) ([]*message.Message, error) {
			return []*message.Message{msg, msg}, nil
		}}
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			r.AddMiddleware(oncewatermill.Middleware(p))
			r.AddHandler("copy", "orders", ps, "receipts", ps, h.handle)
		})
		if err := r.pubsub.Publish("orders", order("o1")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := r.received(t, "receipts")
		if len(got) != 2 || got[0].UUID == "o1" || got[0].UUID == got[1].UUID || string(got[0].Payload) != "order o1" {
			t.Errorf("outputs %v, want two copies of the input with IDs of their own", got)
		}
		r.stop(t, p)
	})
}

func TestMiddleware_OutputIDsFollowFromTheInputAndTheirName(t *testing.T) {
	virtual(t, func(t *testing.T) {
		ids := func(store dedupstore.Store, outputs ...*message.Message) []string {
			p := newProcessor(t, store, consumer.Config{})
			h := handler{then: func(*message.Message, int) ([]*message.Message, error) { return outputs, nil }}
			msg := order("o1")
			got, err := oncewatermill.Middleware(p)(h.handle)(msg)
			if err != nil {
				t.Fatal(err)
			}
			msg.Ack()
			var s []string
			for _, m := range got {
				if m.Metadata.Get(producer.HeaderName) != "" {
					t.Error("the name of an output is sent along")
				}
				s = append(s, m.UUID)
			}
			return s
		}
		named := func(name string) *message.Message {
			m := message.NewMessage("", nil)
			m.Metadata.Set(producer.HeaderName, name)
			return m
		}
		own := message.NewMessage("", nil)
		own.Metadata.Set(producer.HeaderID, "mine")
		copied := message.NewMessage("", nil)
		copied.Metadata.Set(producer.HeaderID, "o1")

		a := ids(newStore(t), named("mail"), named("receipt"), named("mail"), own, copied)
		b := ids(newStore(t), named("receipt"), named("mail"), named("mail"), own, copied)
		if a[0] != b[1] || a[1] != b[0] {
			t.Errorf("named outputs changed their IDs with their order: %v, %v", a, b)
		}
		if a[3] != "mine" || a[4] == "o1" {
			t.Errorf("IDs %v, want the one that the handler set kept, and the input's replaced", a)
		}
		seen := map[string]bool{}
		for _, id := range a {
			if seen[id] {
				t.Errorf("two outputs share the ID %s", id)
			}
			seen[id] = true
		}
	})
}

func TestMiddleware_ShutdownWhileAHandlerRuns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		p := newProcessor(t, store, consumer.Config{Policy: oncemill.Policy{MaxAttempts: 1}})
		ctx, shutdown := context.WithCancel(t.Context())
		msg := order("o1")
		msg.SetContext(ending{msg.Context(), ctx})
		_, err := oncewatermill.Middleware(p)(func(msg *message.Message) ([]*message.Message, error) {
			shutdown()
			<-msg.Context().Done()
			return nil, msg.Context().Err()
		})(msg)
		if e := answertest.Want(t, err, oncemill.StatusRetry); !e.Uncounted {
			t.Errorf("%+v, want an attempt that does not count", e)
		}
		var h handler
		if _, err := oncewatermill.Middleware(p)(h.handle)(order("o1")); err != nil {
			t.Errorf("after the restart: %v", err)
		}
		h.want(t, 1)
	})
}

func TestMiddleware_TwoHandlersOfOneGroupOnOneTopicBothRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		var charge, mail handler
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			r.AddMiddleware(oncewatermill.Middleware(p))
			r.AddHandler("charge", "orders", ps, "receipts", ps, charge.handle)
			r.AddHandler("mail", "orders", ps, "receipts", ps, mail.handle)
		})
		for range 2 {
			if err := r.pubsub.Publish("orders", order("o1")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		charge.want(t, 1)
		mail.want(t, 1)
		r.stop(t, p)
	})
}

func TestMiddleware_SecondGuardInOneDeliveryIsAnErrorThatCostsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		p := newProcessor(t, newStore(t), consumer.Config{
			Policy: oncemill.Policy{MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))},
		})
		var h handler
		for range 3 {
			_, err := oncewatermill.Middleware(p)(oncewatermill.Middleware(p)(h.handle))(order("o1"))
			if !errors.Is(err, consumer.ErrGuardedTwice) {
				t.Error(err)
			}
		}
		h.want(t, 0)
		if got := log.String(); strings.Count(got, "level=ERROR") != 1 || !strings.Contains(got, "guarded twice") || !strings.Contains(got, "id=o1") {
			t.Errorf("want one error in the log:\n%s", got)
		}
		if _, err := oncewatermill.Middleware(p)(h.handle)(order("o1")); err != nil {
			t.Error(err)
		}
		h.want(t, 1)
	})
}

func TestMiddleware_ShadowLeavesEverythingAsItIs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{
			Policy: oncemill.Policy{Shadow: true}, DeadLetters: &l, DeadLetterTopic: "dead",
		})
		boom := oncemill.Permanent(errors.New("boom"))
		output := message.NewMessage("invented", nil)
		h := handler{then: func(_ *message.Message, run int) ([]*message.Message, error) {
			if run == 2 {
				return nil, boom
			}
			return []*message.Message{output}, nil
		}}
		for run := 1; run <= 3; run++ {
			got, err := oncewatermill.Middleware(p)(h.handle)(order("o1"))
			if run == 2 && !errors.Is(err, boom) || run != 2 && (err != nil || len(got) != 1 || got[0] != output) {
				t.Errorf("run %d: %v, %v", run, got, err)
			}
		}
		if got, err := oncewatermill.Middleware(p)(h.handle)(inRouter("", nil)); err != nil || len(got) != 1 {
			t.Errorf("without an ID: %v, %v", got, err)
		}
		h.want(t, 4)
		if len(l.Sent) != 0 || output.UUID != "invented" || len(output.Metadata) != 0 {
			t.Errorf("shadow mode left traces: %v, %+v", l.Sent, output)
		}
	})
}

func TestClose_WaitsForOutputsThatTheRouterHasPublished(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		p := newProcessor(t, store, consumer.Config{})
		h := handler{then: func(*message.Message, int) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", nil)}, nil
		}}
		acked, stuck := order("o1"), order("o2")
		for _, m := range []*message.Message{acked, stuck} {
			if _, err := oncewatermill.Middleware(p)(h.handle)(m); err != nil {
				t.Fatal(err)
			}
		}
		acked.Ack()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the deadline: one delivery is never settled", err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if outputs, err := oncewatermill.Middleware(p)(h.handle)(order("o2")); err == nil {
			t.Errorf("a closed processor returned %v to be published", outputs)
		}
		other := newProcessor(t, store, consumer.Config{})
		redelivered := order("o2")
		outputs, err := oncewatermill.Middleware(other)(h.handle)(redelivered)
		if err != nil || len(outputs) != 1 {
			t.Errorf("redelivery of what was given up: %v, %v; want the outputs again", outputs, err)
		}
		redelivered.Ack()
		h.want(t, 2)
	})
}

func TestMiddleware_EmptyUUIDIsNotAnID(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var h handler
		foreign := func(body string) *message.Message { return inRouter("", []byte(body)) }
		reject := newProcessor(t, newStore(t), consumer.Config{})
		bypass := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}})
		for _, body := range []string{"one order", "another order"} {
			_, err := oncewatermill.Middleware(reject)(h.handle)(foreign(body))
			as[*consumer.MissingIDError](t, err)
			h.want(t, 0)
		}
		for _, body := range []string{"one order", "another order"} {
			if _, err := oncewatermill.Middleware(bypass)(h.handle)(foreign(body)); err != nil {
				t.Error(err)
			}
		}
		h.want(t, 2) // neither is a duplicate of the other
	})
}

func TestMiddleware_HandlerMayChangeItsMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		h := handler{then: func(msg *message.Message, run int) ([]*message.Message, error) {
			msg.Payload = message.Payload("changed")
			msg.Metadata.Set(producer.HeaderID, "changed")
			msg.UUID = "changed"
			if run == 1 {
				return nil, oncemill.RetryAfter(0, errors.New("try again"))
			}
			return nil, oncemill.Permanent(errors.New("no"))
		}}
		msg := order("o1")
		_, err := oncewatermill.Middleware(p)(h.handle)(msg)
		answertest.Want(t, err, oncemill.StatusRetry)
		if _, err := oncewatermill.Middleware(p)(h.handle)(msg.CopyWithContext()); err != nil { // as in-process resends do
			t.Fatal(err)
		}
		h.want(t, 2)
		if got := l.Only(t); got.Header[producer.HeaderOriginalID] != "o1" || string(got.Payload) != "order o1" {
			t.Errorf("dead letter %+v, want the message as it came", got)
		}
	})
}

func TestMiddleware_MessageThatItsHandlerNackedHasNotSucceeded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		h := handler{then: func(msg *message.Message, run int) ([]*message.Message, error) {
			if run == 1 {
				msg.Nack()
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
		time.Sleep(time.Minute) // of the bubble: more than the backoff
		r.stop(t, p)
		h.want(t, 2)
	})
}

// A second nack of a message is silent.
func TestMiddleware_MessageThatWasNackedIsNotHandledAgainUntilItComesAgain(t *testing.T) {
	inside := func(p *consumer.Processor) []message.HandlerMiddleware {
		chain, err := oncewatermill.Chain(oncewatermill.Guarded(p), oncewatermill.Retry(middleware.Retry{MaxRetries: 3}))
		if err != nil {
			t.Fatal(err)
		}
		return chain
	}
	outside := func(p *consumer.Processor) []message.HandlerMiddleware {
		return []message.HandlerMiddleware{middleware.Retry{MaxRetries: 3, InitialInterval: 2 * time.Second}.Middleware, oncewatermill.Middleware(p)}
	}
	for name, test := range map[string]struct {
		chain func(*consumer.Processor) []message.HandlerMiddleware
		err   error
	}{
		"retry inside, and an error beside the nack": {inside, errors.New("no answer")},
		"retry inside": {inside, nil},
		"retry outside, and an error beside the nack": {outside, errors.New("no answer")},
		"retry outside": {outside, nil},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p := newProcessor(t, newStore(t), consumer.Config{})
				effects := 0
				h := handler{then: func(msg *message.Message, run int) ([]*message.Message, error) {
					if run <= 2 {
						msg.Nack()
						return nil, test.err
					}
					effects++
					return nil, nil
				}}
				handle := message.HandlerFunc(h.handle)
				for _, m := range slices.Backward(test.chain(p)) {
					handle = m(handle)
				}
				for range 10 {
					msg := order("o1")
					if _, err := handle(msg); err == nil && msg.Ack() {
						break
					}
				}
				if effects != 1 {
					t.Errorf("%d effects, want 1", effects)
				}
			})
		})
	}
}

func TestMiddleware_WithoutAWaitNoMessageIsDeliveredWithoutAPause(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{MaxWait: consumer.NoWait})
		h := handler{then: func(*message.Message, int) ([]*message.Message, error) {
			return nil, oncemill.RetryAfter(time.Minute, errors.New("not yet"))
		}}
		var deliveries atomic.Int64
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			r.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					if deliveries.Add(1) > 1000 { // virtual time would stand still
						msg.Ack()
						return nil, nil
					}
					return next(msg)
				}
			}, oncewatermill.Middleware(p))
			r.AddHandler("charge", "orders", ps, "receipts", ps, h.handle)
		})
		if err := r.pubsub.Publish("orders", order("o1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if n := deliveries.Load(); n < 2 || n > 60 {
			t.Errorf("%d deliveries in 50 s, want about one a second", n)
		}
		h.want(t, 1)
		time.Sleep(20 * time.Second)
		h.want(t, 2)
		r.stop(t, p)
	})
}

func TestMiddleware_WithoutAWaitNoPauseIsLongerThanTheUsualWait(t *testing.T) {
	virtual(t, func(t *testing.T) {
		backoff := oncemill.Backoff{Min: time.Hour, Max: time.Hour}
		p := newProcessor(t, newStore(t), consumer.Config{MaxWait: consumer.NoWait, Policy: oncemill.Policy{Backoff: backoff}})
		handle := oncewatermill.Middleware(p)(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no answer") })
		for _, what := range []string{"failed", "not due"} {
			began := time.Now()
			if _, err := handle(order("o1")); err == nil || time.Since(began) > 10*time.Second {
				t.Errorf("%s: %v after %v: it holds up what is behind it, and its ack deadline passes", what, err, time.Since(began))
			}
		}
	})
}

type down struct{ dedupstore.Store }

func (down) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, func(context.Context, dedupstore.Request) (dedupstore.Answer, error) {
		return dedupstore.Answer{}, errors.New("down")
	})
}

// No record makes the next delivery of these wait.
func TestMiddleware_AFailureWithoutARecordIsNackedAfterItsDelay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			store dedupstore.Store
			msg   *message.Message
		}{"no ID": {newStore(t), inRouter("", nil)}, "no store": {down{newStore(t)}, order("o1")}} {
			policy := oncemill.Policy{MissingID: oncemill.MissingIDBypass, StoreDown: oncemill.FailOpen}
			handle := oncewatermill.Middleware(newProcessor(t, c.store, consumer.Config{Policy: policy}))(
				func(*message.Message) ([]*message.Message, error) {
					return nil, oncemill.RetryAfter(5*time.Second, errors.New("no answer"))
				})
			began := time.Now()
			if _, err := handle(c.msg); err == nil || time.Since(began) < 5*time.Second {
				t.Errorf("%s: %v after %v, want a nack after 5 s", name, err, time.Since(began))
			}
		}
	})
}

func TestMiddleware_MessageThatWasAcknowledgedBeforeItFailedIsSaid(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			acks bool
			err  error
			said bool
		}{
			"acknowledged, failed":    {true, errors.New("no answer"), true},
			"acknowledged, succeeded": {true, nil, false},
			"failed":                  {false, errors.New("no answer"), false},
		} {
			var log bytes.Buffer
			p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
			handle := oncewatermill.Middleware(p)(func(msg *message.Message) ([]*message.Message, error) {
				if tc.acks {
					msg.Ack()
				}
				return nil, tc.err
			})
			_, err := handle(order("o1"))
			if said := strings.Contains(log.String(), "before it had succeeded"); (err != nil) != (tc.err != nil) || said != tc.said {
				t.Errorf("%s: %v, said: %t: %s", name, err, said, &log)
			}
		}
	})
}

// ending is a context with the end of another one.
type ending struct {
	context.Context
	end context.Context
}

func (e ending) Done() <-chan struct{} { return e.end.Done() }
func (e ending) Err() error            { return e.end.Err() }
