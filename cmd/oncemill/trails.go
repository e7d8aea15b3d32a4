package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/producer"
)

// headerUUID is where Watermill puts a message's UUID, on both brokers.
const headerUUID = "_watermill_message_uuid"

// silence is how long nothing may come before a trail looks whether there is more.
const silence = 5 * time.Second

// A kafkaTrail is a topic of Kafka.
type kafkaTrail struct {
	app        *app
	topic      string
	start, end map[int32]int64 // offsets by partition, of those that are not empty
	total      int
	said       []string
}

func (a *app) kafkaTrail(ctx context.Context, topic string) (trail, error) {
	cl, err := a.kafka()
	if err != nil {
		return nil, err
	}
	adm := kadm.NewClient(cl)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err = cmp.Or(err, starts.Error()); err != nil {
		return nil, fmt.Errorf("topic %s: %w", safe(topic, 80), err)
	}
	ends, err := adm.ListCommittedOffsets(ctx, topic) // up to the first open transaction
	if err = cmp.Or(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("topic %s: %w", safe(topic, 80), err)
	}
	t := &kafkaTrail{app: a, topic: topic, start: map[int32]int64{}, end: map[int32]int64{}}
	ends.Each(func(end kadm.ListedOffset) {
		if start, ok := starts.Lookup(topic, end.Partition); ok && start.Offset < end.Offset {
			t.start[end.Partition], t.end[end.Partition] = start.Offset, end.Offset
			t.total += int(end.Offset - start.Offset)
		}
	})
	t.note(ctx, adm)
	return t, nil
}

// note names what the topic's settings hide.
func (t *kafkaTrail) note(ctx context.Context, adm *kadm.Client) {
	configs, err := adm.DescribeTopicConfigs(ctx, t.topic)
	if err == nil {
		var config kadm.ResourceConfig
		if config, err = configs.On(t.topic, nil); err == nil {
			err = config.Err
		}
		for _, c := range config.Configs {
			if c.Key == "cleanup.policy" && strings.Contains(c.MaybeValue(), "compact") {
				t.said = append(t.said, "The topic is compacted (cleanup.policy "+c.MaybeValue()+"): Kafka keeps the "+
					"last record of a key, and may have removed duplicates before it.")
			}
		}
	}
	if err != nil {
		t.said = append(t.said, "It is unknown whether the topic is compacted: "+oneLine(err))
	}
}

func (t *kafkaTrail) size() int       { return t.total }
func (t *kafkaTrail) notes() []string { return t.said }

// from makes a client that reads partitions from offsets on.
func (t *kafkaTrail) from(offsets map[int32]int64) (*kgo.Client, error) {
	at := map[int32]kgo.Offset{}
	for p, offset := range offsets {
		at[p] = kgo.NewOffset().At(offset)
	}
	return t.app.kafka(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{t.topic: at}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(16<<20), kgo.MaxConcurrentFetches(4))
}

func (t *kafkaTrail) read(ctx context.Context, do func(message) error) error {
	if len(t.end) == 0 {
		return nil
	}
	cl, err := t.from(t.start)
	if err != nil {
		return err
	}
	defer cl.Close()
	left := map[int32]int64{} // the ends of partitions that are not read yet
	for p, end := range t.end {
		left[p] = end
	}
	for len(left) > 0 {
		polling, cancel := context.WithTimeout(ctx, silence)
		fetches := cl.PollRecords(polling, 10_000)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, e := range fetches.Errors() {
			if !errors.Is(e.Err, context.DeadlineExceeded) {
				return fmt.Errorf("topic %s, partition %d: %w", safe(t.topic, 80), e.Partition, e.Err)
			}
		}
		if fetches.NumRecords() == 0 {
			// Records at the end may be gone: compacted, expired, or of transactions that were aborted.
			listed, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, t.topic)
			if err = cmp.Or(err, listed.Error()); err != nil {
				return fmt.Errorf("topic %s: %w", safe(t.topic, 80), err)
			}
			for p, end := range left {
				t.said = append(t.said,
					fmt.Sprintf("Partition %d gave no record for %v before offset %d, its end: the rest is gone, or "+
						"the broker is too slow to be counted.", p, silence, end))
			}
			return nil
		}
		for records := fetches.RecordIter(); !records.Done(); {
			r := records.Next()
			if end, reading := left[r.Partition]; reading {
				if r.Offset < end && !r.Attrs.IsControl() {
					if err := do(t.message(r)); err != nil {
						return err
					}
				}
				if r.Offset >= end-1 {
					delete(left, r.Partition)
					cl.PauseFetchPartitions(map[string][]int32{t.topic: {r.Partition}})
				}
			}
		}
	}
	return nil
}

func (t *kafkaTrail) message(r *kgo.Record) message {
	header := make(producer.Header, len(r.Headers))
	for _, h := range r.Headers {
		value := string(h.Value)
		if before, twice := header[h.Key]; twice && before != value {
			value = before + ", " + value
		}
		header[h.Key] = value
	}
	uuid := header[headerUUID]
	delete(header, headerUUID)
	return message{
		Incoming: producer.Incoming{Header: header, UUID: uuid, Topic: r.Topic, Payload: r.Value},
		at:       r.Timestamp, place: place{partition: r.Partition, offset: r.Offset},
	}
}

