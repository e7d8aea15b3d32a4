package faults_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// Full: 20,000 messages, 8 relays, 100 SIGKILLs and 100 SIGSTOPs, half of them longer than a lease.
func TestOutbox_RelaysKilledAndStoppedLoseNothingAndRepeatOnlyWhatIsExplained(t *testing.T) {
	t.Parallel()
	for name, ordered := range map[string]bool{"unordered": false, "ordered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := postgrestest.Shared(t).NewDatabase(t)
			broker := natstest.Start(t)
			m := newMint(t, db.DSN(), []string{broker.URL()}, broker.JetStream(), jetstream.StreamConfig{}, ordered, shortLease())
			m.task.Linger = 50 * time.Millisecond
			c := &chaos{mint: m, alive: m.startAll(full(8, 4))}
			ctx, cancel := context.WithCancel(t.Context())
			var selling sync.WaitGroup
			defer selling.Wait()
			defer cancel()
			selling.Go(func() { m.sell(ctx, full(20_000, 600), 4, full(10*time.Millisecond, 20*time.Millisecond)) })
			c.rage(full(200, 12))
			selling.Wait()
			c.resume(time.Now().Add(time.Hour))
			took := m.drain()
			b := m.finish(c.alive...)
			b.MustExplain(t, ledger.RelayKilled, ledger.LeaseStopped, ledger.LeaseSlow, ledger.AnswerUnknown)
			t.Logf("%d relays killed, %d stopped; the outbox was empty %v after the last", c.kills, c.stops, took)
			if len(m.rolledBack) == 0 || proof && (b.Extra[ledger.RelayKilled] == 0 || b.Extra[ledger.LeaseStopped] == 0) {
				t.Error("nothing was rolled back, or no kill or no stop came at a moment that matters")
			}
		})
	}
}

// A chaos is what is done to relays.
type chaos struct {
	*mint
	alive   []relayProcess
	resumes map[int]time.Time // when those that are stopped go on, by relay
	stopped map[int]time.Time // when they were, by relay
	kills   int
	stops   int
}

// rage kills and stops relays at random moments. Half of the stops are longer than a lease.
func (c *chaos) rage(events int) {
	c.t.Helper()
	c.resumes, c.stopped = map[int]time.Time{}, map[int]time.Time{}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	next := time.Now()
	for done := 0; done < events; {
		now := <-tick.C
		c.resume(now)
		if now.Before(next) {
			continue
		}
		next = now.Add(rand.N(400 * time.Millisecond))
		i := rand.IntN(len(c.alive))
		if done%2 == 0 {
			c.kill(i)
		} else if !c.stop(i, rand.N(2*c.task.Config.Lease)) {
			continue
		}
		done++
	}
}

// kill kills a relay, stopped or not, and starts another one.
func (c *chaos) kill(i int) {
	c.t.Helper()
	r := c.alive[i]
	select {
	case <-r.Ended():
		c.t.Fatalf("a relay ended by itself, with code %d\n%s", r.ExitCode(), r.says(0))
	default:
	}
	kill := ledger.Event{Why: ledger.RelayKilled, Holder: r.relay, From: time.Now()}
	c.fatal(r.Kill())
	kill.To = time.Now()
	c.Happened(kill)
	c.kills++
	c.goOn(r)
	c.alive[i] = c.start()
}

// stop stops a relay, unless it is.
func (c *chaos) stop(i int, d time.Duration) bool {
	c.t.Helper()
	r := c.alive[i]
	if _, stopped := c.resumes[r.relay]; stopped {
		return false
	}
	now := time.Now()
	c.fatal(r.Pause())
	c.stops++
	c.stopped[r.relay], c.resumes[r.relay] = now, now.Add(d)
	return true
}

// resume lets relays go on whose time has come.
func (c *chaos) resume(now time.Time) {
	c.t.Helper()
	for _, r := range c.alive {
		if at, stopped := c.resumes[r.relay]; stopped && !now.Before(at) {
			c.fatal(r.Resume())
			c.goOn(r)
		}
	}
}

// goOn notes that a relay is stopped no more.
func (c *chaos) goOn(r relayProcess) {
	if _, stopped := c.resumes[r.relay]; stopped {
		delete(c.resumes, r.relay)
		c.Happened(ledger.Event{Why: ledger.LeaseStopped, Holder: r.relay, From: c.stopped[r.relay], To: time.Now()})
	}
}
