package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A trail is what a broker keeps of a topic, and reads as dead letters are read.
type trail struct {
	deadletters.Source
	origin string   // the stream; empty: Kafka
	size   int      // about how many messages there are
	notes  []string // what people should know of the topic
}

func (t *trail) note(text string) { t.notes = append(t.notes, text) }

func (a *app) kafkaTrail(ctx context.Context, topic string) (*trail, error) {
	t := &trail{}
	letters, err := a.kafkaLetters(&dlq{}, topic)
	if err != nil {
		return nil, err
	}
	t.Source = letters
	within, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	page, err := t.Page(within, "", 1, func(*deadletters.Letter) bool { return true })
	if err != nil {
		return nil, err
	}
	t.size = page.Total
	client, err := a.kafka()
	if err != nil {
		return nil, err
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
				t.note("The topic is compacted (cleanup.policy " + c.MaybeValue() + "): Kafka keeps the last record " +
					"of a key, and may have removed duplicates before it.")
			}
		}
	}
	if err != nil {
		t.note("It is unknown whether the topic is compacted: " + oneLine(err))
	}
}

func (a *app) natsTrail(ctx context.Context, topic string) (*trail, error) {
	js, err := a.jetStream()
	if err != nil {
		return nil, err
	}
	name, subject := topic, ""
	stream, err := js.Stream(ctx, topic)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrInvalidStreamName) {
		subject = topic
		if name, err = js.StreamNameBySubject(ctx, topic); errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, fmt.Errorf("there is no stream %s, and no stream with that subject", safe(topic, 80))
		}
		if err == nil {
			stream, err = js.Stream(ctx, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", safe(topic, 80), err)
	}
	info := stream.CachedInfo()
	if info.Config.Retention != jetstream.LimitsPolicy {
		return nil, fmt.Errorf("stream %s has the retention %s: a consumer would change what it keeps. Count in a "+
			"mirror of it that has the retention limits", safe(name, 80),
			strings.ToLower(info.Config.Retention.String()))
	}
	t := &trail{origin: name, size: int(info.State.Msgs)}
	t.Source, err = natsjs.NewDeadLetters(js, subject, natsjs.DeadLettersConfig{Stream: name})
	if window := info.Config.Duplicates; window > 0 {
		t.note(fmt.Sprintf("The stream drops messages with an equal Nats-Msg-Id within %v: these duplicates are not "+
			"in it.", window))
	}
	if most := info.Config.MaxMsgsPerSubject; most > 0 {
		t.note(fmt.Sprintf("The stream keeps the last %s of a subject, and may have removed duplicates before them.",
			plural(int(most), "message")))
	}
	return t, err
}

// headerUUID is where Watermill puts a message's UUID, on both brokers.
const headerUUID = "_watermill_message_uuid"

// incoming is a letter as a message from a broker.
func (t *trail) incoming(l *deadletters.Letter) producer.Incoming {
	uuid := l.Header[headerUUID]
	delete(l.Header, headerUUID)
	return producer.Incoming{Header: l.Header, UUID: uuid, Topic: l.Topic, Origin: t.origin, Payload: l.Payload}
}
