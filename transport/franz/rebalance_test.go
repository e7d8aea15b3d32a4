package franz_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

// stable waits until all partitions of orders have an owner among n members.
func (b *bench) stable(n, partitions int) {
	b.t.Helper()
	until(b.t, fmt.Sprintf("a group of %d", n), func() bool {
		g := b.cluster.GroupInfo(group)
		return g != nil && g.State == "Stable" && len(g.Members) == n && g.NumAssigned() == partitions
	})
}

func TestWorker_MembersComeAndGoAndNothingThatFinishedRunsAgain(t *testing.T) {
	t.Parallel()
	const partitions = 6
	n := full(6000, 900)
	b := newBench(t, partitions)
	b.produce(0, n, partitions, 10)
	slow := func(context.Context, string, int) error {
		lasts(2 * time.Millisecond)
		return nil
	}
	newMember := func() *member {
		return b.start(b.processor(consumer.Config{}), b.handler(byPartition, slow), franz.Config{})
	}
	progress := func(part int) {
		t.Helper()
		until(t, "progress", func() bool { return b.finished() >= n*part/8 })
	}
	first, second, third := newMember(), newMember(), newMember()
	b.stable(3, partitions)
	progress(2)
	third.leave()
	b.stable(2, partitions)
	progress(4)
	second.leave()
	b.stable(1, partitions)
	progress(6)
	second, third = newMember(), newMember()
	b.stable(3, partitions)
	until(t, "all records", func() bool { return b.finished() == n })
	first.leave()
	second.leave()
	third.leave()
	b.wantOnce(t, n)
	b.wantOrder(t)
	if runs := b.started(); runs != n {
		t.Errorf("%d runs of %d records", runs, n)
	}
	want := map[int32]int64{}
	for p := range int32(partitions) {
		want[p] = int64(n / partitions)
	}
	if diff := cmp.Diff(want, b.committed("orders")); diff != "" {
		t.Errorf("committed (-want +got):\n%s", diff)
	}
}

func TestWorker_RevocationCancelsHandlersThatTakeTooLongAndDoesNotCommitThem(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	b.produce(0, 2, 2, 0)
	var cancelled atomic.Int32
	var cause atomic.Value
	once := b.processor(consumer.Config{})
	stuck := b.handler(byPartition, func(ctx context.Context, _ string, _ int) error {
		<-ctx.Done()
		cancelled.Add(1)
		cause.Store(context.Cause(ctx).Error())
		return ctx.Err()
	})
	const timeout = 5 * time.Second
	config := franz.Config{Grace: 100 * time.Millisecond}
	b.start(once, stuck, config, kgo.RebalanceTimeout(timeout))
	until(t, "both handlers", func() bool { return b.started() == 2 })
	began := time.Now()
	var second atomic.Int32
	other := b.start(once, func(context.Context, *kgo.Record) error {
		second.Add(1)
		return nil
	}, config, kgo.RebalanceTimeout(timeout))
	until(t, "the new owner to do it", func() bool { return second.Load() == 1 })
	if took := time.Since(began); took < timeout/2 {
		t.Errorf("the partition was handed over after %v, want its handler to have half of %v", took, timeout)
	}
	if got := cancelled.Load(); got != 1 {
		t.Errorf("%d handlers were cancelled, want only that of the revoked partition", got)
	}
	t.Log("cause:", cause.Load())
	other.leave()
	total := int64(0)
	for _, offset := range b.committed("orders") {
		total += max(offset, 0)
	}
	if total != 1 {
		t.Errorf("%d records are committed, want the one that was done", total)
	}
}

