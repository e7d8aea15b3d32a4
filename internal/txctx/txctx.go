// Package txctx carries a database transaction in a context, so that everything called with the context joins it. It
// also carries the claim of the run, so that it can be settled in there.
package txctx

import (
	"context"

	"github.com/oncemill/oncemill/internal/contexts"
)

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

// Apart returns a context for a run inside another one: it hides what the context carries until then, which belongs to
// the run around it. An outbox that joined the other's transaction would lose its rows if only that is rolled back.
func Apart(ctx context.Context) context.Context { return apart{contexts.Under(ctx)} }

type apart struct{ contexts.Child }

// outer is the key of the context that apart hides things of.
type outer struct{}

func (a apart) Value(of any) any {
	switch of.(type) {
	case interface{ carried() }:
		return nil
	case outer:
		return a.Child
	}
	return a.Child.Value(of)
}

func (key[T]) carried() {}

// IsKey reports whether a context is asked for what it carries of a type.
func IsKey[T any](of any) bool {
	_, is := of.(key[T])
	return is
}

// Around is From that also finds what belongs to runs around this one.
func Around[T any](ctx context.Context) (tx T, found bool) {
	for ctx != nil {
		if tx, found = From[T](ctx); found {
			break
		}
		ctx, _ = ctx.Value(outer{}).(context.Context) //nolint:fatcontext // outwards
	}
	return tx, found
}

// NoTx is what a store's function panics with that returns the transaction of a run, where there is none, and what an
// outbox returns. A guard tells it from a handler's own panics and errors.
type NoTx string //nolint:errname // it is what is missing

func (e NoTx) Error() string { return string(e) }

// A Carrier is a transaction that publishes messages as it commits.
type Carrier[M any] interface {
	// Carry takes the messages that the transaction can publish, and returns the others.
	Carry(ctx context.Context, messages []M) (rest []M, err error)
}
