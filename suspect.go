package oncemill

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// A run that ends its process takes along what runs beside it. Nobody can tell which one of them it was, so all whose
// last runs crashed are suspects: they run one at a time, in the order in which they were refused. Then a crash names
// the one that ran, and costs the others nothing.

// suspectAfter is how many runs of a key crash in a row until it is a suspect. The first crash is mostly somebody
// else's: a process is killed, and what it had begun comes again at once, by the thousand.
const suspectAfter = 2

type turnKey struct{}

// waitTurn waits until no other suspect runs, however long that takes. It reports false if the call is not to start any
// more, or only after a time. A call inside the run of a suspect shares its turn, also if it is of another guard: else
// two suspects could wait for each other for ever. A call inside any other run does not wait: its run may hold what the
// suspect needs, such as a connection.
func (r *run) waitTurn(ctx context.Context) (wait time.Duration, ok bool) {
	g := r.guard
	if ctx.Value(turnKey{}) != nil {
		r.turn = func() {}
		return 0, true
	}
	select {
	case g.turns <- struct{}{}: // nobody waits
	default:
		if within(ctx) {
			return maxPoll, false
		}
		select {
		case g.turns <- struct{}{}: // those who wait here are let in in their order
		case <-ctx.Done():
			return 0, false
		case <-r.call.Stopping:
			return 0, false
		}
	}
	r.turn = func() { <-g.turns }
	select {
	case <-r.call.Stopping: // at the same time
		r.leaveTurn()
		return 0, false
	default:
	}
	g.log.WarnContext(ctx, "oncemill: message runs while no other suspect does: its last runs ended with their "+
		"leases, perhaps with their processes", "id", r.call.Key.ID, "key", r.call.Key.String())
	return 0, true
}

// within reports whether a context is that of a run.
func within(ctx context.Context) bool {
	_, one := txctx.Around[*dedupstore.Claim](ctx)
	_, many := txctx.Around[[]Run](ctx)
	return one || many
}

// withTurn returns a context in which calls have the run's turn, if it has one.
func (r *run) withTurn(ctx context.Context) context.Context {
	if r.turn == nil {
		return ctx
	}
	return context.WithValue(ctx, turnKey{}, true)
}

// leaveTurn lets the next suspect run.
func (r *run) leaveTurn() {
	if r.turn != nil {
		r.turn()
		r.turn = nil
	}
}
