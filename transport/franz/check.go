package franz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// Check looks at the client's options, at topics and group at the broker, and at where dead letters go. It returns a
// *dedupstore.SetupError that says what to set if the worker cannot keep its promises with them. It changes nothing. It
// refuses
//
//   - a client without the worker's options, with too short a rebalance timeout, or with a context that can end;
//   - a client that begins at the end of partitions or at a time;
//   - a missing topic or right;
//   - a retry topic that may not be written to, is compacted, or deletes records before they are due;
//   - a client that consumes the DeadLetterTopic of its own Processor;
//   - a DeadLetterTopic of a Publisher of this package that is missing, may not be written to, or is compacted.
//
// It logs a warning if a topic keeps records for longer than the policy's Window: they run again when offsets are set
// back that far.
func (w *Worker) Check(ctx context.Context, cl *kgo.Client) error {
	if cl == nil {
		return setupError(theClient, "is nil")
	}
	if err := w.checkClient(cl); err != nil {
		return err
	}
	topics := cl.GetConsumeTopics()
	switch byPattern := option[bool](cl, kgo.ConsumeRegex); {
	case byPattern && len(w.config.Retry) > 0:
		return setupError(theClient,
			"has kgo.ConsumeRegex, which does not go with Config.Retry: name all topics with kgo.ConsumeTopics")
	case byPattern:
		topics = nil
	case len(topics) == 0:
		return setupError(theClient, "consumes no topics: set kgo.ConsumeTopics")
	default:
		if problem := retryProblem(w.config.Retry, topics); problem != "" {
			return setupError(theClient, "%s", problem)
		}
	}
	return w.checkBroker(ctx, cl, topics)
}

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
	policy := w.work.Once.Config().Policy
	if lease, session := policy.Lease, option[time.Duration](cl, kgo.SessionTimeout); lease > session {
		w.config.Logger.Warn("franz: the policy's Lease is longer than the session timeout: after a crash, records "+
			"that were being handled hold up their partitions until their leases end",
			"lease", lease, "session_timeout", session)
	}
	return nil
}

// readCommitted is kgo.ReadCommitted as a client tells it.
const readCommitted int8 = 1

func (w *Worker) clientProblem(cl *kgo.Client) string {
	grace, rebalance := w.config.Grace, option[time.Duration](cl, kgo.RebalanceTimeout)
	start, reset := option[kgo.Offset](cl, kgo.ConsumeStartOffset), option[kgo.Offset](cl, kgo.ConsumeResetOffset)
	switch last, intact := w.client.is(cl); {
	case option[string](cl, kgo.ConsumerGroup) == "":
		return "has no group: set kgo.ConsumerGroup"
	case !last:
		return notOurs
	case !intact, !option[bool](cl, kgo.DisableAutoCommit), !option[bool](cl, kgo.BlockRebalanceOnPoll),
		option[int8](cl, kgo.FetchIsolationLevel) != readCommitted:
		return "has options that replace some of the worker's Opts: leave auto-commit, kgo.BlockRebalanceOnPoll, " +
			"kgo.FetchIsolationLevel, kgo.OnPartitionsRevoked and kgo.OnPartitionsLost to those"
	case option[bool](cl, kgo.KeepControlRecords):
		return "hands out the ends of transactions as records, which have no ID: leave kgo.KeepControlRecords out"
	case start != kgo.NewOffset().AtStart():
		return "begins elsewhere than at the start of partitions of which nothing is committed, and would pass over " +
			"records that were not settled before a restart or a rebalance, and over those that a new partition has " +
			"already: set kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), or leave it out; to begin elsewhere " +
			"commit offsets once, before the first start (kafka-consumer-groups --reset-offsets)"
	case reset != kgo.NewOffset().AtStart() && reset != kgo.NoResetOffset() &&
		reset.EpochOffset() != kgo.RewindOffset(0).EpochOffset():
		return "may pass over what a partition has when its offset there is gone: leave kgo.ConsumeResetOffset out, " +
			"or set it to kgo.NewOffset().AtStart()"
	case rebalance < 2*grace:
		return fmt.Sprintf("has a kgo.RebalanceTimeout of %v, but half of it has to be enough for Config.Grace (%v): "+
			"set it to at least %v, or Grace to at most %v", rebalance, grace, 2*grace, rebalance/2)
	}
	return keepingProblem(cl)
}

