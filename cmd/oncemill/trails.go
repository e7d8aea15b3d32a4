package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/oncemill/oncemill/producer"
)

// A trail is what a broker keeps of a topic.
type trail struct {
	read  func(ctx context.Context, do func(letter) bool) error // each message that was there when the trail was opened
	size  int                                                   // about how many messages there are
	notes []string                                              // what people should know of the topic
}

func (a *app) kafkaTrail(ctx context.Context, topic string) (*trail, error) {
	client, err := a.kafka()
	if err != nil {
		return nil, err
	}
	k := &kafkaLetters{app: a, client: client, topic: topic}
	within, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	reader, err := k.read(within, topic)
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, reader.client.Close)
	t := &trail{size: reader.size}
	t.read = func(ctx context.Context, do func(letter) bool) error {
		for {
			records, err := reader.next(ctx)
			if err != nil || len(records) == 0 {
				t.notes = append(t.notes, reader.notes...)
				return err
			}
			for _, record := range records {
				if !do(kafkaLetter(record)) {
					return nil
				}
			}
		}
	}
	t.compacted(within, kadm.NewClient(client), topic)
	return t, nil
}

// compacted notes whether the topic's settings hide duplicates.
func (t *trail) compacted(ctx context.Context, adm *kadm.Client, topic string) {
	configs, err := adm.DescribeTopicConfigs(ctx, topic)
	if err == nil {
		var config kadm.ResourceConfig
		if config, err = configs.On(topic, nil); err == nil {
			err = config.Err
		}
		for _, c := range config.Configs {
			if c.Key == "cleanup.policy" && strings.Contains(c.MaybeValue(), "compact") {
				t.notes = append(t.notes, "The topic is compacted (cleanup.policy "+c.MaybeValue()+"): Kafka keeps the "+
					"last record of a key, and may have removed duplicates before it.")
			}
		}
	}
	if err != nil {
		t.notes = append(t.notes, "It is unknown whether the topic is compacted: "+oneLine(err))
	}
}

func (a *app) natsTrail(ctx context.Context, topic string) (*trail, error) {
	js, err := a.jetStream()
	if err != nil {
		return nil, err
	}
	l := &natsLetters{app: a, js: js, flags: &dlq{payload: true}}
	name := topic
	l.stream, err = js.Stream(ctx, topic)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrInvalidStreamName) {
		l.subject = topic
		if name, err = js.StreamNameBySubject(ctx, topic); errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, fmt.Errorf("there is no stream %s, and no stream with that subject", safe(topic, 80))
		}
		if err == nil {
			l.stream, err = js.Stream(ctx, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", safe(topic, 80), err)
	}
	info := l.stream.CachedInfo()
	if info.Config.Retention != jetstream.LimitsPolicy {
		return nil, fmt.Errorf("stream %s has the retention %s: a consumer would change what it keeps. Count in a "+
			"mirror of it that has the retention limits", safe(name, 80),
			strings.ToLower(info.Config.Retention.String()))
	}
	t := &trail{size: int(info.State.Msgs)}
	t.read = func(ctx context.Context, do func(letter) bool) error {
		if t.size == 0 {
			return nil
		}
		return l.read(ctx, max(1, info.State.FirstSeq), info.State.LastSeq, do)
	}
	if window := info.Config.Duplicates; window > 0 {
		t.notes = append(t.notes, fmt.Sprintf("The stream drops messages with an equal Nats-Msg-Id within %v: these "+
			"duplicates are not in it.", window))
	}
	if most := info.Config.MaxMsgsPerSubject; most > 0 {
		t.notes = append(t.notes, fmt.Sprintf("The stream keeps the last %s of a subject, and may have removed "+
			"duplicates before them.", plural(int(most), "message")))
	}
	return t, nil
}

// headerUUID is where Watermill puts a message's UUID, on both brokers.
const headerUUID = "_watermill_message_uuid"

// incoming is a letter as a message from a broker.
func (l *letter) incoming() producer.Incoming {
	uuid := l.Header[headerUUID]
	delete(l.Header, headerUUID)
	return producer.Incoming{Header: l.Header, UUID: uuid, Topic: l.Topic, Payload: l.Payload}
}

// ended reports whether the rest of a topic is gone: compacted, expired, or of transactions that were aborted. Nothing
// has come for a while.
func (r *kafkaReader) ended(ctx context.Context) error {
	listed, err := kadm.NewClient(r.client).ListCommittedOffsets(ctx, r.topic)
	if err = cmp.Or(err, listed.Error()); err != nil {
		return fmt.Errorf("topic %s: %w", safe(r.topic, 80), err)
	}
	for p, end := range r.ends {
		r.notes = append(r.notes, fmt.Sprintf("Partition %d gave no record for %v before offset %d, its end: the rest "+
			"is gone, or the broker is too slow to be read.", p, readTimeout, end))
	}
	clear(r.ends)
	return nil
}
