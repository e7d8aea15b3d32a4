package stocknats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// lookEvery is how often a subscription looks at its consumer.
const lookEvery = 30 * time.Second

// A look asks the server for the settings of a consumer. Its error is errGone if there is none.
type look func(context.Context) (consumerSettings, error)

var (
	errGone = errors.New("stocknats: the consumer is gone")
	errDeaf = errors.New("stocknats: the server refused the connection's subscriptions, or some, for a right or its limit, and does not take them back: the connection has to be made again")
)

// lookTimeout bounds a look.
const lookTimeout = 2 * time.Second

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
		if !s.nc.IsConnected() { // of which the adapters say nothing
			err := s.nc.LastError()
			if err == nil {
				err = nats.ErrDisconnected
			}
			s.config.Logger.WarnContext(ctx, "oncemill: no connection to the NATS server; trying again", "topic", s.topic, "error", err)
		}
		short, cancel := context.WithTimeout(ctx, lookTimeout)
		is, err := s.gate.look(short)
		cancel()
		again := missed
		missed = errors.Is(err, errGone) || errors.Is(err, errDeaf) || is.unbound
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
