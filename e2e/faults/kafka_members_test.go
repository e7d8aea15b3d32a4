package faults_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/transport/franz"
)

// Full: 12 rounds of members 3, 2, 1, 3 under each order; else one round. Of those that go, one leaves, one is killed, and one is cut off from the
// broker while its handlers run on.
func TestKafka_MembersThatComeAndGoLoseNothingAndRepeatOnlyWhatIsExplained(t *testing.T) {
	t.Parallel()
	for _, order := range full([]franz.Order{franz.PerKey, franz.PerPartition}, []franz.Order{franz.PerKey}) {
		t.Run(string(order), func(t *testing.T) {
			eachKafka(t, func(t *testing.T, k kafka) { comeAndGo(t, k, order, false) })
		})
	}
}

func comeAndGo(t *testing.T, k kafka, order franz.Order, serverSide bool) {
	r := newKafkaRig(t, k, kafkaSetup{
		partitions: 6, rate: 300, lease: 1500 * time.Millisecond, fails: flaky, opts: balancedBy(serverSide),
		config: franz.Config{Order: order, MaxInFlight: 32, CommitEvery: 100 * time.Millisecond},
		work:   func(context.Context, oncemill.Run) { lasts(rand.N(4 * time.Millisecond)) },
	})
	home := r.serve()
	child := kafkaChild{Order: order, Window: 32, Flaky: true, Work: 2 * time.Millisecond, ServerSide: serverSide}
	for range full(12, 1) {
		a, b, c := r.join(patient()), r.join(), r.spawn(home, child)
		r.progress(200)
		r.wantProtocol(serverSide)
		kafkaKill(t, c)
		r.progress(100)
		a.leave()
		r.progress(100)
		d, e := r.join(patient()), r.spawn(home, child)
		r.progress(200)
		b.net.cut() // its handlers run on
		r.progress(100)
		kafkaKill(t, e)
		r.progress(100)
		d.leave()
		b.net.heal() // it is not a member any more, and must not commit as if it were
		b.end()
	}
	r.join()
	b := r.finish()
	b.MustExplain(t, ledger.LostLease, ledger.LostOutcome)
	if b.DeadLetters > 0 {
		t.Errorf("%d dead letters, want none", b.DeadLetters)
	}
}

// kafkaKill ends a process with SIGKILL.
func kafkaKill(t *testing.T, p *testserver.Process) {
	t.Helper()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := p.ExitCode(); code != -1 {
		t.Errorf("the member had ended by itself, with %d", code)
	}
}

// Nobody is killed: every run is settled before its partition is somebody else's, or holds its claim, so that nothing
// happens twice. Full: 12 rounds.
func TestKafka_MembersThatLeaveRepeatNothing(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(t *testing.T, k kafka) { leaveInTurn(t, k, false) })
}

func leaveInTurn(t *testing.T, k kafka, serverSide bool) {
	r := newKafkaRig(t, k, kafkaSetup{
		partitions: 6, rate: 300, lease: 3 * time.Second, fails: flaky, config: franz.Config{Order: franz.PerKey, MaxInFlight: 32},
		opts: append(balancedBy(serverSide), patient()),
		work: func(context.Context, oncemill.Run) { lasts(rand.N(20 * time.Millisecond)) },
	})
	stays := r.join()
	for range full(12, 1) {
		a, b := r.join(), r.join()
		r.progress(100)
		r.wantProtocol(serverSide)
		a.leave()
		r.progress(50)
		b.leave()
		r.progress(50)
	}
	b := r.finish()
	b.MustExplain(t)
	if stays.err != nil {
		t.Errorf("the member that stayed ended with %v", stays.err)
	}
}
