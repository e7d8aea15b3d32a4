package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// takeTimeout is when a letter comes again that a redrive took and neither acknowledged nor gave back, because it was
// killed. A batch takes less.
const takeTimeout = 10 * time.Second

// waitMost is how long a redrive waits for another one that is not over. The console does nothing else meanwhile.
const waitMost = time.Minute

// natsLetters are the dead letters of a subject. A durable consumer knows by its acks which are redriven.
type natsLetters struct {
	app     *app
	js      jetstream.JetStream
	stream  jetstream.Stream
	subject string
	flags   *dlq
	name    string             // of the durable consumer
	durable jetstream.Consumer // nil: letters are only looked at
	taken   map[uint64]jetstream.Msg
	kept    time.Time // when those that were taken and left were held back last
	waits   time.Time // since when it has waited for another redrive
}

// noSubject is what a subject may have and the name of a consumer may not.
var noSubject = regexp.MustCompile(`[.*>\\/\s]`)

func (a *app) natsLetters(ctx context.Context, d *dlq, topic string) (deadLetters, error) {
	js, err := a.jetStream(nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return nil, err
	}
	l := &natsLetters{
		app: a, js: js, subject: topic, flags: d, taken: map[uint64]jetstream.Msg{},
		name: cmp.Or(d.name, "oncemill-redrive-"+noSubject.ReplaceAllString(topic, "_")),
	}
	name := d.stream
	if name == "" {
		if name, err = js.StreamNameBySubject(ctx, topic); err != nil {
			return nil, fmt.Errorf("stream of subject %q: %w: give a consumer.Config.DeadLetterTopic, or --stream",
				topic, err)
		}
	}
	if l.stream, err = js.Stream(ctx, name); err != nil {
		return nil, fmt.Errorf("stream %q: %w", name, err)
	}
	return l, nil
}

func (l *natsLetters) each(ctx context.Context, left bool, do func(letter) bool) (err error) {
	info, err := l.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("stream %q: %w", l.stream.CachedInfo().Config.Name, err)
	}
	from := max(info.State.FirstSeq, 1)
	if left {
		progress, err := l.progress(ctx)
		if err != nil {
			return err
		}
		from = max(from, progress.AckFloor.Stream+1)
		found, all := 0, do
		do = func(one letter) bool {
			found++
			return all(one)
		}
		defer func() {
			open := int(progress.NumPending) + progress.NumAckPending
			if progress.Name != "" && err == nil && found > open {
				fmt.Fprintf(l.app.log, "%d of these have been sent before, and are not sent again.\n", found-open)
			}
		}()
	}
	if info.Config.Retention == jetstream.WorkQueuePolicy {
		return l.get(ctx, from, info.State.LastSeq, do)
	}
	return l.read(ctx, from, info.State.LastSeq, do)
}

// progress is what the durable consumer knows; empty if there is none yet.
func (l *natsLetters) progress(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	durable, err := l.stream.Consumer(ctx, l.name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return &jetstream.ConsumerInfo{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %q: %w", l.name, err)
	}
	return durable.CachedInfo(), l.owns(durable)
}

// owns returns an error if a durable consumer keeps the progress of another subject.
func (l *natsLetters) owns(durable jetstream.Consumer) error {
	if subject := durable.CachedInfo().Config.FilterSubject; subject != l.subject {
		return fmt.Errorf("consumer %q is of subject %q: say another --name", l.name, subject)
	}
	return nil
}

// readTimeout is how long the next letter may take: if the last one is removed meanwhile, none comes.
const readTimeout = 10 * time.Second

// read reads by an ordered consumer, which acknowledges nothing, and removes it.
func (l *natsLetters) read(ctx context.Context, from, last uint64, do func(letter) bool) error {
	if from > last {
		return nil
	}
	var subjects []string // all
	if l.subject != "" {
		subjects = []string{l.subject}
	}
	cons, err := l.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		HeadersOnly: !l.flags.payload,
	})
	if err != nil {
		return fmt.Errorf("read subject %q: %w", l.subject, err)
	}
	defer func() { _ = l.stream.DeleteConsumer(context.WithoutCancel(ctx), cons.CachedInfo().Name) }()
	if cons.CachedInfo().NumPending == 0 {
		return nil
	}
	all, err := cons.Messages()
	if err != nil {
		return fmt.Errorf("read subject %q: %w", l.subject, err)
	}
	defer all.Stop()
	for {
		msg, err := next(ctx, all)
		if err != nil {
			return fmt.Errorf("read subject %q: %w", l.subject, err)
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
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return all.Next(jetstream.NextContext(ctx))
}

// get reads one message after the other: a work queue allows no second consumer.
func (l *natsLetters) get(ctx context.Context, from, last uint64, do func(letter) bool) error {
	for from <= last {
		msg, err := l.stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(l.subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read subject %q: %w", l.subject, err)
		}
		if msg.Sequence > last || !do(natsLetter(msg.Header, msg.Data, msg.Sequence, msg.Time)) {
			return nil
		}
		from = msg.Sequence + 1
	}
	return nil
}

func letterOf(msg jetstream.Msg) (letter, *jetstream.MsgMetadata, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return letter{}, nil, fmt.Errorf("message without metadata: %w", err)
	}
	l := natsLetter(msg.Headers(), msg.Data(), meta.Sequence.Stream, meta.Timestamp)
	l.Topic = msg.Subject()
	return l, meta, nil
}

