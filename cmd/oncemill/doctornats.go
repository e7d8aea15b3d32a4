package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/operate"
)

// lookAtNATS looks at a stream, a consumer and where dead letters go.
func (d *doctor) lookAtNATS(ctx context.Context) error {
	js, err := d.jetStream(nats.Timeout(5 * time.Second))
	if err != nil {
		return err
	}
	subject := "stream " + d.stream
	stream, err := js.Stream(ctx, d.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		d.found = append(d.found, operate.Found(loses, subject, "it is missing: nobody keeps messages; create it"))
		return nil
	}
	if err != nil {
		return fmt.Errorf("NATS: %s: %w", subject, err)
	}
	info := stream.CachedInfo()
	d.looked = append(d.looked, subject)
	d.found = append(d.found, judgeStream(info, d.policy)...)
	d.found = append(d.found, judgeStorage(info)...)
	if d.consumer != "" {
		if err := d.lookAtConsumer(ctx, stream); err != nil {
			return err
		}
	}
	if d.dead == "" {
		return nil
	}
	return d.lookAtDeadLetters(ctx, js, info)
}

// lookAtConsumer looks for the consumer in a list, which has push consumers, too.
func (d *doctor) lookAtConsumer(ctx context.Context, stream jetstream.Stream) error {
	subject := "consumer " + d.stream + "/" + d.consumer
	all := stream.ListConsumers(ctx)
	for info := range all.Info() {
		if info.Name == d.consumer {
			d.looked = append(d.looked, subject)
			d.found = append(d.found, judgeConsumer(info, stream.CachedInfo(), d.policy)...)
			return nil
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("NATS: %s: %w", subject, err)
	}
	d.found = append(d.found, operate.Found(loses, subject, "it is missing: workers refuse to begin; create it"))
	return nil
}

func (d *doctor) lookAtDeadLetters(ctx context.Context, js jetstream.JetStream, source *jetstream.StreamInfo) error {
	subject := "dead letters " + d.dead
	name, err := js.StreamNameBySubject(ctx, d.dead)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		d.found = append(d.found, operate.Found(loses, subject, "no stream has the subject, and workers refuse to "+
			"begin; create one"))
		return nil
	}
	if err != nil {
		return fmt.Errorf("NATS: %s: %w", subject, err)
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("NATS: %s: %w", subject, err)
	}
	d.looked = append(d.looked, subject)
	info := stream.CachedInfo()
	d.found = append(d.found, judgeDeadLetters(subject, info, source)...)
	if name != d.stream {
		d.found = append(d.found, judgeStorage(info)...)
	}
	return nil
}

// judgeStorage says by what any stream loses messages.
func judgeStorage(info *jetstream.StreamInfo) []finding {
	c := info.Config
	clustered := info.Cluster != nil && info.Cluster.Name != ""
	bounded := c.MaxMsgs > 0 || c.MaxBytes > 0
	return judge("stream "+c.Name,
		rule{c.Storage == jetstream.MemoryStorage, loses, "its Storage is memory: a restart of the server loses its " +
			"messages; make it with FileStorage"},
		rule{c.PersistMode == jetstream.AsyncPersistMode, loses, "its PersistMode is async: a crash of the server " +
			"loses messages that it has confirmed; make it with the default"},
		rule{clustered && c.Replicas < 2, loses, "it has one replica in a cluster: whatever its server loses is " +
			"lost; set Replicas to 3"},
		rule{c.NoAck, loses, "it has NoAck: publishers do not learn what is stored, and relays send their messages " +
			"for ever; unset it"},
		rule{bounded && c.Discard == jetstream.DiscardOld, loses, "its Discard is old: when it is full it deletes " +
			"messages that nobody has handled; set DiscardNew"},
		rule{c.MaxMsgsPerSubject > 0 && !c.DiscardNewPerSubject, loses, fmt.Sprintf("its MaxMsgsPerSubject is %d: "+
			"newer messages delete older ones that nobody has handled; set it to -1", c.MaxMsgsPerSubject)})
}

