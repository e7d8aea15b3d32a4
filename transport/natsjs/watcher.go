package natsjs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
)

// watcher tells the server that the messages in flight are in progress. It looks whether their consumer is still what
// it was at the beginning of the run, and probes whether acks arrive.
type watcher struct {
	*session
	cons     jetstream.Consumer
	inFlight *inFlight
	every    time.Duration // how often it looks

	finished   chan struct{} // closed: no message is in flight any more
	background sync.WaitGroup

	mu   sync.Mutex
	gone time.Time // since when the consumer is not there

	probed atomic.Bool // since the last look
}

// keepAlive tells the server that the messages in flight are worked on, also those that wait.
func (w *watcher) keepAlive() {
	ticker := time.NewTicker(w.limits.progress)
	defer ticker.Stop()
	for {
		select {
		case <-w.finished:
			return
		case <-ticker.C:
			now := time.Now()
			for _, m := range w.inFlight.all() {
				m.progress(now, w.limits.progress)
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
		_, err := w.look(ctx, 2*time.Second)
		if _, over := errors.AsType[*dedupstore.SetupError](err); over {
			return
		}
		if blind++; err == nil || missing(err) || !w.nc.IsConnected() {
			blind = 0
		}
		if blind == blindLooks {
			w.log.WarnContext(ctx, "natsjs: the consumer cannot be looked at, so changes of it go unseen; if other "+
				"calls are answered, the server has refused the client's subscription to answers: connect anew, or "+
				"restart the process",
				"error", withRefusal(err, w.nc))
		}
		if missing(err) {
			timer.Reset(min(w.every, goneFor/4))
		} else {
			timer.Reset(w.every)
		}
	}
}

// look asks the server for the consumer. If that has changed, or is gone for good, the run cannot rely on it any more:
// look stops the run, and returns its error.
func (w *watcher) look(ctx context.Context, timeout time.Duration) (*jetstream.ConsumerInfo, error) {
	short, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	seen := w.inFlight.seen()
	info, err := w.cons.Info(short)
	deleted := w.missed(err)
	var over error
	switch {
	case err == nil:
		w.inFlight.compare(ctx, info, seen)
		over = w.limits.changed(info)
	case deleted:
		w.inFlight.disown(ctx, "natsjs: the consumer was deleted: what is in flight is not settled, and comes again "+
			"if there is one that has it")
		over = setupError(err, w.limits.name(), "was deleted: create it, and run the worker again")
	}
	if over != nil {
		w.stop(over)
		return nil, over
	}
	return info, err
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
		return time.Since(w.gone) >= goneFor
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
func (l limits) changed(info *jetstream.ConsumerInfo) error {
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
