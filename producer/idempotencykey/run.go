package idempotencykey

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"sync/atomic"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/requests"
)

// An exchange is one request on its way to a response.
type exchange struct {
	m    *Middleware
	w    http.ResponseWriter
	r    *http.Request
	next handlerFunc
	body []byte
	call oncemill.Call
	made bool // the key, for this request: nobody else can ask for its response

	rec    *recorder            // of the last run that this request made; nil: none
	failed error                // what that run returned
	panics *requests.PanicError // the handler's, in that run; nil: none
}

func (x *exchange) run() {
	ctx, begin, end := requests.Detach(x.r.Context(), x.m.linger, ErrClientGone)
	defer end()
	res, err := x.m.guard.Run(ctx, x.call, func(ctx context.Context) (o dedupstore.Outcome, err error) {
		if !begin() {
			return o, oncemill.NoEffect(context.Cause(ctx))
		}
		o, x.failed = x.handle(ctx)
		if x.made {
			o.Result = nil
		}
		return o, x.failed
	})
	if res.Publication != nil { // an outcome of another program under this key
		res.Publication.Abandon()
	}
	if _, is := errors.AsType[*handlerError](x.failed); is {
		x.m.log.WarnContext(ctx, "idempotencykey: the handler failed", "key", x.call.Key.String(), "error", x.failed)
	}
	if err != nil {
		x.undone(err)
		return
	}
	x.done(res)
}

// handle runs the handler once, and makes the outcome from its response.
func (x *exchange) handle(ctx context.Context) (o dedupstore.Outcome, err error) {
	x.rec, x.panics = newRecorder(x.w, x.m.most, x.m.inbox), nil
	failure := x.protected(x.r.Clone(ctx)) // there may be another run, which must find the header as it was
	switch {
	case x.panics != nil:
		return o, oncemill.RetryAfter(0, failure)
	case failure == nil && x.rec.status == 0 && ctx.Err() != nil: // it gave up: its silence is no 200
		x.rec = nil
		return o, context.Cause(ctx)
	case failure != nil && x.rec.status < http.StatusBadRequest && !x.rec.passing:
		o.Result = x.replace(newProblem(CodeFailed, ""))
	default:
		x.rec.end()
		o.Result = x.rec.encode(x.m.most)
	}
	if x.m.inbox && x.rec.lost != "" {
		o.Result = x.replace(newProblem(CodeRefused, tooLong[x.rec.lost]))
	}
	response, server := &statusError{x.rec.status}, ServerErrors(x.rec.status)
	switch {
	case failure != nil:
		return o, failure
	case x.rec.status >= http.StatusBadRequest && x.m.config.Release(x.rec.status):
		return o, requests.Released(response, server)
	case server:
		return o, oncemill.Permanent(response)
	}
	return o, nil
}

// protected runs the handler, and returns the error that it returned or gave to Fail, or its panic.
func (x *exchange) protected(r *http.Request) (failure error) {
	var failed atomic.Pointer[handlerError]
	returned := false
	defer func() {
		if returned {
			return
		}
		v, stack := recover(), debug.Stack()
		x.panics = &requests.PanicError{PanicError: &oncemill.PanicError{Value: v, Stack: stack}}
		if failure = x.panics; failed.Load() != nil {
			failure = errors.Join(x.panics, failed.Load())
		}
		if v != any(http.ErrAbortHandler) { // as net/http compares it
			x.m.log.ErrorContext(r.Context(), "idempotencykey: the handler panicked",
				"key", x.call.Key.String(), "error", x.panics, "stack", string(stack))
		}
	}()
	r = r.WithContext(context.WithValue(r.Context(), failedKey{}, &failed))
	r.Body, r.ContentLength, r.TransferEncoding = x.reader(), int64(len(x.body)), nil
	defer func() { // the server removes those of its own request only
		if r.MultipartForm != nil && x.r.MultipartForm == nil {
			r.MultipartForm.RemoveAll() //nolint:errcheck // files in a temporary folder
		}
	}()
	err := x.next(x.rec, r)
	returned = true
	if err != nil {
		failed.CompareAndSwap(nil, &handlerError{err})
	}
	if failed.Load() != nil {
		return failed.Load()
	}
	return nil
}

