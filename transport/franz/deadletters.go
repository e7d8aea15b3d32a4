package franz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/producer"
)

const (
	// nextTimeout is how long the next letters may take. None come if the last ones are removed meanwhile, or if a
	// partition has lost its leader.
	nextTimeout = 10 * time.Second

	pageTime   = 150 * time.Millisecond // how long a page looks for letters
	mostWindow = 20_000                 // offsets of a partition that a page looks at together
)

// DeadLettersConfig configures DeadLetters. The zero value is usable.
type DeadLettersConfig struct {
	// Markers is the compacted topic that knows what was redriven or put aside. The first redrive makes it. Default:
	// TOPIC.redriven.
	Markers string
}

// DeadLetters are the dead letters of a topic, for the console. Kafka cannot remove single records: discarded letters
// are marked, as redriven ones are, and stay until the topic's retention ends.
type DeadLetters struct {
	topic  string
	config DeadLettersConfig
	opts   []kgo.Opt
	client *kgo.Client // that publishes, and asks what there is

	publisher *Publisher // nil: refused says why; letters can be read
	refused   error

	mu     sync.Mutex
	marked map[string]bool
	read   map[int32]int64 // up to these offsets of the markers' partitions
}

var _ deadletters.Source = (*DeadLetters)(nil)

// NewDeadLetters returns the dead letters of a topic. The options say how brokers are reached: seed brokers, TLS, SASL.
// It asks no broker yet.
func NewDeadLetters(topic string, c DeadLettersConfig, opts ...kgo.Opt) (*DeadLetters, error) {
	if topic == "" {
		return nil, errors.New("franz: NewDeadLetters: the topic is empty")
	}
	client, err := kgo.NewClient(append(slices.Clone(opts), PublisherOpts()...)...)
	if err != nil {
		return nil, fmt.Errorf("franz: NewDeadLetters: %w", err)
	}
	c.Markers = cmp.Or(c.Markers, topic+".redriven")
	d := &DeadLetters{topic: topic, config: c, opts: opts, client: client}
	d.marked, d.read = map[string]bool{}, map[int32]int64{}
	d.publisher, d.refused = NewPublisher(client, PublisherConfig{})
	return d, nil
}

// Close closes the connections.
func (d *DeadLetters) Close() { d.client.Close() }

// A span is what is read of a topic: of each partition the offsets from the first one up to the second.
type span map[int32][2]int64

// whole is all that a topic has now.
func (d *DeadLetters) whole(ctx context.Context, topic string) (all span, size int, err error) {
	admin := kadm.NewClient(d.client)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err = cmp.Or(err, starts.Error()); err != nil {
		return nil, 0, fmt.Errorf("topic %q: %w", topic, err)
	}
	ends, err := admin.ListCommittedOffsets(ctx, topic)
	if err = cmp.Or(err, ends.Error()); err != nil {
		return nil, 0, fmt.Errorf("topic %q: %w", topic, err)
	}
	all = span{}
	ends.Each(func(end kadm.ListedOffset) {
		if start, ok := starts.Lookup(topic, end.Partition); ok && start.Offset < end.Offset {
			size += int(end.Offset - start.Offset)
			all[end.Partition] = [2]int64{start.Offset, end.Offset}
		}
	})
	return all, size, nil
}

// A reader reads a span of a topic, in no group.
type reader struct {
	of     *DeadLetters
	client *kgo.Client
	topic  string
	ends   map[int32]int64 // of partitions that are not read yet
}

func (d *DeadLetters) reader(topic string, s span) (*reader, error) {
	r, from := &reader{of: d, topic: topic, ends: map[int32]int64{}}, map[int32]kgo.Offset{}
	for partition, at := range s {
		from[partition], r.ends[partition] = kgo.NewOffset().At(at[0]), at[1]
	}
	var err error
	r.client, err = kgo.NewClient(append(slices.Clone(d.opts), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(16<<20))...)
	return r, err
}

