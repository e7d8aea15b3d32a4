package natskv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// Batches with a condition on each of several records: one of those that race wins, with all of its messages, and what
// has one old condition is refused as a whole. 300 races with ONCEMILL_PROOF=1. Batches of several runs, and of claims, rely
// on it.
func TestBatches_OfSharedRecordsHaveOneWinner(t *testing.T) {
	t.Parallel()
	t.Run("one server", func(t *testing.T) { t.Parallel(); batchesRace(t, natstest.Start(t).Connect, 1) })
	t.Run("three servers", func(t *testing.T) { t.Parallel(); batchesRace(t, natstest.StartCluster(t, 3).Connect, 3) })
}

func TestBatches_OfSharedRecordsHaveOneWinnerOnAGivenServer(t *testing.T) {
	t.Parallel()
	program := os.Getenv("ONCEMILL_TEST_NATS")
	if program == "" {
		t.Skip("without ONCEMILL_TEST_NATS, a program")
	}
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		batchesRace(t, natstest.StartClusterOfProcesses(t, 1, program).Connect, 1)
	})
	t.Run("three servers", func(t *testing.T) {
		t.Parallel()
		batchesRace(t, natstest.StartClusterOfProcesses(t, 3, program).Connect, 3)
	})
}

func batchesRace(t *testing.T, connect func(...nats.Option) *nats.Conn, replicas int) {
	const racers, records = 8, 8
	races := 20
	if proof {
		races = 300
	}
	var inboxes []*Inbox
	for i := range racers {
		js, err := jetstream.New(connect())
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			newInbox(t, js, Stream("ORDERS", replicas, "orders.>"))
		}
		inboxes = append(inboxes, inboxOf(t, js, "ORDERS"))
	}
	var seen [records]int64
	record := func(n int) string { return fmt.Sprint("orders.once.r.r.r.", n) }
	// batch is an output and a record for each of the records, in any order, and where the records are in it
	batch := func(in *Inbox, name string, seen [records]int64) (messages []*nats.Msg, order []int) {
		order = rand.Perm(records)
		for _, n := range order {
			h := nats.Header{jetstream.MsgTTLHeader: {"1h"}}
			in.condition(h, seen[n])
			messages = append(messages, &nats.Msg{Subject: "orders.out." + strconv.Itoa(n), Header: nats.Header{},
				Data: []byte(name)}, &nats.Msg{Subject: record(n), Header: h, Data: []byte(name)})
		}
		return messages, order
	}
	won := make([]int, racers)
	for race := range races {
		var results [racers]struct {
			last  int64
			err   error
			order []int
		}
		var all sync.WaitGroup
		start := make(chan struct{})
		for i, in := range inboxes {
			all.Go(func() {
				messages, order := batch(in, fmt.Sprint(race, "-", i), seen)
				ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
				defer cancel()
				<-start
				last, err := in.batches.publish(ctx, messages)
				for errors.Is(err, jetstream.ErrNoStreamResponse) && ctx.Err() == nil { // its server is not ready yet
					last, err = in.batches.publish(ctx, messages)
				}
				results[i].last, results[i].err, results[i].order = last, err, order
			})
		}
		close(start)
		all.Wait()
		winner := -1
		for i, r := range results {
			switch {
			case r.err == nil && winner < 0:
				winner = i
			case r.err == nil:
				t.Fatalf("race %d: %d and %d have won", race, winner, i)
			case !conflict(r.err):
				t.Fatalf("race %d: %d: %v, want a conflict", race, i, r.err)
			}
		}
		if winner < 0 {
			t.Fatalf("race %d: nobody has won", race)
		}
		won[winner]++
		stale := seen
		for at, n := range results[winner].order {
			seen[n] = results[winner].last - int64(2*(records-1-at))
		}
		for n, want := range seen {
			number, _, data, err := inboxes[0].last(t.Context(), record(n))
			if name := fmt.Sprint(race, "-", winner); err != nil || number != want || string(data) != name {
				t.Fatalf("race %d: record %d is %q at %d, %v; want %q at %d", race, n, data, number, err, name, want)
			}
		}
		old, n := seen, rand.IntN(records)
		old[n] = stale[n]
		messages, _ := batch(inboxes[race%racers], "old", old)
		if _, err := inboxes[race%racers].batches.publish(t.Context(), messages); !conflict(err) {
			t.Fatalf("race %d: a batch with one old condition: %v, want a conflict", race, err)
		}
	}
	stream := natstest.Ask(t, "the stream", func(ctx context.Context) (jetstream.Stream, error) {
		return inboxes[0].js.Stream(ctx, "ORDERS")
	})
	if got, want := int(stream.CachedInfo().State.Msgs), records*(races+1); got != want {
		t.Errorf("%d messages, want %d: an output of each record and race, and the records", got, want)
	}
	slices.Sort(won)
	t.Logf("%d races; the racers won %v of them", races, won)
}
