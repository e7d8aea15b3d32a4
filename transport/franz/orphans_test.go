package franz_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/transport/franz"
)

// The broker gives a static member that leads its group what it had before, and no other member looks for partitions.
func TestWorker_PartitionsThatAreAddedWhileAStaticMemberIsAwayAreConsumed(t *testing.T) {
	t.Parallel()
	server := kafkatest.Shared(t)
	b := newBench(t, 1)
	b.addrs = []string{server.Addr}
	b.admin = kadm.NewClient(b.newClient())
	topic := fmt.Sprintf("grows-%d", shareBenches.Add(1))
	server.CreateTopic(topic, 1)
	join := func(name string) *member {
		m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{InstanceID: name, Grace: time.Second}, kgo.RebalanceTimeout(3*time.Second),
			kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.SessionTimeout(2*time.Second), kgo.HeartbeatInterval(100*time.Millisecond))
		until(t, "member "+name, func() bool { _, generation := m.cl.GroupMetadata(); return generation > 0 })
		return m
	}
	leader := join("first")
	_, before := leader.cl.GroupMetadata()
	join("second")
	until(t, "a rebalance with both", func() bool {
		described, err := b.admin.DescribeGroups(t.Context(), topic)
		_, generation := leader.cl.GroupMetadata()
		return err == nil && described[topic].State == "Stable" && len(described[topic].Members) == 2 && generation > before
	})
	leader.leave()
	if _, err := b.admin.CreatePartitions(t.Context(), 1, topic); err != nil {
		t.Fatal(err)
	}
	until(t, "the new partition", func() bool {
		found, err := b.admin.ListTopics(t.Context(), topic)
		return err == nil && led(found[topic], 2)
	})
	join("first")
	cl := b.newClient(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range 2 {
		rec := order(i)
		rec.Topic, rec.Partition = topic, int32(i)
		if err := cl.ProduceSync(context.Background(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the records of both partitions", func() bool { return b.finished() == 2 })
	wantLog(t, b, "level=WARN", "no member of the group has these partitions", topic+"/1")
}

// A leader that does not see a topic as it is, or has a balancer of its own, leaves them unassigned each time. With an eager balancer
// each rebalance interrupts all handlers of the group.
func TestWorker_StaticMemberAsksLessAndLessOftenForPartitionsThatNobodyGets(t *testing.T) {
	t.Parallel()
	const rebalance = 200 * time.Millisecond
	b := newBench(t, 2)
	b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{InstanceID: "first", Grace: 50 * time.Millisecond},
		kgo.Balancers(sparing{kgo.RangeBalancer()}), kgo.RebalanceTimeout(rebalance), kgo.SessionTimeout(rebalance/2))
	asked := func() int { return strings.Count(b.log.String(), "no member of the group has these partitions") }
	until(t, "it to ask twice", func() bool { return asked() >= 2 })
	before := asked()
	lasts(10 * rebalance)
	if n := asked() - before; n > 2 { // the third after four times the timeout, the fourth after eight times more
		t.Errorf("it asked %d times more within ten rebalance timeouts", n)
	}
}

// sparing is a balancer that assigns one partition of each topic less than there are.
type sparing struct{ kgo.GroupBalancer }

func (s sparing) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	b, topics, err := s.GroupBalancer.MemberBalancer(members)
	return sparingMembers{b}, topics, err
}

type sparingMembers struct{ kgo.GroupMemberBalancer }

func (s sparingMembers) BalanceOrError(topics map[string]int32) (kgo.IntoSyncAssignment, error) {
	for topic := range topics {
		topics[topic]--
	}
	return s.GroupMemberBalancer.(kgo.GroupMemberBalancerOrError).BalanceOrError(topics)
}

func led(topic kadm.TopicDetail, partitions int) bool {
	for _, p := range topic.Partitions {
		if p.Err != nil || p.Leader < 0 {
			return false
		}
	}
	return len(topic.Partitions) == partitions
}
