package consumer_test

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
)

type declined struct{ cause error }

func (e *declined) Error() string { return e.cause.Error() }
func (e *declined) Unwrap() error { return e.cause }

// A nil pointer in an error is a mistake of many handlers. It is a failed attempt, like any other panic of theirs.
func TestProcess_ErrorThatPanicsWhenItIsReadIsAFailedAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var none *declined
		for _, returned := range []error{none, &declined{}, (*oncemill.PermanentError)(nil)} {
			var l deadLetters
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
			l.Only(t)
		}
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
