package contexts

import (
	"context"
	"sync/atomic"
)

// A Veiled context is another one that tells none of its values until its veil is lifted.
type Veiled struct {
	context.Context
	lifted atomic.Bool
}

// veilKey finds the veil under contexts that were made of it.
type veilKey struct{}

// Hide returns a context with the values of ctx behind a veil.
func Hide(ctx context.Context) *Veiled { return &Veiled{Context: ctx} }

// VeilOf returns the last veil over a context, or nil.
func VeilOf(ctx context.Context) *Veiled {
	v, _ := ctx.Value(veilKey{}).(*Veiled)
	return v
}

// Lift shows the values.
func (v *Veiled) Lift() { v.lifted.Store(true) }

// Value returns nothing until the veil is lifted.
func (v *Veiled) Value(key any) any {
	if key == (veilKey{}) {
		return v
	}
	if !v.lifted.Load() {
		return nil
	}
	return v.Context.Value(key)
}

// String is the name of the context.
func (v *Veiled) String() string { return name(v.Context) + ".Veiled" }
