package faults_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/transport/franz"
)

// staticSession is how long a static member may be away: much longer than these tests leave it.
const staticSession = time.Minute

// staticSetup is a rig for static members.
func staticSetup(lease time.Duration) kafkaSetup {
	return kafkaSetup{
		partitions: 6, rate: 300, lease: lease, fails: flaky,
		config: franz.Config{Order: franz.PerKey, MaxInFlight: 32, CommitEvery: 100 * time.Millisecond},
		opts:   []kgo.Opt{kgo.SessionTimeout(staticSession)},
		work:   func(context.Context, oncemill.Run) { lasts(rand.N(4 * time.Millisecond)) },
	}
}

// sharedKafka is the broker that the real tests share.
func sharedKafka(t *testing.T) kafka { return kafka{addr: kafkatest.Shared(t).Addr} }

// A deployment stops one member after the other and starts it again. The others keep their partitions, and nothing runs
// twice. The group is not rebalanced, unless the member is the group's leader, which came first. Then kgo asks for a
// rebalance, in which everybody keeps what it has. kfake rebalances always. Full: 6 deployments.
func TestKafka_StaticMembersThatAreRestartedKeepTheirPartitionsWithoutARebalance(t *testing.T) {
	t.Parallel()
	r := newKafkaRig(t, sharedKafka(t), staticSetup(10*time.Second))
	leader := r.joinAs("pod-0")
	r.seated(1)
	follower := r.joinAs("pod-1")
	before := r.seated(2)
	now := generation(t, leader, follower)
	restart := func(name string, m *kafkaMember) *kafkaMember {
		r.progress(50)
		was := r.seats()[name]
		m.leave()
		r.progress(50) // by the other
		r.wantPartitions(before)
		m = r.joinAs(name)
		r.takesOver(name, was)
		return m
	}
	for range full(6, 1) {
		follower = restart("pod-1", follower)
		r.wantPartitions(before)
		if after := generation(t, leader, follower); after != now {
			t.Errorf("the group was rebalanced: generation %d, want %d still", after, now)
		}
		leader = restart("pod-0", leader)
		after := generation(t, leader, follower)
		if after > now+1 {
			t.Errorf("the group was rebalanced more than once: generation %d after %d", after, now)
		}
		r.seated(2)
		r.wantPartitions(before)
		now = after
	}
	r.finish().MustExplain(t)
}

// wantPartitions checks that each member has the partitions that it had.
func (r *kafkaRig) wantPartitions(before map[string]seat) {
	r.t.Helper()
	partitions := func(seats map[string]seat) map[string]string {
		by := map[string]string{}
		for name, s := range seats {
			by[name] = s.partitions
		}
		return by
	}
	if diff := cmp.Diff(partitions(before), partitions(r.seats())); diff != "" {
		r.t.Errorf("partitions of members (-want +got):\n%s", diff)
	}
}

// A static member is killed and comes back within the session timeout. Full: 8 kills.
func TestKafka_StaticMemberThatIsKilledKeepsItsPartitionsWithoutARebalance(t *testing.T) {
	t.Parallel()
	r := newKafkaRig(t, sharedKafka(t), staticSetup(1500*time.Millisecond))
	home := r.serve()
	child := kafkaChild{Order: franz.PerKey, Window: 32, Instance: "pod-1", Session: staticSession, Flaky: true, Work: 2 * time.Millisecond}
	stays := r.joinAs("pod-0")
	r.seated(1)
	dies := r.spawn(home, child)
	before := r.seated(2)
	first := generation(t, stays)
	for range full(8, 1) {
		r.progress(100)
		was := r.seats()["pod-1"]
		kafkaKill(t, dies)
		r.progress(50)
		r.wantPartitions(before)
		dies = r.spawn(home, child)
		r.takesOver("pod-1", was)
		r.wantPartitions(before)
	}
	if now := generation(t, stays); now != first {
		t.Errorf("the group was rebalanced: generation %d, want %d still", now, first)
	}
	r.finish().MustExplain(t, ledger.LostLease, ledger.LostOutcome)
}

// Two members have one instance ID. The one that came first ends with an error that says so, whether it works or is cut
// off when the other comes. It commits nothing over the other's commits. Full: with kfake, too.
func TestKafka_StaticMemberIsFencedByAnotherWithItsInstanceID(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]bool{"while it works": false, "while it is cut off": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each := full(eachKafka, func(t *testing.T, test func(*testing.T, kafka)) { test(t, sharedKafka(t)) })
			each(t, func(t *testing.T, k kafka) { fenced(t, k, cut) })
		})
	}
}

func fenced(t *testing.T, k kafka, cut bool) {
	r := newKafkaRig(t, k, staticSetup(10*time.Second))
	first, other := r.joinAs("pod-1"), r.joinAs("pod-0")
	was := r.seated(2)["pod-1"]
	r.progress(100)
	if cut {
		first.net.cut() // its handlers run on
		r.progress(50)
	}
	second := r.joinAs("pod-1")
	r.takesOver("pod-1", was)
	taken := r.commits()
	if cut {
		first.net.heal() // it must not commit as if nothing had happened
	}
	until(t, "the end of the first", func() bool {
		r.wantForward(was, taken)
		return len(r.gone()) > 0
	})
	r.progress(200) // by the second, for the first to come back if it did
	r.wantForward(was, taken)
	var setup *dedupstore.SetupError
	if err := first.err; !errors.As(err, &setup) || !errors.Is(err, kerr.FencedInstanceID) || !strings.Contains(err.Error(), "another member uses the same instance ID: give each its own") {
		t.Errorf("Run of the first ended with %v, want a SetupError that says why", err)
	}
	for _, m := range []*kafkaMember{second, other} {
		select {
		case <-m.done:
			t.Errorf("another member ended with %v", m.err)
		default:
		}
	}
	if now := r.seats()["pod-1"].member; now != "" {
		if id, _ := second.cl.GroupMetadata(); id != now {
			t.Errorf("the instance ID is with member %s, want the second, %s", now, id)
		}
	}
	r.finish().MustExplain(t)
}

// wantForward checks that no offset goes back, and that who has lost its seat commits nothing.
func (r *kafkaRig) wantForward(lost seat, last map[int32]kadm.Offset) {
	r.t.Helper()
	for p, now := range r.commits() {
		if now.At < last[p].At {
			r.t.Errorf("partition %d: offset %d was committed after %d", p, now.At, last[p].At)
		}
		if now.Metadata == lost.member {
			r.t.Errorf("partition %d: offset %d was committed by the member that had lost it", p, now.At)
		}
		last[p] = now
	}
}
