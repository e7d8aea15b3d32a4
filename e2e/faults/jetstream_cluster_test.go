package faults_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// Full: 20,000 messages; 20 SIGKILLs of workers, and two of a server that leads. Reduced, the servers are embedded, which
// step down when they are shut down.
func TestJetStream_ClusterLeaderAndConsumersKilled(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	cluster := newNATSCluster(t)
	s := newShop(t, cluster.URLs(), cluster.JetStream(), jetstream.StreamConfig{Replicas: 3}, lease, task{
		Handler: "unsteady", Work: 50 * time.Millisecond, Lease: lease, MaxWait: lease / 2, Grace: 5 * time.Second,
		Window: 24,
	})
	m := &massacre{shop: s, cluster: cluster, killed: map[int]time.Time{}}
	messages := full(20000, 2000)
	b := m.survives(messages, 500, full(20, 4), full(2, 1))
	b.MustExplain(t, ledger.HandlerFailed, ledger.HolderKilled, ledger.LostLease)
	if refused := messages / 200; b.DeadLetters < refused || b.DeadLetters > refused+messages/100 {
		t.Errorf("%d dead letters, want %d for messages that were refused, and few more", b.DeadLetters, refused)
	}
	s.mustHaveGivenUpNothing()
	m.checkRecovery(lease + full(2*time.Second, 8*time.Second)) // reduced, others use the machine
}

func newNATSCluster(t *testing.T) *natstest.Cluster {
	t.Helper()
	if !proof {
		return natstest.StartCluster(t, 3)
	}
	program := testserver.BuildProgram(t, "github.com/nats-io/nats-server/v2")
	return natstest.StartClusterOfProcesses(t, 3, program)
}

// A massacre is what was killed.
type massacre struct {
	*shop
	cluster *natstest.Cluster
	alive   []workerProcess
	killed  map[int]time.Time // workers by process ID
	outages []outage          // of a leader
}

// An outage is a time in which nobody led the stream or the consumer.
type outage struct{ from, to time.Time }

// survives offers messages at a rate to three workers. It kills workers and leaders meanwhile, and closes the books
// when all is handled.
func (m *massacre) survives(messages, rate, workers, leaders int) ledger.Books {
	m.t.Helper()
	for range 3 {
		m.alive = append(m.alive, m.start())
	}
	var offering sync.WaitGroup
	ctx, cancel := context.WithCancel(m.t.Context())
	defer offering.Wait()
	defer cancel()
	offering.Go(func() { m.offer(ctx, messages, rate) })
	m.kill(workers, leaders, messages)
	offering.Wait()
	deliveries := m.drain()
	m.terminate(m.alive...)
	return m.books(messages, deliveries)
}

// kill kills workers at random moments, and leaders while they are at it.
func (m *massacre) kill(workers, leaders, messages int) {
	m.t.Helper()
	each := messages * 9 / 10 / workers // effects for one kill
	for i := range workers {
		target := i*each + each/2 + rand.N(each/2)
		until(m.t, fmt.Sprintf("%d effects", target), func() bool { return m.done() >= target })
		if (i+1)*(leaders+1)/(workers+1) > i*(leaders+1)/(workers+1) {
			m.killLeader()
			continue
		}
		m.killWorker()
	}
}

// killWorker kills any of the workers.
func (m *massacre) killWorker() {
	m.t.Helper()
	m.replaceWorker(rand.IntN(len(m.alive)), m.start)
}

// replaceWorker kills one of the workers, and starts another one in its place.
func (m *massacre) replaceWorker(i int, start func() workerProcess) {
	m.t.Helper()
	w := m.alive[i]
	select {
	case <-w.Ended():
		m.t.Fatalf("a worker ended by itself, with code %d\n%s", w.ExitCode(), w.output())
	default:
	}
	kill := ledger.Event{Why: ledger.HolderKilled, Holder: w.Pid(), From: time.Now()}
	m.killed[w.Pid()] = kill.From
	if err := w.Kill(); err != nil {
		m.t.Fatal(err)
	}
	kill.To = time.Now()
	m.Happened(kill)
	m.alive[i] = start()
}

// killLeader kills the node that leads the stream, and a worker before another one leads. The node comes back.
func (m *massacre) killLeader() {
	m.t.Helper()
	for _, stream := range []string{ordersStream, lettersStream} {
		m.cluster.AwaitCurrent(stream)
	}
	o := outage{from: time.Now()}
	node := m.cluster.KillLeader(ordersStream)
	m.killWorker()
	m.cluster.StreamLeader(ordersStream)
	until(m.t, "a leader of the consumer", func() bool {
		info, err := m.info()
		return err == nil && info.Cluster != nil && info.Cluster.Leader != ""
	})
	o.to = time.Now()
	m.outages = append(m.outages, o)
	m.t.Logf("the leader was killed; another one was there after %v", o.to.Sub(o.from))
	m.cluster.Restart(node)
}

// checkRecovery looks at the runs that the killed workers did not end: how long after the kill each was taken over.
func (m *massacre) checkRecovery(bound time.Duration) {
	m.t.Helper()
	var all []time.Duration
	unaffected, settled := time.Duration(0), 0
	for e := range m.Runs {
		at, ok := m.killed[e.PID]
		if !ok || e.End != "" {
			continue
		}
		runs := m.Message(e.ID).Runs
		i := slices.IndexFunc(runs, func(r ledger.Run) bool { return r.Fence > e.Fence })
		if i < 0 {
			settled++ // and the journal did not get to note it
			if !m.finished(e.ID) {
				m.t.Errorf("%s was never taken over", e.ID)
			}
			continue
		}
		took := runs[i].Granted.Sub(at)
		all = append(all, took)
		led := m.leaderless(at, runs[i].Granted)
		if led == 0 {
			unaffected = max(unaffected, took)
		}
		if took > bound+led {
			m.t.Errorf("%s was taken over %v after its process was killed, want at most %v + %v without a leader", e.ID, took, bound, led)
		}
	}
	slices.SortFunc(all, cmp.Compare)
	if len(all) == 0 {
		m.t.Error("no worker was killed during a run")
		return
	}
	m.t.Logf("%d kills of workers, %d of leaders: %d runs were cut off and taken over, after %v (median), %v (maximum; %v beside outages of a leader); %d had stored their outcome",
		len(m.killed), len(m.outages), len(all), all[len(all)/2], all[len(all)-1], unaffected, settled)
}

// leaderless is how long nobody led, if that was within two instants.
func (m *massacre) leaderless(from, to time.Time) (d time.Duration) {
	for _, o := range m.outages {
		if o.from.Before(to) && from.Before(o.to) {
			d += o.to.Sub(o.from)
		}
	}
	return d
}
