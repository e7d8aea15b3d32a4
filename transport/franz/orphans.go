package franz

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A static member that leads its group and was away gets the assignment of before from the broker (KIP-814). kgo 1.22.2 compares its own
// part of that with what it would assign, and takes the partitions of topics for those that it knew: if some were added
// meanwhile, and all of them would go to others, nobody has them until the next rebalance, which in a group of static members may
// never come.

// orphanEvery is how often a static member looks for partitions that nobody has, if not each session timeout.
const orphanEvery = 15 * time.Second

// orphanRest is how long it waits at most before it asks again where that has not helped: with an eager balancer each time interrupts
// what all members do.
const orphanRest = 10 * time.Minute

// adoptOrphans has partitions assigned that nobody has for longer than the rebalance timeout, until ctx ends: so long who gives them up may wait
// for handlers. Only what the leader asks for is a rebalance, and no member is told who that is: for the others it is no more than a question.
func (s *session) adoptOrphans(ctx context.Context) {
	if option[string](s.cl, kgo.InstanceID) == "" {
		return
	}
	every := min(option[time.Duration](s.cl, kgo.SessionTimeout), orphanEvery)
	tick := time.NewTicker(every)
	defer tick.Stop()
	since := map[string]time.Time{}
	patience := s.rebalance
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		look, cancel := context.WithTimeout(ctx, every)
		now, known := orphans(look, s.cl, s.group)
		cancel()
		if known && len(now) == 0 {
			patience = s.rebalance
		}
		maps.DeleteFunc(since, func(name string, _ time.Time) bool { return !slices.Contains(now, name) })
		for _, name := range now {
			if since[name].IsZero() {
				since[name] = time.Now()
			}
		}
		lasting := slices.DeleteFunc(now, func(name string) bool { return time.Since(since[name]) <= patience })
		if len(lasting) > 0 {
			clear(since)
			patience = max(s.rebalance, min(2*patience, orphanRest))
			s.log.WarnContext(ctx, "franz: no member of the group has these partitions, which may have been added while a static member was away: the member asks for a rebalance", "group", s.group,
				"count", len(lasting), "partitions", lasting[:min(len(lasting), 10)])
			s.cl.ForceMetadataRefresh()
			s.cl.ForceRebalance()
		}
	}
}

// orphans returns the names of partitions that no member of a group has, if that can be found out and the group is not in a rebalance.
func orphans(ctx context.Context, cl *kgo.Client, group string) (names []string, known bool) {
	topics := cl.GetConsumeTopics()
	if len(topics) == 0 {
		return nil, false // kadm would look at all
	}
	admin := kadm.NewClient(cl)
	found, err := admin.ListTopicsWithInternal(ctx, topics...)
	if err != nil {
		return nil, false
	}
	described, err := admin.DescribeGroups(ctx, group)
	if g := described[group]; err != nil || g.Err != nil || g.State != "Stable" {
		return nil, false
	}
	taken := described.AssignedPartitions()
	for _, topic := range found.Sorted() {
		for _, p := range topic.Partitions.Sorted() {
			if !taken.Lookup(p.Topic, p.Partition) {
				names = append(names, placeName(p.Topic, p.Partition))
			}
		}
	}
	return names, true
}
