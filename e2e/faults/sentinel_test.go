package faults_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// failoverLease is short: a run that the new master knows without its outcome has to wait for the end of its lease.
const failoverLease = 3 * time.Second

func shortRequest(k dedupstore.Key) dedupstore.Request {
	return dedupstore.Request{Key: k, Owner: ids.Token(), Lease: failoverLease, Retention: time.Hour, MaxAttempts: 1000}
}

// What a new master does not know of what the old one had confirmed.
type forgotten struct {
	records  int // of runs that were granted
	outcomes int // of finished runs whose record is still that of the run
}

// forgottenBy asks a new master for every run that the old one had granted. Nobody may deliver meanwhile.
func forgottenBy(
	t *testing.T, c *courier, master *redistest.Server, granted, finished []dedupstore.Key,
) (f forgotten) {
	t.Helper()
	rdb := master.Client()
	for _, k := range granted {
		switch n, err := rdb.Exists(t.Context(), inRedis(k)).Result(); {
		case err != nil:
			t.Fatal(err)
		case n == 0:
			f.records++
			continue
		case !slices.Contains(finished, k):
			continue
		}
		// The record is there: a claim that finds a run changes nothing while its lease is live.
		a, err := dedupstore.ClaimOne(t.Context(), c.store, shortRequest(k))
		if err != nil {
			t.Fatal(err)
		}
		if a.Status != dedupstore.Done {
			f.outcomes++
		}
	}
	return f
}

// kill ends the master in the middle of deliveries, and returns what the next one does not know. Replication is
// released for what comes after.
func kill(t *testing.T, trio *redistest.Sentinel, c *courier) forgotten {
	t.Helper()
	loss := ledger.Event{Why: ledger.LostRecord, From: time.Now()}
	old := trio.KillMaster()
	trio.ReleaseReplication()
	killed := time.Now()
	c.gate.Lock() // deliveries that are under way end, no other one begins
	defer c.gate.Unlock()
	granted, finished := granted(c.Ledger) // not before: a grant may be on its way to the ledger when the master dies
	next := trio.AwaitMaster(old)
	loss.To = time.Now()
	c.Happened(loss)
	f := forgottenBy(t, c, next, granted, finished)
	t.Logf("%v after the kill: of %d runs, %d of them finished, the new master has no record of %d and no outcome of %d",
		time.Since(killed).Round(10*time.Millisecond), len(granted), len(finished), f.records, f.outcomes)
	return f
}

func TestSentinel_FailoverToReplicasThatAreBehindRepeatsNoMoreThanTheyMissed(t *testing.T) {
	t.Parallel()
	trio := redistest.StartSentinel(t)
	c := newCourier(t, trio.Client(), redisstore.Config{}, failoverLease)
	n := full(2000, 200)
	before, behind, during := messages("before", n), messages("behind", n), messages("during", 2*n)
	c.all(t.Context(), before, 8)
	trio.Master().AwaitReplicas(2)

	trio.HoldReplication()
	c.all(t.Context(), behind, 8) // the master confirms them, and nobody else knows
	var rest sync.WaitGroup
	rest.Go(func() { c.all(t.Context(), during, 8) })
	until(t, "deliveries under way", func() bool { return c.Done() >= len(before)+len(behind)+20 })
	f := kill(t, trio, c)
	rest.Wait()

	// Every message comes once more.
	all := slices.Concat(before, behind, during)
	c.all(t.Context(), all, 16)
	c.Balance(int(c.deliveries.Load())).MustExplain(t, ledger.LostRecord, ledger.LostOutcome)
	again := c.repeats()
	t.Logf("effects after the first, by what their claims found: %v", again)
	if f.records < len(behind) {
		t.Errorf("the new master lacks %d records, want at least the %d that were held back", f.records, len(behind))
	}
	if n := again[dedupstore.Absent]; n > f.records {
		t.Errorf("%d effects for lost records, but %d records were lost", n, f.records)
	}
}

