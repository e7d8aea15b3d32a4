package natskv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	// Bucket is the name of the bucket. Empty means "oncemill", unless Stream is set.
	Bucket string

	// Stream is the name of a stream that has the records beside what handlers publish into it, instead of a bucket.
	// See [Store.Inbox].
	Stream string

	// Subject is what the subjects of records in Stream begin with, such as "orders.once". The stream must have
	// Subject.> among its subjects, and nobody else may publish there. Needed with Stream, and only then.
	Subject string

	// Logger gets what the first look at the bucket or stream warns of. Nil means slog.Default().
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

// Stream is a stream for records and what handlers publish, to create by JetStream.CreateStream. Its subjects are those
// of the outputs and, for [Config].Subject "orders.once", "orders.once.>"; "orders.>" has both. Less than three
// replicas are slow and can lose what they had. Placement, MaxBytes and the like are the owner's choice.
func Stream(name string, replicas int, subjects ...string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Subjects: subjects, Replicas: replicas, Storage: jetstream.FileStorage,
		Discard: jetstream.DiscardNew, AllowAtomicPublish: true, AllowMsgTTL: true, AllowRollup: true,
		AllowDirect: true,
		MaxMsgs:     -1, MaxBytes: -1, MaxMsgSize: -1, MaxConsumers: -1, MaxMsgsPerSubject: -1,
	}
}

// Store keeps records in a bucket, or in a stream beside other messages. It is a [dedupstore.Inspector] and a
// [dedupstore.Checker], and over a stream a [producer.Publisher].
type Store struct {
	js      jetstream.JetStream
	stream  string
	shared  bool   // the stream has other messages, too
	prefix  string // what the subjects of records begin with
	api     string // what subjects of requests begin with
	log     *slog.Logger
	clock   clock
	records recordstore.Records
	batches batcher
	tries   tries
	config  atomic.Pointer[jetstream.StreamConfig] // as the last look found it
	warned  atomic.Bool
}

// New returns a store. It asks the server for nothing: a bucket that is missing, or does not fit, is a
// [*dedupstore.SetupError] of the first operation, and of Check.
func New(js jetstream.JetStream, c Config) (*Store, error) {
	if js == nil {
		return nil, &dedupstore.InvalidError{Package: "natskv", Field: "js", Problem: "is nil"}
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	bucket := cmp.Or(c.Bucket, defaultBucket)
	s := &Store{js: js, stream: "KV_" + bucket, prefix: "$KV." + bucket, log: c.Logger, api: jetstream.DefaultAPIPrefix}
	if c.Stream != "" {
		s.stream, s.prefix, s.shared = c.Stream, c.Subject, true
	}
	s.batches.open(js.Conn(), s.stream)
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

func (c Config) validate() error {
	invalid := func(field, format string, args ...any) error {
		return &dedupstore.InvalidError{
			Package: "natskv", Field: "Config." + field, Problem: fmt.Sprintf(format, args...),
		}
	}
	switch {
	case c.Stream == "" && c.Subject != "":
		return invalid("Subject", "is set without Config.Stream: a bucket has subjects of its own")
	case c.Stream != "" && c.Bucket != "":
		return invalid("Bucket", "is set beside Config.Stream: records are in one of them")
	case strings.ContainsAny(c.Stream, ".*> \t\r\n/\\"):
		return invalid("Stream", "is %q, want the name of a stream", c.Stream)
	case c.Stream != "" && strings.Trim(strings.ReplaceAll(c.Subject, ".", ""), plainBytes) != "",
		c.Stream != "" && slices.Contains(strings.Split(c.Subject, "."), ""):
		return invalid("Subject", "is %q, want tokens of letters, digits, \"-\" and \"_\", such as orders.once",
			c.Subject)
	case strings.Trim(c.Bucket, plainBytes) != "":
		return invalid("Bucket", "is %q, want letters, digits, \"-\" and \"_\"", c.Bucket)
	}
	return nil
}

// String names the bucket or stream.
func (s *Store) String() string {
	return fmt.Sprintf("%s %q", s.kind(), strings.TrimPrefix(s.stream, "KV_"))
}

// Claim implements [dedupstore.Store]. A key that this store has not claimed lately is tried as a new one first.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return recordstore.Claim(ctx, requests, s.claimNew, func(ctx context.Context, w *recordstore.Work) error {
		return s.records.Claim(ctx, w, func(context.Context) bool { return true })
	})
}