func natsLetter(headers nats.Header, payload []byte, sequence uint64, at time.Time) letter {
	l := letter{position: fmt.Sprint(sequence), sequence: sequence, at: at}
	l.Header, l.Payload = make(producer.Header, len(headers)), payload
	for name, values := range headers {
		l.Header[name] = strings.Join(values, ", ")
	}
	l.ID = l.get(producer.HeaderID)
	return l
}

func (l *natsLetters) take(ctx context.Context, n int) (batch []letter, err error) {
	if l.durable == nil {
		if err := l.consume(ctx); err != nil {
			return nil, err
		}
	}
	if time.Since(l.kept) > takeTimeout/3 { // what is left comes after what is new, not before it
		for _, msg := range l.taken {
			_ = msg.InProgress()
		}
		l.kept = time.Now()
	}
	late := false // so all that are meant have been delivered, to this redrive or another
	for len(batch) == 0 {
		messages, err := l.durable.Fetch(n, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return nil, fmt.Errorf("take letters: %w", err)
		}
		for msg := range messages.Messages() {
			found, meta, err := letterOf(msg)
			if err != nil {
				return nil, err
			}
			switch {
			case l.flags.late(&found):
				late = true
			case l.taken[meta.Sequence.Stream] == nil: // else it comes again because it was left
				batch = append(batch, found)
			}
			l.taken[meta.Sequence.Stream] = msg
		}
		if err := errors.Join(messages.Error(), ctx.Err()); err != nil {
			return nil, fmt.Errorf("take letters: %w", err)
		}
		info, err := l.durable.Info(ctx)
		if err != nil {
			return nil, fmt.Errorf("consumer %q: %w", l.name, err)
		}
		others := info.NumAckPending - len(l.taken)
		ended := late || info.NumPending == 0
		if len(batch) > 0 || ended && others <= 0 {
			l.waits = time.Time{}
			break
		}
		switch {
		case !ended:
		case l.waits.IsZero():
			l.waits = time.Now()
			fmt.Fprintf(l.app.log, "Waiting for %s that another redrive has, until it ends, or %v after a kill.\n",
				plural(others, "letter"), takeTimeout)
		case time.Since(l.waits) > waitMost:
			return nil, fmt.Errorf("another redrive of subject %q has %s: when it has ended, say the same again",
				l.subject, plural(others, "letter"))
		}
	}
	return batch, nil
}

// consume finds or makes the durable consumer.
func (l *natsLetters) consume(ctx context.Context) (err error) {
	l.durable, err = l.stream.Consumer(ctx, l.name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		l.durable, err = l.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: l.name, FilterSubject: l.subject, AckPolicy: jetstream.AckExplicitPolicy, AckWait: takeTimeout,
			MaxAckPending: -1, Description: "which dead letters oncemill dlq redrive has sent",
		})
	}
	if err != nil {
		return fmt.Errorf("consumer %q: %w", l.name, err)
	}
	return l.owns(l.durable)
}

func (l *natsLetters) done(ctx context.Context, sent []letter) error {
	failed := make([]error, len(sent))
	var all sync.WaitGroup
	for i := range sent {
		sequence := sent[i].sequence
		msg := l.taken[sequence]
		delete(l.taken, sequence)
		all.Go(func() { failed[i] = msg.DoubleAck(ctx) })
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("acknowledge letters that were sent: %w", err)
	}
	return nil
}

func (l *natsLetters) leave() {
	for _, msg := range l.taken {
		_ = msg.Nak() // else it comes again when its time is over
	}
	_ = l.js.Conn().FlushTimeout(time.Second)
}

func (l *natsLetters) publisher() (producer.Publisher, error) {
	return natsjs.NewPublisher(l.js, natsjs.PublisherConfig{Logger: quiet})
}
