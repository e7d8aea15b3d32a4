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
	"github.com/oncemill/oncemill/internal/pace"
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
	js     jetstream.JetStream
	bucket string
	api    string // what subjects of requests begin with
	log    *slog.Logger
	clock  clock
	recent recent
	warned atomic.Bool
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
	return s, nil
}

func (s *Store) stream() string { return "KV_" + s.bucket }

// Claim implements [dedupstore.Store]. A key that this store has not claimed lately is tried as a new one first.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return recordstore.Claim(ctx, requests, func(ctx context.Context, w *recordstore.Work) error {
		subject := s.subject(w.Key)
		_, claimed := s.recent.get(subject)
		return s.change(ctx, w, subject, revision{}, !claimed)
	})
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return recordstore.Extend(ctx, extensions, s.changeRecent)
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return recordstore.Settle(ctx, settlings, s.changeRecent)
}

// NoteDuplicates implements [dedupstore.Inspector].
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	return recordstore.Note(ctx, duplicates, s.changeRecent)
}

// changeRecent does a work with the record that this store wrote last, if it knows it.
func (s *Store) changeRecent(ctx context.Context, w *recordstore.Work) error {
	subject := s.subject(w.Key)
	seen, known := s.recent.get(subject)
	return s.change(ctx, w, subject, seen, known)
}

// Pauses between tries to change a record that others change, too. Each try that fails means that somebody's succeeded.
const (
	maxTries   = 32
	firstPause = time.Millisecond
	lastPause  = 64 * time.Millisecond
)

// change does a work. Guessed says that what was seen may be out of date. A write proves that it was not. If there is
// nothing to write, the store asks the leader and decides again.
func (s *Store) change(
	ctx context.Context, w *recordstore.Work, subject string, seen revision, guessed bool,
) error {
	pause := firstPause
	for range maxTries {
		if !guessed {
			var err error
			if seen, err = s.read(ctx, subject); err != nil {
				return err
			}
		}
		now, err := s.now(ctx)
		if err != nil {
			return err
		}
		next := w.Apply(seen.record, now)
		if next == nil && !guessed {
			return nil
		}
		if next != nil {
			written := revision{record: *next}
			written.sequence, err = s.write(ctx, subject, next, seen.sequence, now)
			if err == nil {
				s.recent.put(subject, written)
				return nil
			}
			s.recent.forget(subject)
			if !conflict(err) {
				return s.failed(ctx, err)
			}
			if !guessed && !pace.Sleep(ctx, pause) {
				return context.Cause(ctx)
			}
			pause = min(2*pause, lastPause)
		}
		guessed = false
	}
	return fmt.Errorf("natskv: key %q: others changed it %d times meanwhile", subject, maxTries)
}

// write writes a record if the last revision of its key is the given one, 0 for none.
func (s *Store) write(
	ctx context.Context, subject string, rec *dedupstore.Stored, last uint64, now recordstore.Time,
) (uint64, error) {
	// The server counts whole seconds, from when it gets the message.
	ttl := int64(rec.Expires.Sub(now.Early)/time.Second) + 2
	return s.publish(ctx, subject, recordstore.Encode(rec), last, nats.Header{
		jetstream.MsgTTLHeader: {strconv.FormatInt(ttl, 10) + "s"},
	})
}

// publish puts a value if the last revision of its key is the given one.
func (s *Store) publish(
	ctx context.Context, subject string, data []byte, last uint64, h nats.Header,
) (uint64, error) {
	if limit := s.js.Conn().MaxPayload(); int64(len(data)) > limit-maxHeaders {
		return 0, &tooLargeError{len(data), limit}
	}
	h[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(last, 10)}
	target := subject
	if s.api != jetstream.DefaultAPIPrefix { // as jetstream's own KeyValue
		target = s.api + subject
	}
	ack, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: target, Header: h, Data: data})
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// conflict reports that the key has another last revision. A cluster may say so without telling which.
func conflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