// claimNew claims the keys of a stream by one atomic batch, if none of them has a record. One that has makes the server
// refuse all: then each is claimed alone. One replica on files takes much longer for a batch than for its messages.
func (s *Store) claimNew(ctx context.Context, works []*recordstore.Work) bool {
	c := s.config.Load()
	if !s.shared || c == nil || c.Replicas == 1 && c.Storage == jetstream.FileStorage || len(works) > maxBatch ||
		ctx.Err() != nil || len(s.batches.room) > maxInFlight/2 || s.tries.skip() { // commits need the room
		return false
	}
	if deadline, bounded := ctx.Deadline(); bounded { // the other half is for each alone
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
		ctx = half
	}
	err := s.records.ClaimNew(ctx, works, func(ctx context.Context, keys []dedupstore.Key, next []*dedupstore.Stored,
		seen []int64, now recordstore.Time) ([]int64, error) {
		records, err := s.messages(keys, next, now)
		if err != nil {
			return nil, err
		}
		last, err := s.writeBatch(ctx, nil, records, seen)
		s.tries.learn(err != nil)
		return numbered(last, len(records)), err
	})
	return err == nil
}

// A tries says which batches of claims are skipped. Where duplicates are frequent, nearly every batch has one. So after
// 1, 2, 3 … refusals in a row the next 2, 4, 8 … batches are skipped, at most 64.
type tries struct{ refused, left atomic.Int32 }

func (t *tries) skip() bool {
	if t.left.Load() <= 0 {
		return false
	}
	t.left.Add(-1)
	return true
}

func (t *tries) learn(refused bool) {
	if !refused {
		t.refused.Store(0)
		return
	}
	n := min(t.refused.Load()+1, 6)
	t.refused.Store(n)
	t.left.Store(1 << n)
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
	data, header, err := s.message(next, now)
	if err != nil {
		return 0, nil, err
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

// message is what a record is written as; nil: as removed.
func (s *Store) message(next *dedupstore.Stored, now recordstore.Time) (data []byte, header nats.Header, err error) {
	if next == nil {
		return nil, nats.Header{operationHeader: {"DEL"}, jetstream.MsgTTLHeader: {markerTTL.String()}}, nil
	}
	data = recordstore.Encode(next)
	size, limit := len(data)+recordstore.Growth(next), s.js.Conn().MaxPayload()
	if int64(size) > limit-maxHeaders {
		return nil, nil, fmt.Errorf("natskv: %v: %w: a record of up to %d bytes does not fit the server's "+
			"max_payload of %d", s, dedupstore.ErrTooLarge, size, limit)
	}
	// The server counts whole seconds, from when it gets the message.
	ttl := int64(next.Expires.Sub(now.Early)/time.Second) + 2
	return data, nats.Header{jetstream.MsgTTLHeader: {strconv.FormatInt(ttl, 10) + "s"}}, nil
}

// publish puts a value if the last revision of its key is the given one.
func (s *Store) publish(
	ctx context.Context, subject string, data []byte, last int64, h nats.Header,
) (int64, error) {
	s.condition(h, last)
	target := subject
	if !s.shared && s.api != jetstream.DefaultAPIPrefix { // as jetstream's own KeyValue
		target = s.api + subject
	}
	ack, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: target, Header: h, Data: data})
	if err != nil {
		return 0, err
	}
	return int64(ack.Sequence), nil
}

// condition makes a write succeed only if the last revision of its key is the given one, and replace it. A bucket keeps
// one message a subject; in a shared stream an older revision would come back when the last one's time has come. A
// write that expects no revision has none to replace, and spares the servers the search.
func (s *Store) condition(h nats.Header, last int64) {
	h[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatInt(last, 10)}
	if s.shared && last != 0 {
		h[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	}
}

// conflict reports that the key has another last revision. A cluster may say so without telling which.
func conflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
