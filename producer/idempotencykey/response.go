package idempotencykey

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"strings"
)

// A stored response looks like HTTP, so that an operator can read it: a line with version and status, lines with headers,
// an empty line, and the body as it was sent. Of a response that is not kept there is only the first line, with the reason:
//
//	1 201
//	Content-Type: application/json
//
//	{"id":"pay_1"}
type stored struct {
	status int
	header []field
	body   []byte
	lost   loss // why there is neither header nor body
}

type field struct{ name, value string }

const storedVersion = "1 "

// encode returns the response as it is stored, in at most so many bytes. One that has no room becomes a note that it was
// sent.
func (rec *recorder) encode(headers []string, most int) []byte {
	if rec.lost == "" {
		rec.name()
		b := make([]byte, 0, 256+rec.body.Len())
		b = append(strconv.AppendInt(append(b, storedVersion...), int64(rec.status), 10), '\n')
		for _, name := range headers {
			if name == "Content-Encoding" && !rec.encoded() { // each replay has that of its own request
				continue
			}
			for _, value := range rec.sent[name] {
				b = append(append(append(append(b, name...), ": "...), oneLine(value)...), '\n')
			}
		}
		b = append(append(b, '\n'), rec.body.Bytes()...)
		if len(b) <= most {
			return b
		}
		rec.lost = lostTooLarge
	}
	return []byte(storedVersion + strconv.Itoa(rec.status) + " " + string(rec.lost) + "\n")
}

var lineEnds = strings.NewReplacer("\n", " ", "\r", " ") // as net/http sends them

func oneLine(value string) string {
	if strings.ContainsAny(value, "\r\n") {
		return lineEnds.Replace(value)
	}
	return value
}

var errStored = errors.New("it is not a response, or of another version")

// decode reads what encode wrote.
func decode(data []byte) (*stored, error) {
	first, rest, found := bytes.Cut(data, []byte{'\n'})
	line, version := bytes.CutPrefix(first, []byte(storedVersion))
	code, lost, _ := bytes.Cut(line, []byte{' '})
	status, err := strconv.Atoi(string(code))
	if !found || !version || err != nil {
		return nil, errStored
	}
	s := &stored{status: status, lost: loss(lost)}
	switch {
	case s.lost != "":
		return s, nil
	case status < 200 || status > 999:
		return nil, errStored
	case bytes.HasPrefix(rest, []byte{'\n'}):
		s.body = rest[1:]
		return s, nil
	}
	head, body, found := bytes.Cut(rest, []byte("\n\n"))
	if !found {
		return nil, errStored
	}
	s.body = body
	s.header = make([]field, 0, 1+bytes.Count(head, []byte{'\n'}))
	for lines := string(head); lines != ""; {
		var line string
		line, lines, _ = strings.Cut(lines, "\n")
		name, value, found := strings.Cut(line, ": ")
		if !found {
			return nil, errStored
		}
		s.header = append(s.header, field{name, value})
	}
	return s, nil
}

// replay sends a stored response.
func (s *stored) replay(w http.ResponseWriter, replayed string) {
	h := w.Header()
	coded := len(h["Content-Encoding"]) > 0 // by something around the middleware: another length leaves it
	for _, f := range s.header {
		delete(h, f.name)
	}
	for _, f := range s.header {
		h[f.name] = append(h[f.name], f.value)
	}
	if _, typed := h["Content-Type"]; !typed {
		h["Content-Type"] = nil // as it is stored: net/http is not to guess one
	}
	h.Set(replayed, "true")
	if bodyAllowed(s.status) && !coded {
		h.Set("Content-Length", strconv.Itoa(len(s.body)))
	}
	w.WriteHeader(s.status)
	w.Write(s.body) //nolint:errcheck // the client has gone
}
