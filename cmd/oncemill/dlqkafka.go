package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// kafkaLetters are the dead letters of a topic. A compacted topic of markers knows which are redriven.
type kafkaLetters struct {
	app     *app
	client  *kgo.Client // that publishes
	topic   string
	marker  string          // the topic of markers
	marked  map[string]bool // nil: not read yet
	reader  *kafkaReader    // of what is taken
	fetched []letter        // and not taken yet
}

func (a *app) kafkaLetters(d *dlq, topic string) (deadLetters, error) {
	client, err := a.kafka(franz.PublisherOpts()...)
	if err != nil {
		return nil, err
	}
	return &kafkaLetters{app: a, client: client, topic: topic, marker: cmp.Or(d.name, topic+".redriven")}, nil
}

func (k *kafkaLetters) each(ctx context.Context, left bool, do func(letter) bool) error {
	if left {
		if err := k.readMarkers(ctx); err != nil {
			return err
		}
	}
	return k.readAll(ctx, k.topic, func(record *kgo.Record) bool {
		l := kafkaLetter(record)
		return left && k.marked[l.mark()] || do(l)
	})
}

// readAll calls do with each record that a topic has now, until it returns false.
func (k *kafkaLetters) readAll(ctx context.Context, topic string, do func(*kgo.Record) bool) error {
	reader, err := k.read(ctx, topic)
	if err != nil {
		return err
	}
	defer reader.client.Close()
	for {
		records, err := reader.next(ctx)
		if err != nil || len(records) == 0 {
			return err
		}
		for _, record := range records {
			if !do(record) {
				return nil
			}
		}
	}
}

func kafkaLetter(record *kgo.Record) letter {
	l := letter{position: fmt.Sprintf("%d/%d", record.Partition, record.Offset), at: record.Timestamp}
	l.Topic, l.Key, l.Payload, l.Header = record.Topic, string(record.Key), record.Value, producer.Header{}
	for _, h := range record.Headers {
		value := string(h.Value)
		if before, twice := l.Header[h.Key]; twice && before != value {
			value = before + ", " + value
		}
		l.Header[h.Key] = value
	}
	l.ID = l.get(producer.HeaderID)
	return l
}

// readMarkers reads which letters are redriven. A marker names the ID, too: a topic that was made again has the same
// offsets.
func (k *kafkaLetters) readMarkers(ctx context.Context) error {
	k.marked = map[string]bool{}
	err := k.readAll(ctx, k.marker, func(record *kgo.Record) bool {
		k.marked[string(record.Key)] = true
		return true
	})
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil
	}
	return err
}

// A kafkaReader reads a topic up to where it ended at first, in no group.
type kafkaReader struct {
	client *kgo.Client
	topic  string
	ends   map[int32]int64 // of partitions that are not read yet
	size   int             // about how many records there are
	notes  []string        // what could not be read
}

func (k *kafkaLetters) read(ctx context.Context, topic string) (*kafkaReader, error) {
	admin := kadm.NewClient(k.client)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err = cmp.Or(err, starts.Error()); err != nil {
		return nil, fmt.Errorf("topic %q: %w", topic, err)
	}
	ends, err := admin.ListCommittedOffsets(ctx, topic)
	if err = cmp.Or(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("topic %q: %w", topic, err)
	}
	r, from := &kafkaReader{topic: topic, ends: map[int32]int64{}}, map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) {
		if start, ok := starts.Lookup(topic, end.Partition); ok && start.Offset < end.Offset {
			r.size += int(end.Offset - start.Offset)
			r.ends[end.Partition], from[end.Partition] = end.Offset, kgo.NewOffset().At(start.Offset)
		}
	})
	r.client, err = k.app.kafka(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(16<<20))
	return r, err
}

// next returns records; none: there are no more.
func (r *kafkaReader) next(ctx context.Context) (records []*kgo.Record, err error) {
	for len(records) == 0 && len(r.ends) > 0 {
		within, cancel := context.WithTimeout(ctx, readTimeout)
		fetches := r.client.PollRecords(within, 2000)
		cancel()
		switch err := fetches.Err(); {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			return nil, r.ended(ctx)
		case err != nil:
			return nil, fmt.Errorf("read topic %q: %w", r.topic, err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			end, open := r.ends[record.Partition]
			if open && record.Offset < end && !record.Attrs.IsControl() {
				records = append(records, record)
			}
			if record.Offset+1 >= end {
				delete(r.ends, record.Partition)
			}
		})
	}
	return records, nil
}

func (k *kafkaLetters) take(ctx context.Context, n int) (batch []letter, err error) {
	if k.reader == nil {
		if err := k.begin(ctx); err != nil {
			return nil, err
		}
	}
	for len(batch) < n {
		if len(k.fetched) == 0 {
			records, err := k.reader.next(ctx)
			if err != nil || len(records) == 0 {
				return batch, err
			}
			for _, record := range records {
				k.fetched = append(k.fetched, kafkaLetter(record))
			}
		}
		if l := k.fetched[0]; !k.marked[l.mark()] {
			batch = append(batch, l)
		}
		k.fetched = k.fetched[1:]
	}
	return batch, nil
}

// begin makes the topic of markers, and reads what it has.
func (k *kafkaLetters) begin(ctx context.Context) (err error) {
	compact := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
	_, err = kadm.NewClient(k.client).CreateTopic(ctx, 1, -1, compact, k.marker)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("make topic %q, which keeps the progress: %w", k.marker, err)
	}
	if err := k.readMarkers(ctx); err != nil {
		return err
	}
	if k.reader, err = k.read(ctx, k.topic); err == nil {
		k.app.closers = append(k.app.closers, k.reader.client.Close)
	}
	return err
}

// mark is the key of a letter's marker.
func (l *letter) mark() string { return l.position + "/" + l.ID }

func (k *kafkaLetters) done(ctx context.Context, sent []letter) error {
	var markers []*kgo.Record
	for i := range sent {
		key, at := []byte(sent[i].mark()), []byte(time.Now().UTC().Format(time.RFC3339))
		markers = append(markers, &kgo.Record{Topic: k.marker, Key: key, Value: at})
	}
	if err := k.client.ProduceSync(ctx, markers...).FirstErr(); err != nil {
		return fmt.Errorf("mark letters that were sent: %w", err)
	}
	return nil
}

func (k *kafkaLetters) leave() {} // nothing is taken from a topic

func (k *kafkaLetters) publisher() (producer.Publisher, error) {
	return franz.NewPublisher(k.client, franz.PublisherConfig{})
}
