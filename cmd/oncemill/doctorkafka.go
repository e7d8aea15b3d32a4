package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/operate"
)

// lookAtKafka looks at a topic, a group and the topic of dead letters.
func (d *doctor) lookAtKafka(ctx context.Context) error {
	cl, err := d.kafka(kgo.RetryTimeout(5 * time.Second))
	if err != nil {
		return err
	}
	admin := kadm.NewClient(cl)
	topics := []string{d.topic}
	if d.dead != "" {
		topics = append(topics, d.dead)
	}
	meta, err := admin.Metadata(kadm.WithAuthorizedOps(ctx), topics...)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return fmt.Errorf("kafka: settings of topics: %w", err)
	}
	all := map[string]topic{}
	for i, name := range topics {
		right := []kadm.ACLOperation{kadm.OpRead, kadm.OpWrite}[i]
		t, found, err := topicOf(name, right, meta, configs)
		if err != nil {
			return err
		}
		all[name] = t
		d.looked = append(d.looked, "topic "+name)
		if d.found = append(d.found, found...); len(found) == 0 {
			d.found = append(d.found, t.judge()...)
		}
	}
	d.found = append(d.found, all[d.topic].judgeFor(d.policy)...)
	if d.dead != "" {
		d.found = append(d.found, all[d.dead].judgeDead(all[d.topic])...)
	}
	if d.group == "" {
		return nil
	}
	return d.lookAtGroup(ctx, admin)
}

func (d *doctor) lookAtGroup(ctx context.Context, admin *kadm.Client) error {
	subject := "group " + d.group
	described, err := admin.DescribeGroups(ctx, d.group)
	if err == nil {
		err = described[d.group].Err
	}
	switch kind := described[d.group].ProtocolType; {
	case errors.Is(err, kerr.GroupIDNotFound), err == nil && described[d.group].State == "Dead":
		d.found = append(d.found, operate.Found(unwise, subject, "there is no such group: nobody has joined it or "+
			"committed an offset; look whether the name is that of the consumers"))
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		d.found = append(d.found, operate.Found(loses, subject, "the client's user may not use it, and workers refuse "+
			"to begin: allow it to Read the group"))
	case err != nil:
		return fmt.Errorf("kafka: %s: %w", subject, err)
	case kind != "" && kind != "consumer":
		d.found = append(d.found, operate.Found(loses, subject, fmt.Sprintf("it is in use by members of type %q, and "+
			"workers refuse to begin: take another group", kind)))
	}
	d.looked = append(d.looked, subject)
	return nil
}

// A topic is what a broker tells of one.
type topic struct {
	name             string
	brokers, copies  int           // how many there are, and the fewest of a partition
	retention        time.Duration // 0: not told; less: for ever
	retentionBytes   int64         // 0: not told; less: no limit
	inSync, largest  int64         // 0: not told
	compacted, plain bool          // plain: records are deleted, too
	unclean          bool
}

// topicOf reads what a broker told, or why it did not. The right is what programs need.
func topicOf(
	name string, right kadm.ACLOperation, meta kadm.Metadata, configs kadm.ResourceConfigs,
) (t topic, found []finding, err error) {
	t = topic{name: name, brokers: len(meta.Brokers)}
	may := meta.Topics[name].AuthorizedOperations
	switch err := meta.Topics[name].Err; {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return t, judge(t.subject(), rule{true, loses, "the client's user may not see it, and workers refuse to " +
			"begin: allow it to Describe, and to Read or Write"}), nil
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return t, judge(t.subject(), rule{true, loses, "it is missing, and workers refuse to begin; create it"}), nil
	case err != nil:
		return t, nil, fmt.Errorf("kafka: %s: %w", t.subject(), err)
	case len(may) > 0 && !slices.Contains(may, right): // else brokers tell none
		return t, judge(t.subject(), rule{true, loses, fmt.Sprintf("the client's user has no right to %v, and workers "+
			"refuse to begin: allow it", right)}), nil
	}
	for _, p := range meta.Topics[name].Partitions {
		if t.copies == 0 || len(p.Replicas) < t.copies {
			t.copies = len(p.Replicas)
		}
	}
	config, err := configs.On(name, nil)
	if err != nil || config.Err != nil {
		return t, judge(t.subject(), rule{true, unwise, "the client's user may not read its settings, so they are " +
			"unknown: allow it to DescribeConfigs"}), nil
	}
	settings := map[string]string{}
	for _, c := range config.Configs {
		settings[c.Key] = c.MaybeValue()
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(settings[name], 10, 64)
		return n
	}
	ms := number("retention.ms")
	t.retention = time.Duration(min(ms, int64(1<<63-1)/int64(time.Millisecond))) * time.Millisecond
	t.retentionBytes, t.inSync = number("retention.bytes"), number("min.insync.replicas")
	t.largest = number("max.message.bytes")
	t.compacted = strings.Contains(settings["cleanup.policy"], "compact")
	t.plain = strings.Contains(settings["cleanup.policy"], "delete")
	t.unclean = settings["unclean.leader.election.enable"] == "true"
	return t, nil, nil
}

