package natsjs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
)

// watcher tells the server that the messages in flight are in progress. It looks whether their consumer is still what
// it was at the beginning of the run, and probes whether acks arrive.
type watcher struct {
	s       *session
	cons    jetstream.Consumer
	every   time.Duration // how often it looks
	goneFor time.Duration // how long the consumer may be missing

	finished chan struct{} // closed: no message is in flight any more
	probes   sync.WaitGroup
	probed   atomic.Bool // since the last look

	delivered atomic.Uint64 // the consumer's count of deliveries, as far as it was seen
	mu        sync.Mutex
	gone      time.Time // since when the consumer is not there
	created   time.Time // when the consumer was that messages in flight come from
}

// keepAlive tells the server that the messages in flight are worked on, also those that wait.
func (w *watcher) keepAlive() {
	ticker := time.NewTicker(w.s.info.progress)
	defer ticker.Stop()
	for {
		select {
		case <-w.finished:
			return
		case <-ticker.C:
			now := time.Now()
			for _, m := range w.s.run.InFlight() {
				m.(*message).progress(now, w.s.info.progress)
			}
		}
	}
}

const (
	// lookEvery is how often the consumer is looked at while nothing is wrong.
	lookEvery = 30 * time.Second

	// blindLooks is how many looks in a row go without an answer before the log says so: a leader may be being chosen.
	blindLooks = 3

	// goneFor is how long a consumer must be missing to be believed deleted: a server that is starting knows nothing
	// yet.
	goneFor = 3 * time.Second
)

// watch looks at the consumer now and then. While there is no room, no request shows that it has changed or is gone.
func (w *watcher) watch(ctx context.Context) {
	timer := time.NewTimer(w.every)
	defer timer.Stop()
	for blind := 0; ; { // looks in a row that got no answer
		select {
		case <-w.finished:
			return
		case <-timer.C:
		}
		w.probed.Store(false) // a reconnect may have come back with fewer rights
		_, err := w.refreshConsumer(ctx, 2*time.Second)
		if _, over := errors.AsType[*dedupstore.SetupError](err); over {
			return
		}
		if blind++; err == nil || missing(err) || !w.s.nc.IsConnected() {
			blind = 0
		}
		if blind == blindLooks {
			w.s.info.log.WarnContext(ctx, "natsjs: the consumer cannot be looked at, so changes of it go unseen; if "+
				"other calls are answered, the server has refused the client's subscription to answers: connect anew, "+
				"or restart the process",
				"error", withRefusal(err, w.s.nc))
		}
		if missing(err) {
			timer.Reset(min(w.every, goneFor/4))
		} else {
			timer.Reset(w.every)
		}
	}
}

// refreshConsumer asks the server for the consumer. If that has changed, or is gone for good, the run cannot
// rely on it any more: refreshConsumer stops the run, and returns its error.
func (w *watcher) refreshConsumer(ctx context.Context, timeout time.Duration) (*jetstream.ConsumerInfo, error) {
	short, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	seen := w.delivered.Load()
	info, err := w.cons.Info(short)
	deleted := w.missed(err)
	var over error
	switch {
	case err == nil:
		w.compare(ctx, info, seen)
		over = w.s.info.changed(info)
	case deleted:
		w.disown(ctx, "natsjs: the consumer was deleted: what is in flight is not settled, and comes again "+
			"if there is one that has it")
		over = setupError(err, w.s.info.name(), "was deleted: create it, and run the worker again")
	}
	if over != nil {
		w.s.stop(over)
		return nil, over
	}
	return info, err
}

// compare disowns the messages if the server's consumer is not the one that they came from, after so many deliveries
// were seen. A consumer that was made again counts from one again, and perhaps its stream does, so acks could hit other
// messages. A consumer that a cluster's only node has lost is back with its old time of creation, but has counted fewer
// deliveries than were seen.
func (w *watcher) compare(ctx context.Context, info *jetstream.ConsumerInfo, seen uint64) {
	w.mu.Lock()
	another := !info.Created.Equal(w.created) || info.Delivered.Consumer < seen
	if another {
		w.created = info.Created
		w.delivered.Store(info.Delivered.Consumer)
	}
	w.mu.Unlock()
	if another {
		w.disown(ctx, "natsjs: the consumer was deleted and made again, or has lost what it had counted: what is in "+
			"flight is not settled, and comes again if it is still in the stream")
	}
}

// disown stops all acks and naks of the messages: another stream of the same name would take them for its own messages.
func (w *watcher) disown(ctx context.Context, why string) {
	messages := w.s.run.InFlight()
	w.s.info.log.WarnContext(ctx, why, "messages", len(messages))
	for _, m := range messages {
		m.(*message).disown()
	}
}

