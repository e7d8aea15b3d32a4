package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/producer"
)

const (
	lonePerSecond = 100
	loneCells     = 8 // of Options.Cell
)

// lone measures how long a message takes that comes alone: nothing travels together with it.
func lone(ctx context.Context, b *kit.Bench, r *rig) error {
	title := fmt.Sprintf("A lone message, %d a second: from publish to handler, and to ack", lonePerSecond)
	_, err := b.Compare(ctx, title, b.Rounds,
		r.loneVariant(workerDedup, guardedWorker),
		r.loneVariant(ours, guardedRouter),
		r.loneVariant(rawConsume, consumeRaw),
	)
	return err
}

func (r *rig) loneVariant(name string, w way) kit.Variant {
	return kit.Variant{Name: name, Measure: func(ctx context.Context) (figures []kit.Figure, err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, waitLimit, fmt.Errorf("it takes longer than %v", waitLimit))
		defer cancel()
		if err := r.redis.Flush(ctx); err != nil {
			return nil, err
		}
		j, err := r.prepare(ctx, 0)
		if err != nil {
			return nil, err
		}
		defer j.conn.Close()
		defer j.rdb.Close() //nolint:errcheck // given up
		l := &loneTimes{}
		j.meter = newMeter(max(int(lonePerSecond*loneCells*r.bench.Cell.Seconds()), 20))
		j.meter.handling = l.handling
		publisher, err := nats.Connect(r.nats.URL)
		if err != nil {
			return nil, err
		}
		defer publisher.Close()
		if _, err := publisher.Subscribe("$JS.ACK."+topic+".>", l.acked); err != nil {
			return nil, err
		}
		stop, err := w.run(ctx, j)
		if err != nil {
			return nil, err
		}
		defer func() {
			if e := stop(); err == nil {
				err = e
			}
		}()
		if err := l.publish(ctx, publisher, j.messages); err != nil {
			return nil, err
		}
		if err := j.wait(ctx); err != nil {
			return nil, err
		}
		if err := j.acknowledged(ctx); err != nil {
			return nil, err
		}
		return l.figures(), j.exact()
	}}
}

// loneTimes are when messages were published, handled and acknowledged, in the order of the stream.
type loneTimes struct {
	mu                       sync.Mutex
	published, handled, acks []time.Time
}

func (l *loneTimes) publish(ctx context.Context, conn *nats.Conn, messages int) error {
	payload := []byte(strings.Repeat("x", payloadBytes))
	tick := time.NewTicker(time.Second / lonePerSecond)
	defer tick.Stop()
	for range messages {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		id := watermill.NewUUID()
		m := &nats.Msg{Subject: topic, Data: payload, Header: nats.Header{
			wmnats.WatermillUUIDHdr: {id}, producer.HeaderID: {id}, "type": {"order.created"},
		}}
		l.mu.Lock()
		l.published = append(l.published, time.Now())
		l.mu.Unlock()
		if err := conn.PublishMsg(m); err != nil {
			return err
		}
		if err := conn.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// handling notes that the handler has the next message. At this rate they come in order.
func (l *loneTimes) handling() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handled = append(l.handled, time.Now())
}

// acked notes an ack, whose subject has the message's sequence: $JS.ACK.stream.consumer.delivered.sequence…
func (l *loneTimes) acked(m *nats.Msg) {
	now := time.Now()
	parts := strings.Split(m.Subject, ".")
	if len(parts) < 6 || len(m.Data) > 0 && string(m.Data) != "+ACK" {
		return
	}
	sequence, err := strconv.Atoi(parts[5])
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.acks) < sequence {
		l.acks = append(l.acks, now)
	}
}

func (l *loneTimes) figures() (figures []kit.Figure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, part := range []struct {
		name string
		at   []time.Time
	}{{"handler", l.handled}, {"ack", l.acks}} {
		var took []time.Duration
		for i := range min(len(part.at), len(l.published)) {
			took = append(took, part.at[i].Sub(l.published[i]))
		}
		for _, share := range []float64{.5, .99} {
			figures = append(figures, kit.Figure{
				Name:  fmt.Sprintf("%s p%.0f ms", part.name, share*100),
				Value: float64(kit.Percentile(took, share)) / float64(time.Millisecond),
			})
		}
	}
	return figures
}
