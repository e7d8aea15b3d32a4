package natskv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/ids"
)

// A batcher publishes atomic batches (ADR-50 of NATS): a stream gets all messages of one, one behind the other, or
// none.
type batcher struct {
	conn   *nats.Conn
	stream string
	room   chan struct{} // has one for each batch in flight
	within time.Duration // for an answer; answerWithin, but in tests
	fault  batchFault    // of a test; nil: none

	subscribe sync.Once
	failed    error  // to subscribe
	token     string // the ID of a batch is token-number
	answers   string // what the subjects of answers begin with

	wire sync.Mutex // held while a batch is sent: a server bounds how many are unfinished

	number  atomic.Uint64
	waiting sync.Map // channels of answers, by number
}

// A batchFault sends a batch, or does not, and returns the answer, or another.
type batchFault func(messages []*nats.Msg, send func() (int64, error)) (int64, error)

// An answer to a batch is the sequence of its last message, or why it is refused.
type answer struct {
	last int64
	err  error
}

const (
	batchID     = "Nats-Batch-Id"
	batchSeq    = "Nats-Batch-Sequence"
	batchCommit = "Nats-Batch-Commit"

	maxBatch      = 1000     // messages of a batch, by the server's default
	maxBatchBytes = 64 << 20 // the leader holds a batch in memory until it is complete
	maxInFlight   = 128      // batches of a store
)

func (b *batcher) open(conn *nats.Conn, stream string) {
	b.conn, b.stream, b.room, b.token = conn, stream, make(chan struct{}, maxInFlight), ids.Token()
	b.within = answerWithin
}

// publish publishes messages as a batch, with new headers of a batch, and returns the sequence of the last. It asks for
// no answer to the others: if one of them is refused, the last is. See proves for what an error says.
func (b *batcher) publish(ctx context.Context, messages []*nats.Msg) (int64, error) {
	b.subscribe.Do(func() {
		b.answers = b.conn.NewInbox() + "."
		_, b.failed = b.conn.Subscribe(b.answers+"*", b.take)
	})
	if b.failed != nil {
		return 0, &unsentError{b.failed}
	}
	select {
	case b.room <- struct{}{}:
		defer func() { <-b.room }()
	case <-ctx.Done():
		return 0, &unsentError{context.Cause(ctx)}
	}
	number, got := strconv.FormatUint(b.number.Add(1), 36), make(chan answer, 1)
	b.waiting.Store(number, got)
	defer b.waiting.Delete(number)
	for i, m := range messages {
		m.Header.Set(batchID, b.token+"-"+number)
		m.Header.Set(batchSeq, strconv.Itoa(i+1))
		m.Header.Set(jetstream.ExpectedStreamHeader, b.stream)
		m.Reply = ""
	}
	last := messages[len(messages)-1]
	last.Reply = b.answers + number
	last.Header.Set(batchCommit, "1")
	before := b.conn.LastError()
	send := func() (int64, error) {
		if err := b.send(messages); err != nil {
			return 0, err
		}
		select {
		case a := <-got:
			said := b.conn.LastError()
			if isCode(a.err, codeBatchIncomplete) && said != before && //nolint:errorlint // itself
				slices.ContainsFunc(messages, func(m *nats.Msg) bool { return refusesPublish(said, m.Subject) }) {
				return 0, &unsentError{said} // only the connection hears it
			}
			return a.last, a.err
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	if b.fault != nil {
		return b.fault(messages, send)
	}
	return send()
}

// send sends nothing while there is no connection: the client would keep it, and send it when nobody wants it any more.
func (b *batcher) send(messages []*nats.Msg) error {
	b.wire.Lock()
	defer b.wire.Unlock()
	if !b.conn.IsConnected() {
		return &unsentError{nats.ErrDisconnected}
	}
	for _, m := range messages {
		if err := b.conn.PublishMsg(m); err != nil {
			return err
		}
	}
	return nil
}

// take takes what the server says to the last message of a batch.
func (b *batcher) take(m *nats.Msg) {
	var reply struct {
		Error *jetstream.APIError `json:"error"`
		Batch string              `json:"batch"`
		Last  int64               `json:"seq"`
	}
	var a answer
	switch {
	case len(m.Data) == 0:
		a.err = jetstream.ErrNoStreamResponse
	default:
		err := json.Unmarshal(m.Data, &reply)
		a.last = reply.Last
		switch {
		case err != nil:
			a.err = fmt.Errorf("%w: %w", jetstream.ErrInvalidJSAck, err)
		case reply.Error != nil:
			a.err = reply.Error
		case reply.Batch == "":
			a.err = errNoBatch
		}
	}
	if got, waits := b.waiting.Load(strings.TrimPrefix(m.Subject, b.answers)); waits {
		select {
		case got.(chan answer) <- a:
		default: // a second answer
		}
	}
}

// An unsentError says that nothing was sent.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return e.err.Error() }
func (e *unsentError) Unwrap() error { return e.err }

var errNoBatch = errors.New("the server took a message of a batch for one by itself: it is older than 2.12")

// proves reports whether an error of publish says that the batch is not in the stream, and never will be.
func proves(err error) bool {
	var api *jetstream.APIError
	var unsent *unsentError
	return errors.As(err, &api) || errors.As(err, &unsent) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// passes reports whether the server may take the batch later: it has lost its leader, or too many are in flight.
func passes(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return true
	}
	switch api.ErrorCode {
	case codeBatchIncomplete, codeBatchesInFlight, codeTooManyRequests, codeDuplicateInFlight:
		return true
	}
	return api.Code >= 500
}
