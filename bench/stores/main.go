// Program stores measures every store, and the same work by hand: with the plain client, an insert or a conditional
// put claims, and an update notes the outcome, in a record of about the same size. 128 callers claim and settle fresh
// keys, one at a time each. Before a store, their operations travel together on the lines of a guard.
package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

var experiments = []kit.Experiment{
	experiment("memory", "Memory", startMemory),
	experiment("redis", "redisstore", startRedis),
	experiment("nats", "natskv", startNATS),
	experiment("postgres", "pgstore", startPostgres),
	experiment("mysql", "mysqlstore", startMySQL),
	experiment("sqlite", "sqlitestore", startSQLite),
	experiment("dynamodb", "dynamostore", startDynamoDB),
	experiment("cassandra", "cassandrastore", startCassandra),
}

func main() { kit.Main(append(experiments, records)...) }

// What a store has to reach of what is written by hand, and what is aimed for.
const (
	required = .8
	goal     = 1
)

// experiment compares a store with the work by hand on a server of its own.
func experiment(name, store string, start func(context.Context, *server) error) kit.Experiment {
	hand := name + " by hand"
	run := func(ctx context.Context, b *kit.Bench) (err error) {
		s := &server{}
		defer func() { err = errors.Join(err, s.Clean()) }()
		err = start(ctx, s)
		if errors.Is(err, kit.ErrMissing) || errors.Is(err, exec.ErrNotFound) {
			b.Progress("%s is left out: %v", name, err)
			return nil
		}
		if err != nil {
			return err
		}
		ours, wait := byStore(s.store)
		defer wait()
		variants := []kit.Variant{{Name: store, Measure: s.measure(b, ours)}}
		if s.hand != nil {
			variants = append(variants, kit.Variant{Name: hand, Measure: s.measure(b, s.hand)})
		}
		t, err := b.Compare(ctx, fmt.Sprintf("Claim and settle, %s, %d callers", name, callers), b.Rounds, variants...)
		if err == nil && t.Has(store, hand) {
			b.Aim(store+"_vs_hand", t.Ratio(store, hand, rate), required, goal)
		}
		return err
	}
	return kit.Experiment{Name: name, Variants: []string{store, hand}, Run: run}
}
