// Program inbox measures what it costs that a message has its effect once. The effect is one row in PostgreSQL or
// MariaDB. Oncemill's inbox commits it together with the outcome; a hand-written inbox, INSERT … ON CONFLICT DO NOTHING in
// the handler's transaction, is what that is compared with. Beside them: leased claims in Redis and in PostgreSQL, and
// what all of them take to refuse a duplicate. Every variant has to write exactly one row a message. Last come the inboxes
// of all databases, beside a million records.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// Names of variants.
const (
	byHand   = "hand-written inbox"
	inbox    = "tier 2, pgstore inbox"
	batches  = "tier 2, pgstore inbox, batches of up to 64"
	leasedPG = "tier 1, pgstore"
	leasedRe = "tier 1, redisstore"

	byHandMariaDB  = "hand-written inbox, MariaDB"
	inboxMariaDB   = "tier 2, mysqlstore inbox"
	batchesMariaDB = "tier 2, mysqlstore inbox, batches of up to 64"
)

var variants = []string{byHand, inbox, leasedPG, leasedRe}

var experiments = []kit.Experiment{
	{Name: "fresh at 16", Variants: variants, Run: withRig(fresh(16, "tier2_vs_handwritten", .85, 1.05))},
	{Name: "fresh at 1", Variants: variants, Run: withRig(fresh(1, "tier2_vs_handwritten_1", 0, 0))},
	{Name: "fresh at 128", Variants: []string{byHand, batches}, Run: withRig(freshBatches)},
	{Name: "duplicates at 16", Variants: variants, Run: withRig(duplicates)},
	{Name: "mariadb", Variants: []string{byHandMariaDB, inboxMariaDB, batchesMariaDB}, Run: onMariaDB},
}

func main() { kit.Main(append(experiments, records)...) }

// withRig gives an experiment servers of its own.
func withRig(run func(context.Context, *kit.Bench, *rig) error) func(context.Context, *kit.Bench) error {
	return func(ctx context.Context, b *kit.Bench) (err error) {
		r, err := startRig(b)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.stop()) }()
		return run(ctx, b, r)
	}
}

// measured are all variants, each in the way that a function says.
func measured(as func(name string, open opening) kit.Variant) []kit.Variant {
	return []kit.Variant{
		as(byHand, openByHand),
		as(inbox, openInbox),
		as(leasedPG, openLeasedPostgres),
		as(leasedRe, openLeasedRedis),
	}
}

// fresh measures messages that nobody has seen.
func fresh(workers int, result string, required, goal float64) func(context.Context, *kit.Bench, *rig) error {
	return func(ctx context.Context, b *kit.Bench, r *rig) error {
		t, err := b.Compare(ctx, fmt.Sprintf("Fresh messages, %d at once", workers), b.Rounds,
			measured(func(name string, open opening) kit.Variant { return r.fresh(name, workers, open) })...)
		if err != nil {
			return err
		}
		if t.Has(inbox, byHand) {
			b.Aim(result, t.Ratio(inbox, byHand, rate), required, goal)
		}
		return nil
	}
}

// freshBatches measures messages that nobody has seen, one by one by hand and in batches here.
func freshBatches(ctx context.Context, b *kit.Bench, r *rig) error {
	t, err := b.Compare(ctx, "Fresh messages, 128 at once", b.Rounds,
		r.fresh(byHand, 128, openByHand), r.fresh(batches, 128, openBatches))
	if err != nil {
		return err
	}
	if t.Has(batches, byHand) {
		b.Aim("tier2_batch_vs_handwritten", t.Ratio(batches, byHand, rate), 2, 4)
	}
	return nil
}

// duplicates measures messages that all have their effect already.
func duplicates(ctx context.Context, b *kit.Bench, r *rig) error {
	t, err := b.Compare(ctx, "Duplicates, 16 at once", b.Rounds, measured(r.duplicates)...)
	if err != nil {
		return err
	}
	if t.Has(inbox, byHand) {
		b.Ratio("duplicates_tier2_vs_handwritten", t.Ratio(inbox, byHand, rate))
	}
	return nil
}
