package idempotencykey

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A recorder is the ResponseWriter of a handler. It holds the response back and keeps it, as far as that is allowed. It is
// used as any ResponseWriter is: by one goroutine at a time.
type recorder struct {
	to    http.ResponseWriter // what leads to the client
	limit int                 // of the body that is kept
	held  bool                // nothing may leave before the run is over
	late  func() bool         // the run's context has ended
	coder []string            // the Content-Encoding that something around the middleware gives to what leaves here

	header  http.Header // the handler's
	sent    http.Header // as it was when the status was written
	status  int         // 0: not written yet
	body    bytes.Buffer
	passing bool // the response has begun to leave
	lost    loss // why the response is not kept
}

// A loss says why a response is not kept. It is stored in place of its body.
type loss string

const (
	lostTooLarge loss = "too large"
	lostHijacked loss = "connection taken over"
	lostShort    loss = "not whole"
)

func newRecorder(w http.ResponseWriter, limit int, held bool) *recorder {
	h := w.Header().Clone()
	return &recorder{to: w, limit: limit, held: held, coder: h["Content-Encoding"], header: h}
}

// writer returns what the handler gets. In a transaction it can neither flush nor hijack, and says so in the way that
// http.ResponseController understands.
func (rec *recorder) writer() http.ResponseWriter {
	if rec.held {
		return rec
	}
	return &streamer{rec}
}

// Header implements http.ResponseWriter.
func (rec *recorder) Header() http.Header {
	if rec.header == nil {
		rec.header = http.Header{}
	}
	return rec.header
}

// WriteHeader implements http.ResponseWriter. Informational responses are not part of the response: they leave at once, or
// not at all in a transaction.
func (rec *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("idempotencykey: invalid status %d", status)) // as net/http does
	case rec.lost == lostHijacked, rec.status != 0:
		return
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols:
		if !rec.held {
			rec.inform(status)
		}
		return
	}
	rec.status, rec.sent = status, rec.Header().Clone()
	if status == http.StatusSwitchingProtocols {
		rec.lose(lostHijacked)
	}
}

func (rec *recorder) inform(status int) {
	h := rec.to.Header()
	before := h.Clone()
	replaceHeader(h, rec.header)
	// Nothing of it leaves, but HTTP/2 takes a copy to remove it: else it could read h on when the client has gone (golang/go#67940).
	// So would it for a Content-Length, which compression around the middleware removes.
	h.Set("Transfer-Encoding", "identity")
	rec.to.WriteHeader(status)
	replaceHeader(h, before)
}

// Write implements http.ResponseWriter.
func (rec *recorder) Write(p []byte) (int, error) {
	if rec.lost == lostHijacked {
		return 0, http.ErrHijacked
	}
	rec.WriteHeader(http.StatusOK)
	if !bodyAllowed(rec.status) {
		return 0, http.ErrBodyNotAllowed
	}
	switch {
	case rec.lost == "" && rec.body.Len()+len(p) > rec.limit:
		rec.lose(lostTooLarge)
	case rec.lost == "":
		rec.body.Write(p)
	}
	switch {
	case rec.lost != "" && rec.held:
		return 0, ErrResponseTooLarge
	case rec.passing:
		if n, err := rec.to.Write(p); !rec.goesOn() {
			return n, err
		}
	}
	return len(p), nil
}

// goesOn reports whether a response is kept although its client has gone: then handlers are told of no error, at which they
// would stop. They are when their context has ended: those that heed nothing else would never return.
func (rec *recorder) goesOn() bool { return rec.lost == "" && !rec.late() }

// end says that the handler has returned. A response that is shorter than its Content-Length is not whole, and the server lets
// the client know; nor does it send more, where the length is the handler's. Of a response without one that was flushed, nobody
// can tell whether its handler has stopped in the middle, because its context had ended.
func (rec *recorder) end() {
	rec.WriteHeader(http.StatusOK) // which it is if nothing was said
	whole := !rec.passing || !rec.late()
	if announced, err := strconv.Atoi(rec.sent.Get("Content-Length")); err == nil && announced >= 0 { // as net/http takes it
		whole = rec.body.Len() == announced || rec.body.Len() > announced && !rec.passing && !rec.trailing()
	}
	if rec.lost == "" && bodyAllowed(rec.status) && !whole {
		rec.lost = lostShort
	}
}

// lose gives the response up as one to be kept. What was held leaves, unless nothing may.
func (rec *recorder) lose(why loss) {
	rec.lost = why
	if !rec.held {
		rec.pass()
	}
	rec.body = bytes.Buffer{}
}

// bodyAllowed reports whether a response with this status may have a body (RFC 9110, section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// encoded reports whether the handler has encoded the body.
func (rec *recorder) encoded() bool {
	encoding := rec.sent["Content-Encoding"]
	return len(encoding) > 0 && !slices.Equal(encoding, rec.coder)
}

// name sets the content type that net/http would find out, so that it is part of what is kept. It finds out nothing once the
// header has left.
func (rec *recorder) name() {
	_, typed := rec.sent["Content-Type"]
	if !typed && !rec.passing && !rec.encoded() && rec.body.Len() > 0 {
		rec.sent.Set("Content-Type", http.DetectContentType(rec.body.Bytes()))
	}
}

// pass sends what has been written so far, and lets everything leave from now on.
func (rec *recorder) pass() {
	if rec.passing {
		return
	}
	rec.name()
	rec.passing = true
	replaceHeader(rec.to.Header(), rec.sent)
	rec.to.WriteHeader(rec.status)
	if rec.body.Len() > 0 {
		rec.to.Write(rec.body.Bytes()) //nolint:errcheck // the client has gone, the run goes on
	}
}

// finish sends what is left to send when the run is over.
func (rec *recorder) finish() {
	if rec.lost == lostHijacked {
		return
	}
	if !rec.passing && rec.lost != lostShort && bodyAllowed(rec.status) && !rec.trailing() && len(rec.coder) == 0 {
		rec.sent.Set("Content-Length", strconv.Itoa(rec.body.Len()))
	}
	rec.pass()
	rec.trailers()
}

// trailing reports whether something is to follow the body.
func (rec *recorder) trailing() bool {
	for name := range rec.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return len(rec.sent["Trailer"]) > 0
}

// trailers copies what the handler set after the header was written: values of trailers that it has announced, and those
// with http.TrailerPrefix.
func (rec *recorder) trailers() {
	to := rec.to.Header()
	for _, list := range rec.sent["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values, ok := rec.header[name]; ok {
				to[name] = values
			}
		}
	}
	for name, values := range rec.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			to[name] = values
		}
	}
}

// replaceHeader makes a header equal to another one.
func replaceHeader(h, with http.Header) {
	clear(h)
	maps.Copy(h, with)
}
