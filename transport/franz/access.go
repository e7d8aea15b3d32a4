package franz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// An alarm is how a group's member says what goes wrong.
type alarm struct {
	group  string
	log    *slog.Logger
	failed chan error         // holds the first error that the worker cannot go on after
	waits  *limiter           // of lines about records that wait
	outage *limiter           // of lines about an interrupted membership
	broken map[place]*limiter // of lines about partitions that cannot be fetched; of the poll loop
}

func newAlarm(group string, log *slog.Logger) alarm {
	return alarm{group: group, log: log, failed: make(chan error, 1),
		waits: new(limiter), outage: new(limiter), broken: map[place]*limiter{}}
}

// sayEvery is how often is logged what goes wrong again and again.
const sayEvery = time.Minute

// A limiter lets one line through in a while.
type limiter struct{ last atomic.Int64 } // Unix nanoseconds

func (l *limiter) due(every time.Duration) bool {
	now, last := time.Now().UnixNano(), l.last.Load()
	return now-last >= int64(every) && l.last.CompareAndSwap(last, now)
}

// fail ends the run with an error.
func (a *alarm) fail(err error) {
	select {
	case a.failed <- err:
	default: // there is one
	}
}

// fetchFailed deals with an error that came instead of records. Those that pass by themselves are kgo's business.
func (a *alarm) fetchFailed(ctx context.Context, topic string, partition int32, err error) {
	var loss *kgo.ErrDataLoss
	var membership *kgo.ErrGroupSession
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case errors.Is(err, kgo.ErrClientClosed):
		a.fail(kgo.ErrClientClosed)
	case errors.As(err, &loss):
		a.log.ErrorContext(ctx, "franz: the broker has lost records",
			"partition", placeName(loss.Topic, loss.Partition), "error", err)
	case a.refused(topic, err) != nil:
		a.fail(a.refused(topic, err))
	case errors.As(err, &membership):
		if a.outage.due(sayEvery) { // the client tries again every few seconds
			a.log.WarnContext(ctx, "franz: group membership was interrupted, the client joins again",
				"group", a.group, "error", err)
		}
	default:
		at := place{topic, partition}
		if a.broken[at] == nil {
			a.broken[at] = new(limiter)
		}
		if a.broken[at].due(sayEvery) {
			a.log.ErrorContext(ctx, "franz: partition cannot be fetched for now",
				"partition", placeName(topic, partition), "error", err)
		}
	}
}

// What a broker refuses until somebody changes something.
var (
	topicRefusals = []struct {
		err  error
		need string
	}{
		{kerr.TopicAuthorizationFailed, "allow its user to Read and Describe the topic"},
		{kerr.UnknownTopicOrPartition, "create the topic, or have it created with kgo.AllowAutoTopicCreation"},
		{kerr.UnknownTopicID, "the topic was deleted: create it, delete what the group may have committed of the old " +
			"one (kafka-consumer-groups --delete-offsets), and start again"},
		{kerr.InvalidTopicException, "name a topic that Kafka allows"},
	}
	groupRefusals = []struct {
		err  error
		need string
	}{
		{kerr.GroupAuthorizationFailed, "allow its user to Read the group"},
		{kerr.TopicAuthorizationFailed, "allow its user to Read and Describe the topics"},
		{kerr.ClusterAuthorizationFailed, "allow its user to use the cluster"},
		{kerr.SaslAuthenticationFailed, "give the client valid credentials"},
		{kerr.InvalidGroupID, "name a group that Kafka allows"},
		{kerr.InconsistentGroupProtocol, "the group's other members use other balancers or another protocol: move " +
			"them first (kgo.Balancers with both, one after the other)"},
		{kerr.InvalidSessionTimeout, "set kgo.SessionTimeout between the broker's group.min.session.timeout.ms and " +
			"group.max.session.timeout.ms"},
		{kerr.FencedInstanceID, "another member uses the same instance ID: give each its own"},
		{kerr.GroupMaxSizeReached, "raise the broker's group.max.size (of a share group: group.share.max.size), or " +
			"run fewer members"},
	}
)

// refused returns what to say about an error that stays until somebody changes something, or nil. Without a topic it is
// about the group.
func (a *alarm) refused(topic string, err error) error { return refusal(a.group, topic, err) }

func refusal(group, topic string, err error) error {
	refusals, subject, problem := topicRefusals, theTopic(topic), fmt.Sprintf("cannot be consumed by group %q", group)
	if topic == "" {
		refusals, subject, problem = groupRefusals, theGroup(group), "cannot be used"
	}
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return refused(err, subject, "%s: %s", problem, r.need)
		}
	}
	return nil
}