const notOurs = "was not made with this worker's Opts: use kgo.NewClient(append(w.Opts(), …)...), and the client " +
	"that was made last"

// keepingProblem says why a client may end before its worker has drained, or end the run for nothing. "": it does
// neither.
func keepingProblem(cl *kgo.Client) string {
	ctx := option[context.Context](cl, kgo.WithContext)
	switch {
	case option[bool](cl, kgo.KeepRetryableFetchErrors):
		return "hands out errors that pass by themselves, and what a broker that restarts says of a topic would end " +
			"the run: leave kgo.KeepRetryableFetchErrors out"
	case ctx != nil && ctx.Done() != nil:
		return "has a context that can end (kgo.WithContext), and then nothing can be confirmed any more that is " +
			"settled until Run returns: leave it out, and close the client after Run"
	}
	return ""
}

// sameFunc compares the code of two functions.
func sameFunc(a, b any) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	return x.Kind() == reflect.Func && y.Kind() == reflect.Func && x.Pointer() == y.Pointer()
}

// retryProblem says why not all that goes to retry topics would come back, or "".
func retryProblem(retry []RetryTopic, consumed []string) string {
	for _, r := range retry {
		if !slices.Contains(consumed, r.Topic) {
			return fmt.Sprintf("does not consume retry topic %q: add it to kgo.ConsumeTopics", r.Topic)
		}
	}
	if !slices.ContainsFunc(consumed, func(topic string) bool { return retryIndex(retry, topic) < 0 }) {
		return "consumes nothing but retry topics: add the source topics to kgo.ConsumeTopics"
	}
	return ""
}

// checkBroker looks at topics, group and dead letters. Topics of nil are those that a pattern finds.
func (w *Worker) checkBroker(ctx context.Context, cl *kgo.Client, topics []string) error {
	group := option[string](cl, kgo.ConsumerGroup)
	if err := checkTopics(ctx, cl, group, topics, w.config.Retry, w.work.Once.Config().Policy, w.config.Logger); err != nil {
		return err
	}
	if err := checkGroup(ctx, kadm.NewClient(cl), group); err != nil {
		return err
	}
	return checkDeadLetters(ctx, w.work.Once, w.config.Logger, consumes(cl, topics))
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

// checkTopics makes sure that topics are there and may be read, and that retry topics take records and keep them until
// they are due. It warns of topics whose records can come back when their outcomes are forgotten. Not everybody may
// read a topic's configuration: what is not known is taken for good.
func checkTopics(ctx context.Context, cl *kgo.Client, group string, topics []string, retry []RetryTopic,
	policy oncemill.Policy, log *slog.Logger) error {
	until := time.Now().Add(newTopicWait)
	for _, topic := range topics {
		err := awaitTopic(ctx, cl, topic, kmsg.ACLOperationRead, until)
		if err != nil && !comesLater(cl, err) {
			return cmp.Or(refusal(group, topic, err), refused(err, theTopic(topic), "cannot be looked up"))
		}
	}
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
		kept, i := retention(c), retryIndex(retry, c.Name)
		if i >= 0 {
			// a copy waits for the later of both
			if problem := retentionProblem(c, kept, max(retry[i].Delay, longestBackoff(policy))); problem != "" {
				return setupError("retry "+theTopic(c.Name), "%s", problem)
			}
		}
		if kept > policy.Window {
			shown := kept.String()
			if kept == forever {
				shown = "for ever"
			}
			log.WarnContext(ctx, "franz: topic keeps records for longer than the policy's Window: when offsets are "+
				"set back by more than that, records run again",
				"topic", c.Name, "retention", shown, "window", policy.Window)
		}
	}
	return nil
}

// retentionProblem says why a retry topic loses records that wait there for so long, or "".
func retentionProblem(c kadm.ResourceConfig, kept, wait time.Duration) string {
	switch {
	case compacted(c):
		return "is compacted: of records with one key only the last would be kept; set its cleanup.policy to delete"
	case 0 < kept && kept <= wait:
		return fmt.Sprintf("keeps records for %v (retention.ms), and they wait there for up to %v (Delay, or the "+
			"policy's Backoff): they would be deleted before they are due; set it to more, by the longest time "+
			"that the group may be away", kept, wait)
	}
	return ""
}