func TestWorker_RevocationDropsRecordsThatWait(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	b.produce(0, 2, 2, 0)
	once := b.processor(consumer.Config{MaxWait: time.Minute})
	later := b.handler(byPartition, func(context.Context, string, int) error {
		return oncemill.RetryAfter(10*time.Minute, errors.New("the bank is closed"))
	})
	first := b.start(once, later, franz.Config{})
	until(t, "both runs", func() bool { return b.started() == 2 })
	began := time.Now()
	second := b.start(once, later, franz.Config{})
	b.stable(2, 2)
	if took := time.Since(began); took > waitLimit/6 {
		t.Errorf("handing over took %v", took)
	}
	// The new owner is held inside the guard now: that must not hold up the next rebalance either.
	first.leave()
	b.stable(1, 2)
	began = time.Now()
	second.leave()
	if took := time.Since(began); took > waitLimit/6 {
		t.Errorf("leaving took %v", took)
	}
	if runs := b.started(); runs != 2 {
		t.Errorf("%d runs, want 2: none was due", runs)
	}
}

func TestWorker_PartitionsThatStayKeepRunning(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	b.produce(0, 2, 2, 0)
	var interrupted atomic.Int32
	release := make(chan struct{})
	handle := b.handler(byPartition, func(ctx context.Context, _ string, _ int) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			interrupted.Add(1)
			return ctx.Err()
		}
	})
	config := franz.Config{Grace: 100 * time.Millisecond}
	first := b.start(b.processor(consumer.Config{}), handle, config, kgo.RebalanceTimeout(4*time.Second))
	until(t, "both handlers", func() bool { return b.started() == 2 })
	second := b.start(b.processor(consumer.Config{}), handle, config, kgo.RebalanceTimeout(4*time.Second))
	until(t, "the new owner's handler", func() bool { return b.started() == 3 })
	b.stable(2, 2)
	close(release)
	until(t, "both records", func() bool { return b.finished() == 2 })
	if n := interrupted.Load(); n != 1 {
		t.Errorf("%d handlers were interrupted, want that of the partition that went", n)
	}
	first.leave()
	second.leave()
	b.wantOnce(t, 2)
}

// Members 1, 2, 1: while one partition goes and comes back, the handler of the other runs on. With the balancer that Opts
// sets, and with the broker's.
func TestWorker_HandlersOfPartitionsThatStayOutliveRebalances(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]kgo.Opt{"cooperative": nil, "server-side": {kgo.ServerSideBalancer()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2, quickServerSide)
			b.produce(0, 2, 2, 0)
			reports := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ConsumerGroupHeartbeat}, Observe: true, Count: -1})
			release := make(chan struct{})
			var mu sync.Mutex
			interrupted := map[string]int{}
			handle := b.handler(byPartition, func(ctx context.Context, id string, _ int) error {
				select {
				case <-release:
					return nil
				case <-ctx.Done():
					mu.Lock()
					defer mu.Unlock()
					interrupted[id]++
					return ctx.Err()
				}
			})
			once := b.processor(consumer.Config{})
			config := franz.Config{Grace: 100 * time.Millisecond}
			opts := append(opts, kgo.RebalanceTimeout(6*time.Second))
			first := b.start(once, handle, config, opts...)
			until(t, "both handlers", func() bool { return b.started() == 2 })
			for range full(4, 2) { // a record may be interrupted as often as the policy has attempts
				runs := b.started()
				second := b.start(once, handle, config, opts...)
				until(t, "the handler of the new owner", func() bool { return b.started() == runs+1 })
				b.stable(2, 2)
				second.leave()
				until(t, "the handler of the partition that is back", func() bool { return b.started() == runs+2 })
				b.stable(1, 2)
			}
			stays, goes := orderID(0), orderID(1)
			if b.runsOf(stays) > b.runsOf(goes) {
				stays, goes = goes, stays
			}
			mu.Lock()
			if interrupted[stays] > 0 || b.runsOf(stays) != 1 {
				t.Errorf("the partition that stayed had %d runs, %d interrupted, want one that goes on; the other %d", b.runsOf(stays), interrupted[stays], b.runsOf(goes))
			}
			mu.Unlock()
			close(release)
			until(t, "both records", func() bool { return b.finished() == 2 })
			first.leave()
			b.wantOnce(t, 2)
			if serverSide := reports.Hits() > 0; serverSide != (name == "server-side") {
				t.Errorf("members of the new kind: %v", serverSide)
			}
		})
	}
}

