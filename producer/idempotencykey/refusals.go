package idempotencykey

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

func missing(header string) *Problem {
	return &Problem{
		Status: http.StatusBadRequest, Code: CodeMissing, Title: header + " is missing",
		Detail: "This operation needs a key that is unique for each new request, and the same for each repeat of it.",
	}
}

func invalidKey(err error) *Problem {
	return &Problem{Status: http.StatusBadRequest, Code: CodeInvalid, Title: "The idempotency key is invalid", Detail: err.Error() + "."}
}

func unsupported() *Problem {
	return &Problem{
		Status: http.StatusBadRequest, Code: CodeUnsupported, Title: "Idempotency keys are not supported here",
		Detail: "This operation does not honour idempotency keys. Send the request without one.",
	}
}

func noAccount() *Problem {
	return &Problem{Status: http.StatusForbidden, Code: CodeNoAccount, Title: "The account is not known", Detail: "Keys belong to accounts, and none was found for this request."}
}

func misconfigured() *Problem {
	return &Problem{Status: http.StatusInternalServerError, Code: CodeInternal, Title: "The server cannot process idempotency keys here"}
}

func tooLarge(limit int64) *Problem {
	return &Problem{
		Status: http.StatusRequestEntityTooLarge, Code: CodeTooLarge, Title: "The request is too large",
		Detail: fmt.Sprintf("The body of a request with an idempotency key has at most %d bytes.", limit),
	}
}

func unreadable() *Problem {
	return &Problem{Status: http.StatusBadRequest, Code: CodeInvalid, Title: "The request could not be read", Detail: "Its body ended early."}
}

func notKept(original int, replayed string) *Problem {
	return &Problem{
		Status: http.StatusGone, Code: CodeNotKept, Title: "The response is not available any more", Original: original, Replayed: replayed,
		Detail: "The request was processed, once, and its response was sent. It could not be kept for repeats. Do not send the request again with another key.",
	}
}

func unknown(res oncemill.Result, replayed string) *Problem {
	p := &Problem{
		Status: http.StatusInternalServerError, Code: CodeUnknown, Title: "The outcome is not known",
		Detail: "The request was begun, and did not end with a response. It may have had an effect, and will not be tried again under this key.",
	}
	if res.Duplicate {
		p.Replayed = replayed
	}
	return p
}

func unavailable(wait time.Duration) *Problem {
	return &Problem{
		Status: http.StatusServiceUnavailable, Code: CodeUnavailable, Title: "The request could not be processed now",
		Detail: "Send it again later with the same key.", RetryAfter: max(wait, time.Second),
	}
}

func inProgress(wait time.Duration) *Problem {
	return &Problem{
		Status: http.StatusConflict, Code: CodeInProgress, Title: "A request with this key is in progress",
		Detail: "Send this one again later with the same key, to get the response of the other one.", RetryAfter: max(wait, time.Second),
	}
}

func reused() *Problem {
	return &Problem{
		Status: http.StatusUnprocessableEntity, Code: CodeReused, Title: "The key was used with another request",
		Detail: "A key belongs to one request: method, route, path, query, body and the headers that the API names must be the same. Use a new key for a new request.",
	}
}

// problemOf says what a guard's error means for a client.
func (m *Middleware) problemOf(err error) *Problem {
	busy, isBusy := errors.AsType[*oncemill.BusyError](err)
	_, mismatch := errors.AsType[*oncemill.MismatchError](err)
	_, invalid := errors.AsType[*dedupstore.InvalidError](err)
	switch {
	case isBusy && busy.NotDue:
		return unavailable(busy.Wait)
	case isBusy:
		return inProgress(busy.Wait)
	case errors.Is(err, oncemill.ErrClaimLost):
		return inProgress(0) // with whoever took over
	case mismatch:
		return reused()
	case invalid:
		m.config.Logger.Error("idempotencykey: the guard refuses a call", "error", err)
		return misconfigured()
	}
	return unavailable(0)
}

// uncommitted is a run whose transaction is rolled back although its handler has answered, because a statement had failed
// or the database did not commit. The next try may succeed.
func uncommitted(retry time.Duration) *Problem {
	return &Problem{
		Status: http.StatusInternalServerError, Code: CodeUncommitted, Title: "The transaction could not be committed",
		Detail: "Nothing was committed. Send the request again later with the same key.", RetryAfter: max(retry, time.Second),
	}
}

// rolledBack is uncommitted when it is final.
func rolledBack(res oncemill.Result, replayed string) *Problem {
	p := &Problem{
		Status: http.StatusInternalServerError, Code: CodeUncommitted, Title: "The transaction could not be committed",
		Detail: "Nothing was committed, and the attempts are spent: the request will not be tried again under this key.",
	}
	if res.Duplicate {
		p.Replayed = replayed
	}
	return p
}

func refused(why loss) *Problem {
	p := &Problem{
		Status: http.StatusInternalServerError, Code: CodeRefused, Title: "The response is too large to be kept",
		Detail: "Nothing was committed: the response could not be held until the commit.",
	}
	if why == lostShort {
		p.Title, p.Detail = "The response is not whole", "Nothing was committed: the response was shorter than it had announced."
	}
	return p
}

// refuse puts another response in the place of the handler's, and encodes it. One of Config.WriteProblem that cannot be held
// either is left out but for its status.
func (rec *recorder) refuse(m *Middleware, r *http.Request) []byte {
	most, why := m.policy.MaxResultBytes, rec.lost
	*rec = *newRecorder(rec.to, most, rec.held)
	m.refuse(rec, r, refused(why))
	rec.WriteHeader(http.StatusInternalServerError)
	data := rec.encode(m.config.StoreHeaders, most)
	if rec.lost != "" || rec.status < http.StatusInternalServerError { // which would commit
		*rec = *newRecorder(rec.to, most, rec.held)
		rec.WriteHeader(http.StatusInternalServerError)
		data = rec.encode(nil, most)
	}
	return data
}
