package stocknats

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

func TestSteering_EachOfManyNacksGetsItsOwnAnswer(t *testing.T) {
	t.Parallel()
	s := &steering{fallback: growing{time.Hour, time.Hour}}
	var all sync.WaitGroup
	for i := range 200 {
		want := time.Duration(i+1) * time.Millisecond
		msg := message.NewMessage("", nil)
		ctx, cancel := context.WithCancel(t.Context())
		msg.SetContext(ctx)
		all.Go(func() { // the adapter
			defer cancel()
			<-msg.Nacked()
			<-time.After(100 * time.Microsecond)
			if got := s.WaitTime(1); got != want {
				t.Errorf("answer %v, want %v", got, want)
			}
		})
		all.Go(func() {
			if !s.nack(msg, 1, want) {
				t.Error("the adapter asked, and that was not noticed")
			}
		})
	}
	all.Wait()
}

func TestSteering_AnAnswerThatNobodyFetchedIsNotKept(t *testing.T) {
	t.Parallel()
	s := &steering{fallback: growing{time.Hour, time.Hour}}
	msg := message.NewMessage("", nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the adapter has given the message up
	msg.SetContext(ctx)
	if s.nack(msg, 1, time.Second) {
		t.Error("nobody asked")
	}
	if got := s.WaitTime(1); got != time.Hour {
		t.Errorf("answer %v, want the fallback's", got)
	}
}

func TestSteering_AnotherDeliveryCountIsAnotherMessage(t *testing.T) {
	t.Parallel()
	s := &steering{fallback: growing{time.Hour, time.Hour}}
	s.set(&order{1, time.Second, make(chan struct{})})
	if got := s.WaitTime(2); got != time.Hour {
		t.Errorf("answer %v, want the fallback's", got)
	}
}

func TestGrowing_DoublesUpToItsMaximum(t *testing.T) {
	t.Parallel()
	g := growing{time.Second, 5 * time.Second}
	for i, want := range []int{1, 1, 2, 4, 5, 5} { // from the delivery 0, which no server sends
		if got := g.WaitTime(uint64(i)); got != time.Duration(want)*time.Second {
			t.Errorf("after delivery %d: %v, want %d s", i, got, want)
		}
	}
	if got := g.WaitTime(1 << 63); got != 5*time.Second {
		t.Errorf("after a great many: %v", got)
	}
}