// next returns records; none: there are no more.
func (r *reader) next(ctx context.Context) (records []*kgo.Record, err error) {
	for len(records) == 0 && len(r.ends) > 0 {
		within, cancel := context.WithTimeout(ctx, nextTimeout)
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

// ended ends the reading if the rest of the span has expired or was deleted, when nothing has come for a while. If the
// rest is there, its broker is away or slow: that is an error.
//
// Compacted records and aborted transactions need no care here. Compaction spares the last record of a partition, and
// the marker that ends a transaction is read, too: each lies at the end of the span, or behind it. There is one
// exception: the marker of an aborted transaction cannot be read while another one, begun before it, is open.
func (r *reader) ended(ctx context.Context) error {
	left, _, err := r.of.whole(ctx, r.topic)
	if err != nil {
		return err
	}
	for partition, end := range r.ends {
		if at, some := left[partition]; some && at[0] < end {
			return fmt.Errorf("read topic %q: partition %d gave no record for %v before offset %d, its end: a broker "+
				"is away, or slow; say the same again", r.topic, partition, nextTimeout, end)
		}
	}
	clear(r.ends)
	return nil
}

// records calls do with each record of a span, until it returns false.
func (d *DeadLetters) records(ctx context.Context, topic string, s span, do func(*kgo.Record) bool) error {
	if len(s) == 0 {
		return nil
	}
	r, err := d.reader(topic, s)
	if err != nil {
		return err
	}
	defer r.client.Close()
	for {
		records, err := r.next(ctx)
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

func letter(record *kgo.Record) deadletters.Letter {
	l := deadletters.Letter{Position: fmt.Sprintf("%d/%d", record.Partition, record.Offset), Time: record.Timestamp}
	l.Topic, l.Key, l.Payload, l.Header = record.Topic, string(record.Key), record.Value, header(record.Headers)
	l.ID = l.Get(producer.HeaderID)
	return l
}

// markOf is the key of a letter's marker. It has the ID, too: a topic that was made again has the same offsets.
func markOf(l *deadletters.Letter) string { return l.Position + "/" + l.ID }

// marks reads the markers that are new, until ctx ends, and returns a function that knows them.
func (d *DeadLetters) marks(ctx context.Context) (marked func(*deadletters.Letter) bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	marked = func(l *deadletters.Letter) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.marked[markOf(l)]
	}
	all, _, err := d.whole(ctx, d.config.Markers)
	again := errors.Is(err, kerr.UnknownTopicOrPartition)
	if err != nil && !again {
		return marked, err
	}
	for partition, at := range all {
		again = again || at[1] < d.read[partition]
	}
	if again { // the topic was removed, or made again
		clear(d.marked)
		clear(d.read)
	}
	for partition, at := range all {
		all[partition] = [2]int64{max(at[0], d.read[partition]), at[1]}
		if all[partition][0] >= at[1] {
			delete(all, partition)
		}
	}
	return marked, d.records(ctx, d.config.Markers, all, func(record *kgo.Record) bool {
		d.marked[string(record.Key)] = true
		d.read[record.Partition] = record.Offset + 1
		return true
	})
}

// mark notes that letters are redriven, or put aside.
func (d *DeadLetters) mark(ctx context.Context, letters []deadletters.Letter) error {
	if d.refused != nil {
		return fmt.Errorf("mark letters: %w", d.refused)
	}
	markers := make([]*produced, len(letters))
	for i := range letters {
		key, at := []byte(markOf(&letters[i])), []byte(time.Now().UTC().Format(time.RFC3339))
		markers[i] = &produced{record: &kgo.Record{Topic: d.config.Markers, Key: key, Value: at}}
	}
	d.publisher.deliver(ctx, markers) // kgo would wait for a partition without a leader, whatever the context says
	for _, f := range markers {
		if f.err != nil {
			return fmt.Errorf("mark letters: %w", f.err)
		}
	}
	return nil
}

// makeMarkers makes the topic of markers, if there is none.
func (d *DeadLetters) makeMarkers(ctx context.Context) error {
	compact := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
	_, err := kadm.NewClient(d.client).CreateTopic(ctx, 1, -1, compact, d.config.Markers)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("make topic %q, which keeps the progress: %w", d.config.Markers, err)
	}
	return nil
}

// Each implements [deadletters.Source].
func (d *DeadLetters) Each(ctx context.Context, r deadletters.Reading, do func(deadletters.Letter) bool) error {
	marked := func(*deadletters.Letter) bool { return false }
	var err error
	if r.Left || r.Done {
		if marked, err = d.marks(ctx); err != nil {
			return err
		}
	}
	all, _, err := d.whole(ctx, d.topic)
	if err != nil {
		return err
	}
	return d.records(ctx, d.topic, all, func(record *kgo.Record) bool {
		l := letter(record)
		l.Done = marked(&l)
		return l.Done && r.Left || do(l)
	})
}

// Page implements [deadletters.Source]. It reads the ends of all partitions, and doubles them until the page is full.
func (d *DeadLetters) Page(
	ctx context.Context, after string, most int, wanted func(*deadletters.Letter) bool,
) (p deadletters.Page, err error) {
	rest, size, err := d.whole(ctx, d.topic)
	if err != nil {
		return p, err
	}
	p.Total = size
	if after != "" {
		if rest, err = readPlace(after, rest); err != nil {
			return p, err
		}
	}
	within, cancel := context.WithTimeout(ctx, pageTime)
	marked, err := d.marks(within) // the rest of many is read by the next page
	late := within.Err() != nil && ctx.Err() == nil
	cancel()
	if err != nil && !late {
		return p, err
	}
	began := time.Now()
	for window := int64(most); len(rest) > 0 && len(p.Letters) < most && time.Since(began) < pageTime; {
		read := span{}
		for partition, at := range rest {
			read[partition] = [2]int64{max(at[0], at[1]-window), at[1]}
		}
		var found []*kgo.Record
		err := d.records(ctx, d.topic, read, func(record *kgo.Record) bool {
			p.Looked++
			if l := letter(record); wanted(&l) {
				found = append(found, record)
			}
			return true
		})
		if err != nil {
			return p, err
		}
		slices.SortFunc(found, func(a, b *kgo.Record) int {
			return cmp.Or(b.Timestamp.Compare(a.Timestamp), cmp.Compare(a.Partition, b.Partition),
				cmp.Compare(b.Offset, a.Offset))
		})
		// A partition goes on below what was taken of it, if something was left.
		taken := found[:min(len(found), most-len(p.Letters))]
		for partition, at := range read {
			rest[partition] = [2]int64{rest[partition][0], at[0]}
		}
		for _, record := range found[len(taken):] {
			at := rest[record.Partition]
			rest[record.Partition] = [2]int64{at[0], max(at[1], record.Offset+1)}
		}
		for partition, at := range rest {
			if at[0] >= at[1] {
				delete(rest, partition)
			}
		}
		for _, record := range taken {
			l := letter(record)
			l.Done, l.Payload = marked(&l), nil
			p.Letters = append(p.Letters, l)
		}
		window = min(2*window, mostWindow)
	}
	p.Next = rest.place()
	return p, nil
}

// place writes where the next page ends, as PARTITION.OFFSET of each partition.
func (s span) place() string {
	var parts []string
	for partition, at := range s {
		parts = append(parts, fmt.Sprintf("%d.%d", partition, at[1]))
	}
	slices.Sort(parts)
	return strings.Join(parts, "_")
}

// readPlace reads what place wrote, of what a topic has.
func readPlace(text string, all span) (span, error) {
	rest := span{}
	for part := range strings.SplitSeq(text, "_") {
		partition, offset, err := readPair(part, ".")
		if err != nil {
			return nil, err
		}
		if at := all[partition]; at[0] < min(at[1], offset) {
			rest[partition] = [2]int64{at[0], min(at[1], offset)}
		}
	}
	return rest, nil
}

func readPair(text, between string) (partition int32, offset int64, err error) {
	first, second, _ := strings.Cut(text, between)
	n, err := strconv.ParseInt(first, 10, 32)
	if err == nil {
		offset, err = strconv.ParseInt(second, 10, 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("franz: %q is no position of a letter", text)
	}
	return int32(n), offset, nil
}

// Show implements [deadletters.Source]. It reads all markers that are new, however many they are.
func (d *DeadLetters) Show(ctx context.Context, position string) (l deadletters.Letter, err error) {
	if l, err = d.show(ctx, position); err != nil {
		return l, err
	}
	marked, err := d.marks(ctx)
	l.Done = marked(&l)
	return l, err
}

// show reads a letter, and no markers.
func (d *DeadLetters) show(ctx context.Context, position string) (l deadletters.Letter, err error) {
	partition, offset, err := readPair(position, "/")
	if err != nil {
		return l, err
	}
	all, _, err := d.whole(ctx, d.topic)
	if at := all[partition]; err != nil || offset < at[0] || offset >= at[1] {
		return l, cmp.Or(err, deadletters.ErrGone)
	}
	err = d.records(ctx, d.topic, span{partition: {offset, offset + 1}}, func(record *kgo.Record) bool {
		l = letter(record)
		return false
	})
	if err == nil && l.Position == "" {
		err = deadletters.ErrGone
	}
	return l, err
}

// Discard implements [deadletters.Source].
func (d *DeadLetters) Discard(ctx context.Context, letters []deadletters.Letter) error {
	if err := d.makeMarkers(ctx); err != nil {
		return err
	}
	return d.mark(ctx, letters)
}
