package franz

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// fetchFailed deals with an error that came instead of records. Those that pass by themselves are kgo's business.
func (w *watching) fetchFailed(ctx context.Context, topic string, partition int32, err error) {
	var loss *kgo.ErrDataLoss
	var membership *kgo.ErrGroupSession
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case errors.Is(err, kgo.ErrClientClosed):
		w.fail(kgo.ErrClientClosed)
	case errors.As(err, &loss):
		w.log.ErrorContext(ctx, "franz: the broker has lost records",
			"partition", placeName(loss.Topic, loss.Partition), "error", err)
	case refusal(w.group, topic, err) != nil:
		w.fail(refusal(w.group, topic, err))
	case errors.As(err, &membership):
		if w.outage.Due(sayEvery) { // the client tries again every few seconds
			w.log.WarnContext(ctx, "franz: group membership was interrupted, the client joins again",
				"group", w.group, "error", err)
		}
	default:
		if w.broken.Due(sayEvery) {
			w.log.ErrorContext(ctx, "franz: partition cannot be fetched for now; there may be more",
				"partition", placeName(topic, partition), "error", err)
		}
	}
}

// These refusals of a broker last until somebody changes something.
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
		{kerr.GroupMaxSizeReached, "raise the broker's group.max.size, or run fewer members"},
	}
)

// refusal returns what to say about an error that stays until somebody changes something, or nil. Without a topic it is
// about the group.
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
