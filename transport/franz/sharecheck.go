package franz

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// shareRules are what the broker keeps to with a share group.
type shareRules struct {
	lock    time.Duration // how long a record is this member's (share.record.lock.duration.ms)
	limit   int           // how many deliveries it may have (share.delivery.count.limit)
	renewal time.Duration // how often locks are to be prolonged
}

// Bounds of what a group may be set to.
const (
	minShareLock   = 3 * time.Second
	minShareLimit  = 4                // half of them have to be enough to copy a record
	renewalShare   = 3                // of a lock: once may fail
	fetchWaitShare = 2 * renewalShare // of a lock: nothing is prolonged while a fetch waits
)

// Check looks at the client's options, and at topics and group at the broker, and returns an error that says what to
// set if the worker cannot keep its promises with them: a *dedupstore.SetupError. It changes nothing. A topic that
// keeps records for longer than the policy's Window is logged as a warning. The group's settings are looked at once: do
// not make share.delivery.count.limit or share.record.lock.duration.ms smaller while workers run.
func (w *ShareWorker) Check(ctx context.Context, cl *kgo.Client) error {
	_, err := w.check(ctx, cl)
	return err
}

func (w *ShareWorker) check(ctx context.Context, cl *kgo.Client) (shareRules, error) {
	if cl == nil {
		return shareRules{}, setupError(theClient, "is nil")
	}
	if err := w.checkClient(cl); err != nil {
		return shareRules{}, err
	}
	group, topics := option[string](cl, kgo.ShareGroup), cl.GetConsumeTopics()
	if err := checkTopics(ctx, cl, group, topics, w.retry(), w.once.Policy(), w.config.Logger); err != nil {
		return shareRules{}, err
	}
	if err := checkDeadLetters(ctx, w.once, w.config.Logger, consumes(cl, topics)); err != nil {
		return shareRules{}, err
	}
	if err := checkShareGroup(ctx, cl, group); err != nil {
		return shareRules{}, err
	}
	rules, err := readShareRules(ctx, cl, group)
	if err != nil {
		return shareRules{}, err
	}
	if wait := option[time.Duration](cl, kgo.FetchMaxWait); wait > rules.lock/fetchWaitShare {
		return shareRules{}, setupError(theClient,
			"has a kgo.FetchMaxWait of %v, and nothing is acknowledged while a fetch waits: set it to at most %v, a "+
				"sixth of share.record.lock.duration.ms of group %q",
			wait, rules.lock/fetchWaitShare, group)
	}
	// A connection that rests is closed, and with it all locks end.
	rules.renewal = min(rules.lock, option[time.Duration](cl, kgo.ConnIdleTimeout)) / renewalShare
	return rules, nil
}

// checkClient looks at the options that a client was made with.
func (w *ShareWorker) checkClient(cl *kgo.Client) error {
	last, intact := w.client.is(cl)
	problem := cmp.Or(keepingProblem(cl), retryProblem(w.retry(), cl.GetConsumeTopics()))
	switch {
	case option[string](cl, kgo.ShareGroup) == "":
		problem = "has no share group: set kgo.ShareGroup"
	case !last:
		problem = notOurs
	case !intact, !option[bool](cl, kgo.ShareMaxRecordsStrict), option[int](cl, kgo.MaxConcurrentFetches) != 0:
		problem = "has options that replace some of the worker's Opts: leave kgo.ShareAckCallback, " +
			"kgo.ShareMaxRecordsStrict and kgo.MaxConcurrentFetches to those"
	case option[string](cl, kgo.InstanceID) != "":
		problem = "has kgo.InstanceID, and a share group has no static members: leave kgo.InstanceID out"
	case option[bool](cl, kgo.ConsumeRegex):
		problem = "has kgo.ConsumeRegex, which does not go with a retry topic: name all topics with kgo.ConsumeTopics"
	}
	if problem != "" {
		return setupError(theClient, "%s", problem)
	}
	_, err := NewPublisher(cl, PublisherConfig{})
	return err
}

// checkShareGroup makes sure that a group is not one of another kind: kgo would try to join it for ever, silently.
func checkShareGroup(ctx context.Context, cl *kgo.Client, group string) error {
	for _, shard := range cl.RequestSharded(ctx, kmsg.NewPtrListGroupsRequest()) {
		if shard.Err != nil {
			return groupProblem(group, shard.Err)
		}
		resp := shard.Resp.(*kmsg.ListGroupsResponse)
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			if problem := groupProblem(group, err); problem != nil {
				return problem
			}
		}
		for _, g := range resp.Groups {
			if g.Group == group && g.GroupType != "share" {
				return setupError(theGroup(group), "is a %s group: set another kgo.ShareGroup", g.GroupType)
			}
		}
	}
	return nil
}

// readShareRules reads a group's settings, which the broker fills in with its own, and refuses those that lose records.
func readShareRules(ctx context.Context, cl *kgo.Client, group string) (rules shareRules, err error) {
	settings, err := groupSettings(ctx, cl, group)
	if err != nil {
		return rules, err
	}
	refuse := func(name, want, why string) (shareRules, error) {
		return shareRules{}, setupError("share "+theGroup(group),
			"has %s=%s, %s: set it to %s (kafka-configs --alter --entity-type groups)", name, settings[name], why, want)
	}
	const (
		limit, lock, renew = "share.delivery.count.limit", "share.record.lock.duration.ms",
			"share.renew.acknowledge.enable"
		reset, isolation = "share.auto.offset.reset", "share.isolation.level"
	)
	for _, name := range []string{limit, lock, reset, isolation} {
		if settings[name] == "" {
			return rules, setupError("the broker", "does not tell %s of share group %q: Kafka 4.3 or later is needed",
				name,
				group)
		}
	}
	ms, err := strconv.ParseInt(settings[lock], 10, 32)
	if rules.lock = time.Duration(ms) * time.Millisecond; err != nil || rules.lock < minShareLock {
		return refuse(lock, fmt.Sprintf("at least %d", minShareLock.Milliseconds()),
			"which is too short to be prolonged in time")
	}
	if rules.limit, err = strconv.Atoi(settings[limit]); err != nil || rules.limit < minShareLimit {
		return refuse(limit, fmt.Sprintf("at least %d", minShareLimit),
			"after which a record is dropped: too few to copy it to the retry topic before")
	}
	switch {
	case settings[renew] == "false":
		return refuse(renew, "true", "so that a handler could not be longer than a lock")
	case settings[reset] == "latest":
		return refuse(reset, "earliest", "so that records are passed over that are in a partition before the group "+
			"knows it")
	case settings[isolation] != "read_committed":
		return refuse(isolation, "read_committed",
			"so that records of transactions would be handled that are not committed")
	}
	return rules, nil
}

// groupSettings returns a group's settings by name.
func groupSettings(ctx context.Context, cl *kgo.Client, group string) (map[string]string, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	req.Resources = append(req.Resources, resource)
	resp, err := req.RequestWith(ctx, cl)
	if err == nil && len(resp.Resources) != 1 {
		err = fmt.Errorf("the broker answers for %d groups", len(resp.Resources))
	}
	if err == nil {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	switch {
	case refusal(group, "", err) != nil:
		return nil, refused(err, theGroup(group), "cannot be used: allow its user to DescribeConfigs of the group")
	case err != nil:
		return nil, refused(err, "share "+theGroup(group),
			"has settings that cannot be read: Kafka 4.3 or later is needed, with share groups switched on")
	}
	settings := map[string]string{}
	for _, c := range resp.Resources[0].Configs {
		if c.Value != nil {
			settings[c.Name] = *c.Value
		}
	}
	return settings, nil
}