// tooLong says what is wrong with a response that an inbox cannot store.
var tooLong = map[loss]string{
	lostTooLarge: "Nothing was committed: the response was too large to be held until the commit.",
	lostShort:    "Nothing was committed: the response was shorter than it had announced.",
}

// replace puts a problem in the place of a response, and encodes it. If Config.WriteProblem's answer cannot be stored
// either, or would commit, only its status remains.
func (x *exchange) replace(p *Problem) []byte {
	x.rec = newRecorder(x.w, x.m.most, true)
	x.m.refuse(x.rec, x.r, p)
	x.rec.WriteHeader(http.StatusInternalServerError)
	data := x.rec.encode(x.m.most)
	if x.rec.lost != "" || x.rec.status < http.StatusInternalServerError {
		x.rec = newRecorder(x.w, x.m.most, true)
		x.rec.WriteHeader(http.StatusInternalServerError)
		data = x.rec.encode(x.m.most)
	}
	return data
}

// done answers a request whose key has an outcome.
func (x *exchange) done(res oncemill.Result) {
	o, own := res.Outcome, x.own()
	switch {
	case own.Counts(res, x.made):
		x.respond()
	case len(o.Result) == 0:
		p := newProblem(own.Without(o), "")
		p.Replayed = res.Duplicate
		x.drop(o.Reason, p)
	default:
		x.replay(o)
	}
}

// own is what the run of this request was.
func (x *exchange) own() requests.Run {
	return requests.Run{Ran: x.rec != nil, Panicked: x.panics != nil, Inbox: x.m.inbox, Failed: x.failed}
}

// replay answers with the response of another request.
func (x *exchange) replay(o dedupstore.Outcome) {
	resp, body, err := decode(o.Result) //nolint:bodyclose // it is a buffer
	p := newProblem(CodeNotKept, "")
	switch {
	case err != nil:
		x.m.log.ErrorContext(x.r.Context(), "idempotencykey: a stored response cannot be read",
			"key", x.call.Key.String(), "error", err)
		if o.Kind != dedupstore.Succeeded {
			p = newProblem(CodeInternal, "")
		}
	case resp.Header.Get(droppedHeader) == "":
		replay(x.w, resp, body)
		return
	case o.Kind != dedupstore.Succeeded && resp.StatusCode < http.StatusBadRequest: // it was broken off
		p = newProblem(CodeUnknown, "")
		p.Replayed = true
	default:
		p.Original = resp.StatusCode
	}
	x.m.refuse(x.w, x.r, p)
}

// respond sends the result of this request's run. A panic goes on: the server ends the connection. So it does when part
// of a response has left that is not true.
func (x *exchange) respond() {
	switch {
	case x.rec.passing && (x.panics != nil || x.failed != nil && x.rec.status < http.StatusBadRequest):
		panic(http.ErrAbortHandler)
	case x.panics != nil:
		panic(x.panics.Value)
	}
	x.rec.finish()
}

// undone answers a request whose key has no known outcome.
func (x *exchange) undone(err error) {
	answer := x.own().Undone(err)
	switch {
	case answer.Own:
		if answer.Again && x.panics == nil && x.rec.sent.Get("Retry-After") == "" {
			x.rec.sent.Set("Retry-After", seconds(answer.Retry))
		}
		x.respond()
		return
	case x.rec != nil && x.rec.passing:
		panic(http.ErrAbortHandler) // part of a response has left that does not count
	case answer.Code == CodeInternal:
		x.m.log.ErrorContext(x.r.Context(), "idempotencykey: the guard refuses a call", "error", err)
	}
	p := newProblem(answer.Code, "")
	if answer.Again {
		p.after(answer.Retry)
	}
	x.drop(err, p)
}

// drop answers with a problem. It tells operators that nobody gets the handler's response.
func (x *exchange) drop(why any, p *Problem) {
	if x.rec != nil {
		x.m.log.WarnContext(x.r.Context(),
			"idempotencykey: a response is not sent, because its run does not count",
			"key", x.call.Key.String(), "status", x.rec.status, "error", why)
	}
	x.m.refuse(x.w, x.r, p)
}
