package franz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer/health"
)

// A Setup is what a handler's records come through, for [Diagnose].
type Setup struct {
	Topic       string
	Group       string          // empty: it is not looked at
	DeadLetters string          // their topic; empty: there are none
	Policy      oncemill.Policy // of the handler, with which the servers have to agree
}

// Diagnose looks at a topic, its group and where dead letters go, and finds what loses records or makes effects twice. It
// changes nothing. Rights are those of the client.
func Diagnose(ctx context.Context, cl *kgo.Client, s Setup) (health.Report, error) {
	d := diagnosis{Setup: s, admin: kadm.NewClient(cl)}
	var err error
	if d.Policy, d.retries, err = health.Defaults(s.Policy); err == nil {
		err = d.look(ctx)
	}
	if err != nil {
		err = fmt.Errorf("franz: diagnose %s: %w", s.Topic, err)
	}
	return d.Report, err
}

type diagnosis struct {
	Setup
	health.Report
	admin   *kadm.Client
	retries time.Duration // how long attempts take
}

func (d *diagnosis) look(ctx context.Context) error {
	topics := []string{d.Topic}
	if d.DeadLetters != "" {
		topics = append(topics, d.DeadLetters)
	}
	meta, err := d.admin.Metadata(kadm.WithAuthorizedOps(ctx), topics...)
	if err != nil {
		return err
	}
	configs, err := d.admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return fmt.Errorf("settings of topics: %w", err)
	}
	all := map[string]topic{}
	for i, name := range topics {
		right := []kadm.ACLOperation{kadm.OpRead, kadm.OpWrite}[i]
		t, known, err := d.topicOf(name, right, meta, configs)
		if err != nil {
			return err
		}
		all[name] = t
		d.Looked = append(d.Looked, "topic "+name)
		if known {
			d.judge(t)
		}
	}
	d.judgeFor(all[d.Topic])
	if d.DeadLetters != "" {
		d.judgeDead(all[d.DeadLetters], all[d.Topic])
	}
	if d.Group == "" {
		return nil
	}
	return d.lookAtGroup(ctx)
}

func (d *diagnosis) lookAtGroup(ctx context.Context) error {
	subject := "group " + d.Group
	described, err := d.admin.DescribeGroups(ctx, d.Group)
	if err == nil {
		err = described[d.Group].Err
	}
	switch kind := described[d.Group].ProtocolType; {
	case errors.Is(err, kerr.GroupIDNotFound), err == nil && described[d.Group].State == "Dead":
		d.Judge(subject, health.UnwiseIf(true, "there is no such group: nobody has joined it or committed an offset; "+
			"look whether the name is that of the consumers"))
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		d.Judge(subject, health.LosesIf(true, "the client's user may not use it, and workers refuse to begin: allow "+
			"it to Read the group"))
	case err != nil:
		return fmt.Errorf("%s: %w", subject, err)
	case kind != "" && kind != "consumer":
		d.Judge(subject, health.LosesIf(true, fmt.Sprintf("it is in use by members of type %q, and workers refuse to "+
			"begin: take another group", kind)))
	}
	d.Looked = append(d.Looked, subject)
	return nil
}

// A topic is what a broker tells of one.
type topic struct {
	name             string
	brokers, copies  int           // how many there are, and the fewest of a partition
	retention        time.Duration // 0: not told; forever
	retentionBytes   int64         // 0: not told; less: no limit
	inSync, largest  int64         // 0: not told
	compacted, plain bool          // plain: records are deleted, too
	unclean          bool
}

// topicOf reads what a broker told, or why it did not. The right is what programs need.
func (d *diagnosis) topicOf(
	name string, right kadm.ACLOperation, meta kadm.Metadata, configs kadm.ResourceConfigs,
) (t topic, known bool, err error) {
	t = topic{name: name, brokers: len(meta.Brokers)}
	may := meta.Topics[name].AuthorizedOperations
	switch err := meta.Topics[name].Err; {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		d.Judge(t.subject(), health.LosesIf(true, "the client's user may not see it, and workers refuse to "+
			"begin: allow it to Describe, and to Read or Write"))
		return t, false, nil
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		d.Judge(t.subject(), health.LosesIf(true, "it is missing, and workers refuse to begin; create it"))
		return t, false, nil
	case err != nil:
		return t, false, fmt.Errorf("%s: %w", t.subject(), err)
	case len(may) > 0 && !slices.Contains(may, right): // else brokers tell none
		d.Judge(t.subject(), health.LosesIf(true, fmt.Sprintf("the client's user has no right to %v, and workers "+
			"refuse to begin: allow it", right)))
		return t, false, nil
	}
	for _, p := range meta.Topics[name].Partitions {
		if t.copies == 0 || len(p.Replicas) < t.copies {
			t.copies = len(p.Replicas)
		}
	}
	config, err := configs.On(name, nil)
	if err != nil || config.Err != nil {
		d.Judge(t.subject(), health.UnwiseIf(true, "the client's user may not read its settings, so they are "+
			"unknown: allow it to DescribeConfigs"))
		return t, false, nil //nolint:nilerr // it is said
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(setting(config, name), 10, 64)
		return n
	}
	t.retention, t.retentionBytes = retention(config), number("retention.bytes")
	t.inSync, t.largest = number("min.insync.replicas"), number("max.message.bytes")
	t.compacted, t.plain = compacted(config), strings.Contains(setting(config, "cleanup.policy"), "delete")
	t.unclean = setting(config, "unclean.leader.election.enable") == "true"
	return t, true, nil
}

