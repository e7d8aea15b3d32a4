package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox/pgwal"
	"github.com/oncemill/oncemill/producer"
)

// fromLog is an outbox of ours whose relay reads the log.
type fromLog struct{ *ours }

func (r *rig) log() fromLog { return fromLog{r.ours(byDefault)} }

func (l fromLog) config() pgwal.Config { return pgwal.Config{Pool: l.pool, Retention: l.retention} }

func (l fromLog) install(ctx context.Context) error {
	if err := l.ours.install(ctx); err != nil {
		return err
	}
	relay, err := pgwal.New(l.config(), nobody{})
	if err != nil {
		return err
	}
	return relay.Setup(ctx)
}

// uninstall removes the slot, too. It may take a moment until that is free.
func (l fromLog) uninstall(ctx context.Context) error {
	relay, err := pgwal.New(l.config(), nobody{})
	if err != nil {
		return err
	}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for range 250 {
		err = relay.Drop(ctx)
		if _, busy := errors.AsType[*dedupstore.SetupError](err); !busy {
			break
		}
		<-again.C
	}
	return errors.Join(err, l.ours.uninstall(ctx))
}

func (l fromLog) relay(ctx context.Context, conn *nats.Conn) (stop func() error, err error) {
	return relayOn(ctx, conn, func(p producer.Publisher) (relayer, error) { return pgwal.New(l.config(), p) })
}

// nobody publishes nothing.
type nobody struct{}

func (nobody) Publish(context.Context, ...producer.Message) error {
	return errors.New("nothing is published here")
}
