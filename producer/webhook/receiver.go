package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// A Receiver is an http.Handler for the webhooks of one sender. It is safe for concurrent use and holds nothing that must
// be closed.
type Receiver struct {
	guard     *oncemill.Guard
	publisher producer.Publisher
	config    Config
	log       *slog.Logger
}

// New returns a receiver. The error names the field of the config that is wrong, or contradicts the guard's policy.
//
// An error of the publisher, or its panic, makes the sender come again, as often as it likes, unless it is an
// oncemill.Permanent one. An error with a method OtherContent() bool that returns true says that the publisher holds the
// message's ID with other content, as an outbox may: it is answered with 422.
func New(guard *oncemill.Guard, publisher producer.Publisher, cfg Config) (*Receiver, error) {
	switch {
	case guard == nil:
		return nil, &InvalidError{"guard", "is nil"}
	case publisher == nil:
		return nil, &InvalidError{"publisher", "is nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(guard.Policy()); err != nil {
		return nil, err
	}
	return &Receiver{guard: guard, publisher: publisher, config: cfg, log: guard.Policy().Logger}, nil
}

// ServeHTTP implements [http.Handler]. The package doc has the table of answers.
func (rc *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, "webhooks are sent with POST")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rc.config.MaxBody))
	if err != nil {
		if _, long := errors.AsType[*http.MaxBytesError](err); long {
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", rc.config.MaxBody))
			return
		}
		refuse(w, http.StatusBadRequest, "the body could not be read")
		return
	}
	e, err := rc.verify(r.Header, body)
	if err == nil && e.Reply != nil {
		reply(w, e.Reply)
		return
	}
	var key dedupstore.Key
	var m producer.Message
	if err == nil {
		key, m, err = rc.message(e, r.Header, body)
	}
	if err != nil {
		rc.useless(r.Context(), w, e, err)
		return
	}
	res, err := rc.enqueue(r.Context(), key, e.Fingerprint, m)
	rc.answer(r.Context(), w, e, res, err)
}

// verify proves the request, and that it is not too old to be believed.
func (rc *Receiver) verify(h http.Header, body []byte) (Event, error) {
	e, err := rc.config.Verifier.Verify(h, body)
	if err != nil || e.Sent.IsZero() {
		return e, err
	}
	if off := time.Since(e.Sent); off > rc.config.Tolerance || off < -rc.config.Tolerance {
		return e, &SignatureError{fmt.Sprintf("the timestamp is more than %v from this server's clock", rc.config.Tolerance)}
	}
	return e, nil
}

// enqueue publishes the event's message unless that has been done. It does not end with the request: some senders never
// come again by themselves.
func (rc *Receiver) enqueue(ctx context.Context, key dedupstore.Key, content dedupstore.Fingerprint, m producer.Message) (oncemill.Result, error) {
	if content.IsZero() {
		content, _ = producer.FingerprintPayload(m.Payload) // never fails
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rc.config.Timeout)
	defer cancel()
	call := oncemill.Call{Key: key, Fingerprint: content, MaxWait: rc.config.MaxWait}
	run := func(ctx context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{}, rc.publish(ctx, m)
	}
	res, err := rc.guard.Run(ctx, call, run)
	// Publishers use up no attempts, so it was crashes, or a database that took no commit, that did: an outage as well.
	if err == nil && res.Duplicate && res.Outcome.Exhausted {
		call.Rerun = res.Fence
		res, err = rc.guard.Run(ctx, call, run)
	}
	return res, err
}

// publish publishes a message. A panic is an outage of the publisher like any other error.
func (rc *Receiver) publish(ctx context.Context, m producer.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &publishError{&oncemill.PanicError{Value: v, Stack: debug.Stack()}}
		}
	}()
	if err := rc.publisher.Publish(ctx, m); err != nil {
		return &publishError{err}
	}
	return nil
}
