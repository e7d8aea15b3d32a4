package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
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
// An error of the publisher makes the sender come again, as often as it likes, unless it is an oncemill.Permanent one.
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
	var res oncemill.Result
	if err == nil {
		res, err = rc.enqueue(r.Context(), e, r.Header, body)
	}
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
func (rc *Receiver) enqueue(ctx context.Context, e Event, h http.Header, body []byte) (oncemill.Result, error) {
	key, err := rc.key(e)
	if err != nil {
		return oncemill.Result{}, err
	}
	m, err := rc.message(e, h, body)
	if err != nil {
		return oncemill.Result{}, err
	}
	if e.Fingerprint.IsZero() {
		e.Fingerprint, _ = producer.FingerprintPayload(body) // never fails
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rc.config.Timeout)
	defer cancel()
	call := oncemill.Call{Key: key, Fingerprint: e.Fingerprint, Hold: rc.config.Hold}
	return rc.guard.Run(ctx, call, func(ctx context.Context) (dedupstore.Outcome, error) {
		if err := rc.publisher.Publish(ctx, m); err != nil {
			return dedupstore.Outcome{}, &publishError{err}
		}
		return dedupstore.Outcome{}, nil
	})
}