func (t *kafkaTrail) find(ctx context.Context, where place) (producer.Incoming, error) {
	cl, err := t.from(map[int32]int64{where.partition: where.offset})
	if err != nil {
		return producer.Incoming{}, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	fetches := cl.PollRecords(ctx, 1)
	for _, e := range fetches.Errors() {
		return producer.Incoming{}, e.Err
	}
	if r := fetches.Records()[0]; r.Offset == where.offset {
		return t.message(r).Incoming, nil
	}
	return producer.Incoming{}, fmt.Errorf("partition %d has no record %d any more", where.partition, where.offset)
}

// A natsTrail is a stream of JetStream, or one of its subjects.
type natsTrail struct {
	stream  jetstream.Stream
	name    string
	subject string // empty: all
	last    uint64
	total   int
	said    []string
}

func (a *app) natsTrail(ctx context.Context, topic string) (trail, error) {
	js, err := a.jetStream()
	if err != nil {
		return nil, err
	}
	t := &natsTrail{name: topic}
	t.stream, err = js.Stream(ctx, topic)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrInvalidStreamName) {
		t.subject = topic
		if t.name, err = js.StreamNameBySubject(ctx, topic); errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, fmt.Errorf("there is no stream %s, and no stream with that subject", safe(topic, 80))
		}
		if err == nil {
			t.stream, err = js.Stream(ctx, t.name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", safe(topic, 80), err)
	}
	info := t.stream.CachedInfo()
	if info.Config.Retention != jetstream.LimitsPolicy {
		return nil, fmt.Errorf("stream %s has the retention %s: a consumer would change what it keeps. Count in a "+
			"mirror of it that has the retention limits", safe(t.name, 80),
			strings.ToLower(info.Config.Retention.String()))
	}
	t.last, t.total = info.State.LastSeq, int(info.State.Msgs)
	if window := info.Config.Duplicates; window > 0 {
		t.said = append(t.said, fmt.Sprintf("The stream drops messages with an equal Nats-Msg-Id within %v: these "+
			"duplicates are not in it.", window))
	}
	if most := info.Config.MaxMsgsPerSubject; most > 0 {
		t.said = append(t.said, fmt.Sprintf("The stream keeps the last %s of a subject, and may have removed "+
			"duplicates before them.", plural(int(most), "message")))
	}
	return t, nil
}

func (t *natsTrail) size() int       { return t.total }
func (t *natsTrail) notes() []string { return t.said }

func (t *natsTrail) read(ctx context.Context, do func(message) error) error {
	if t.total == 0 {
		return nil
	}
	config := jetstream.OrderedConsumerConfig{}
	if t.subject != "" {
		config.FilterSubjects = []string{t.subject}
	}
	consumer, err := t.stream.OrderedConsumer(ctx, config)
	if err != nil {
		return fmt.Errorf("stream %s: %w", safe(t.name, 80), err)
	}
	if t.total = int(consumer.CachedInfo().NumPending); t.total == 0 {
		return nil
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(10_000, 16<<20))
	if err != nil {
		return fmt.Errorf("stream %s: %w", safe(t.name, 80), err)
	}
	defer messages.Stop()
	// One timer for all: Next would make one for each message.
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	quiet := time.AfterFunc(silence, func() { stop(errSilence) })
	defer quiet.Stop()
	for {
		quiet.Reset(silence)
		msg, err := messages.Next(jetstream.NextContext(waiting))
		quiet.Stop() // what is done with a message may take longer
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && errors.Is(context.Cause(waiting), errSilence):
			return t.ended(ctx, consumer)
		case err != nil:
			return fmt.Errorf("stream %s: %w", safe(t.name, 80), err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Stream <= t.last {
			m := t.message(msg.Subject(), msg.Headers(), msg.Data(), meta.Timestamp, meta.Sequence.Stream)
			if err := do(m); err != nil {
				return err
			}
		}
		if meta.Sequence.Stream >= t.last || meta.NumPending == 0 {
			return nil
		}
	}
}

var errSilence = errors.New("nothing came for a while")

// ended looks whether a stream has no more messages: those at the end may have expired meanwhile.
func (t *natsTrail) ended(ctx context.Context, consumer jetstream.Consumer) error {
	info, err := consumer.Info(ctx)
	if err != nil {
		return fmt.Errorf("stream %s: %w", safe(t.name, 80), err)
	}
	if info.NumPending > 0 {
		return fmt.Errorf("stream %s: %s still to come, and nothing came for %v", safe(t.name, 80),
			plural(int(info.NumPending), "message"), silence)
	}
	return nil
}

func (t *natsTrail) message(subject string, in nats.Header, data []byte, at time.Time, sequence uint64) message {
	header := make(producer.Header, len(in))
	for name, values := range in {
		header[name] = strings.Join(values, ", ")
	}
	var uuid string
	if values := in[headerUUID]; len(values) > 0 {
		uuid = values[0]
		delete(header, headerUUID)
	}
	return message{
		Incoming: producer.Incoming{Header: header, UUID: uuid, Topic: subject, Origin: t.name, Payload: data},
		at:       at, place: place{offset: int64(sequence)},
	}
}

func (t *natsTrail) find(ctx context.Context, where place) (producer.Incoming, error) {
	raw, err := t.stream.GetMsg(ctx, uint64(where.offset))
	if err != nil {
		return producer.Incoming{}, fmt.Errorf("message %d: %w", where.offset, err)
	}
	return t.message(raw.Subject, raw.Header, raw.Data, raw.Time, raw.Sequence).Incoming, nil
}
