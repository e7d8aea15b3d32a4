package franz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill"
)

// Check looks at the client's options, at topics and group at the broker, and at where dead letters go, and returns a
// *dedupstore.SetupError that says what to set if the worker cannot keep its promises with them. It changes nothing.
// What may be meant so, it logs as a warning: a topic that keeps records for longer than the policy's Window, so that
// records run again when offsets are set back that far.
func (w *Worker) Check(ctx context.Context, cl *kgo.Client) error {
	if cl == nil {
		return setupError(theClient, "is nil")
	}
	if err := w.checkClient(cl); err != nil {
		return err
	}
	if option[bool](cl, kgo.ConsumeRegex) {
		if len(w.config.Retry) > 0 {
			return setupError(theClient,
				"has kgo.ConsumeRegex, which does not go with Config.Retry: name all topics with kgo.ConsumeTopics")
		}
		return w.checkBroker(ctx, cl, nil)
	}
	topics := cl.GetConsumeTopics()
	if len(topics) == 0 {
		return setupError(theClient, "consumes no topics: set kgo.ConsumeTopics")
	}
	if err := w.checkRetry(topics); err != nil {
		return err
	}
	return w.checkBroker(ctx, cl, topics)
}

// readCommitted is kgo.ReadCommitted as a client tells it.
const readCommitted int8 = 1

// checkClient looks at the options that a client was made with.
func (w *Worker) checkClient(cl *kgo.Client) error {
	if problem := w.clientProblem(cl); problem != "" {
		return setupError(theClient, "%s", problem)
	}
	if len(w.config.Retry) > 0 {
		if _, err := NewPublisher(cl, PublisherConfig{}); err != nil {
			return err
		}
	}
	if session := option[time.Duration](cl, kgo.SessionTimeout); w.policy.Lease > session {
		w.config.Logger.Warn("franz: the policy's Lease is longer than the session timeout: after a crash, records "+
			"that were being handled hold up their partitions until their leases end",
			"lease", w.policy.Lease, "session_timeout", session)
	}
	return nil
}

const (
	notOurs = "was not made with this worker's Opts: use kgo.NewClient(append(w.Opts(), …)...), and the client " +
		"that was made last"
	keptErrors = "hands out errors that pass by themselves, and what a broker that restarts says of a topic would " +
		"end the run: leave kgo.KeepRetryableFetchErrors out"
	endingContext = "has a context that can end (kgo.WithContext), and then nothing can be confirmed any more that " +
		"is settled until Run returns: leave it out, and close the client after Run"
	setStart = "set kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), and "
	noReset  = "leave kgo.ConsumeResetOffset out, or set it to kgo.NewOffset().AtStart()"
)

func (w *Worker) clientProblem(cl *kgo.Client) string {
	last, intact := w.client.is(cl)
	grace, rebalance := w.config.Grace, option[time.Duration](cl, kgo.RebalanceTimeout)
	start, reset := option[kgo.Offset](cl, kgo.ConsumeStartOffset), option[kgo.Offset](cl, kgo.ConsumeResetOffset)
	switch {
	case option[string](cl, kgo.ConsumerGroup) == "":
		return "has no group: set kgo.ConsumerGroup"
	case !last:
		return notOurs
	case !intact:
		return "has other callbacks for revoked or lost partitions than the worker's: leave kgo.OnPartitionsRevoked " +
			"and kgo.OnPartitionsLost to its Opts"
	case !option[bool](cl, kgo.DisableAutoCommit):
		return "commits by itself: leave auto-commit to the worker's Opts"
	case !option[bool](cl, kgo.BlockRebalanceOnPoll):
		return "does not block rebalances on poll: leave that to the worker's Opts"
	case option[int8](cl, kgo.FetchIsolationLevel) != readCommitted:
		return "reads records of transactions that are not committed: leave kgo.FetchIsolationLevel to the worker's " +
			"Opts"
	case option[bool](cl, kgo.KeepControlRecords):
		return "hands out the ends of transactions as records, which have no ID: leave kgo.KeepControlRecords out"
	case option[bool](cl, kgo.KeepRetryableFetchErrors):
		return keptErrors
	case endsEarly(cl):
		return endingContext
	case atEnd(start):
		return "begins at the end of partitions of which nothing is committed, and would pass over records that were " +
			"not settled before a restart or a rebalance, and over those that a new partition has " +
			"already: " + setStart +
			"to begin with what is new commit the ends once, before the first start (kafka-consumer-groups " +
			"--reset-offsets --to-latest)"
	case byTime(start):
		return "begins at a time in partitions of which nothing is committed: a time that is later at the next start " +
			"passes over records that were not settled before; " + setStart + "to begin at a time commit its offsets " +
			"once, before the first start (kafka-consumer-groups --reset-offsets --to-datetime)"
	case byTime(reset):
		return "goes to a time when its offset in a partition is not there any more, and would pass over what the " +
			"partition has from before: " + noReset
	case atEnd(reset) && reset != kgo.NoResetOffset():
		return "goes to the end of a partition when its offset is not there any more, and would pass over what the " +
			"partition has: " + noReset
	case rebalance < 2*grace:
		return fmt.Sprintf("has a kgo.RebalanceTimeout of %v, but half of it has to be enough for Config.Grace (%v): "+
			"set it to at least %v, or Grace to at most %v", rebalance, grace, 2*grace, rebalance/2)
	}
	return ""
}