// awaitTopic looks a topic up until it is there, or is not at the end of its time. It returns why the topic cannot
// be used so, or nil.
func awaitTopic(ctx context.Context, cl *kgo.Client, topic string, use kmsg.ACLOperation, until time.Time) error {
	err := lookUp(ctx, cl, topic, use)
	for errors.Is(err, kerr.UnknownTopicOrPartition) && !comesLater(cl, err) && time.Now().Before(until) &&
		ctx.Err() == nil {
		pace.Sleep(ctx, 50*time.Millisecond)
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

// groupProblem returns what to say about a failed look at a group. It is nil if a broker has just started: the client
// joins when the coordinator is there.
func groupProblem(group string, err error) error {
	for _, e := range [...]error{kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return cmp.Or(refusal(group, "", err), refused(err, theGroup(group), "cannot be looked up"))
}

const forever time.Duration = 1<<63 - 1

// retention returns for how long a topic keeps records, or 0 if that is not told.
func retention(c kadm.ResourceConfig) time.Duration {
	ms, _ := strconv.ParseInt(setting(c, "retention.ms"), 10, 64)
	if setting(c, "cleanup.policy") == "compact" || ms < 0 || ms > int64(forever/time.Millisecond) {
		return forever
	}
	return time.Duration(ms) * time.Millisecond
}

// compacted reports whether a topic is known to keep only the last record of a key.
func compacted(c kadm.ResourceConfig) bool {
	return strings.Contains(setting(c, "cleanup.policy"), "compact")
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

// checkDeadLetters looks at where dead letters go. A handler passes over its own, so its client must not consume them.
func checkDeadLetters(ctx context.Context, once *consumer.Processor, log *slog.Logger,
	consumes func(string) bool) error {
	config := once.Config()
	if config.DeadLetters == nil {
		if !config.Policy.Shadow {
			log.WarnContext(ctx, "franz: no consumer.Config.DeadLetters: records that fail for good, have no usable "+
				"ID or other content under a known ID are passed over, and only this log says which")
		}
		return nil
	}
	p, says := config.DeadLetters.(interface{ MessagingSystem() string })
	if says && p.MessagingSystem() != "" && p.MessagingSystem() != telemetry.SystemKafka {
		return nil
	}
	if consumes(config.DeadLetterTopic) {
		return setupError(theClient, "consumes topic %q, which is the DeadLetterTopic of its Processor: its own dead "+
			"letters would be passed over, and only the log would tell; leave the topic out, and have a worker with "+
			"another Group or Handler handle them", config.DeadLetterTopic)
	}
	if p, ours := config.DeadLetters.(*Publisher); ours {
		return p.checkDeadLetterTopic(ctx, config.DeadLetterTopic)
	}
	return nil
}

// lookTimeout bounds the look for the topic of dead letters.
const lookTimeout = 5 * time.Second

// checkDeadLetterTopic refuses a topic that does not take dead letters: the first would hold up all other records. If
// it cannot find out, it accepts the topic.
func (p *Publisher) checkDeadLetterTopic(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout) // its brokers may be others
	defer cancel()
	subject := fmt.Sprintf("DeadLetterTopic %q", topic)
	err := awaitTopic(ctx, p.cl, topic, kmsg.ACLOperationWrite, time.Now().Add(newTopicWait))
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition) && !comesLater(p.cl, err):
		return refused(err, subject, "is not there: create it")
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return refused(err, subject, "may not be written to: allow its publisher's user to Write to it")
	case err != nil:
		return nil
	}
	configs, err := kadm.NewClient(p.cl).DescribeTopicConfigs(ctx, topic)
	if err == nil && slices.ContainsFunc(configs, compacted) {
		return setupError(subject, "is compacted: of the dead letters with one key only the last would be kept, and "+
			"those without a key be refused; set its cleanup.policy to delete")
	}
	return nil
}

// consumes reports whether a client consumes a topic, or would if it were there. Topics of nil are those that a pattern
// finds.
func consumes(cl *kgo.Client, topics []string) func(topic string) bool {
	return func(topic string) bool {
		if !option[bool](cl, kgo.ConsumeRegex) {
			return slices.Contains(topics, topic)
		}
		matches := func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(topic) } // kgo has, too
		named := slices.Collect(maps.Keys(option[map[string]*regexp.Regexp](cl, kgo.ConsumeTopics)))
		return slices.ContainsFunc(named, matches) &&
			!slices.ContainsFunc(option[[]string](cl, kgo.ConsumeExcludeTopics), matches)
	}
}
