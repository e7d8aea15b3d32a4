package idempotencykey

import (
	"bytes"
	"io"
	"net/http"
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
	kept, err := io.ReadAll(io.LimitReader(r.Body, t.config.MaxBody+1))
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

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

// maxDrain is how much of a response that nobody wants is read, so that its connection can be used again.
const maxDrain = 64 << 10

func drain(body io.ReadCloser) {
	io.CopyN(io.Discard, body, maxDrain) //nolint:errcheck // the connection is closed then
	body.Close()
}