// quickServerSide makes a fake cluster ask for a report of members of the new kind every 50 ms.
var quickServerSide = kfake.BrokerConfigs(map[string]string{"group.consumer.heartbeat.interval.ms": "50", "group.initial.rebalance.delay.ms": "0"})

// A broker that does not know the new kind of group gets members of the old kind.
func TestWorker_ServerSideBalancerIsNotNeededAtTheBroker(t *testing.T) {
	t.Parallel()
	const n = 100
	b := newBench(t, 2)
	b.produce(0, n, 2, 0)
	refusals := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ConsumerGroupHeartbeat}, Err: kerr.UnsupportedVersion, Count: -1})
	var joins atomic.Int32
	b.cluster.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		joins.Add(1)
		return nil, nil, false
	})
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{}, kgo.ServerSideBalancer())
	until(t, "all records", func() bool { return b.finished() == n })
	m.leave()
	b.wantOnce(t, n)
	if refusals.Hits() == 0 || joins.Load() == 0 {
		t.Errorf("%d attempts were refused and %d made by the classic protocol, want both", refusals.Hits(), joins.Load())
	}
}

func TestWorker_LostPartitionsAreCancelledAndNotCommitted(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 3, 1, 0)
	var commits atomic.Int32
	b.cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		commits.Add(1)
		return nil, nil, false
	})
	interrupted := make(chan error, 1)
	handle := b.handler(byPartition, func(ctx context.Context, id string, run int) error {
		if id != orderID(1) || run > 1 {
			return nil
		}
		<-ctx.Done()
		interrupted <- context.Cause(ctx)
		return ctx.Err()
	})
	m := b.start(b.processor(consumer.Config{}), handle, franz.Config{CommitEvery: time.Hour})
	until(t, "the second record", func() bool { return b.runsOf(orderID(1)) == 1 })
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, Err: kerr.UnknownMemberID})
	select {
	case err := <-interrupted:
		t.Log("cause:", err)
	case <-time.After(waitLimit):
		t.Fatal("the handler of a lost partition was not cancelled")
	}
	if n := commits.Load(); n != 0 {
		t.Errorf("%d commits by a member that was put out", n)
	}
	until(t, "all records after joining again", func() bool { return b.finished() == 3 })
	m.leave()
	b.wantOnce(t, 3)
	if runs := b.runsOf(orderID(0)); runs != 1 {
		t.Errorf("the record that was done before ran %d times", runs)
	}
}

func TestWorker_CommitsThatAreAppliedButReportedFailedDoNoHarm(t *testing.T) {
	t.Parallel()
	const n = 300
	b := newBench(t, 3)
	var last atomic.Int64
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Observe: true, Count: -1, When: func(r kmsg.Request) bool {
		req := r.(*kmsg.OffsetCommitRequest)
		for _, topic := range req.Topics {
			for _, p := range topic.Partitions {
				if p.Partition == 0 {
					if before := last.Swap(p.Offset); before > p.Offset {
						t.Errorf("offset %d was committed after %d", p.Offset, before)
					}
				}
				if p.LeaderEpoch < 0 {
					t.Errorf("offset %d was committed without a leader epoch", p.Offset)
				}
			}
		}
		return true
	}})
	faults := b.cluster.Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: kerr.RequestTimedOut, Count: 3},           // applied
		kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: kerr.CoordinatorLoadInProgress, Count: 3}, // not applied
		kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: kerr.UnknownServerError, Count: 3},
	)
	b.produce(0, n, 3, 0)
	slow := func(context.Context, string, int) error {
		lasts(5 * time.Millisecond)
		return nil
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, slow), franz.Config{})
	until(t, "all records", func() bool { return b.finished() == n })
	until(t, "all faults", func() bool { return faults.Hits() == 9 })
	m.leave()
	b.wantOnce(t, n)
	if diff := cmp.Diff(map[int32]int64{0: n / 3, 1: n / 3, 2: n / 3}, b.committed("orders")); diff != "" {
		t.Errorf("committed (-want +got):\n%s", diff)
	}
}

