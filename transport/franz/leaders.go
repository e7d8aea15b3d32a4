package franz

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// lookOut says what kgo tells nobody: which partitions have no leader, so that nothing of them can be fetched, that
// brokers do not answer, and that the group does not let its member in. It says so when it was found twice, as leaders
// move, and then once a minute. One look takes as long as the patience at most.
func (a *alarm) lookOut(ctx context.Context, cl *kgo.Client, every, patience time.Duration,
	member func(context.Context) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var before []string
	var failed bool
	var said time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		look, cancel := context.WithTimeout(ctx, patience)
		now, err := leaderless(look, cl)
		if err == nil {
			err = member(look)
		}
		cancel()
		again := slices.DeleteFunc(slices.Clone(now), func(name string) bool { return !slices.Contains(before, name) })
		switch {
		case ctx.Err() != nil, errors.Is(err, kgo.ErrClientClosed), time.Since(said) < sayEvery:
		case err != nil && failed:
			said = time.Now()
			a.log.ErrorContext(ctx, "franz: nothing may be consumed for now", "group", a.group, "error", err)
		case len(again) > 0:
			said = time.Now()
			a.log.ErrorContext(ctx, "franz: partitions have no leader: nothing of them can be fetched until brokers "+
				"that have them are back", "group", a.group,
				"count", len(again), "partitions", again[:min(len(again), 10)])
		}
		before, failed = now, err != nil
	}
}

var errNoMember = errors.New("the group has not let this member in, or has put it out; the client tries on, and its " +
	"own log says why (kgo.WithLogger)")

// membership returns an error if a client was no member of its group of consumers for so long: one that joins waits for
// the handlers of others.
func membership(cl *kgo.Client, patience time.Duration) func(context.Context) error {
	member := time.Now()
	return func(context.Context) error {
		if _, generation := cl.GroupMetadata(); generation > 0 {
			member = time.Now()
		}
		if time.Since(member) > patience {
			return errNoMember
		}
		return nil
	}
}

// hasMembers returns an error if a share group has no members: kgo does not say whether this one is.
func hasMembers(ctx context.Context, cl *kgo.Client, group string) error {
	found, err := kadm.NewClient(cl).DescribeShareGroups(ctx, group)
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		return nil // it has members, one of them with a topic that is not for this one to see
	}
	if err == nil {
		err = found[group].Err
	}
	if err == nil && len(found[group].Members) == 0 {
		return errNoMember
	}
	return err
}

// leaderless returns the names of partitions that have no leader.
func leaderless(ctx context.Context, cl *kgo.Client) (names []string, err error) {
	topics := cl.GetConsumeTopics()
	if len(topics) == 0 {
		return nil, nil // kadm would look at all
	}
	found, err := kadm.NewClient(cl).ListTopicsWithInternal(ctx, topics...)
	for _, topic := range found.Sorted() {
		for _, p := range topic.Partitions.Sorted() {
			if p.Leader < 0 {
				names = append(names, placeName(p.Topic, p.Partition))
			}
		}
	}
	return names, err
}
