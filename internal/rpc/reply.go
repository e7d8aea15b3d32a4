package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncemill/oncemill/internal/requests"
)

// A Status is a google.rpc.Status, without its Go type.
type Status struct {
	Code    uint32
	Message string
	Details []*anypb.Any
}

// A Reply is what a call is answered with.
type Reply struct {
	Message         proto.Message // nil beside a status, or if it is no message of protobuf
	Status          *Status       // nil: OK
	Header, Trailer map[string][]string
}

// Codes of google.rpc.Code that are used here. Libraries give them the same numbers.
const (
	canceled, unknown, invalidArgument, deadlineExceeded         = 1, 2, 3, 4
	alreadyExists, permissionDenied, failedPrecondition, aborted = 6, 7, 9, 10
	resourceExhausted, unimplemented, internal, unavailable      = 8, 12, 13, 14
	dataLoss                                                     = 15
)

// ServerError reports whether a code is as a status of 500 and above is over HTTP: the server failed, and the call may
// have had an effect.
func ServerError(code uint32) bool {
	switch code {
	case unknown, deadlineExceeded, unimplemented, internal, unavailable, dataLoss:
		return true
	}
	return code > 16 // no code that google.rpc.Code has
}

// Codes of refusals that only calls have, beside those of internal/requests.
const (
	missing   = "key-missing"
	malformed = "key-invalid"
	refused   = "response-refused"
	noAccount = "account-unknown"
	stream    = "stream-refused"
)

var refusals = map[string]Status{
	missing: {Code: invalidArgument, Message: "idempotency-key is missing: this method needs a key, " +
		"new for each new call, the same for each repeat of it"},
	malformed: {Code: invalidArgument, Message: "idempotency-key"},
	stream: {Code: unimplemented, Message: "a stream cannot be repeated under an idempotency key, " +
		"and the server lets no other stream pass"},
	noAccount: {Code: permissionDenied, Message: "keys belong to accounts, and none was found for this call"},
	refused: {Code: internal, Message: "nothing was committed: the response cannot be kept; " +
		"it is too large, or no message of protobuf"},
	requests.Reused: {Code: failedPrecondition,
		Message: "the key was used with another request: use a new key for a new call"},
	requests.InProgress: {Code: aborted,
		Message: "a call with this key is in progress: send this one again later with the same key"},
	requests.NotKept: {Code: alreadyExists, Message: "the call was processed, once, and its response was sent; " +
		"it could not be kept for repeats: do not send it again with another key"},
	requests.Unknown: {Code: unknown, Message: "the outcome is not known: the call was begun, may have had an " +
		"effect, and will not be tried again under this key"},
	requests.Uncommitted: {Code: internal, Message: "nothing was committed: if there is a RetryInfo, " +
		"send the call again then with the same key"},
	requests.Unavailable: {Code: unavailable,
		Message: "the call could not be processed now: send it again later with the same key"},
	requests.Internal: {Code: internal, Message: "the server cannot process idempotency keys here"},
}

// refusal makes the reply of a code, with what stands behind its message.
func refusal(code, more string) *Reply {
	s := refusals[code]
	s.Message += more
	reason := strings.ToUpper(strings.ReplaceAll(code, "-", "_"))
	s.Details = []*anypb.Any{detail("google.rpc.ErrorInfo", text(text(nil, 1, reason), 2, "oncemill"))}
	return &Reply{Status: &s}
}

// Details of errors are written and read here without their Go types, which would be one more module for users.
func detail(name string, data []byte) *anypb.Any {
	return &anypb.Any{TypeUrl: "type.googleapis.com/" + name, Value: data}
}

func text(to []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), s)
}

const retryInfo = "google.rpc.RetryInfo"

// after says when to send the call again: in a second at least.
func (r *Reply) after(wait time.Duration) *Reply {
	delay, _ := proto.Marshal(durationpb.New(max(wait, time.Second))) // it cannot fail
	s := *r.Status
	s.Details = append(s.Details[:len(s.Details):len(s.Details)], detail(retryInfo, text(nil, 1, string(delay))))
	return &Reply{Status: &s, Header: r.Header, Trailer: r.Trailer}
}

