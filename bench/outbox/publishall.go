package main

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
)

// publishAll brings so many messages, all that there are, into a new stream.
func (r *rig) publishAll(ctx context.Context, s system, messages int) error {
	stream, err := r.freshStream(ctx)
	if err != nil {
		return err
	}
	conn, err := nats.Connect(r.nats.URL)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop, err := s.relay(ctx, conn)
	if err != nil {
		return err
	}
	if err := errors.Join(arrived(ctx, stream, messages), stop()); err != nil {
		return err
	}
	_, err = r.exact(ctx, s, stream, messages)
	return err
}
