package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/oncemill/oncemill/consumer"
)

// checkedLetters looks at its topics.
type checkedLetters struct {
	deadLetters
	missing error
	asked   []string
}

func (c *checkedLetters) Check(_ context.Context, topic string) error {
	c.asked = append(c.asked, topic)
	return c.missing
}

func TestProcessor_CheckLooksAtTheDeadLetterTopic(t *testing.T) {
	t.Parallel()
	noStream := errors.New("natsjs: no stream listens on dead.billing")
	for _, missing := range []error{nil, noStream} {
		l := &checkedLetters{missing: missing}
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: l, DeadLetterTopic: "dead.billing"})
		if _, err := p.Check(t.Context()); !errors.Is(err, missing) {
			t.Errorf("%v, want %v", err, missing)
		}
		if len(l.asked) != 1 || l.asked[0] != "dead.billing" {
			t.Errorf("asked for %q", l.asked)
		}
	}
	for _, c := range []consumer.Config{{}, {DeadLetters: &deadLetters{}, DeadLetterTopic: "dead"}} {
		if _, err := newProcessor(t, newStore(t), c).Check(t.Context()); err != nil {
			t.Errorf("with nothing to look at: %v", err)
		}
	}
}
