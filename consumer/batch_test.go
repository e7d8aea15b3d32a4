package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
)

// togethers processes deliveries of some IDs together, and returns what was decided when all is.
func togethers(
	t *testing.T, p *consumer.Processor, counts []int, handle consumer.BatchHandler,
) []consumer.Decision {
	t.Helper()
	deliveries, contexts := make([]consumer.Delivery, len(counts)), make([]context.Context, len(counts))
	for i, count := range counts {
		deliveries[i] = consumer.Delivery{Topic: "orders", Handler: "charge", Count: count,
			Header: producer.Header{producer.HeaderID: string(rune('a' + i))}}
		contexts[i] = t.Context()
	}
	decisions := make([]consumer.Decision, len(counts))
	var decided sync.WaitGroup
	decided.Add(len(counts))
	go p.StartBatch(t.Context(), deliveries, contexts, handle, func(i int, d consumer.Decision) {
		decisions[i] = d
		decided.Done()
	})
	decided.Wait()
	return decisions
}

// A panic where no guard is in between is the message's own matter, not the end of the process.
func TestStartBatch_APanicInShadowModeEndsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{Shadow: true}})
		decisions := togethers(t, p, []int{1, 2, 2}, func(context.Context, []int) []error { panic("no") })
		for i, d := range decisions {
			if d.Action != consumer.RetryLater {
				t.Errorf("delivery %d: %+v, want a retry", i, d)
			}
		}
	})
}

// Only nil says that all have succeeded: an empty list may be that of a handler that could not begin.
func TestStartBatch_AnEmptyListOfErrorsIsNoSuccess(t *testing.T) {
	for name, counts := range map[string][]int{"a batch": {1, 1}, "one": {1}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p := newProcessor(t, newStore(t), consumer.Config{})
				decisions := togethers(t, p, counts, func(context.Context, []int) []error { return []error{} })
				for i, d := range decisions {
					if d.Action != consumer.RetryLater {
						t.Errorf("delivery %d: %+v, want a retry", i, d)
					}
				}
			})
		})
	}
}

// A handler that ends its goroutine leaves its messages to come again, and holds nobody else up.
func TestStartBatch_AHandlerThatEndsItsGoroutineLeavesItsMessages(t *testing.T) {
	for name, counts := range map[string][]int{"a batch": {1, 1}, "one": {1}, "redelivered": {2, 2}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p := newProcessor(t, newStore(t), consumer.Config{})
				decisions := togethers(t, p, counts, func(context.Context, []int) []error {
					runtime.Goexit()
					return nil
				})
				for i, d := range decisions {
					if d.Action != consumer.Leave {
						t.Errorf("delivery %d: %+v, want it left", i, d)
					}
				}
			})
		})
	}
}

// A publisher of dead letters that panics ends no process, and keeps no message beside it from being settled. Nor does
// one that ends its goroutine.
func TestStartBatch_APublisherThatDoesNotReturnEndsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		to   producer.Publisher
		want consumer.Action
	}{
		"panic":  {panicking{}, consumer.RetryLater},
		"Goexit": {exiting{}, consumer.Leave},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: c.to, DeadLetterTopic: "dead"})
				decisions := togethers(t, p, []int{1, 1, 1}, func(_ context.Context, which []int) []error {
					errs := make([]error, len(which))
					errs[0] = oncemill.Permanent(errors.New("no"))
					return errs
				})
				for i, want := range []consumer.Action{c.want, consumer.Ack, consumer.Ack} {
					if decisions[i].Action != want {
						t.Errorf("delivery %d: %+v, want %v", i, decisions[i], want)
					}
				}
			})
		})
	}
}

// somebody takes spans, unlike a noop.TracerProvider that the policy is given itself.
type somebody struct{ noop.TracerProvider }

type panickyIs struct{ text *string }

func (e *panickyIs) Error() string { return "cannot be compared" }
func (e *panickyIs) Is(error) bool { return *e.text == "" }

// Telemetry looks into errors. One that panics then must not make the batch fail as a whole.
func TestStartBatch_AnErrorThatPanicsSteersItsOwnMessage(t *testing.T) {
	for name, bad := range map[string]error{"unwrap": (*declined)(nil), "is": &panickyIs{}} {
		for _, provider := range []trace.TracerProvider{nil, somebody{}} {
			t.Run(fmt.Sprintf("%s, telemetry %t", name, provider != nil), func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					p := newProcessor(t, newStore(t), consumer.Config{
						Policy: oncemill.Policy{Telemetry: oncemill.Telemetry{TracerProvider: provider}},
					})
					var effects [3]atomic.Int32
					togethers(t, p, []int{1, 1, 1}, func(_ context.Context, which []int) []error {
						errs := make([]error, len(which))
						for n, i := range which {
							if effects[i].Add(1); i == 1 {
								errs[n] = bad
							}
						}
						return errs
					})
					if effects[0].Load() != 1 || effects[2].Load() != 1 {
						t.Errorf("its neighbours ran %d and %d times", effects[0].Load(), effects[2].Load())
					}
				})
			})
		}
	}
}

type slowDeadLetters struct{ sent atomic.Bool }

func (s *slowDeadLetters) Publish(context.Context, ...producer.Message) error {
	time.Sleep(time.Second)
	s.sent.Store(true)
	return nil
}

func TestProcessor_CloseWaitsForDeliveriesThatNoGuardIsAskedAbout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		dead := &slowDeadLetters{}
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: dead, DeadLetterTopic: "dead"})
		p.Start(t.Context(), consumer.Delivery{Topic: "orders", Handler: "charge"},
			func(context.Context) error { return nil }, func(consumer.Decision) {})
		if err := p.Close(t.Context()); err != nil || !dead.sent.Load() {
			t.Errorf("Close returned %v, with a dead letter on its way", err)
		}
	})
}
