package stocknats

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// lookEvery is how often a subscription looks at its consumer.
const lookEvery = 30 * time.Second

// A look asks the server for the settings of a consumer. Its error is errGone if there is none.
type look func(context.Context) (consumerSettings, error)

var errGone = errors.New("stocknats: the consumer is gone")

// watch returns an error when the consumer was deleted, or the subscription refused after a reconnect, of which package nats
// never hears, or it was changed so that messages would be lost. It returns nil at the end of ctx.
func (s *subscription) watch(ctx context.Context) error {
	ticker := time.NewTicker(s.lookEvery)
	defer ticker.Stop()
	for missed := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		is, err := s.gate.look(short)
		cancel()
		again := missed
		missed = errors.Is(err, errGone) || is.unbound
		switch was := s.gate.settings; {
		case err == nil && is.deliver != was.deliver:
			return fmt.Errorf("stocknats: consumer %q delivers to %q now, and not to %q", is.durable, is.deliver, was.deliver)
		case err == nil && is.bare && !was.bare:
			return fmt.Errorf("stocknats: consumer %q has HeadersOnly now: handlers get no payloads, and dead letters have none", is.durable)
		case is.unbound && again:
			return fmt.Errorf("stocknats: the server knows of no subscription to %q: it has refused this one after a reconnect, for a right or its limit of subscriptions", is.deliver)
		case err == nil:
			err = checkConsumer(is)
		case !missed || !again: // nobody knows; a server that is starting knows little yet
			err = nil
		}
		if err != nil {
			return err
		}
	}
}
