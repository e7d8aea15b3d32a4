// Package txctx carries a database transaction in a context, so that everything called with the context joins it. It
// also carries the claim of the run, so that it can be settled in there.
package txctx

import "context"

type key[T any] struct{}

// With returns a context that carries a transaction, or a claim. Each type has a place of its own.
func With[T any](ctx context.Context, tx T) context.Context {
	return context.WithValue(ctx, key[T]{}, tx)
}

// From returns what the context carries of a type.
func From[T any](ctx context.Context) (tx T, found bool) {
	tx, found = ctx.Value(key[T]{}).(T)
	return tx, found
}

// NoTx is what a store's function panics with that returns the transaction of a run, where there is none, and what an
// outbox returns. A guard tells it from a handler's own panics and errors.
type NoTx string //nolint:errname // it is what is missing

func (e NoTx) Error() string { return string(e) }
