package idempotencykey

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"
)

// body returns what makes the body of each attempt, and whether it can do so more than once. The request's own is closed, or
// is the body of the first attempt.
func (t *Transport) body(r *http.Request) (body func() (io.ReadCloser, error), again bool, err error) {
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return func() (io.ReadCloser, error) { return r.Body, nil }, true, nil
	case r.GetBody != nil:
		first := true
		return func() (io.ReadCloser, error) {
			if first {
				first = false
				return r.Body, nil
			}
			return r.GetBody()
		}, true, nil
	}
	kept, err := t.read(r)
	if err != nil {
		closeBody(r)
		return nil, false, err
	}
	if int64(len(kept)) > t.config.MaxBody {
		rest := io.MultiReader(bytes.NewReader(kept), r.Body)
		once := struct {
			io.Reader
			io.Closer
		}{rest, r.Body}
		return func() (io.ReadCloser, error) { return once, nil }, false, nil
	}
	closeBody(r)
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(kept)), nil }, true, nil
}

// read reads the body as far as it may be kept, and a byte more. A body that does not end, such as a pipe's, is closed when
// the context ends.
func (t *Transport) read(r *http.Request) ([]byte, error) {
	stop := context.AfterFunc(r.Context(), func() { r.Body.Close() })
	kept, err := io.ReadAll(io.LimitReader(r.Body, t.config.MaxBody+1))
	if !stop() {
		return nil, context.Cause(r.Context())
	}
	return kept, err
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

// maxDrain is how much of a response that nobody wants is read, so that its connection can be used again.
const (
	maxDrain  = 64 << 10
	drainTime = 100 * time.Millisecond
)

func drain(ctx context.Context, body io.ReadCloser) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { body.Close() })() // a server may never end it
	io.CopyN(io.Discard, body, maxDrain)                    //nolint:errcheck // the connection is closed then
	body.Close()
}
