package consumer_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

// A conflicted inbox refuses the first transaction because of others, or all of them.
type conflicted struct {
	*storetest.MemoryInbox
	always bool
}

func (c conflicted) InTx(ctx context.Context, claim dedupstore.Claim, work func(context.Context) (dedupstore.Settlement, error)) error {
	if _, err := work(ctx); err != nil {
		return err
	}
	if c.always {
		return errors.New("commit refused")
	}
	return c.MemoryInbox.InTx(ctx, claim, work)
}

// What a handler does to its message is undone before anybody sees that again: a run in a transaction may be repeated, or fail
// after the handler has returned nil.
func TestMiddleware_ATransactionThatIsRepeatedOrFailsGetsTheMessageAsItCame(t *testing.T) {
	for name, always := range map[string]bool{"repeated": false, "failed": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var l letters
				inbox := conflicted{storetest.NewMemoryInbox(newStore(t)), always}
				p := newProcessor(t, inbox, consumer.Config{
					Handler: "charge", DeadLetters: &l, DeadLetterTopic: "dead", Policy: oncemill.Policy{MaxAttempts: 1},
				})
				h := handler{then: func(msg *message.Message, _ int) ([]*message.Message, error) {
					if msg.Metadata.Get("seen") != "" {
						t.Error("the handler finds what it wrote in the run before")
					}
					msg.Metadata.Set("seen", "yes")
					return nil, nil
				}}
				if _, err := p.Middleware(h.handle)(order("o1")); err != nil {
					t.Fatal(err)
				}
				if !always {
					h.want(t, 2)
					return
				}
				if letter := l.only(t); letter.Header.Get("seen") != "" {
					t.Error("the dead letter has what the handler wrote")
				}
			})
		})
	}
}

type declined struct{ cause error }

func (e *declined) Error() string { return e.cause.Error() }
func (e *declined) Unwrap() error { return e.cause }

// A nil pointer in an error is a mistake of many handlers. It is a failed attempt, like any other panic of theirs.
func TestProcess_ErrorThatPanicsWhenItIsReadIsAFailedAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var none *declined
		for _, returned := range []error{none, &declined{}, (*oncemill.PermanentError)(nil)} {
			var l letters
			p := newProcessor(t, newStore(t), consumer.Config{
				DeadLetters: &l, DeadLetterTopic: "dead", Policy: oncemill.Policy{MaxAttempts: 2},
			})
			if d := p.Process(t.Context(), delivery("o1"), failing(returned)); d.Action != consumer.RetryLater {
				t.Errorf("%+v, want a retry", d)
			} else {
				as[*oncemill.PanicError](t, d.Err)
			}
			time.Sleep(time.Minute)
			if d := p.Process(t.Context(), delivery("o1"), failing(returned)); d.Action != consumer.Ack {
				t.Errorf("%+v, want a dead letter after the last attempt", d)
			}
			l.only(t)
		}
	})
}

// A handler that ends its goroutine (runtime.Goexit, as the assertions of tests do) returns to nobody: unless the message is
// nacked, its broker waits for it for ever.
func TestMiddleware_HandlerThatEndsItsGoroutineIsNacked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Hold: time.Minute, Policy: oncemill.Policy{Lease: 10 * time.Second}})
		h := handler{then: func(_ *message.Message, run int) ([]*message.Message, error) {
			if run == 1 {
				runtime.Goexit()
			}
			return nil, nil
		}}
		r := startRouter(t, func(r *message.Router, ps *gochannel.GoChannel) {
			r.AddMiddleware(p.Middleware)
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

// A handler's name that cannot be part of a key is no fault of the messages: they are kept, and use up no deliveries.
func TestProcess_HandlerThatCannotBeNamedCostsNoDelivery(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, name := range []string{"~charge", string(make([]byte, 8)), string(make([]byte, dedupstore.MaxScopePart+1))} {
			p := newProcessor(t, newStore(t), consumer.Config{})
			d := delivery("o1")
			d.Handler = name
			if got := p.Process(t.Context(), d, failing(nil)); got.Action != consumer.RetryLater || !got.Keep || got.Delay < time.Minute {
				t.Errorf("handler %.20q: %+v, want the delivery kept", name, got)
			} else {
				as[*dedupstore.InvalidError](t, got.Err)
			}
		}
	})
}

func TestNew_RefusesAHandlerThatShadowModeOwns(t *testing.T) {
	_, err := consumer.New(newStore(t), consumer.Config{Group: "billing", Handler: "~charge"})
	if err == nil {
		t.Fatal("accepted, although every message would be refused")
	}
	if e := as[*dedupstore.InvalidError](t, err); e.Field != "Config.Handler" {
		t.Errorf("field %q", e.Field)
	}
}

// A panic is for whoever recovers it outside: who has made an error of it may acknowledge the message.
func TestShadow_PanicIsNotNackedByTheMiddleware(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "charge", Policy: oncemill.Policy{Shadow: true}})
		msg := order("o1")
		_, err := middleware.Recoverer(p.Middleware(func(*message.Message) ([]*message.Message, error) { panic("on purpose") }))(msg)
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
