package franz

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/producer"
)

// Redrive implements [deadletters.Source].
func (d *DeadLetters) Redrive(ctx context.Context, t deadletters.Taking) (deadletters.Redrive, error) {
	if err := d.makeMarkers(ctx); err != nil {
		return nil, err
	}
	marked, err := d.marks(ctx)
	r := &redrive{of: d, positions: t.Positions, marked: marked}
	if err != nil || len(t.Positions) > 0 {
		return r, err
	}
	all, _, err := d.whole(ctx, d.topic)
	if err == nil {
		r.reader, err = d.reader(d.topic, all)
	}
	return r, err
}

// A redrive reads the topic once, or letters by their positions.
type redrive struct {
	of        *DeadLetters
	positions []string
	marked    func(*deadletters.Letter) bool
	reader    *reader
	fetched   []*kgo.Record // and not taken yet
}

// Take implements [deadletters.Redrive].
func (r *redrive) Take(ctx context.Context, n int) (batch []deadletters.Letter, err error) {
	for len(batch) < n {
		l, err := r.one(ctx)
		switch {
		case errors.Is(err, deadletters.ErrGone):
		case err != nil || l == nil:
			return batch, err
		case !r.marked(l):
			batch = append(batch, *l)
		}
	}
	return batch, nil
}

// one returns the next letter; nil: there is none.
func (r *redrive) one(ctx context.Context) (*deadletters.Letter, error) {
	var l deadletters.Letter
	var err error
	switch {
	case r.reader == nil && len(r.positions) == 0:
		return nil, nil
	case r.reader == nil:
		l, err = r.of.show(ctx, r.positions[0])
		r.positions = r.positions[1:]
		return &l, err
	case len(r.fetched) == 0:
		if r.fetched, err = r.reader.next(ctx); err != nil || len(r.fetched) == 0 {
			return nil, err
		}
	}
	l = letter(r.fetched[0])
	r.fetched = r.fetched[1:]
	return &l, nil
}

// Done implements [deadletters.Redrive].
func (r *redrive) Done(ctx context.Context, sent []deadletters.Letter) error {
	return r.of.mark(ctx, sent)
}

// Publisher implements [deadletters.Redrive].
func (r *redrive) Publisher() (producer.Publisher, error) {
	if r.of.refused != nil {
		return nil, r.of.refused
	}
	return r.of.publisher, nil
}

// Close implements [deadletters.Redrive].
func (r *redrive) Close() {
	if r.reader != nil {
		r.reader.client.Close()
	}
}
