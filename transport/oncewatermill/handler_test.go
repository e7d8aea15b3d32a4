package oncewatermill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

func TestAddHandler_GuardsUnderItsName(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		orders, refunds, pub := newSource(p), newSource(p), &broker{}
		charge := &handler{then: func(*message.Message, int) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", []byte("receipt"))}, nil
		}}
		tries, refund := 0, &handler{}
		oncewatermill.AddHandler(r, p, "charge", "orders", orders, "receipts", pub, charge.handle)
		oncewatermill.AddConsumerHandler(r, p, "refund", "refunds", refunds, consuming(refund.handle)).
			AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc { // inside of the guard
				return func(m *message.Message) ([]*message.Message, error) {
					tries++
					return next(m)
				}
			})
		ended := make(chan error, 1)
		go func() { ended <- r.Run(context.Background()) }()
		<-r.Running()
		for range 3 {
			orders.queue <- delivery("a")
			refunds.queue <- delivery("a") // another handler's
			synctest.Wait()
		}
		if err := errors.Join(r.Close(), <-ended, p.Close(t.Context())); err != nil {
			t.Error(err)
		}
		charge.want(t, 1)
		refund.want(t, 1)
		if tries != 1 || len(pub.by["receipts"]) != 1 {
			t.Errorf("%d tries inside, and receipts %v; want one of each", tries, pub.by["receipts"])
		}
		known := delivery("a")
		known.Handler = "refund"
		if d := p.Process(t.Context(), known, func(context.Context) error { return nil }); !d.Result.Duplicate {
			t.Errorf("%+v, want a duplicate under the handler's name", d)
		}
	})
}

// From the second message on they are claimed before the Router has them, together.
func TestAddHandler_ClaimsAhead(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := &slowStore{Store: newStore(t)}
		p := newProcessor(t, store, consumer.Config{})
		r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		s := newSource(p, delivery("first"))
		oncewatermill.AddConsumerHandler(r, p, "charge", "orders", s, func(*message.Message) error { return nil })
		ended := make(chan error, 1)
		go func() { ended <- r.Run(context.Background()) }()
		<-r.Running()
		synctest.Wait()
		for n := range 50 {
			s.queue <- delivery(fmt.Sprint("m", n))
		}
		synctest.Wait()
		if err := errors.Join(r.Close(), <-ended); err != nil {
			t.Error(err)
		}
		if len(store.claims) > 25 {
			t.Errorf("51 messages took %d batches of claims", len(store.claims))
		}
	})
}

func TestAddHandler_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	p, other := newProcessor(t, newStore(t), consumer.Config{}), newProcessor(t, newStore(t), consumer.Config{})
	r, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(*message.Message) error { return nil }
	add := func(once *consumer.Processor, name string, source consumer.Source) (said string) {
		defer func() { said = fmt.Sprint(recover()) }()
		oncewatermill.AddConsumerHandler(r, once, name, "orders", source, nothing)
		return ""
	}
	for want, said := range map[string]string{
		"needs a Source":                add(p, "charge", nil),
		"handler name":                  add(p, "", newSource(p)),
		"handler name ":                 add(p, producer.HeaderID+strings.Repeat("x", 600), newSource(p)),
		"another Processor":             add(other, "charge", newSource(p)),
		"made with a Processor":         add(p, "charge", newSource(nil)),
		"has another Processor than it": add(nil, "charge", newSource(p)),
	} {
		if !strings.Contains(said, strings.TrimSpace(want)) {
			t.Errorf("said %q, want %q", said, want)
		}
	}
}