func (t topic) subject() string { return "topic " + t.name }

// judge says by what any topic loses records.
func (d *diagnosis) judge(t topic) {
	copies := int64(t.copies)
	d.Judge(t.subject(),
		health.UnwiseIf(t.brokers == 1 && copies == 1, "its replication factor is 1, as there is one broker: whatever "+
			"that loses is lost; take three"),
		health.LosesIf(t.brokers > 1 && copies == 1, "its replication factor is 1: whatever a broker loses is lost; set "+
			"3"),
		health.LosesIf(copies > 1 && t.inSync == 1, "its min.insync.replicas is 1: a leader alone confirms records, and "+
			"they are lost with it; set 2"),
		health.LosesIf(copies > 0 && t.inSync > copies, fmt.Sprintf("its min.insync.replicas is %d of %d replicas: "+
			"nothing can be written; set it to less than the replicas", t.inSync, copies)),
		health.UnwiseIf(copies > 1 && t.inSync == copies, fmt.Sprintf("its min.insync.replicas is %d, all replicas: "+
			"nothing can be written while one broker is away; set it to one less, or add a replica", t.inSync)),
		health.LosesIf(t.unclean, "its unclean.leader.election.enable is true: a replica that is behind may become the "+
			"leader, and confirmed records are lost; set false"),
		health.LosesIf(t.compacted, "its cleanup.policy is compact: a newer record with the same key deletes older "+
			"ones, handled or not; set delete"),
		health.LosesIf(t.plain && t.retentionBytes > 0, fmt.Sprintf("its retention.bytes is %d: a full partition "+
			"deletes records that nobody has handled; set -1", t.retentionBytes)))
}

// judgeFor says what does not fit the records of a policy.
func (d *diagnosis) judgeFor(t topic) {
	kept := "for " + t.retention.String()
	if t.retention == forever {
		kept = "for ever"
	}
	d.Judge(t.subject(),
		health.LosesIf(t.plain && t.retention > d.Policy.Window, fmt.Sprintf("it keeps records %s "+
			"(retention.ms), and outcomes are remembered for %v (Policy.Window): what is read again after that runs "+
			"again; give the doctor your policy's window, or set it to at most that", kept, d.Policy.Window)),
		health.LosesIf(t.plain && t.retention > 0 && t.retention <= d.retries, fmt.Sprintf("it keeps records %s "+
			"(retention.ms), and %d attempts take up to %v: it deletes records before their last one; set it to more",
			kept, d.Policy.MaxAttempts, d.retries)))
}

// judgeDead says what does not fit the dead letters of a source.
func (d *diagnosis) judgeDead(t, source topic) {
	const fewDays = 3 * 24 * time.Hour
	vanish := fmt.Sprintf("it deletes dead letters after %s (retention.ms), redriven or not; set -1, or a time in "+
		"which somebody surely looks", t.retention)
	d.Judge(t.subject(), health.UnwiseIf(t.largest > 0 && t.largest < source.largest, fmt.Sprintf("its "+
		"max.message.bytes is %d, and that of %s is %d: dead letters of the largest records do not fit, and hold up "+
		"their partitions; set it to some kilobytes more than that", t.largest, source.name, source.largest)),
		health.LosesIf(t.plain && t.retention > 0 && t.retention < fewDays, vanish),
		health.UnwiseIf(t.plain && t.retention >= fewDays && t.retention < forever, vanish))
}

// Lag tells how far consumer groups are behind, for each topic.
func Lag(ctx context.Context, cl *kgo.Client, groups ...string) (all []health.Lag, err error) {
	lags, err := kadm.NewClient(cl).Lag(ctx, groups...)
	for _, group := range groups {
		of := lags[group]
		if err = cmp.Or(err, of.Error()); err != nil {
			return nil, fmt.Errorf("franz: lag of group %.80q: %w", group, err)
		}
		topics := of.Lag.TotalByTopic()
		if len(topics) == 0 {
			return nil, fmt.Errorf("franz: lag of group %.80q: it has joined no topic, and committed no offset: is it "+
				"spelled so?", group)
		}
		for _, topic := range slices.Sorted(maps.Keys(topics)) {
			all = append(all, health.Lag{
				Consumer: group, Topic: topic, Waiting: topics[topic].Lag, Members: len(of.Members),
			})
		}
	}
	return all, nil
}