// judgeStream says what does not fit the messages of a policy.
func judgeStream(info *jetstream.StreamInfo, p policy) []finding {
	c := info.Config
	kept := fmt.Sprint("keeps messages for ", c.MaxAge)
	if c.MaxAge == 0 {
		kept = "keeps messages for ever"
	}
	return judge("stream "+c.Name,
		rule{c.Retention == jetstream.LimitsPolicy && (c.MaxAge == 0 || c.MaxAge > p.window), loses, fmt.Sprintf("it "+
			"%s, and outcomes are remembered for --window=%v: what comes again after that runs again; give doctor "+
			"your policy's window, or set MaxAge to at most that", kept, p.window)},
		rule{c.MaxAge > 0 && c.MaxAge <= p.retries(), loses, fmt.Sprintf("it %s, and %d attempts take up to %v: it "+
			"deletes messages before their last one; set MaxAge to more", kept, p.attempts, p.retries())},
		rule{c.Retention == jetstream.InterestPolicy && info.State.Consumers == 0, loses, "its Retention is " +
			"interest, and it has no consumer: it deletes every message at once; create the consumer before anybody " +
			"publishes"},
		rule{c.Duplicates < p.lease && c.Mirror == nil, unwise, fmt.Sprintf("its duplicate window is %v: what a "+
			"relay sends again later is stored twice; set Duplicates to two minutes", c.Duplicates)})
}

func judgeConsumer(info *jetstream.ConsumerInfo, stream *jetstream.StreamInfo, p policy) []finding {
	c := info.Config
	wait := c.AckWait
	if len(c.BackOff) > 0 {
		wait = slices.Min(c.BackOff)
	}
	return judge("consumer "+info.Stream+"/"+info.Name,
		rule{c.DeliverSubject != "",
			loses, "it is a push consumer, which workers refuse: make it without DeliverSubject"},
		rule{c.AckPolicy != jetstream.AckExplicitPolicy, loses, fmt.Sprintf("its AckPolicy is %v: messages that "+
			"nobody has handled count as acknowledged, and workers refuse it; make it with AckExplicit", c.AckPolicy)},
		rule{c.ReplayPolicy != jetstream.ReplayInstantPolicy, loses, "its ReplayPolicy is original: the server holds " +
			"messages back, and workers refuse it; make it with instant"},
		rule{len(c.PriorityGroups) > 0, loses, "it has PriorityGroups, which workers refuse: make it without"},
		rule{c.MaxDeliver > 0 && c.MaxDeliver <= p.attempts, loses, fmt.Sprintf("its MaxDeliver is %d, and a policy "+
			"has %d attempts: the server gives messages up before there is an outcome; set it to -1",
			c.MaxDeliver, p.attempts)},
		rule{c.InactiveThreshold > 0, loses, fmt.Sprintf("its InactiveThreshold is %v: the server deletes it when "+
			"workers are away for so long, and forgets what was acknowledged; make it durable, without one",
			c.InactiveThreshold)},
		rule{c.MemoryStorage && stream.Config.Storage == jetstream.FileStorage, loses, "it has MemoryStorage: a " +
			"restart of the server forgets what was acknowledged, and what is older than the window runs again; make " +
			"it without"},
		rule{c.Replicas == 1 && stream.Config.Replicas > 1, loses, "it has one replica, and its stream has more: its " +
			"server may forget what was acknowledged, and what is older than the window runs again; set Replicas to 0"},
		rule{wait < p.lease && c.AckPolicy == jetstream.AckExplicitPolicy, unwise, fmt.Sprintf("its AckWait (or "+
			"BackOff) is %v: messages of a worker that died come again, and wait for the lease of %v; set it to that",
			wait, p.lease)},
		rule{c.MaxAckPending > 1 && c.MaxAckPending < 256, unwise, fmt.Sprintf("its MaxAckPending is %d: all workers "+
			"together have no more messages in flight, and one takes 256 by default; set it to twice what all of "+
			"them take", c.MaxAckPending)},
		rule{c.HeadersOnly, unwise, "it has HeadersOnly: handlers and dead letters get no payloads; unset it"},
		rule{info.Paused, unwise, "it is paused: the server delivers nothing; resume it"})
}

func judgeDeadLetters(subject string, dead, source *jetstream.StreamInfo) []finding {
	most, from := dead.Config.MaxMsgSize, source.Config.MaxMsgSize
	return judge(subject,
		rule{most > 0 && (from <= 0 || from >= most), unwise, fmt.Sprintf("stream %s takes messages of up to %d "+
			"bytes, and %s larger ones, or as large: dead letters of those do not fit, come again and again, and "+
			"hold up others; raise MaxMsgSize by some kilobytes", dead.Config.Name, most, source.Config.Name)},
		rule{dead.Config.Retention == jetstream.InterestPolicy && dead.State.Consumers == 0, loses,
			fmt.Sprintf("stream %s has Retention interest and no consumer: dead letters are deleted at once, and "+
				"their messages with them; create a consumer, or set limits", dead.Config.Name)})
}