func (t topic) subject() string { return "topic " + t.name }

// judge says by what any topic loses records.
func (t topic) judge() []finding {
	copies := int64(t.copies)
	return judge(t.subject(),
		rule{t.brokers == 1 && copies == 1, unwise, "its replication factor is 1, as there is one broker: whatever " +
			"that loses is lost; take three"},
		rule{t.brokers > 1 && copies == 1, loses, "its replication factor is 1: whatever a broker loses is lost; set " +
			"3"},
		rule{copies > 1 && t.inSync == 1, loses, "its min.insync.replicas is 1: a leader alone confirms records, and " +
			"they are lost with it; set 2"},
		rule{copies > 0 && t.inSync > copies, loses, fmt.Sprintf("its min.insync.replicas is %d of %d replicas: "+
			"nothing can be written; set it to less than the replicas", t.inSync, copies)},
		rule{copies > 1 && t.inSync == copies, unwise, fmt.Sprintf("its min.insync.replicas is %d, all replicas: "+
			"nothing can be written while one broker is away; set it to one less, or add a replica", t.inSync)},
		rule{t.unclean, loses, "its unclean.leader.election.enable is true: a replica that is behind may become the " +
			"leader, and confirmed records are lost; set false"},
		rule{t.compacted, loses, "its cleanup.policy is compact: a newer record with the same key deletes older " +
			"ones, handled or not; set delete"},
		rule{t.plain && t.retentionBytes > 0, loses, fmt.Sprintf("its retention.bytes is %d: a full partition "+
			"deletes records that nobody has handled; set -1", t.retentionBytes)})
}

// judgeFor says what does not fit the records of a policy.
func (t topic) judgeFor(p policy) []finding {
	kept := "for " + t.retention.String()
	if t.retention < 0 {
		kept = "for ever"
	}
	return judge(t.subject(),
		rule{t.plain && (t.retention < 0 || t.retention > p.window), loses, fmt.Sprintf("it keeps records %s "+
			"(retention.ms), and outcomes are remembered for --window=%v: what is read again after that runs again; "+
			"give doctor your policy's window, or set it to at most that", kept, p.window)},
		rule{t.plain && t.retention > 0 && t.retention <= p.retries(), loses, fmt.Sprintf("it keeps records %s "+
			"(retention.ms), and %d attempts take up to %v: it deletes records before their last one; set it to more",
			kept, p.attempts,
			p.retries())})
}

// judgeDead says what does not fit the dead letters of a source.
func (t topic) judgeDead(source topic) []finding {
	const fewDays = 3 * 24 * time.Hour
	vanish := fmt.Sprintf("it deletes dead letters after %s (retention.ms), redriven or not; set -1, or a time in "+
		"which somebody surely looks", t.retention)
	return judge(t.subject(), rule{t.largest > 0 && t.largest < source.largest, unwise, fmt.Sprintf("its "+
		"max.message.bytes is %d, and that of %s is %d: dead letters of the largest records do not fit, and hold up "+
		"their partitions; set it to some kilobytes more than that", t.largest, source.name, source.largest)},
		rule{t.plain && t.retention > 0 && t.retention < fewDays, loses, vanish},
		rule{t.plain && t.retention >= fewDays, unwise, vanish})
}
