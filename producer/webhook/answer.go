package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// useless answers a request that is not proven or cannot be used. Nothing was claimed.
func (rc *Receiver) useless(ctx context.Context, w http.ResponseWriter, log *slog.Logger, err error) {
	if refused, ok := errors.AsType[*SignatureError](err); ok { // anybody can cause it, as often as they like
		log.DebugContext(ctx, "webhook: request has no valid signature", "error", err)
		w.Header().Set("WWW-Authenticate", "Signature") // RFC 9110, section 15.5.2, asks for one
		reason := telemetry.RefusedSignature
		if refused == errTooOld {
			reason = telemetry.RefusedTooOld
		}
		rc.refuse(ctx, w, http.StatusUnauthorized, reason, refused.Problem)
		return
	}
	if refused, ok := errors.AsType[*eventError](err); ok {
		if rc.unusable.Due(sayEvery) {
			log.WarnContext(ctx, "webhook: signed request holds no usable event; there may be more", "error", err)
		}
		rc.refuse(ctx, w, http.StatusBadRequest, telemetry.RefusedUnusable, refused.problem)
		return
	}
	rc.notNow(ctx, w, log, 0, err)
}

// answer says what became of the event.
func (rc *Receiver) answer(
	ctx context.Context, w http.ResponseWriter, log *slog.Logger, res oncemill.Result, err error,
) {
	switch {
	case err == nil && res.Failure() == nil:
		status := "enqueued"
		if res.Duplicate {
			status = "enqueued before"
		} else {
			rc.config.Wake()
		}
		write(w, http.StatusOK, "application/json", map[string]any{"status": status})
	case res.Status == oncemill.StatusMismatch:
		log.ErrorContext(ctx, "webhook: event is known with another body; nothing was enqueued")
		rc.refuse(ctx, w, http.StatusUnprocessableEntity, telemetry.RefusedOtherContent,
			"the event is known with another body; nothing was enqueued")
	case res.Status == oncemill.StatusBusy:
		rc.later(ctx, w, res.Wait, telemetry.RefusedBusy, "another request is at this event")
	case res.Status == oncemill.StatusNotDue:
		rc.later(ctx, w, res.Wait, telemetry.RefusedBusy,
			"the event could not be enqueued, and must not be tried again yet")
	case res.Status == oncemill.StatusRetry:
		if otherContent(res.Handler) {
			log.ErrorContext(ctx, "webhook: the publisher holds the message ID with other content",
				"error", err)
			rc.refuse(ctx, w, http.StatusUnprocessableEntity, telemetry.RefusedOtherContent,
				"the event was enqueued with another body; this one was not")
			return
		}
		rc.notNow(ctx, w, log, res.Wait, err)
	case res.Status == oncemill.StatusDone:
		if res.Outcome.Exhausted { // the next request runs it again
			rc.notNow(ctx, w, log, 0, res.Failure())
			return
		}
		log.ErrorContext(ctx, "webhook: event is not enqueued, and a retry does not help", "error", res.Failure())
		rc.refuse(ctx, w, http.StatusInternalServerError, telemetry.RefusedFailed, "the event could not be enqueued")
	default:
		rc.notNow(ctx, w, log, 0, err)
	}
}

// otherContent reports whether the publisher holds the message's ID with other content. No retry helps as long as it
// does.
func otherContent(err error) bool {
	e, ok := errors.AsType[interface {
		error
		OtherContent() bool
	}](err)
	return ok && e.OtherContent()
}

// sayEvery is how often the log says what each request may meet.
const sayEvery = time.Minute

// notNow asks the sender to come again after an outage, in 5 s unless an error says when.
func (rc *Receiver) notNow(
	ctx context.Context, w http.ResponseWriter, log *slog.Logger, after time.Duration, err error,
) {
	if rc.outage.Due(sayEvery) {
		log.WarnContext(ctx, "webhook: event is not enqueued; the sender must send it again; there may be more",
			"error", err)
	}
	rc.later(ctx, w, cmp.Or(after, 5*time.Second), telemetry.RefusedUnavailable, "the event could not be enqueued now")
}

// later asks the sender to come again. Retry-After is in whole seconds (RFC 9110, section 10.2.3), rounded up.
func (rc *Receiver) later(
	ctx context.Context, w http.ResponseWriter, after time.Duration, reason telemetry.Refusal, detail string,
) {
	seconds := max(1, (after+time.Second-1)/time.Second)
	w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	rc.refuse(ctx, w, http.StatusServiceUnavailable, reason, detail)
}

// refuse answers with a problem (RFC 9457), and counts it.
func (rc *Receiver) refuse(
	ctx context.Context, w http.ResponseWriter, status int, reason telemetry.Refusal, detail string,
) {
	rc.server.Refused(ctx, rc.config.Group, rc.config.Sender, reason)
	write(w, status, "application/problem+json",
		map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
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
