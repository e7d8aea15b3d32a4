package pgstore

import (
	"context"
	"slices"

	"github.com/oncemill/oncemill/internal/errtext"
)

// An operation is a claim, a settlement or an extension of a batch.
type operation interface {
	// fail notes why there is no answer.
	fail(err error)

	// ascii changes texts for people so that every encoding has them.
	ascii()
}

// together makes operations in one statement. If PostgreSQL refuses that, each goes alone: what one of them is refused
// for says nothing of the others.
func together[O operation](ctx context.Context, all []O, exec func(context.Context, []O) error) {
	if len(all) == 0 {
		return
	}
	err := exec(ctx, all)
	// the database has another encoding than UTF-8
	if code := codeOf(err); code == codeNoSuchText || code == codeNoTranslation {
		for _, o := range all {
			o.ascii()
		}
		err = exec(ctx, all)
	}
	switch {
	case err == nil:
	case codeOf(err) != "" && len(all) > 1:
		for one := range slices.Chunk(all, 1) {
			together(ctx, one, exec)
		}
	default:
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		for _, o := range all {
			o.fail(err)
		}
	}
}

func (c *claiming) fail(err error) { c.err = err }
func (c *claiming) ascii()         { c.holder = errtext.ASCII(c.holder) }

func (s *settling) fail(err error) { s.err = err }
func (s *settling) ascii()         { s.reason = errtext.ASCII(s.reason) }
