package consumer_test

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
)

type declined struct{ cause error }

func (e *declined) Error() string { return e.cause.Error() }
func (e *declined) Unwrap() error { return e.cause }

// A nil pointer in an error is a mistake of many handlers. A worker goes on, and its message comes again.
func TestStart_ErrorThatPanicsWhenItIsReadEndsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var none *declined
		for _, returned := range []error{none, &declined{}} {
			p := newProcessor(t, newStore(t), consumer.Config{})
			decided := make(chan consumer.Decision, 1)
			p.Start(t.Context(), delivery("o1"), failing(returned), func(d consumer.Decision) { decided <- d })
			if d := <-decided; d.Action != consumer.RetryLater {
				t.Errorf("%+v, want a retry", d)
			}
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
