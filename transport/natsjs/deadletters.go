package natsjs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/producer"
)

const (
	// takeTimeout is when a letter comes again that a redrive took and neither acknowledged nor gave back, because it
	// was killed. A batch takes less.
	takeTimeout = 10 * time.Second

	// waitMost is how long a redrive waits for another one that is not over.
	waitMost = time.Minute

	// nextTimeout is how long the next letter may take: if the last one is removed meanwhile, none comes.
	nextTimeout = 10 * time.Second

	pageTime    = 150 * time.Millisecond // how long a page looks for letters
	mostWindow  = 20_000                 // sequences that a page looks at together
	mostDiscard = 32                     // letters that are removed at the same time
)

// DeadLettersConfig configures DeadLetters. The zero value is usable.
type DeadLettersConfig struct {
	Stream   string // that has the letters. Default: the one with the subject
	Progress string // the durable consumer that knows what was redriven. Default: oncemill-redrive-SUBJECT
}

// DeadLetters are the dead letters of a subject, for the console. A durable consumer knows by its acks which are
// redriven. Discarded letters are removed from the stream.
type DeadLetters struct {
	js      jetstream.JetStream
	subject string
	config  DeadLettersConfig
}

var _ deadletters.Source = (*DeadLetters)(nil)

// NewDeadLetters returns the dead letters of a subject, or of a whole stream if the subject is empty. It asks no server
// yet.
func NewDeadLetters(js jetstream.JetStream, subject string, c DeadLettersConfig) (*DeadLetters, error) {
	switch {
	case js == nil:
		return nil, errors.New("natsjs: NewDeadLetters: the JetStream is nil")
	case subject == "" && c.Stream == "":
		return nil, errors.New("natsjs: NewDeadLetters: the subject is empty, and so is DeadLettersConfig.Stream")
	}
	c.Progress = cmp.Or(c.Progress, "oncemill-redrive-"+noConsumer.ReplaceAllString(subject, "_"))
	return &DeadLetters{js: js, subject: subject, config: c}, nil
}

// noConsumer is what a subject may have and the name of a consumer may not.
var noConsumer = regexp.MustCompile(`[.*>\\/\s]`)

// stream finds the stream, with its present state.
func (d *DeadLetters) stream(ctx context.Context) (jetstream.Stream, error) {
	name := d.config.Stream
	if name == "" {
		var err error
		if name, err = d.js.StreamNameBySubject(ctx, d.subject); err != nil {
			return nil, fmt.Errorf("stream of subject %q: %w: give the topic of dead letters, "+
				"consumer.Config.DeadLetterTopic, or also the stream that has them", d.subject, err)
		}
	}
	stream, err := d.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("stream %q: %w", name, err)
	}
	return stream, nil
}

// Each implements [deadletters.Source].
func (d *DeadLetters) Each(ctx context.Context, r deadletters.Reading, do func(deadletters.Letter) bool) error {
	stream, err := d.stream(ctx)
	if err != nil {
		return err
	}
	state := stream.CachedInfo().State
	from := max(state.FirstSeq, 1)
	if r.Left {
		progress, err := d.progress(ctx, stream)
		if err != nil {
			return err
		}
		from = max(from, progress.AckFloor.Stream+1)
	}
	return d.read(ctx, stream, from, state.LastSeq, r.Payload, do)
}

// Page implements [deadletters.Source]. It looks at the last sequences, and doubles their number until the page is
// full.
func (d *DeadLetters) Page(
	ctx context.Context, after string, most int, wanted func(*deadletters.Letter) bool,
) (p deadletters.Page, err error) {
	stream, err := d.stream(ctx)
	if err != nil {
		return p, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(cmp.Or(d.subject, ">")))
	if err != nil {
		return p, fmt.Errorf("stream %q: %w", stream.CachedInfo().Config.Name, err)
	}
	for _, n := range info.State.Subjects {
		p.Total += int(n)
	}
	progress, err := d.progress(ctx, stream)
	if err != nil {
		return p, err
	}
	first, last := max(info.State.FirstSeq, 1), info.State.LastSeq
	if after != "" {
		if last, err = strconv.ParseUint(after, 10, 64); err != nil {
			return p, badPosition(after)
		}
	}
	began := time.Now()
	for window := uint64(most); first <= last && len(p.Letters) < most && time.Since(began) < pageTime; {
		from := first
		if last-first >= window {
			from = last - window + 1
		}
		var found []deadletters.Letter
		err := d.read(ctx, stream, from, last, false, func(l deadletters.Letter) bool {
			p.Looked++
			if l.Done = sequence(&l) <= progress.AckFloor.Stream; wanted(&l) {
				found = append(found, l)
			}
			return true
		})
		if err != nil {
			return p, err
		}
		slices.Reverse(found)
		p.Letters = append(p.Letters, found...)
		last, window = from-1, min(2*window, mostWindow)
	}
	if len(p.Letters) > most {
		p.Letters = p.Letters[:most]
		last = sequence(&p.Letters[most-1]) - 1
	}
	if first <= last {
		p.Next = strconv.FormatUint(last, 10)
	}
	return p, nil
}

func badPosition(position string) error {
	return fmt.Errorf("natsjs: %q is no position of a letter", position)
}

// sequence is where the stream has a letter.
func sequence(l *deadletters.Letter) uint64 {
	n, _ := strconv.ParseUint(l.Position, 10, 64) // it was made of one
	return n
}

// Show implements [deadletters.Source].
func (d *DeadLetters) Show(ctx context.Context, position string) (l deadletters.Letter, err error) {
	stream, err := d.stream(ctx)
	if err != nil {
		return l, err
	}
	return d.show(ctx, stream, position)
}