// atEnd reports whether an offset is the end of a partition, or counted from there.
func atEnd(o kgo.Offset) bool { return o.EpochOffset().Offset == -1 }

// byTime reports whether an offset is the first after a time, of the clock or of what a partition has last.
func byTime(o kgo.Offset) bool {
	at := o.EpochOffset().Offset
	return o == kgo.NewOffset().AfterMilli(at) || o == kgo.NoResetOffset().AfterMilli(at) ||
		at == kgo.LookbackOffset(0).EpochOffset().Offset
}

// endsEarly reports whether a client can end by itself before its worker has drained.
func endsEarly(cl *kgo.Client) bool {
	ctx := option[context.Context](cl, kgo.WithContext)
	return ctx != nil && ctx.Done() != nil
}

// sameFunc compares the code of two functions.
func sameFunc(a, b any) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	return x.Kind() == reflect.Func && y.Kind() == reflect.Func && x.Pointer() == y.Pointer()
}

// checkRetry makes sure that what goes to retry topics comes back.
func (w *Worker) checkRetry(consumed []string) error {
	missing := map[string]bool{}
	for _, r := range w.config.Retry {
		missing[r.Topic] = true
	}
	others := 0
	for _, topic := range consumed {
		if !missing[topic] {
			others++
		}
		delete(missing, topic)
	}
	for _, r := range w.config.Retry {
		if missing[r.Topic] {
			return setupError(theClient, "does not consume retry topic %q: add it to kgo.ConsumeTopics", r.Topic)
		}
	}
	if others == 0 {
		return setupError(theClient, "consumes nothing but retry topics: add the source topics to kgo.ConsumeTopics")
	}
	return nil
}

// checkBroker looks at topics, group and dead letters. Topics of nil are those that a pattern finds.
func (w *Worker) checkBroker(ctx context.Context, cl *kgo.Client, topics []string) error {
	group := option[string](cl, kgo.ConsumerGroup)
	if err := checkTopics(ctx, cl, group, topics); err != nil {
		return err
	}
	if err := checkGroup(ctx, kadm.NewClient(cl), group); err != nil {
		return err
	}
	if err := checkDeadLetters(ctx, w.once, w.config.Logger, consumes(cl, topics)); err != nil {
		return err
	}
	retry := slices.Clone(w.config.Retry)
	for i := range retry {
		retry[i].Delay = max(retry[i].Delay, longestBackoff(w.policy)) // a copy waits for the later of both
	}
	return checkConfigs(ctx, cl, topics, retry, w.policy.Window, w.config.Logger)
}

// longestBackoff is how long the last attempt waits. Backoff.Max may be far away.
func longestBackoff(p oncemill.Policy) time.Duration {
	longest := p.Backoff.Min
	for attempt := 2; attempt < p.MaxAttempts && longest < p.Backoff.Max; attempt++ {
		longest = min(2*longest, p.Backoff.Max)
	}
	return longest
}

// newTopicWait is for how long a topic may be unknown at the start: a broker hears a moment late of one that was
// just created.
const newTopicWait = 2 * time.Second

// checkTopics makes sure that topics are there and may be read.
func checkTopics(ctx context.Context, cl *kgo.Client, group string, topics []string) error {
	until := time.Now().Add(newTopicWait)
	for _, topic := range topics {
		err := awaitTopic(ctx, cl, topic, kmsg.ACLOperationRead, until)
		if err != nil && !comesLater(cl, err) {
			return cmp.Or(refusal(group, topic, err), refused(err, theTopic(topic), "cannot be looked up"))
		}
	}
	return nil
}

// awaitTopic looks a topic up until it is there, or is not at the end of its time. It returns why the topic cannot
// be used so, or nil.
func awaitTopic(ctx context.Context, cl *kgo.Client, topic string, use kmsg.ACLOperation, until time.Time) error {
	err := lookUp(ctx, cl, topic, use)
	for errors.Is(err, kerr.UnknownTopicOrPartition) && !comesLater(cl, err) && time.Now().Before(until) &&
		ctx.Err() == nil {
		pause(ctx.Done(), 50*time.Millisecond)
		err = lookUp(ctx, cl, topic, use)
	}
	return err
}

