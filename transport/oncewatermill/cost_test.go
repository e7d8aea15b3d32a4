package oncewatermill_test

import (
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// The cost of the way through a Router. Other tests must not run beside this one.
func TestMiddleware_AllocatesLittle(t *testing.T) {
	guarded := oncewatermill.Middleware(newProcessor(t, newStore(t), consumer.Config{}))(
		func(*message.Message) ([]*message.Message, error) { return nil, nil })
	n := 1_000_000
	const most = 37 // two of them are records of the store in memory
	got := testing.AllocsPerRun(2000, func() {
		n++
		m := order(strconv.Itoa(n))
		_, _ = guarded(m)
		m.Ack()
	})
	if got > most+1 { // the race detector's one
		t.Errorf("%v allocations, want at most %v", got, most)
	}
}