// retryAfter reads the RetryInfo of a status.
func (s *Status) retryAfter() (delay time.Duration, is bool) {
	for _, d := range s.Details {
		if d.MessageName() != retryInfo {
			continue
		}
		_, _, n := protowire.ConsumeTag(d.Value)
		value, _ := protowire.ConsumeBytes(d.Value[max(n, 0):])
		var wait durationpb.Duration
		if proto.Unmarshal(value, &wait) == nil {
			return wait.AsDuration(), true
		}
	}
	return 0, false
}

// Replayed is the name of the metadata that marks a stored response.
const Replayed = "idempotent-replayed"

func (r *Reply) replayed() *Reply {
	header := map[string][]string{Replayed: {"true"}}
	for name, values := range r.Header {
		header[name] = values
	}
	return &Reply{Message: r.Message, Status: r.Status, Header: header, Trailer: r.Trailer}
}

// A stored reply is one line of JSON, and behind it the message.
type stored struct {
	Version int                 `json:"rpc"`
	Code    uint32              `json:"code"`
	Text    string              `json:"message,omitempty"`
	Details []*storedDetail     `json:"details,omitempty"`
	Header  map[string][][]byte `json:"header,omitempty"`
	Trailer map[string][][]byte `json:"trailer,omitempty"`
	Type    string              `json:"type,omitempty"`
	Dropped bool                `json:"dropped,omitempty"` // it was sent, and is not here
}

type storedDetail struct {
	Type  string `json:"type"`
	Value []byte `json:"value,omitempty"`
}

// encode returns a reply as it is stored, in at most so many bytes, with the metadata that may be kept. It reports
// false for one that does not fit, or has no message of protobuf, and then returns its code alone, or a note that it
// was sent.
func (r *Reply) encode(most int, kept []string) (data []byte, whole bool) {
	s := stored{Version: 1, Header: pick(r.Header, kept), Trailer: pick(r.Trailer, kept)}
	var message []byte
	var err error
	switch {
	case r.Status != nil:
		s.Code, s.Text = r.Status.Code, r.Status.Message
		for _, d := range r.Status.Details {
			s.Details = append(s.Details, &storedDetail{d.TypeUrl, d.Value})
		}
	case r.Message != nil:
		s.Type = string(r.Message.ProtoReflect().Descriptor().FullName())
		message, err = proto.Marshal(r.Message)
	default:
		err = errStored
	}
	line, _ := json.Marshal(s) // it cannot fail for strings and numbers
	if err == nil && len(line)+1+len(message) <= most {
		return append(append(line, '\n'), message...), true
	}
	// Of a refusal the code is enough: what came to nothing must not look like what was done.
	line, _ = json.Marshal(stored{Version: 1, Code: s.Code, Dropped: r.Status == nil})
	return append(line, '\n'), false
}

// pick copies the metadata whose names are in a list. HTTP/2 has names in lower case only.
func pick(all map[string][]string, names []string) map[string][][]byte {
	picked := map[string][][]byte{}
	for name, values := range all {
		for _, keep := range names {
			if strings.EqualFold(name, keep) {
				for _, v := range values {
					lower := strings.ToLower(name)
					picked[lower] = append(picked[lower], []byte(v)) // it may be binary
				}
			}
		}
	}
	return picked
}

var errStored = errors.New("it is not a response")

// decode reads what encode wrote. A nil reply without an error was dropped.
func decode(data []byte) (*Reply, error) {
	line, message, found := bytes.Cut(data, []byte("\n"))
	var s stored
	if err := json.Unmarshal(line, &s); err != nil || !found || s.Version != 1 {
		return nil, errStored
	}
	if s.Dropped {
		return nil, nil
	}
	r := &Reply{Header: unpick(s.Header), Trailer: unpick(s.Trailer)}
	if s.Code != 0 {
		r.Status = &Status{Code: s.Code, Message: s.Text}
		for _, d := range s.Details {
			r.Status.Details = append(r.Status.Details, &anypb.Any{TypeUrl: d.Type, Value: d.Value})
		}
		return r, nil
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(s.Type))
	if err != nil {
		return nil, err
	}
	r.Message = kind.New().Interface()
	return r, proto.Unmarshal(message, r.Message)
}

func unpick(picked map[string][][]byte) map[string][]string {
	all := map[string][]string{}
	for name, values := range picked {
		for _, v := range values {
			all[name] = append(all[name], string(v))
		}
	}
	return all
}
