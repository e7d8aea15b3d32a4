package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/oncemill/oncemill"
)

// answer says what became of the event.
func (rc *Receiver) answer(ctx context.Context, w http.ResponseWriter, e Event, res oncemill.Result, err error) {
	if err == nil {
		err = res.Failure()
	}
	log := rc.log.With("sender", rc.config.Sender, "event", e.ID)
	switch {
	case err == nil && res.Duplicate:
		accepted(w, "enqueued before")
	case err == nil:
		rc.config.Wake()
		accepted(w, "enqueued")
	case is[*oncemill.MismatchError](err):
		log.ErrorContext(ctx, "webhook: event ID is known with another body; nothing was enqueued")
		refuse(w, http.StatusUnprocessableEntity, "the ID of the event is known with another body; nothing was enqueued")
	case is[*oncemill.FailedError](err):
		log.ErrorContext(ctx, "webhook: event is not enqueued, and will not be by itself", "error", err)
		refuse(w, http.StatusInternalServerError, "the event could not be enqueued")
	case is[*oncemill.BusyError](err):
		later(w, wait(err), "another request is at this event")
	case is[*oncemill.RetryError](err):
		rc.notNow(ctx, w, log, err)
	case is[*SignatureError](err): // anybody can cause it, as often as they like
		log.DebugContext(ctx, "webhook: request is not proven", "error", err)
		w.Header().Set("WWW-Authenticate", "Signature") // RFC 9110, section 15.5.2, asks for one
		refuse(w, http.StatusUnauthorized, text[*SignatureError](err))
	case is[*EventError](err):
		log.WarnContext(ctx, "webhook: proven request is of no use", "error", err)
		refuse(w, http.StatusBadRequest, text[*EventError](err))
	default:
		rc.notNow(ctx, w, log, err)
	}
}

func (rc *Receiver) notNow(ctx context.Context, w http.ResponseWriter, log *slog.Logger, err error) {
	log.WarnContext(ctx, "webhook: event is not enqueued; the sender has to come again", "error", err)
	later(w, wait(err), "the event could not be enqueued now")
}

// unknownWait is how long a sender is asked to wait if nothing says how long.
const unknownWait = 5 * time.Second

// wait is when the sender may come again.
func wait(err error) time.Duration {
	if busy, ok := errors.AsType[*oncemill.BusyError](err); ok {
		return busy.Wait
	}
	if retry, ok := errors.AsType[*oncemill.RetryError](err); ok && retry.Delay > 0 {
		return retry.Delay
	}
	return unknownWait
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// text is what one of our errors says, without what is wrapped around it.
func text[E interface {
	error
	problem() string
}](err error) string {
	e, _ := errors.AsType[E](err)
	return e.problem()
}

func (e *SignatureError) problem() string { return e.Problem }
func (e *EventError) problem() string     { return e.Problem }

// accepted says that the sender need not come again.
func accepted(w http.ResponseWriter, status string) {
	write(w, http.StatusOK, "application/json", map[string]any{"status": status})
}

// later asks the sender to come again. Retry-After is in whole seconds (RFC 9110, section 10.2.3), rounded up.
func later(w http.ResponseWriter, after time.Duration, detail string) {
	seconds := max(1, (after+time.Second-1)/time.Second)
	w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	refuse(w, http.StatusServiceUnavailable, detail)
}

// refuse answers with a problem (RFC 9457).
func refuse(w http.ResponseWriter, status int, detail string) {
	write(w, status, "application/problem+json", map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
}

// reply answers a question of the sender's.
func reply(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text) // a sender that is gone asks again
}

func write(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a sender that is gone comes again
}
