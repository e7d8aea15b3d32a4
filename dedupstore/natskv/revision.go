package natskv

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

// Bytes of a key that stand for themselves. Others are written as =XX, "=" and "." among them.
const plainBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

const hexDigits = "0123456789ABCDEF"

// subject is where a record is kept: in a bucket $KV.bucket.tenant.group.handler.ID, all of them legal in keys.
func (s *Store) subject(k dedupstore.Key) string {
	b := make([]byte, 0, 64+len(k.Tenant)+len(k.Group)+len(k.Handler)+len(k.ID))
	b = append(b, s.prefix...)
	for _, part := range [...]string{k.Tenant, k.Group, k.Handler, k.ID} {
		b = appendToken(append(b, '.'), part)
	}
	return string(b)
}

func appendToken(b []byte, part string) []byte {
	for i := range len(part) {
		if c := part[i]; strings.IndexByte(plainBytes, c) >= 0 {
			b = append(b, c)
		} else {
			b = append(b, '=', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return b
}

// key reads a subject. It is false for a key that is no record's.
func (s *Store) key(subject string) (dedupstore.Key, bool) {
	parts := strings.Split(strings.TrimPrefix(subject, s.prefix+"."), ".")
	if len(parts) != 4 {
		return dedupstore.Key{}, false
	}
	for i, part := range parts {
		var plain []byte
		for j := 0; j < len(part); j++ {
			c := part[j]
			if c == '=' && j+2 < len(part) {
				c = byte(strings.IndexByte(hexDigits, part[j+1])<<4 | strings.IndexByte(hexDigits, part[j+2]))
				j += 2
			}
			plain = append(plain, c)
		}
		parts[i] = string(plain)
	}
	k := dedupstore.Key{Tenant: parts[0], Group: parts[1], Handler: parts[2], ID: parts[3]}
	return k, k.Validate() == nil && s.subject(k) == subject
}

// read asks for the last revision of a key: without one, or after a deletion, the record is the zero value.
func (s *Store) read(ctx context.Context, key dedupstore.Key) (last recordstore.Revision, err error) {
	subject := s.subject(key)
	var header nats.Header
	var data []byte
	if last.Number, header, data, err = s.last(ctx, subject); err != nil || last.Number == 0 {
		return last, err
	}
	last.Record, err = s.decode(subject, header, data)
	return last, err
}

// last asks the leader of the stream for the last value of a subject; the number is 0 if there is none. Others, which
// answer direct gets, may be behind.
func (s *Store) last(ctx context.Context, subject string) (number int64, h nats.Header, data []byte, err error) {
	request, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return 0, nil, nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	reply, err := s.js.Conn().RequestWithContext(bounded, s.api+"STREAM.MSG.GET."+s.stream, request)
	if err != nil {
		return 0, nil, nil, s.failed(ctx, err)
	}
	var got struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Sequence int64  `json:"seq"`
			Header   []byte `json:"hdrs"`
			Data     []byte `json:"data"`
		} `json:"message"`
	}
	switch err := json.Unmarshal(reply.Data, &got); {
	case err != nil:
		return 0, nil, nil, fmt.Errorf("natskv: key %q: %w", subject, err)
	case got.Error != nil && got.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return 0, nil, nil, nil
	case got.Error != nil:
		return 0, nil, nil, s.failed(ctx, got.Error)
	case got.Message == nil:
		return 0, nil, nil, fmt.Errorf("natskv: key %q: the server's answer has no message", subject)
	}
	h = nats.Header{}
	if len(got.Message.Header) > 0 {
		if h, err = nats.DecodeHeadersMsg(got.Message.Header); err != nil {
			return 0, nil, nil, fmt.Errorf("natskv: key %q: %w", subject, err)
		}
	}
	return got.Message.Sequence, h, got.Message.Data, nil
}

// removed reports that a value marks that one was deleted, or that its time has come.
func removed(h nats.Header) bool {
	return h.Get(operationHeader) != "" || h.Get(jetstream.MarkerReasonHeader) != ""
}

// decode reads a value. A marker that one was deleted, or that its time has come, is no record.
func (s *Store) decode(subject string, h nats.Header, data []byte) (dedupstore.Stored, error) {
	if removed(h) {
		return dedupstore.Stored{}, nil
	}
	rec, err := recordstore.Decode(data)
	if err != nil {
		name := subject
		if key, ok := s.key(subject); ok {
			name = key.String()
		}
		return rec, &dedupstore.RecordError{Key: name, Problem: err.Error()}
	}
	return rec, nil
}

// operationHeader says of a revision of a bucket that it deletes its key.
const operationHeader = "KV-Operation"
