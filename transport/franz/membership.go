package franz

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// lookOut says what kgo tells nobody: that brokers do not answer, or that the group does not let its member in. It says
// so when it was found twice, and then once a minute. One look takes as long as the patience at most.
func (a *alarm) lookOut(ctx context.Context, every, patience time.Duration, member func(context.Context) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var failed bool
	var lines limiter
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		look, cancel := context.WithTimeout(ctx, patience)
		err := member(look)
		cancel()
		gone := ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed)
		if err != nil && failed && !gone && lines.due(sayEvery) {
			a.log.ErrorContext(ctx, "franz: nothing may be consumed for now", "group", a.group, "error", err)
		}
		failed = err != nil
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
