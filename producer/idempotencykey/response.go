package idempotencykey

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// storedHeaders are the response headers of a replay. They describe the body or lead to what was made. None carries
// credentials.
var storedHeaders = []string{
	"Content-Type", "Content-Encoding", "Content-Language", "Content-Location", "Content-Disposition",
	"X-Content-Type-Options", "Location", "Etag", "Last-Modified", "Link", "Retry-After",
}

// droppedHeader says in a stored response why the response itself is not there.
const droppedHeader = "Oncemill-Dropped"

// encode returns the response as it is stored: in the form of HTTP/1.1, with the body up to the end, in at most so many
// bytes. If it does not fit, it becomes a note that it was sent.
func (rec *recorder) encode(most int) []byte {
	status := fmt.Sprintf("HTTP/1.1 %d %s\r\n", rec.status, http.StatusText(rec.status))
	if rec.lost == "" {
		rec.detectType()
		header := http.Header{}
		for _, name := range storedHeaders {
			if name != "Content-Encoding" || rec.encoded() { // else each replay has that of its own request
				header[name] = slices.DeleteFunc(slices.Clone(rec.sent[name]), unreadable)
			}
		}
		b := bytes.NewBufferString(status)
		header.Write(b) //nolint:errcheck // a buffer takes all
		b.WriteString("\r\n")
		b.Write(rec.body.Bytes())
		if b.Len() <= most {
			return b.Bytes()
		}
		rec.lost = lostTooLarge
	}
	return fmt.Appendf(nil, "%s%s: %s\r\n\r\n", status, droppedHeader, rec.lost)
}

// unreadable reports whether a header's value has bytes that net/http writes, but does not read. It writes a space for
// each line break.
func unreadable(value string) bool {
	return strings.ContainsFunc(value, func(c rune) bool {
		return (c < ' ' || c == 0x7f) && !strings.ContainsRune("\t\r\n", c)
	})
}

// errStored takes the place of net/http's errors, which quote what they have read.
var errStored = errors.New("it is not a response")

// decode reads what encode wrote.
func decode(data []byte) (resp *http.Response, body []byte, err error) {
	if resp, err = http.ReadResponse(bufio.NewReader(bytes.NewReader(data)), nil); err != nil {
		return nil, nil, errStored
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil || resp.StatusCode < 200 {
		return nil, nil, errStored
	}
	return resp, body, nil
}

// replay sends a stored response.
func replay(w http.ResponseWriter, resp *http.Response, body []byte) {
	h := w.Header()
	coded := len(h["Content-Encoding"]) > 0 // by something around the middleware: another length leaves it
	h["Content-Type"] = nil                 // net/http must not guess one
	for name, values := range resp.Header {
		h[name] = values
	}
	h.Set(replayedHeader, "true")
	if bodyAllowed(resp.StatusCode) && !coded {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(resp.StatusCode)
	w.Write(body) //nolint:errcheck // the client has gone
}