func TestWorker_LastCommitIsRepeatedUntilItIsConfirmed(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 10, 1, 0)
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{CommitEvery: time.Hour})
	until(t, "all records", func() bool { return b.finished() == 10 })
	faults := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: kerr.UnknownServerError, Count: 3})
	m.leave()
	if faults.Hits() != 3 {
		t.Errorf("the commit met %d faults, want 3", faults.Hits())
	}
	if got := b.committed("orders")[0]; got != 10 {
		t.Errorf("committed %d, want 10", got)
	}
}

// What a rebalance takes in the drain before it is confirmed is not confirmed by the rest.
func TestWorker_WhatIsRevokedUnconfirmedInTheDrainIsSaid(t *testing.T) {
	t.Parallel()
	const n = 40
	b := newBench(t, 2)
	b.produce(0, n, 2, 0)
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{CommitEvery: time.Hour})
	until(t, "all records", func() bool { return b.finished() == n })
	var mended atomic.Bool
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: kerr.UnknownServerError, Count: -1, When: func(kmsg.Request) bool { return !mended.Load() }})
	m.stop()
	b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), franz.Config{CommitEvery: time.Hour})
	b.stable(2, 2)
	mended.Store(true)
	wantUnconfirmed(t, m.wait())
	m.cl.CloseAllowingRebalance()
	committed := 0
	for _, offset := range b.committed("orders") {
		if offset == n/2 {
			committed++
		}
	}
	if committed != 1 {
		t.Errorf("offsets %v, want those of the partition that stayed", b.committed("orders"))
	}
}

func TestWorker_RevocationCommitsWhatIsSettled(t *testing.T) {
	t.Parallel()
	const n = 40
	b := newBench(t, 2)
	b.produce(0, n, 2, 0)
	config := franz.Config{CommitEvery: time.Hour}
	handle := b.handler(byPartition, nil)
	var offers atomic.Int32
	counted := func(ctx context.Context, rec *kgo.Record) error {
		offers.Add(1)
		return handle(ctx, rec)
	}
	b.start(b.processor(consumer.Config{}), counted, config)
	until(t, "all records", func() bool { return b.finished() == n })
	b.start(b.processor(consumer.Config{}), counted, config)
	b.stable(2, 2)
	committed := 0
	for _, offset := range b.committed("orders") {
		if offset == n/2 {
			committed++
		}
	}
	if committed != 1 {
		t.Errorf("offsets %v, want those of the partition that went", b.committed("orders"))
	}
}

func TestWorker_FetchingIsPausedWhileRecordsWait(t *testing.T) {
	t.Parallel()
	const n = 1500
	b := newBench(t, 1)
	for from := 0; from < n; from += 100 { // a fetch brings whole batches
		b.produce(from, 100, 1, 0)
	}
	var fetches atomic.Int32
	b.cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		fetches.Add(1)
		return nil, nil, false
	})
	release := make(chan struct{})
	handle := b.handler(byPartition, func(context.Context, string, int) error {
		<-release
		return nil
	})
	m := b.start(b.processor(consumer.Config{}), handle, franz.Config{MaxInFlight: 50}, kgo.FetchMaxPartitionBytes(1<<10))
	until(t, "the first", func() bool { return b.started() == 1 })
	lasts(300 * time.Millisecond)
	if got := fetches.Load(); got > 10 {
		t.Errorf("%d fetches while the first record waits", got)
	}
	close(release)
	until(t, "all records", func() bool { return b.finished() == n })
	m.leave()
	b.wantOnce(t, n)
	b.wantOrder(t)
}