func TestSentinel_WithTheBarrierNoHandlerRunsOnAClaimThatAFailoverForgets(t *testing.T) {
	t.Parallel()
	trio := redistest.StartSentinel(t)
	options := trio.FailoverOptions()
	options.ClientName = "oncemill"
	options.ReadTimeout = 300 * time.Millisecond // of which replicas have a third: connections break meanwhile
	rdb := redis.NewFailoverClient(options)
	t.Cleanup(func() { rdb.Close() })
	c := newCourier(t, rdb, redisstore.Config{Replicas: 1}, failoverLease)
	n, refusals := full(1000, 100), full(2000, 100)
	before, open := messages("before", n), messages("open", 5)
	taken, past := messages("held", n), messages("past", 16)
	c.all(t.Context(), before, 8)

	// Runs that are under way: their claims are on the replicas, their outcomes will not be.
	settle := make(chan struct{})
	var running sync.WaitGroup
	for _, k := range open {
		running.Go(func() { c.once(t.Context(), k, settle) })
	}
	until(t, "runs under way", func() bool { return c.Done() == len(before)+len(open) })
	trio.HoldReplication()
	calls := c.Done()
	close(settle)
	running.Wait()
	if n := c.Ended(ledger.Recorded); n != len(before)+len(open) {
		t.Errorf("%d outcomes stored, want %d: what runs is settled without a barrier", n, len(before)+len(open))
	}

	// New messages come, through the guard and, as its breaker soon leaves the store alone, past it. Connections break
	// while claims wait for replicas: the client sends those claims again.
	ctx, cancel := context.WithCancel(t.Context())
	var rest, nemesis sync.WaitGroup
	rest.Go(func() { c.all(t.Context(), taken, 8) })
	nemesis.Go(func() {
		each(past, len(past), func(k dedupstore.Key) {
			for ctx.Err() == nil {
				a, err := dedupstore.ClaimOne(ctx, c, shortRequest(k))
				if err == nil && a.Status == dedupstore.AcquiredRun {
					c.Does(oncemill.Run{Key: k, Fence: a.Claim.Fence, Attempt: a.Claim.Attempt})
				}
			}
		})
	})
	broken := 0
	nemesis.Go(func() { broken = breakConnections(ctx, trio.Master().Client(), "oncemill") })
	until(t, "claims that are refused", func() bool { return c.replicationRefusals() >= refusals || c.Done() > calls })
	cancel()
	nemesis.Wait()
	if n := c.Done() - calls; n != 0 {
		t.Errorf("%d handlers began on claims that no replica has", n)
	}
	t.Logf("while replication was held: %d claims refused, %d connections broken", c.replicationRefusals(), broken)
	f := kill(t, trio, c)
	if f.records != 0 {
		t.Errorf("the new master has no record of %d runs", f.records)
	}
	if f.outcomes < len(open) {
		t.Errorf("%d outcomes were lost, want at least the %d that were held back", f.outcomes, len(open))
	}
	rest.Wait()

	all := slices.Concat(before, open, taken, past)
	c.all(t.Context(), all, 16)
	c.Balance(int(c.deliveries.Load())).MustExplain(t, ledger.LostRecord)
	again := c.repeats()
	t.Logf("effects after the first, by what their claims found: %v", again)
	if n := again[dedupstore.Absent]; n != 0 {
		t.Errorf("%d extra effects by lost claims", n)
	}
	if n := again[dedupstore.Running]; n > f.outcomes {
		t.Errorf("%d effects for lost outcomes, but %d outcomes were lost", n, f.outcomes)
	}
}

// breakConnections closes the connections of a client by its name, again and again, until the context ends, and returns
// how many.
func breakConnections(ctx context.Context, rdb *redis.Client, name string) (broken int) {
	tick := time.NewTicker(220 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return broken
		case <-tick.C:
		}
		list, err := rdb.ClientList(ctx).Result()
		if err != nil {
			continue
		}
		for _, id := range clientsNamed(list, name) {
			if rdb.ClientKillByFilter(ctx, "ID", id).Err() == nil {
				broken++
			}
		}
	}
}

// clientsNamed finds the IDs of a client's connections in what CLIENT LIST answers.
func clientsNamed(list, name string) (found []string) {
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) > 0 && slices.Contains(fields, "name="+name) {
			found = append(found, strings.TrimPrefix(fields[0], "id="))
		}
	}
	return found
}
