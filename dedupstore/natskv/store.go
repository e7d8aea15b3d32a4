package natskv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// Bucket is the name of the bucket. Empty means "oncemill".
	Bucket string

	// Logger gets what the first look at the bucket warns of. Nil means slog.Default().
	Logger *slog.Logger
}

const defaultBucket = "oncemill"

// Bucket is the stream of a bucket, to create by JetStream.CreateStream. With three replicas it outlives one server.
// Placement, MaxBytes and the like are the owner's choice. A bucket that was created as a bucket fits, too, with a
// History of 1 and a LimitMarkerTTL, which allows TTLs.
func Bucket(name string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"}, Replicas: replicas,
		Storage: jetstream.FileStorage, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew,
		AllowMsgTTL: true, AllowDirect: true, AllowRollup: true, DenyDelete: true,
		MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1, MaxConsumers: -1,
	}
}

// Store keeps records in a bucket. It is a [dedupstore.Inspector] and a [dedupstore.Checker].
type Store struct {
	js      jetstream.JetStream
	bucket  string
	api     string // what subjects of requests begin with
	log     *slog.Logger
	clock   clock
	records recordstore.Records
	warned  atomic.Bool
}

// New returns a store. It asks the server for nothing: a bucket that is missing, or does not fit, is a
// [*dedupstore.SetupError] of the first operation, and of Check.
func New(js jetstream.JetStream, c Config) (*Store, error) {
	if js == nil {
		return nil, &dedupstore.InvalidError{Package: "natskv", Field: "js", Problem: "is nil"}
	}
	if c.Bucket == "" {
		c.Bucket = defaultBucket
	}
	if strings.Trim(c.Bucket, plainBytes) != "" {
		return nil, &dedupstore.InvalidError{Package: "natskv", Field: "Config.Bucket", Problem: fmt.Sprintf(
			"is %q, want letters, digits, \"-\" and \"_\"", c.Bucket)}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Store{js: js, bucket: c.Bucket, log: c.Logger, api: jetstream.DefaultAPIPrefix}
	switch o := js.Options(); {
	case o.Domain != "":
		s.api = "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		s.api = strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	s.clock.asking = make(chan struct{}, 1)
	s.records = recordstore.Records{Package: "natskv", Now: s.now, Read: s.read, Write: s.write, Grant: s.write}
	return s, nil
}

func (s *Store) stream() string { return "KV_" + s.bucket }

// Claim implements [dedupstore.Store]. A key that this store has not claimed lately is tried as a new one first.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return recordstore.Claim(ctx, requests, func(ctx context.Context, w *recordstore.Work) error {
		return s.records.Claim(ctx, w, func(context.Context) bool { return true })
	})
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return recordstore.Extend(ctx, extensions, s.records.Do)
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return recordstore.Settle(ctx, settlings, s.records.Do)
}

// NoteDuplicates implements [dedupstore.Inspector].
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	return recordstore.Note(ctx, duplicates, s.records.Do)
}

// markerTTL is how long the bucket shows that a record was removed.
const markerTTL = time.Minute

// write writes a record if the last revision of its key is the given one, 0 for none. A conflict does not tell which
// one there is. It is a [recordstore.Write].
func (s *Store) write(
	ctx context.Context, key dedupstore.Key, next *dedupstore.Stored, seen int64, now recordstore.Time,
) (number int64, there *recordstore.Revision, err error) {
	var data []byte
	header := nats.Header{operationHeader: {"DEL"}, jetstream.MsgTTLHeader: {markerTTL.String()}}
	if next != nil {
		data = recordstore.Encode(next)
		size, limit := len(data)+recordstore.Growth(next), s.js.Conn().MaxPayload()
		if int64(size) > limit-maxHeaders {
			return 0, nil, fmt.Errorf("natskv: bucket %q: %w: a record of up to %d bytes does not fit the server's "+
				"max_payload of %d", s.bucket, dedupstore.ErrFull, size, limit)
		}
		// The server counts whole seconds, from when it gets the message.
		ttl := int64(next.Expires.Sub(now.Early)/time.Second) + 2
		header = nats.Header{jetstream.MsgTTLHeader: {strconv.FormatInt(ttl, 10) + "s"}}
	}
	number, err = s.publish(ctx, s.subject(key), data, seen, header)
	switch {
	case conflict(err):
		return 0, nil, recordstore.ErrConflict
	case err != nil:
		return 0, nil, s.failed(ctx, err)
	}
	return number, nil, nil
}

// publish puts a value if the last revision of its key is the given one.
func (s *Store) publish(
	ctx context.Context, subject string, data []byte, last int64, h nats.Header,
) (int64, error) {
	h[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatInt(last, 10)}
	target := subject
	if s.api != jetstream.DefaultAPIPrefix { // as jetstream's own KeyValue
		target = s.api + subject
	}
	ack, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: target, Header: h, Data: data})
	if err != nil {
		return 0, err
	}
	return int64(ack.Sequence), nil
}

// conflict reports that the key has another last revision. A cluster may say so without telling which.
func conflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