// missed takes the error of a look at the consumer, or of a request. It reports whether the consumer has been missing
// for so long that it is deleted.
func (w *watcher) missed(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !missing(err):
		w.gone = time.Time{}
	case w.gone.IsZero():
		w.gone = time.Now()
	default:
		return time.Since(w.gone) >= w.goneFor
	}
	return false
}

// missing reports whether an error says that the consumer or its stream is not there.
func missing(err error) bool {
	return errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrConsumerDoesNotExist) ||
		errors.Is(err, jetstream.ErrStreamNotFound)
}

// changed returns an error if a consumer is not what the run has seen. Other filters are fine, unless they give it what
// it must not have.
func (l consumerInfo) changed(info *jetstream.ConsumerInfo) error {
	is, was := reflect.ValueOf(info.Config), reflect.ValueOf(l.config)
	for _, field := range []string{
		"DeliverSubject", "AckPolicy", "HeadersOnly", "PriorityGroups", "ReplayPolicy", "AckWait", "BackOff",
		"MaxDeliver", "MaxAckPending", "MaxWaiting", "MaxRequestBatch", "MaxRequestExpires",
	} {
		now, then := fmt.Sprint(is.FieldByName(field)), fmt.Sprint(was.FieldByName(field))
		if now != then {
			return l.misset(field,
				fmt.Sprintf("was changed from %s to %s while it was in use: run the worker again", then, now))
		}
	}
	return l.deletesDeadLetters(info.Config)
}

// ackProbe finds out, once between two looks at the consumer, whether the server takes acks from us.
func (w *watcher) ackProbe(ctx context.Context, m *message) {
	if w.probed.Swap(true) {
		return
	}
	answer, err := w.ask(m) // before it is settled, or it would prolong the delay of a nak
	w.probes.Go(func() { w.probed.Store(err == nil && w.probeAcks(ctx, m, answer)) })
}

// probeAcks reports whether the next message need not be asked about. An account may import the API of another
// account's JetStream without its acks. Nobody listens to acks either while a consumer's leader changes or is out of
// reach. So a failure counts only if it lasts for a while and the consumer answers.
func (w *watcher) probeAcks(ctx context.Context, m *message, answer *nats.Subscription) bool {
	err := await(answer)
	if !errors.Is(err, nats.ErrNoResponders) {
		if err != nil {
			err = refusal(ctx, w.s.nc, m.msg.Reply, string(sayProgress))
		}
		if err != nil {
			w.s.stop(w.s.info.noRight(m.msg.Reply, err))
		}
		return true
	}
	select {
	case <-time.After(goneFor):
	case <-w.finished:
		return false
	}
	if _, err := w.refreshConsumer(ctx, 2*time.Second); err != nil {
		return false // nobody knows
	}
	answer, err = w.ask(m)
	if err == nil {
		err = await(answer)
	}
	if errors.Is(err, nats.ErrNoResponders) {
		w.s.stop(setupError(err, w.s.info.name(), "has acks that reach nobody, and messages come again for ever: "+
			"import $JS.ACK.> from the account of the JetStream"))
	}
	return false
}

// ask sends an in-progress ack and asks for an answer.
func (w *watcher) ask(m *message) (answer *nats.Subscription, err error) {
	inbox := w.s.nc.NewInbox()
	if answer, err = w.s.nc.SubscribeSync(inbox); err != nil {
		return nil, err
	}
	if err = w.s.nc.PublishRequest(m.msg.Reply, inbox, sayProgress); err != nil {
		_ = answer.Unsubscribe()
	}
	return answer, err
}

// await returns nil when there is an answer, or nats.ErrNoResponders at once.
func await(answer *nats.Subscription) error {
	defer func() { _ = answer.Unsubscribe() }() // fails only if the connection is closed
	_, err := answer.NextMsg(time.Second)
	return err
}

// listenForMaxDeliveries logs and counts messages that the server gives up, until the function that it returns is
// called. They are told to everybody who listens, once.
func (e *engine) listenForMaxDeliveries(ctx context.Context, info consumerInfo) (stop func()) {
	if info.maxDeliver == 0 {
		return func() {}
	}
	ctx = context.WithoutCancel(ctx)
	nc := e.js.Conn()
	subject := "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + info.stream + "." + info.consumer
	sub, err := nc.Subscribe(subject, func(msg *nats.Msg) {
		var advisory struct {
			Sequence   uint64 `json:"stream_seq"`
			Deliveries uint64 `json:"deliveries"`
		}
		err := json.Unmarshal(msg.Data, &advisory)
		e.maxDeliveries.Add(1)
		info.log.ErrorContext(ctx, "natsjs: the server gives a message up after MaxDeliver deliveries: it is in the "+
			"stream, and nobody gets it",
			"sequence", advisory.Sequence, "deliveries", advisory.Deliveries, "error", err)
	})
	if err != nil {
		return func() {} // the connection is closed: the run says so
	}
	return func() { _ = sub.Unsubscribe() } // it fails where the connection is closed, or the server has refused it
}
