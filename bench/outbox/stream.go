package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// freshStream replaces the stream by an empty one.
func (r *rig) freshStream(ctx context.Context) (jetstream.Stream, error) {
	js, err := jetstream.New(r.nats.Admin)
	if err != nil {
		return nil, err
	}
	return kit.FreshStream(ctx, js, jetstream.StreamConfig{Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage})
}

// arrived waits until a stream has so many messages.
func arrived(ctx context.Context, stream jetstream.Stream, messages int) error {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		info, err := stream.Info(ctx)
		if err != nil {
			return err
		}
		if info.State.Msgs >= uint64(messages) {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d messages are in the stream: %w", info.State.Msgs, messages, context.Cause(ctx))
		}
	}
}

// copies reads a stream and says how many messages there are that had been there before. It is an error unless all of the
// messages from 0 on are there, and no others. Nobody may be publishing any more.
func copies(ctx context.Context, stream jetstream.Stream, messages int) (int, error) {
	c, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return 0, err
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	seen := newTally(messages)
	for left := int(info.State.Msgs); left > 0; {
		batch, err := c.Fetch(min(left, 2000))
		if err != nil {
			return 0, err
		}
		for m := range batch.Messages() {
			if err := seen.add(m.Data()); err != nil {
				return 0, err
			}
			left--
		}
		if err := errors.Join(batch.Error(), ctx.Err()); err != nil {
			return 0, err
		}
	}
	return seen.copies, seen.complete()
}

// A tally counts what was written and came.
type tally struct {
	times    []int
	distinct int
	copies   int
}

func newTally(messages int) *tally { return &tally{times: make([]int, messages)} }

func (t *tally) add(payload []byte) error {
	n, err := numberOf(payload)
	switch {
	case err != nil:
		return err
	case n < 0 || n >= len(t.times):
		return fmt.Errorf("message %d is in the stream, and %d were written", n, len(t.times))
	case len(payload) < payloadBytes:
		return fmt.Errorf("message %d has %d bytes, want %d", n, len(payload), payloadBytes)
	}
	t.times[n]++
	if t.times[n] > 1 {
		t.copies++
	} else {
		t.distinct++
	}
	return nil
}

// complete returns an error if something did not come.
func (t *tally) complete() error {
	if t.distinct != len(t.times) {
		return fmt.Errorf("%d of %d messages are in the stream", t.distinct, len(t.times))
	}
	return nil
}
