package idempotencykey

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/debug"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// An exchange is one request and its way to a response.
type exchange struct {
	m    *Middleware
	w    http.ResponseWriter
	r    *http.Request
	next http.Handler
	body []byte
	call oncemill.Call

	rec    *recorder   // of the last run that this request made; nil: none
	failed error       // what that run returned
	panics *panicError // the handler's, in that run
}

func (m *Middleware) run(x *exchange) {
	ctx, stay := newStay(x.r.Context(), m.config.Linger)
	defer stay.end()
	res, err := m.guard.Run(ctx, x.call, func(ctx context.Context) (dedupstore.Outcome, error) {
		if !stay.begin() {
			return dedupstore.Outcome{}, oncemill.NoEffect(context.Cause(ctx))
		}
		var o dedupstore.Outcome
		o, x.failed = x.handle(ctx)
		return o, x.failed
	})
	if res.Publication != nil { // an outcome of another program under this key
		res.Publication.Abandon()
	}
	if err != nil {
		x.undone(err)
		return
	}
	x.done(res)
}

// handle runs the handler once, and makes the outcome of its response.
func (x *exchange) handle(ctx context.Context) (dedupstore.Outcome, error) {
	c := &x.m.config
	r := x.r.WithContext(ctx)
	if x.m.inbox { // there may be another run, which must find the header as it was
		r = x.r.Clone(ctx)
	}
	x.rec, x.panics = newRecorder(x.w, c.MaxResponseBody, x.m.inbox), nil
	x.rec.late = func() bool { return ctx.Err() != nil }
	if !x.protected(r) {
		return dedupstore.Outcome{}, oncemill.RetryAfter(0, x.panics)
	}
	rec := x.rec
	if rec.status == 0 && rec.lost == "" && ctx.Err() != nil { // it gave up: its silence is no 200
		x.rec = nil
		return dedupstore.Outcome{}, context.Cause(ctx)
	}
	rec.end()
	data := rec.encode(c.StoreHeaders, x.m.policy.MaxResultBytes)
	if rec.held && rec.lost != "" {
		data = rec.refuse(x.m, r)
	}
	o := dedupstore.Outcome{Result: data}
	switch {
	case rec.status < http.StatusInternalServerError:
		return o, nil
	case c.ServerErrors == ReleaseServerErrors:
		return o, oncemill.RetryAfter(0, &StatusError{rec.status})
	}
	return o, oncemill.Permanent(&StatusError{rec.status})
}

// protected runs the handler, and reports false if it panicked.
func (x *exchange) protected(r *http.Request) (returned bool) {
	defer func() {
		if returned {
			return
		}
		v := recover()
		x.panics = &panicError{v}
		if v != any(http.ErrAbortHandler) { // as net/http compares it
			x.m.config.Logger.ErrorContext(r.Context(), "idempotencykey: the handler panicked; its key is released",
				"key", x.call.Key.String(), "error", x.panics, "stack", string(debug.Stack()))
		}
	}()
	r.Body, r.ContentLength, r.TransferEncoding = x.reader(), int64(len(x.body)), nil
	r.GetBody = func() (io.ReadCloser, error) { return x.reader(), nil }
	defer func() { // the server removes those of its own request only
		if r.MultipartForm != nil && x.r.MultipartForm == nil {
			r.MultipartForm.RemoveAll() //nolint:errcheck // files in a temporary folder
		}
	}()
	x.next.ServeHTTP(x.rec.writer(), r)
	return true
}

// done answers a request whose key has an outcome.
func (x *exchange) done(res oncemill.Result) {
	succeeded := res.Outcome.Kind == dedupstore.Succeeded
	switch {
	case !res.Duplicate && x.rec != nil && succeeded == (x.failed == nil): // else it could not be committed
		x.respond()
	case res.Outcome.Truncated:
		x.m.refuse(x.w, x.r, notKept(0, x.m.config.ReplayedHeader))
	case len(res.Outcome.Result) == 0 && x.m.inbox && res.Outcome.Kind == dedupstore.Failed:
		x.dropped(res.Outcome.Reason)
		x.m.refuse(x.w, x.r, rolledBack(res, x.m.config.ReplayedHeader))
	case len(res.Outcome.Result) == 0:
		x.dropped(res.Outcome.Reason)
		x.m.refuse(x.w, x.r, unknown(res, x.m.config.ReplayedHeader))
	default:
		x.replay(res.Outcome.Result)
	}
}

func (x *exchange) replay(data []byte) {
	s, err := decode(data)
	switch {
	case err != nil:
		x.m.config.Logger.ErrorContext(x.r.Context(), "idempotencykey: a stored response cannot be read",
			"key", x.call.Key.String(), "error", err)
		x.m.refuse(x.w, x.r, misconfigured())
	case s.lost != "":
		x.m.refuse(x.w, x.r, notKept(s.status, x.m.config.ReplayedHeader))
	default:
		s.replay(x.w, x.m.config.ReplayedHeader)
	}
}

// respond sends what the run of this request has come to. A panic goes on: it is for the server to end the connection.
func (x *exchange) respond() {
	if x.panics != nil {
		if x.rec.passing {
			panic(http.ErrAbortHandler)
		}
		panic(x.panics.value)
	}
	x.rec.finish()
}

// undone answers a request whose key has no outcome, or none that is known.
func (x *exchange) undone(err error) {
	problem := x.m.problemOf(err)
	retry, again := errors.AsType[*oncemill.RetryError](err)
	_, unrecorded := errors.AsType[*oncemill.UnrecordedError](err)
	released := x.failed != nil && errors.Is(err, x.failed) && !errors.Is(err, oncemill.ErrClaimLost)
	switch {
	case x.rec == nil:
	case x.panics != nil, released, unrecorded && !x.m.inbox:
		x.respond() // it is true, although repeats will not get it
		return
	case x.rec.lost == lostHijacked:
		return
	case x.rec.passing:
		panic(http.ErrAbortHandler) // part of a response has left that does not count
	case again && !retry.Uncounted && x.m.inbox: // neither the handler's error, nor because of others
		problem = uncommitted(retry.Delay)
	}
	x.dropped(err)
	x.m.refuse(x.w, x.r, problem)
}

// dropped tells operators of a response that the handler has given and nobody gets.
func (x *exchange) dropped(why any) {
	if x.rec == nil {
		return
	}
	x.m.config.Logger.WarnContext(x.r.Context(), "idempotencykey: the response of a run does not count, and is not sent",
		"key", x.call.Key.String(), "status", x.rec.status, "error", why)
}