func (d *DeadLetters) show(
	ctx context.Context, stream jetstream.Stream, position string,
) (l deadletters.Letter, err error) {
	number, err := strconv.ParseUint(position, 10, 64)
	if err != nil {
		return l, badPosition(position)
	}
	msg, err := stream.GetMsg(ctx, number)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && d.subject != "" && msg.Subject != d.subject:
		return l, deadletters.ErrGone
	case err != nil:
		return l, fmt.Errorf("read letter %s: %w", position, err)
	}
	return letter(msg.Subject, msg.Header, msg.Data, msg.Sequence, msg.Time), nil
}

// Discard implements [deadletters.Source].
func (d *DeadLetters) Discard(ctx context.Context, letters []deadletters.Letter) error {
	stream, err := d.stream(ctx)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(letters, mostDiscard) {
		err := d.sideBySide(some, func(l *deadletters.Letter) error {
			err := stream.DeleteMsg(ctx, sequence(l))
			if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) { // or somebody else has removed it
				if _, gone := d.show(ctx, stream, l.Position); errors.Is(gone, deadletters.ErrGone) {
					return nil
				}
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("remove letters: %w", err)
		}
	}
	return nil
}

func (*DeadLetters) sideBySide(letters []deadletters.Letter, do func(*deadletters.Letter) error) error {
	failed := make([]error, len(letters))
	var all sync.WaitGroup
	for i := range letters {
		all.Go(func() { failed[i] = do(&letters[i]) })
	}
	all.Wait()
	return errors.Join(failed...)
}

// progress is what the durable consumer knows; empty if there is none yet.
func (d *DeadLetters) progress(ctx context.Context, stream jetstream.Stream) (*jetstream.ConsumerInfo, error) {
	if d.subject == "" {
		return &jetstream.ConsumerInfo{}, nil
	}
	durable, err := stream.Consumer(ctx, d.config.Progress)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return &jetstream.ConsumerInfo{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %q: %w", d.config.Progress, err)
	}
	return durable.CachedInfo(), d.owns(durable)
}

// owns returns an error if a durable consumer keeps the progress of another subject.
func (d *DeadLetters) owns(durable jetstream.Consumer) error {
	if subject := durable.CachedInfo().Config.FilterSubject; subject != d.subject {
		return fmt.Errorf("consumer %q is of subject %q: say another name of the progress", d.config.Progress, subject)
	}
	return nil
}

// read reads what is between two sequences. A work queue allows no second consumer.
func (d *DeadLetters) read(
	ctx context.Context, stream jetstream.Stream, from, last uint64, payload bool, do func(deadletters.Letter) bool,
) error {
	read := d.consume
	if stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy {
		read = d.get
	}
	if from > last {
		return nil
	}
	if err := read(ctx, stream, from, last, payload, do); err != nil {
		return fmt.Errorf("read subject %q: %w", d.subject, err)
	}
	return nil
}

// consume reads by an ordered consumer, which acknowledges nothing, and removes it.
func (d *DeadLetters) consume(
	ctx context.Context, stream jetstream.Stream, from, last uint64, payload bool, do func(deadletters.Letter) bool,
) error {
	var subjects []string // all
	if d.subject != "" {
		subjects = []string{d.subject}
	}
	cons, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		HeadersOnly: !payload,
	})
	if err != nil {
		return err
	}
	defer func() { _ = stream.DeleteConsumer(context.WithoutCancel(ctx), cons.CachedInfo().Name) }()
	if cons.CachedInfo().NumPending == 0 {
		return nil
	}
	all, err := cons.Messages(jetstream.PullMaxMessages(int(min(last-from+2, 2000))))
	if err != nil {
		return err
	}
	defer all.Stop()
	for {
		msg, err := next(ctx, all)
		if err != nil {
			return err
		}
		found, meta, err := letterOf(msg)
		if err != nil {
			return err
		}
		if meta.Sequence.Stream > last || !do(found) || meta.NumPending == 0 || meta.Sequence.Stream == last {
			return nil
		}
	}
}

func next(ctx context.Context, all jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, nextTimeout)
	defer cancel()
	return all.Next(jetstream.NextContext(ctx))
}

// get reads one message after the other.
func (d *DeadLetters) get(
	ctx context.Context, stream jetstream.Stream, from, last uint64, _ bool, do func(deadletters.Letter) bool,
) error {
	for from <= last {
		msg, err := stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(cmp.Or(d.subject, ">")))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if msg.Sequence > last || !do(letter(msg.Subject, msg.Header, msg.Data, msg.Sequence, msg.Time)) {
			return nil
		}
		from = msg.Sequence + 1
	}
	return nil
}

func letterOf(msg jetstream.Msg) (deadletters.Letter, *jetstream.MsgMetadata, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return deadletters.Letter{}, nil, fmt.Errorf("message without metadata: %w", err)
	}
	return letter(msg.Subject(), msg.Headers(), msg.Data(), meta.Sequence.Stream, meta.Timestamp), meta, nil
}

func letter(
	subject string, headers nats.Header, payload []byte, number uint64, at time.Time,
) (l deadletters.Letter) {
	l.Position, l.Time, l.Topic, l.Payload = strconv.FormatUint(number, 10), at, subject, payload
	l.Header = make(producer.Header, len(headers))
	for name, values := range headers {
		l.Header[name] = strings.Join(values, ", ")
	}
	l.ID = l.Get(producer.HeaderID)
	return l
}
