package faults_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/transport/franz"
)

// Of the replies to commits, a third never comes and a third says that the commit failed, although the broker has the
// offsets. Full: 20,000 messages.
func TestKafka_CommitsThatAreAppliedButReportedAsFailedLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(t *testing.T, k kafka) {
		r := newKafkaRig(t, k, kafkaSetup{fails: flaky, config: franz.Config{Order: franz.PerKey, CommitEvery: 20 * time.Millisecond}})
		m := r.join()
		m.net.falsify(func() commitReply {
			switch rand.N(3) {
			case 0:
				return commitReply{cut: true}
			case 1:
				return commitReply{code: kerr.RequestTimedOut.Code}
			}
			return commitReply{}
		})
		for range 10 {
			r.produce(t.Context(), full(2000, 100))
			r.progress(1)
		}
		r.drain()
		until(t, "replies to be falsified", func() bool {
			if m.net.lied.Load() >= 3 {
				return true
			}
			r.produce(t.Context(), 10) // there is nothing left to commit
			r.drain()
			return false
		})
		m.leave()
		r.finish().MustExplain(t)
		t.Logf("%d replies to commits were falsified", m.net.lied.Load())
	})
}

// Commits that fail are made up for: here the first five are refused before the broker does anything.
func TestKafka_CommitsThatAreRefusedAreMadeUpFor(t *testing.T) {
	t.Parallel()
	k := fakeKafka(t)
	r := newKafkaRig(t, k, kafkaSetup{config: franz.Config{CommitEvery: 20 * time.Millisecond}})
	refusals := k.fake.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: r.group, Err: kerr.UnknownServerError, Count: 5,
	})
	m := r.join()
	r.produce(t.Context(), 500)
	r.drain()
	m.leave()
	r.finish().MustExplain(t)
	if n := refusals.Hits(); n != 5 {
		t.Errorf("%d commits were refused, want 5", n)
	}
}

// Full: 20,000 messages.
func TestKafka_OffsetsSetBackToZeroRunNothingAgain(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(t *testing.T, k kafka) {
		r := newKafkaRig(t, k, kafkaSetup{config: franz.Config{Order: franz.PerKey}})
		m := r.join()
		r.produce(t.Context(), full(20_000, 500))
		r.drain()
		m.leave()
		before := r.Sum()
		r.rewind()
		r.join()
		r.drain()
		after := r.Sum()
		if after.Runs != before.Runs || after.Effects != before.Effects {
			t.Errorf("runs grew from %d to %d, effects from %d to %d", before.Runs, after.Runs, before.Effects, after.Effects)
		}
		if again := after.Claims - before.Claims; again < r.produced() {
			t.Errorf("%d claims after the rewind, want one for each of %d records", again, r.produced())
		}
		r.finish().MustExplain(t)
	})
}

// rewind sets the offsets of the group, which has no members, back to the beginning.
func (r *kafkaRig) rewind() {
	r.t.Helper()
	var zero kadm.Offsets
	for p := range r.partitions {
		zero.Add(kadm.Offset{Topic: r.topic, Partition: int32(p), At: 0, LeaderEpoch: -1})
	}
	until(r.t, "the offsets to be set back", func() bool { // a member that has just left may still be known
		set, err := r.adm.CommitOffsets(r.t.Context(), r.group, zero)
		return err == nil && set.Error() == nil
	})
}
