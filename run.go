package oncemill

import (
	"context"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/txctx"
)

// Run tells a handler about the run it is in.
type Run struct {
	Key dedupstore.Key

	// Fence grows with every new owner of the key. A database that refuses a smaller fence than the last it saw keeps
	// stale writers out, but it does not keep a second effect out. Zero: the run is not guarded, because the store was
	// bypassed or it is shadow mode.
	Fence uint64

	// Attempt counts the runs of the key, from 1. Zero: the run is not guarded.
	Attempt int
}

// ID returns an ID that is the same in every run of this key and differs between names. Use it for messages that the
// handler produces, and as the idempotency key of calls to others. It is a UUIDv8 of SHA-256 over key and name.
func (r Run) ID(name string) string {
	return ids.Derive("oncemill/run", r.Key.Tenant, r.Key.Group, r.Key.Handler, r.Key.ID, name)
}

// FromContext returns the run that the handler is in. It panics outside a run, because an ID made from nothing would be
// the same for every message. For the same reason it panics for a message without an ID that a policy lets run
// (MissingIDBypass, Shadow).
func FromContext(ctx context.Context) Run {
	claim, ok := txctx.From[*dedupstore.Claim](ctx)
	if !ok {
		panic("oncemill: FromContext outside a guarded run: pass the context that the handler got")
	}
	return runOf(claim)
}

func runOf(claim *dedupstore.Claim) Run {
	return Run{Key: claim.Key, Fence: claim.Fence, Attempt: claim.Attempt}
}

// apart returns a context in which a run joins no transaction of a run around it, which may be rolled back alone.
func apart(ctx context.Context) context.Context {
	_, one := txctx.From[*dedupstore.Claim](ctx)
	_, many := txctx.From[[]Run](ctx)
	if one || many {
		return txctx.Apart(ctx)
	}
	return ctx
}

// withClaim puts the claim of a run where FromContext finds it, and stores that settle it in a transaction of the
// handler. The claim of an unguarded run has a key only. The context ends with ctx, and leaves nothing there.
func (g *Guard) withClaim(ctx context.Context, call *Call, claim *dedupstore.Claim) context.Context {
	r := &runContext{}
	r.Follow(ctx)
	r.of(g, call, claim)
	return r
}
