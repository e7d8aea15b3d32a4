package operate

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
)

// An Item is a record that was seen, and what it becomes.
type Item struct {
	Record dedupstore.Record
	Change dedupstore.Change
}

// WithSteps are messages, each with its steps after it.
func WithSteps(
	ctx context.Context, store dedupstore.Inspector, all []dedupstore.Record,
) (with []dedupstore.Record, err error) {
	find, messages := explain.StepsIn(store), explain.MessagesOf(all)
	for i := range all {
		if messages.HaveStep(all[i].Key) {
			continue
		}
		steps, err := find.Of(ctx, all[i].Key)
		if err != nil {
			return nil, err
		}
		with = append(append(with, all[i]), steps...)
	}
	return with, nil
}

// ErrNeeded says why a step is not forgotten.
var ErrNeeded = errors.New("its message was refused, and needs it")

// Refused reports whether a change was refused: then nothing has changed, and others may go on.
func Refused(err error) bool {
	_, refused := errors.AsType[*dedupstore.RefusedError](err)
	return refused || errors.Is(err, ErrNeeded)
}

// Change makes changes one after the other, at most so many a second. It tells how each ended, and stops at the first
// that failed, or when ctx ends. A change that has begun has its time to end, also then. Steps come behind their
// message, and stay if that does.
func Change(
	ctx context.Context, items []Item, rate int, timeout time.Duration, do func(context.Context, *Item) error,
	tell func(*Item, error),
) error {
	pace := time.NewTicker(time.Second / time.Duration(rate))
	defer pace.Stop()
	kept := explain.Messages{}
	for i := range items {
		if i > 0 {
			select {
			case <-pace.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		item, err := &items[i], ErrNeeded
		if !kept.HaveStep(item.Record.Key) {
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
			err = do(within, item)
			cancel()
		}
		tell(item, err)
		switch {
		case Refused(err):
			kept[item.Record.Key] = true
		case err != nil:
			return err
		}
	}
	return nil
}
