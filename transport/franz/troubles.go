package franz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/pace"
)

// troubles is how a group's member says what goes wrong.
type troubles struct {
	group  string
	log    *slog.Logger
	failed chan error   // holds the first error that the worker cannot go on after
	outage pace.Limiter // of lines about an interrupted membership
	broken pace.Limiter // of lines about partitions that cannot be fetched
}

func newTroubles(group string, log *slog.Logger) *troubles {
	return &troubles{group: group, log: log, failed: make(chan error, 1)}
}

// sayEvery is how often is logged what goes wrong again and again.
const sayEvery = time.Minute

// fail ends the run with an error.
func (h *troubles) fail(err error) {
	select {
	case h.failed <- err:
	default: // there is one
	}
}

// lookOut logs what kgo tells nobody: that the group does not let its member in. It does so when two looks have found
// it, and then once a minute.
func (h *troubles) lookOut(ctx context.Context, every time.Duration, member func() error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var failed bool
	var lines pace.Limiter
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		err := member()
		if err != nil && failed && lines.Due(sayEvery) {
			h.log.ErrorContext(ctx, "franz: nothing may be consumed for now", "group", h.group, "error", err)
		}
		failed = err != nil
	}
}

var errNoMember = errors.New("the group has not let this member in, or has put it out; the client tries on, and its " +
	"own log says why (kgo.WithLogger)")

// membership returns an error if a client was no member of its group of consumers for so long: one that joins waits for
// the handlers of others.
func membership(cl *kgo.Client, timeout time.Duration) func() error {
	member := time.Now()
	return func() error {
		if _, generation := cl.GroupMetadata(); generation > 0 {
			member = time.Now()
		}
		if time.Since(member) > timeout {
			return errNoMember
		}
		return nil
	}
}

// fetchFailed deals with an error that came instead of records. Those that pass by themselves are kgo's business.
func (h *troubles) fetchFailed(ctx context.Context, topic string, partition int32, err error) {
	var loss *kgo.ErrDataLoss
	var membership *kgo.ErrGroupSession
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case errors.Is(err, kgo.ErrClientClosed):
		h.fail(kgo.ErrClientClosed)
	case errors.As(err, &loss):
		h.log.ErrorContext(ctx, "franz: the broker has lost records",
			"partition", partitionID{loss.Topic, loss.Partition}, "error", err)
	case refusal(h.group, topic, err) != nil:
		h.fail(refusal(h.group, topic, err))
	case errors.As(err, &membership):
		if h.outage.Due(sayEvery) { // the client tries again every few seconds
			h.log.WarnContext(ctx, "franz: group membership was interrupted, the client joins again",
				"group", h.group, "error", err)
		}
	default:
		if h.broken.Due(sayEvery) {
			h.log.ErrorContext(ctx, "franz: partition cannot be fetched for now; there may be more",
				"partition", partitionID{topic, partition}, "error", err)
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
