package natsjs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer/health"
)

// A Setup is what a handler's messages come through, for [Diagnose].
type Setup struct {
	Stream      string
	Consumer    string          // empty: it is not looked at
	DeadLetters string          // their subject; empty: there are none
	Policy      oncemill.Policy // of the handler, with which the servers have to agree
}

// Diagnose looks at a stream, its consumer and where dead letters go, and finds what loses messages or makes effects
// twice. It changes nothing. Rights are those of the connection.
func Diagnose(ctx context.Context, js jetstream.JetStream, s Setup) (health.Report, error) {
	d := diagnosis{Setup: s, js: js}
	var err error
	if d.Policy, d.retries, err = health.Defaults(s.Policy); err == nil {
		err = d.look(ctx)
	}
	if err != nil {
		err = fmt.Errorf("natsjs: diagnose %s: %w", s.Stream, err)
	}
	return d.Report, err
}

type diagnosis struct {
	Setup
	health.Report
	js      jetstream.JetStream
	retries time.Duration // how long attempts take
}

func (d *diagnosis) look(ctx context.Context) error {
	subject := "stream " + d.Stream
	stream, err := d.js.Stream(ctx, d.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		d.Judge(subject, health.LosesIf(true, "it is missing: nobody keeps messages; create it"))
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	d.Looked = append(d.Looked, subject)
	d.judgeStream(stream.CachedInfo())
	d.judgeStorage(stream.CachedInfo())
	if d.Consumer != "" {
		if err := d.lookAtConsumer(ctx, stream); err != nil {
			return err
		}
	}
	if d.DeadLetters == "" {
		return nil
	}
	return d.lookAtDeadLetters(ctx, stream.CachedInfo())
}

// lookAtConsumer looks for the consumer in a list, which has push consumers, too.
func (d *diagnosis) lookAtConsumer(ctx context.Context, stream jetstream.Stream) error {
	subject := "consumer " + d.Stream + "/" + d.Consumer
	all := stream.ListConsumers(ctx)
	for info := range all.Info() {
		if info.Name == d.Consumer {
			d.Looked = append(d.Looked, subject)
			d.judgeConsumer(info, stream.CachedInfo())
			return nil
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	d.Judge(subject, health.LosesIf(true, "it is missing: workers refuse to begin; create it"))
	return nil
}

func (d *diagnosis) lookAtDeadLetters(ctx context.Context, source *jetstream.StreamInfo) error {
	subject := "dead letters " + d.DeadLetters
	name, err := d.js.StreamNameBySubject(ctx, d.DeadLetters)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		d.Judge(subject, health.LosesIf(true, "no stream has the subject, and workers refuse to begin; "+
			"create one"))
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	stream, err := d.js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	d.Looked = append(d.Looked, subject)
	d.judgeDeadLetters(subject, stream.CachedInfo(), source)
	if name != d.Stream {
		d.judgeStorage(stream.CachedInfo())
	}
	return nil
}

// judgeStorage says by what any stream loses messages.
func (d *diagnosis) judgeStorage(info *jetstream.StreamInfo) {
	c := info.Config
	clustered := info.Cluster != nil && info.Cluster.Name != ""
	bounded := c.MaxMsgs > 0 || c.MaxBytes > 0
	d.Judge("stream "+c.Name,
		health.LosesIf(c.Storage == jetstream.MemoryStorage, "its Storage is memory: a restart of the server loses its "+
			"messages; make it with FileStorage"),
		health.LosesIf(c.PersistMode == jetstream.AsyncPersistMode, "its PersistMode is async: a crash of the server "+
			"loses messages that it has confirmed; make it with the default"),
		health.LosesIf(clustered && c.Replicas < 2, "it has one replica in a cluster: whatever its server loses is "+
			"lost; set Replicas to 3"),
		health.LosesIf(c.NoAck, "it has NoAck: publishers do not learn what is stored, and relays send their messages "+
			"for ever; unset it"),
		health.LosesIf(bounded && c.Discard == jetstream.DiscardOld, "its Discard is old: when it is full it deletes "+
			"messages that nobody has handled; set DiscardNew"),
		health.LosesIf(c.MaxMsgsPerSubject > 0 && !c.DiscardNewPerSubject, fmt.Sprintf("its MaxMsgsPerSubject is %d: "+
			"newer messages delete older ones that nobody has handled; set it to -1", c.MaxMsgsPerSubject)))
}

// judgeStream says what does not fit the messages of a policy.
func (d *diagnosis) judgeStream(info *jetstream.StreamInfo) {
	c, p := info.Config, d.Policy
	kept := fmt.Sprint("keeps messages for ", c.MaxAge)
	if c.MaxAge == 0 {
		kept = "keeps messages for ever"
	}
	d.Judge("stream "+c.Name,
		health.LosesIf(c.Retention == jetstream.LimitsPolicy && (c.MaxAge == 0 || c.MaxAge > p.Window), fmt.Sprintf(
			"it %s, and outcomes are remembered for %v (Policy.Window): what comes again after that runs again; give "+
				"the doctor your policy's window, or set MaxAge to at most that", kept, p.Window)),
		health.LosesIf(c.MaxAge > 0 && c.MaxAge <= d.retries, fmt.Sprintf("it %s, and %d attempts take up to %v: it "+
			"deletes messages before their last one; set MaxAge to more", kept, p.MaxAttempts, d.retries)),
		health.LosesIf(c.Retention == jetstream.InterestPolicy && info.State.Consumers == 0, "its Retention is "+
			"interest, and it has no consumer: it deletes every message at once; create the consumer before anybody "+
			"publishes"),
		health.UnwiseIf(c.Duplicates < p.Lease && c.Mirror == nil, fmt.Sprintf("its duplicate window is %v: what "+
			"a relay sends again later is stored twice; set Duplicates to two minutes", c.Duplicates)))
}

func (d *diagnosis) judgeConsumer(info *jetstream.ConsumerInfo, stream *jetstream.StreamInfo) {
	c, p := info.Config, d.Policy
	wait := c.AckWait
	if len(c.BackOff) > 0 {
		wait = slices.Min(c.BackOff)
	}
	d.Judge("consumer "+info.Stream+"/"+info.Name,
		health.LosesIf(c.DeliverSubject != "", "it is a push consumer, which workers refuse: make it without "+
			"DeliverSubject"),
		health.LosesIf(c.AckPolicy != jetstream.AckExplicitPolicy, fmt.Sprintf("its AckPolicy is %v: messages that "+
			"nobody has handled count as acknowledged, and workers refuse it; make it with AckExplicit", c.AckPolicy)),
		health.LosesIf(c.ReplayPolicy != jetstream.ReplayInstantPolicy, "its ReplayPolicy is original: the server holds "+
			"messages back, and workers refuse it; make it with instant"),
		health.LosesIf(len(c.PriorityGroups) > 0, "it has PriorityGroups, which workers refuse: make it without"),
		health.LosesIf(c.MaxDeliver > 0 && c.MaxDeliver <= p.MaxAttempts, fmt.Sprintf("its MaxDeliver is %d, and a "+
			"policy has %d attempts: the server gives messages up before there is an outcome; set it to -1",
			c.MaxDeliver, p.MaxAttempts)),
		health.LosesIf(c.InactiveThreshold > 0, fmt.Sprintf("its InactiveThreshold is %v: the server deletes it when "+
			"workers are away for so long, and forgets what was acknowledged; make it durable, without one",
			c.InactiveThreshold)),
		health.LosesIf(c.MemoryStorage && stream.Config.Storage == jetstream.FileStorage, "it has MemoryStorage: a "+
			"restart of the server forgets what was acknowledged, and what is older than the window runs again; make "+
			"it without"),
		health.LosesIf(c.Replicas == 1 && stream.Config.Replicas > 1, "it has one replica, and its stream has more: its "+
			"server may forget what was acknowledged, and what is older than the window runs again; set Replicas to 0"),
		health.UnwiseIf(wait < p.Lease && c.AckPolicy == jetstream.AckExplicitPolicy, fmt.Sprintf("its AckWait (or "+
			"BackOff) is %v: messages of a worker that died come again, and wait for the lease of %v; set it to that",
			wait, p.Lease)),
		health.UnwiseIf(c.MaxAckPending > 1 && c.MaxAckPending < 256, fmt.Sprintf("its MaxAckPending is %d: all workers "+
			"together have no more messages in flight, and one takes 256 by default; set it to twice what all of "+
			"them take", c.MaxAckPending)),
		health.UnwiseIf(c.HeadersOnly, "it has HeadersOnly: handlers and dead letters get no payloads; unset it"),
		health.UnwiseIf(info.Paused, "it is paused: the server delivers nothing; resume it"))
}

func (d *diagnosis) judgeDeadLetters(subject string, dead, source *jetstream.StreamInfo) {
	most, from := dead.Config.MaxMsgSize, source.Config.MaxMsgSize
	d.Judge(subject,
		health.UnwiseIf(most > 0 && (from <= 0 || from >= most), fmt.Sprintf("stream %s takes messages of up to %d "+
			"bytes, and %s larger ones, or as large: dead letters of those do not fit, come again and again, and "+
			"hold up others; raise MaxMsgSize by some kilobytes", dead.Config.Name, most, source.Config.Name)),
		health.LosesIf(dead.Config.Retention == jetstream.InterestPolicy && dead.State.Consumers == 0, fmt.Sprintf(
			"stream %s has Retention interest and no consumer: dead letters are deleted at once, and their messages "+
				"with them; create a consumer, or set limits", dead.Config.Name)))
}

// Lag tells how far consumers are behind, each named STREAM/CONSUMER.
func Lag(ctx context.Context, js jetstream.JetStream, consumers ...string) (all []health.Lag, err error) {
	for _, name := range consumers {
		stream, consumer, _ := strings.Cut(name, "/")
		c, err := js.Consumer(ctx, stream, consumer)
		if err != nil {
			return nil, fmt.Errorf("natsjs: lag of consumer %.80q of stream %.80q: %w", consumer, stream, err)
		}
		info := c.CachedInfo()
		all = append(all, health.Lag{
			Consumer: consumer, Topic: stream, Waiting: int64(info.NumPending), InFlight: info.NumAckPending,
			Redelivered: info.NumRedelivered,
		})
	}
	return all, nil
}
