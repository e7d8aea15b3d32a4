package idempotencykey

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// A recorder is the ResponseWriter of a handler. It holds the response back until the run is over, and records it up to
// the limit. One goroutine at a time uses it, like any ResponseWriter. It has neither Flush nor Hijack, which
// http.ResponseController reports as http.ErrNotSupported.
type recorder struct {
	to    http.ResponseWriter // what leads to the client
	limit int                 // of the body that is kept
	inbox bool                // nothing may leave before the commit
	coder []string            // the Content-Encoding that something around the middleware gives to what leaves here

	header  http.Header // the handler's
	sent    http.Header // as it was when the status was written
	status  int         // 0: not written yet
	body    bytes.Buffer
	passing bool // the response has begun to leave
	lost    loss // why the response is not kept
}

// A loss says why a response is not kept.
type loss string

const (
	lostTooLarge loss = "too large"
	lostShort    loss = "not whole"
)

func newRecorder(w http.ResponseWriter, limit int, inbox bool) *recorder {
	h := w.Header().Clone()
	return &recorder{to: w, limit: limit, inbox: inbox, coder: h["Content-Encoding"], header: h}
}

// Header implements http.ResponseWriter.
func (rec *recorder) Header() http.Header { return rec.header }

// WriteHeader implements http.ResponseWriter. Informational responses and trailers are dropped.
func (rec *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("idempotencykey: invalid status %d", status)) // as net/http does
	case status < 200 || rec.status != 0:
		return
	}
	rec.status, rec.sent = status, rec.header.Clone()
	delete(rec.sent, "Trailer")
}

// Write implements http.ResponseWriter.
func (rec *recorder) Write(p []byte) (int, error) {
	rec.WriteHeader(http.StatusOK)
	if !bodyAllowed(rec.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if rec.lost == "" && rec.body.Len()+len(p) > rec.limit {
		rec.lost = lostTooLarge
		if !rec.inbox {
			rec.pass()
		}
		rec.body = bytes.Buffer{}
	}
	switch {
	case rec.passing:
		return rec.to.Write(p)
	case rec.lost != "":
		return 0, ErrResponseTooLarge
	}
	return rec.body.Write(p)
}

// SetReadDeadline is what http.ResponseController calls.
func (rec *recorder) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(rec.to).SetReadDeadline(t)
}

// SetWriteDeadline is what http.ResponseController calls.
func (rec *recorder) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(rec.to).SetWriteDeadline(t)
}

// end says that the handler has returned. A response shorter than its Content-Length is not whole: it leaves as it is,
// and the server ends the connection, which tells the client.
func (rec *recorder) end() {
	rec.WriteHeader(http.StatusOK) // which it is if nothing was said
	announced, err := strconv.Atoi(rec.sent.Get("Content-Length"))
	if rec.lost == "" && err == nil && rec.body.Len() < announced && bodyAllowed(rec.status) {
		rec.lost = lostShort
	}
}

// bodyAllowed reports whether a response with this status may have a body (RFC 9110, section 6.4.1).
func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// encoded reports whether the handler has encoded the body.
func (rec *recorder) encoded() bool {
	encoding := rec.sent["Content-Encoding"]
	return len(encoding) > 0 && !slices.Equal(encoding, rec.coder)
}

// detectType sets the content type that net/http would find, so that it is stored too.
func (rec *recorder) detectType() {
	if _, typed := rec.sent["Content-Type"]; !typed && !rec.encoded() && rec.body.Len() > 0 {
		rec.sent.Set("Content-Type", http.DetectContentType(rec.body.Bytes()))
	}
}

// pass sends what was written so far, and holds back nothing from now on.
func (rec *recorder) pass() {
	rec.detectType()
	rec.passing = true
	clear(rec.to.Header())
	maps.Copy(rec.to.Header(), rec.sent)
	rec.to.WriteHeader(rec.status)
	rec.to.Write(rec.body.Bytes()) //nolint:errcheck // the client has gone, the run goes on
}

// finish sends the response when the run is over.
func (rec *recorder) finish() {
	if rec.passing {
		return
	}
	if rec.lost != lostShort && bodyAllowed(rec.status) && len(rec.coder) == 0 {
		rec.sent.Set("Content-Length", strconv.Itoa(rec.body.Len()))
	}
	rec.pass()
}
