package sourcetest_test

import (
	"testing"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/sourcetest"
)

// A queue stands for your broker, with a topic that is empty.
type queue struct{}

func newQueue(*testing.T) *queue                          { return &queue{} }
func (q *queue) source(sourcetest.Member) consumer.Source { return nil }
func (q *queue) publish(...sourcetest.Message)            {}
func (q *queue) left() int                                { return 0 }

// This is TestSource_Conforms in the tests of a source. A broker in this process takes RunVirtual.
func ExampleRun() {
	_ = func(t *testing.T) {
		sourcetest.Run(t, func(t *testing.T) sourcetest.Subject {
			q := newQueue(t)
			return sourcetest.Subject{
				Topic: "orders", Open: q.source, Publish: q.publish, Left: q.left,
				Lacks: map[sourcetest.Capability]string{sourcetest.Order: "the queue has no order"},
			}
		})
	}
	// Output:
}
