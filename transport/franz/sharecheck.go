package franz

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// shareRules are what the broker keeps to with a share group.
type shareRules struct {
	lock    time.Duration // how long a record is this member's (share.record.lock.duration.ms)
	limit   int           // how many deliveries it may have (share.delivery.count.limit)
	renewal time.Duration // how often to prolong locks
}

// Bounds of what a group may be set to.
const (
	minShareLock   = 3 * time.Second
	minShareLimit  = 4                // half of them have to be enough to copy a record
	renewalShare   = 3                // of a lock: once may fail
	fetchWaitShare = 2 * renewalShare // of a lock: nothing is prolonged while a fetch waits
)

// Check looks at the client's options, and at topics and group at the broker. It returns a *dedupstore.SetupError that
// says what to set if the worker cannot keep its promises with them. It changes nothing. It logs a warning for a topic
// that keeps records for longer than the policy's Window. It looks at the group's settings once: do not make
// share.delivery.count.limit or share.record.lock.duration.ms smaller while workers run.
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
	others, err := kadm.NewClient(cl).ListGroupsByType(ctx, []string{"classic", "consumer", "streams"})
	if err != nil {
		return groupProblem(group, err)
	}
	if _, other := others[group]; other {
		return setupError(theGroup(group), "is no share group: set another kgo.ShareGroup")
	}
	return nil
}

// readShareRules reads a group's settings, which the broker fills in with its own, and refuses those that lose records.
func readShareRules(ctx context.Context, cl *kgo.Client, group string) (rules shareRules, err error) {
	settings, err := groupSettings(ctx, cl, group)
	if err != nil {
		return rules, err
	}
	const limit, lock = "share.delivery.count.limit", "share.record.lock.duration.ms"
	ms, _ := strconv.ParseInt(settings[lock], 10, 32)
	rules.lock = time.Duration(ms) * time.Millisecond
	rules.limit, _ = strconv.Atoi(settings[limit])
	for _, r := range []struct {
		name, want, why string
		good            func(value string) bool
	}{
		{lock, "at least 3000", "which is too short to be prolonged in time", func(string) bool {
			return rules.lock >= minShareLock
		}},
		{limit, "at least 4", "after which a record is dropped: too few to copy it to the retry topic before",
			func(string) bool { return rules.limit >= minShareLimit }},
		{"share.auto.offset.reset", "earliest", "so that records are passed over that are in a partition before the " +
			"group knows it", func(value string) bool { return value != "latest" }},
		{"share.isolation.level", "read_committed", "so that records of transactions would be handled that are not " +
			"committed", func(value string) bool { return value == "read_committed" }},
		{"share.renew.acknowledge.enable", "true", "so that a handler could not be longer than a lock",
			func(value string) bool { return value != "false" }},
	} {
		value, reported := settings[r.name]
		switch {
		case !reported && r.want != "true":
			return rules, setupError("the broker", "does not tell %s of share group %q: Kafka 4.3 or later is needed",
				r.name, group)
		case !r.good(value):
			return rules, setupError("share "+theGroup(group),
				"has %s=%s, %s: set it to %s (kafka-configs --alter --entity-type groups)",
				r.name, value, r.why, r.want)
		}
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
