// Program outbox measures how messages get from a table of PostgreSQL to JetStream. It compares Oncemill's relays with
// Watermill's Forwarder and with River. It also measures the write-ahead log of a message, what a wake-up costs the
// writer, the time from commit to consumer, and what a million published rows change, also for the outboxes of other
// databases. Every variant has to bring exactly what was written into the stream.
package main

import (
	"context"
	"errors"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

// Names of variants.
const (
	forwarding   = "Watermill Forwarder"
	rivering     = "River, 100 workers"
	riveringFast = "River, 100 workers, fetch cooldown 1 ms"
	relaying     = "relay, retained"
	removing     = "relay, deleted at once"
	reading      = "log relay"

	removed  = "log of rows deleted at once"
	retained = "log of rows retained, then cleaned"

	wakeRunning = "relay runs, wake"
	noneRunning = "relay runs, none"
	wakeAlone   = "no relay, wake"
	noneAlone   = "no relay, none"

	afterCommit = "published by the writer after the commit"
	wakeLatency = "woken relay"
	logLatency  = "log relay"

	noneRetained = "no published rows"
	manyRetained = "published rows"

	oneRelay  = "1 relay"
	twoRelays = "2 relays"
)

var experiments = []kit.Experiment{
	{Name: "drain", Variants: []string{forwarding, relaying, removing, reading, rivering, riveringFast}, Run: withRig(drain)},
	{Name: "wal", Variants: []string{removed, retained}, Run: withRig(wal)},
	{Name: "wake", Variants: []string{wakeRunning, noneRunning, wakeAlone, noneAlone}, Run: withRig(wake)},
	{Name: "latency", Variants: []string{afterCommit, wakeLatency, logLatency}, Run: withRig(latency)},
	{Name: "growth", Variants: []string{noneRetained, manyRetained}, Run: withRig(growth)},
	{Name: "relays", Variants: []string{oneRelay, twoRelays}, Run: withRig(relays)},
}

func main() { kit.Main(append(experiments, records)...) }

// withRig gives an experiment servers of its own.
func withRig(run func(context.Context, *kit.Bench, *rig) error) func(context.Context, *kit.Bench) error {
	return func(ctx context.Context, b *kit.Bench) (err error) {
		r, err := startRig(ctx, b)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.stop()) }()
		return run(ctx, b, r)
	}
}
