package main

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// relays compares two relays with one. Both are in this process, on the same pool, each with a connection of its own to
// NATS.
func relays(ctx context.Context, b *kit.Bench, r *rig) error {
	one, two := r.ours(byDefault), r.ours(byDefault)
	two.relays = 2
	t, err := b.Compare(ctx, fmt.Sprintf("A backlog of %d rows, relays in one process", r.backlog()), b.Rounds,
		r.draining(oneRelay, one), r.draining(twoRelays, two))
	if err != nil {
		return err
	}
	if t.Has(oneRelay, twoRelays) {
		b.Ratio("relays_2_vs_1", t.Ratio(twoRelays, oneRelay, rate))
	}
	return nil
}
