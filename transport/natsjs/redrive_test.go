package natsjs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// A connection that is lost, or a server that has no consumer any more, answers no ack. The redrive goes on without.
func TestRedrive_AnAckThatNobodyAnswersEnds(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	if _, err := js.Conn().SubscribeSync("silent"); err != nil {
		t.Fatal(err)
	}
	r := &redrive{
		of: &DeadLetters{js: js}, durable: struct{ jetstream.Consumer }{}, taken: map[uint64]string{7: "silent"},
		within: 50 * time.Millisecond,
	}
	if err := r.Done(t.Context(), []deadletters.Letter{{Position: "7"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the time that an answer may take", err)
	}
}
