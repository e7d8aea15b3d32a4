package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// Full: 20,000 messages with 4,000 copies for each store, and 20 SIGKILLs. Two processes of each version work side by
// side: the older one is the program that ONCEMILL_TEST_OLDER names, this test's as it was at an earlier commit.
func TestUpgrade_TwoVersionsShareTheirRecords(t *testing.T) {
	older := os.Getenv("ONCEMILL_TEST_OLDER")
	if older == "" {
		t.Skip("ONCEMILL_TEST_OLDER names no program of an earlier commit: scripts/proof upgrade builds one")
	}
	const lease = 2 * time.Second
	j := upgradeTask{task: task{
		Handler: "unsteady", Work: 10 * time.Millisecond, Lease: lease, MaxWait: lease / 2, Grace: 5 * time.Second,
		Window: 24,
	}}
	t.Run("Redis", func(t *testing.T) {
		j := j
		j.Store = "redis://" + redistest.Start(t, "--appendonly", "yes").Addr
		upgrades(t, older, j, 400)
	})
	for name, inbox := range map[string]bool{"leases": false, "inbox": true} {
		j := j
		j.Inbox = inbox
		t.Run("PostgreSQL, "+name, func(t *testing.T) {
			j := j
			j.Store = postgrestest.Start(t, "max_connections=200").DSN()
			upgrades(t, older, j, 400)
		})
		t.Run("SQLite, "+name, func(t *testing.T) {
			j := j
			j.Store, j.Work = filepath.Join(t.TempDir(), "records.db"), time.Millisecond // only one writes at a time
			upgrades(t, older, j, 200)
		})
	}
}

// An upgrade is a shop whose processes are of two versions.
type upgrade struct {
	*massacre
	work     upgradeTask
	programs [2]string   // the older one, and this
	version  map[int]int // of a process, by its ID
	db       *database
}

// upgrades has two versions handle messages that come at a rate.
func upgrades(t *testing.T, older string, j upgradeTask, rate int) {
	server := natstest.Start(t)
	db, err := j.open(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	s := newShopOn(t, db.Store, []string{server.URL()}, server.JetStream(), jetstream.StreamConfig{}, j.Lease, j.task)
	u := &upgrade{
		massacre: &massacre{shop: s, killed: map[int]time.Time{}}, work: j,
		programs: [2]string{older, executable(t)}, version: map[int]int{}, db: db,
	}
	for version := range u.programs { // the older one first, as it was there first
		u.migrate(version)
	}
	for i := range 4 {
		u.alive = append(u.alive, u.start(i%2))
	}
	messages, kills := full(20_000, 2000), full(20, 4)
	offered := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); <-offered }()
	go func() {
		defer close(offered)
		s.offer(ctx, messages, rate)
	}()
	for n := range kills {
		target := int64(messages * (n + 1) / (kills + 1))
		u.await(fmt.Sprintf("message %d to be published", target), func() bool { return s.messages.Load() >= target })
		i := rand.IntN(len(u.alive))
		u.replaceWorker(i, func() workerProcess { return u.start(i % 2) })
	}
	<-offered
	deliveries := s.drain()
	s.terminate(u.alive...)
	if j.Inbox {
		u.readInbox()
		u.books(messages, deliveries).MustExplain(t)
	} else {
		u.books(messages, deliveries).MustExplain(t, ledger.HandlerFailed, ledger.HolderKilled, ledger.LostLease)
		u.countTakeovers()
	}
	s.mustHaveGivenUpNothing()
}

func (u *upgrade) start(version int) workerProcess {
	u.t.Helper()
	p := u.startProgram(u.programs[version], func(j task) []string {
		work := u.work
		work.task = j
		return work.arguments(u.t)
	})
	u.version[p.Pid()] = version
	return p
}

func (u *upgrade) migrate(version int) {
	u.t.Helper()
	u.work.Migrate = true
	p := u.start(version)
	u.work.Migrate = false
	select {
	case <-p.Ended():
	case <-time.After(waitLimit):
		u.t.Fatalf("the migration has not ended after %v", waitLimit)
	}
	if code := p.ExitCode(); code != 0 {
		u.t.Fatalf("the migration ended with code %d\n%s", code, p.output())
	}
}

// countTakeovers wants each version to have continued what a process of the other one began.
func (u *upgrade) countTakeovers() {
	u.t.Helper()
	var runs, takeovers [2]int
	for _, a := range u.Messages() {
		for i, r := range a.Runs {
			version := u.version[r.PID]
			runs[version]++
			if i > 0 && u.version[a.Runs[i-1].PID] != version {
				takeovers[version]++
			}
		}
	}
	u.t.Logf("runs by the older version and by this: %d, continued from the other: %d", runs, takeovers)
	if takeovers[0] == 0 || takeovers[1] == 0 {
		u.t.Error("one version continued nothing of the other")
	}
}

// readInbox tells the ledger which effects are in the database: each message wants one, or a dead letter.
func (u *upgrade) readInbox() {
	u.t.Helper()
	effects, err := u.db.effects(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	var by [2]int
	for id, did := range effects {
		for _, pid := range did {
			by[u.version[pid]]++
			u.Found(id, fmt.Sprint("by process ", pid))
		}
	}
	u.t.Logf("effects by the older version and by this: %d", by)
	if by[0] == 0 || by[1] == 0 {
		u.t.Error("one version did nothing")
	}
}
