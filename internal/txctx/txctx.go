// Package txctx carries a database transaction in a context, so that what is called with the context joins it.
package txctx

import "context"

type key[T any] struct{}

// With returns a context that carries a transaction. Each type of transaction has a place of its own.
func With[T any](ctx context.Context, tx T) context.Context {
	return context.WithValue(ctx, key[T]{}, tx)
}

// From returns the transaction of a type that the context carries.
func From[T any](ctx context.Context) (tx T, found bool) {
	tx, found = ctx.Value(key[T]{}).(T)
	return tx, found
}