func lookUp(ctx context.Context, cl *kgo.Client, topic string, use kmsg.ACLOperation) error {
	found, err := describe(ctx, cl, topic)
	switch {
	case err != nil:
		return err
	case len(found.Topics) != 1:
		return kerr.UnknownTopicOrPartition
	case found.Topics[0].ErrorCode == 0 && !allows(found.Topics[0], use):
		return kerr.TopicAuthorizationFailed
	}
	return kerr.ErrorForCode(found.Topics[0].ErrorCode)
}

// describe asks a broker what topics are: kadm would answer from what the client knew a while ago.
func describe(ctx context.Context, cl *kgo.Client, names ...string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range names {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	return req.RequestWith(ctx, cl)
}

// allows reports whether a topic may be used so, or the broker does not tell.
func allows(topic kmsg.MetadataResponseTopic, use kmsg.ACLOperation) bool {
	allowed := kadm.DecodeACLOperations(topic.AuthorizedOperations)
	return len(allowed) == 0 || slices.Contains(allowed, use)
}

// comesLater reports whether a topic is missing that the client has created when it looks for it.
func comesLater(cl *kgo.Client, err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) && option[bool](cl, kgo.AllowAutoTopicCreation)
}

// checkGroup makes sure that the group is one of consumers.
func checkGroup(ctx context.Context, admin *kadm.Client, group string) error {
	described, err := admin.DescribeGroups(ctx, group)
	if err == nil {
		err = described[group].Err
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return groupProblem(group, err)
	}
	if kind := described[group].ProtocolType; kind != "" && kind != "consumer" {
		return setupError(theGroup(group),
			"is in use by members of type %q, not by consumers: set another kgo.ConsumerGroup", kind)
	}
	return nil
}

// groupProblem returns what to say about a look at a group that has failed, or nil where a broker has just started: the
// client joins when the coordinator is there.
func groupProblem(group string, err error) error {
	for _, e := range [...]error{kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return cmp.Or(refusal(group, "", err), refused(err, theGroup(group), "cannot be looked up"))
}

// checkConfigs refuses retry topics that take no records, or lose them before they are due, and warns of topics whose
// records can come back when their outcomes are forgotten. Not everybody may read a topic's configuration: what is not
// known is taken for good.
func checkConfigs(ctx context.Context, cl *kgo.Client, topics []string, retry []RetryTopic, window time.Duration,
	log *slog.Logger) error {
	for _, r := range retry {
		err := lookUp(ctx, cl, r.Topic, kmsg.ACLOperationWrite)
		if errors.Is(err, kerr.TopicAuthorizationFailed) {
			return refused(err, "retry "+theTopic(r.Topic),
				"may not be written to: allow the client's user to Write to it")
		}
	}
	if len(topics) == 0 {
		return nil
	}
	configs, err := kadm.NewClient(cl).DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	for _, c := range configs {
		kept, known := retention(c)
		known = known && c.Err == nil
		for _, r := range retry {
			switch {
			case r.Topic != c.Name || c.Err != nil:
			case strings.Contains(setting(c, "cleanup.policy"), "compact"):
				return setupError("retry "+theTopic(c.Name),
					"has cleanup.policy=%s: of records with one key only the last would be kept; set it to delete",
					setting(c, "cleanup.policy"))
			case known && kept <= r.Delay:
				return setupError("retry "+theTopic(c.Name),
					"keeps records for %v (retention.ms), and they wait there for up to %v (Delay, or the policy's "+
						"Backoff): they would be deleted before they are due; set it to more, by the longest time "+
						"that the group may be away", kept, r.Delay)
			}
		}
		if known && kept > window {
			log.WarnContext(ctx, "franz: topic keeps records for longer than the policy's Window: when offsets are "+
				"set back by more than that, records run again",
				"topic", c.Name, "retention", kept, "window", window)
		}
	}
	return nil
}

const forever time.Duration = 1<<63 - 1

// retention returns for how long a topic keeps records.
func retention(c kadm.ResourceConfig) (kept time.Duration, known bool) {
	ms, err := strconv.ParseInt(setting(c, "retention.ms"), 10, 64)
	switch {
	case setting(c, "cleanup.policy") == "compact":
		return forever, true // the last of each key
	case err != nil:
		return 0, false
	case ms < 0, ms > int64(forever/time.Millisecond):
		return forever, true
	}
	return time.Duration(ms) * time.Millisecond, true
}

// setting returns a topic's setting, or "" if it is not told.
func setting(c kadm.ResourceConfig, name string) string {
	for _, entry := range c.Configs {
		if entry.Key == name && entry.Value != nil {
			return *entry.Value
		}
	}
	return ""
}
