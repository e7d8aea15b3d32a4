package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A Receiver is an http.Handler for the webhooks of one sender. It is safe for concurrent use and holds nothing that
// must be closed.
type Receiver struct {
	guard     *oncemill.Guard
	publisher producer.Publisher
	config    Config
	log       *slog.Logger
	server    *telemetry.Server

	outage, unusable pace.Limiter // of lines about each request
}

// New returns a receiver. The error names the field of the config that is wrong, or contradicts the guard's policy. It
// refuses a publisher whose method JoinsInbox() bool returns true, such as an outbox, over a guard without an inbox.
//
// After an error or a panic of the publisher the sender may come again as often as it likes, unless the error is an
// oncemill.Permanent one. An error whose method OtherContent() bool returns true is answered with 422: the publisher,
// such as an outbox, holds the message's ID with other content.
func New(guard *oncemill.Guard, publisher producer.Publisher, cfg Config) (*Receiver, error) {
	switch {
	case guard == nil:
		return nil, errors.New("webhook: guard is nil")
	case isnil.Nil(publisher):
		return nil, errors.New("webhook: publisher is nil")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(guard.Policy()); err != nil {
		return nil, err
	}
	joins, ok := publisher.(interface{ JoinsInbox() bool })
	if ok && joins.JoinsInbox() && !guard.Transacts() {
		return nil, fmt.Errorf("webhook: publisher is a %T, which writes in the transaction of an inbox, and guard "+
			"has none: make the guard over the store's Inbox(), or open a transaction in a PublisherFunc", publisher)
	}
	server, err := telemetry.NewServer(telemetry.Providers(guard.Policy().Telemetry))
	if err != nil {
		return nil, fmt.Errorf("webhook: make instruments: %w", err)
	}
	return &Receiver{
		guard: guard, publisher: publisher, config: cfg, log: guard.Policy().Logger, server: server,
	}, nil
}

// Headers that a Receiver adds to its messages.
const (
	HeaderSender  = "oncemill-webhook-sender" // Config.Sender
	HeaderEventID = "oncemill-webhook-id"     // the sender's ID of the event
)

// PublisherFunc makes a producer.Publisher of a function, such as one that opens a transaction for an outbox, or joins
// the inbox's.
type PublisherFunc func(ctx context.Context, messages ...producer.Message) error

// Publish implements [producer.Publisher].
func (f PublisherFunc) Publish(ctx context.Context, messages ...producer.Message) error {
	return f(ctx, messages...)
}

// MessageID returns the message ID that a Receiver with this tenant (empty: "default") and sender gives to an event.
func MessageID(tenant, sender, eventID string) string {
	return ids.Derive("oncemill/webhook", cmp.Or(tenant, "default"), sender, eventID)
}

// ServeHTTP implements [http.Handler]. The package doc has the table of answers.
func (rc *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	own := w // of the server, whose connection ends when a body is too long
	w, r, end := rc.server.Begin(w, r)
	defer end()
	ctx := r.Context()
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		rc.refuse(ctx, w, http.StatusMethodNotAllowed, telemetry.RefusedMethod, "webhooks are sent with POST")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(own, r.Body, rc.config.MaxBody))
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		rc.refuse(ctx, w, http.StatusRequestEntityTooLarge, telemetry.RefusedTooLarge,
			fmt.Sprintf("the body is longer than %d bytes", rc.config.MaxBody))
		return
	}
	if err != nil {
		rc.refuse(ctx, w, http.StatusBadRequest, telemetry.RefusedUnread, "the body could not be read")
		return
	}
	e, err := rc.verify(r.Header, body)
	if err == nil && e.Reply != nil {
		reply(w, e.Reply)
		return
	}
	log := rc.log.With("sender", rc.config.Sender, "event", e.ID)
	var m producer.Message
	if err == nil {
		m, err = rc.message(e, r.Header, body)
	}
	if err != nil {
		rc.useless(ctx, w, log, err)
		return
	}
	res, err := rc.enqueue(ctx, e, m)
	rc.answer(ctx, w, log, res, err)
}

// verify proves the request, and that it is not too old to be believed.
func (rc *Receiver) verify(h http.Header, body []byte) (Event, error) {
	e, err := rc.config.Verifier.Verify(h, body)
	if err != nil || e.Sent.IsZero() || time.Since(e.Sent).Abs() <= tolerance {
		return e, err
	}
	return e, errTooOld
}

var errTooOld = &SignatureError{fmt.Sprintf("the timestamp is more than %v from this server's clock", tolerance)}

// key is what an event is claimed under.
func (rc *Receiver) key(e Event) dedupstore.Key {
	return dedupstore.Key{Tenant: rc.config.Tenant, Group: rc.config.Group, Handler: rc.config.Sender, ID: e.ID}
}

// message makes the message for an event.
func (rc *Receiver) message(e Event, h http.Header, body []byte) (producer.Message, error) {
	if rc.key(e).Validate() != nil {
		return producer.Message{}, &eventError{"the ID of the event is empty, too long or no text"}
	}
	c := rc.config
	header := producer.Header{HeaderSender: c.Sender, HeaderEventID: e.ID}
	for _, name := range append([]string{"Content-Type", "Content-Encoding"}, e.Headers...) {
		values := h.Values(name)
		if len(values) == 0 {
			continue
		}
		value := strings.Join(values, ", ")
		if !utf8.ValidString(value) { // brokers and databases do not carry it
			return producer.Message{}, &eventError{"header " + name + " is not UTF-8"}
		}
		header[strings.ToLower(name)] = value
	}
	return producer.Message{ID: MessageID(c.Tenant, c.Sender, e.ID), Topic: c.Topic, Header: header, Payload: body}, nil
}

// enqueue publishes the event's message unless that has been done. It does not end with the request, because some
// senders never retry.
func (rc *Receiver) enqueue(ctx context.Context, e Event, m producer.Message) (oncemill.Result, error) {
	content := e.Fingerprint
	if content.IsZero() {
		content, _ = producer.FingerprintPayload(m.Payload) // never fails
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout+rc.config.MaxWait)
	defer cancel()
	call := oncemill.Call{Key: rc.key(e), Fingerprint: content, MaxWait: rc.config.MaxWait}
	run := func(ctx context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{}, rc.publish(ctx, m)
	}
	res, err := rc.guard.Run(ctx, call, run)
	// Publishers use up no attempts. So crashes or failed commits did, which are outages too.
	if err == nil && res.Duplicate && res.Outcome.Exhausted {
		call.Rerun = res.Fence
		res, err = rc.guard.Run(ctx, call, run)
	}
	return res, err
}

// publishError is an error of the publisher. The event may come again as often as the sender likes: an outage must not
// use up its attempts.
type publishError struct{ err error }

func (e *publishError) Error() string { return "publish the event: " + e.err.Error() }

// Unwrap lets a store see that the transaction must be repeated.
func (e *publishError) Unwrap() error { return e.err }

// Uncounted says that the attempt does not count.
func (e *publishError) Uncounted() bool { return true }

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
