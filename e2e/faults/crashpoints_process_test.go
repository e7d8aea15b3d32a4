package faults_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Crash points: the moments at which a process of [TestCrashPoints] kills itself. No production code knows of them: the
// process sees them in the interfaces that it hands over, in its handler, and in what goes through its connections.
const (
	claimSent      = "claim sent"      // the server has the request, and this process no answer
	claimAnswered  = "claim answered"  // the engine has not seen the answer
	handlerStarted = "handler started" // of an inbox: its transaction has begun
	effectMade     = "effect made"     // of an inbox: written, and not committed
	settleSent     = "settle sent"
	settleAnswered = "settle answered"
	outputPublish  = "output published" // a dead letter: the broker has it, the record does not say so
	ackReady       = "ack not sent"
	ackSent        = "ack sent"
	ackAnswered    = "ack answered" // of Kafka: the commit of offsets
	betweenMembers = "between members of a batch"
	stepGap        = "gap of a step" // between the step's effect and its record
	stepRecorded   = "step recorded"

	commitHalf     = "half of the commit sent" // of natskv: some messages of the atomic batch
	commitSent     = "commit sent"
	commitAnswered = "commit answered"

	rowsRead      = "relay: rows read"
	rowsPublished = "relay: published"
	rowsMarked    = "relay: marked"
)

// A crashTask says what a process of a pair does, and where it dies.
type crashTask struct {
	Pair  string // a key of crashPairs
	Point string // "": it does not die
	Hit   int    // it dies when it gets there for this time, from 1
	Batch bool   // its handler takes batches
	Relay int    // not zero: it is the relay of this number

	pairTask
	Lease time.Duration

	Journal string // a file: see ledger.Keep and ledger.KeepRelay
	Crash   string // a file: see crashed
}

// A crashed is what a process writes before it kills itself.
type crashed struct {
	Point string
	IDs   []string // the messages that it happened to; nil: not known
	PID   int
	Relay int // its number; 0: it is a worker
	At    time.Time
}

// TestCrashPoints_Process is no test, but what [TestCrashPoints] runs in processes. They work until SIGTERM, or until
// they reach their crash point.
func TestCrashPoints_Process(t *testing.T) {
	p := &crashProcess{crashTask: taskOf[crashTask](t), T: t}
	p.left.Store(int64(p.Hit))
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	if err := p.run(ctx); err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}

// A crashProcess is a worker or a relay with a crash point.
type crashProcess struct {
	crashTask
	*testing.T
	left             atomic.Int64
	claims, settings atomic.Pointer[[]string] // the IDs of what is being claimed and settled
	nc               *nats.Conn
	js               jetstream.JetStream
}

// at is where the process may die.
func (p *crashProcess) at(point string, ids ...string) {
	if point != p.Point || p.left.Add(-1) != 0 {
		return
	}
	line, err := json.Marshal(crashed{Point: point, IDs: ids, PID: os.Getpid(), Relay: p.Relay, At: time.Now()})
	if err == nil {
		err = os.WriteFile(p.Crash, line, 0o600)
	}
	if err != nil {
		panic(err)
	}
	endProcess()
}

func (p *crashProcess) run(ctx context.Context) error {
	pair := crashPairs[p.Pair]
	if p.NATS != "" {
		wire := crashWire{p, []crashRule{
			{is: isAck, before: ackReady, sent: ackSent},
			{is: has(batchEnds), half: commitHalf, sent: commitSent, answered: commitAnswered,
				answers: has([]byte(`"batch":"`))},
		}}
		var err error
		if p.nc, err = nats.Connect(p.NATS, nats.Timeout(waitLimit), nats.SetCustomDialer(wire),
			nats.MaxReconnects(-1)); err != nil {
			return err
		}
		defer p.nc.Close()
		if p.js, err = jetstream.New(p.nc); err != nil {
			return err
		}
	}
	s, err := pair.open(ctx, p)
	if err != nil {
		return err
	}
	defer s.close()
	if p.Relay > 0 {
		return p.relay(ctx, s)
	}
	pub, closePub, err := p.publisher(p.js, 0)
	if err != nil {
		return err
	}
	defer closePub()
	once, err := consumer.New(s.store, consumer.Config{
		Group: "billing", MaxWait: 200 * time.Millisecond,
		DeadLetters: crashPublisher{pub, p, outputPublish}, DeadLetterTopic: p.letters(),
		Policy: oncemill.Policy{
			Lease: p.Lease, MaxAttempts: 1000, Backoff: oncemill.Backoff{Min: 50 * time.Millisecond},
		},
	})
	if err != nil {
		return err
	}
	w := pairWorker{
		pairTask: p.pairTask, js: p.js, once: once, inFlight: 8, grace: 5 * time.Second,
		commitEvery: 50 * time.Millisecond,
		opts: []kgo.Opt{
			kgo.InstanceID("crash"), // so that the next one has the partitions at once
			kgo.WithHooks(crashCommits{p}),
		},
		handle: func(ctx context.Context, run oncemill.Run) error { return p.handle(ctx, s, run) },
		handleBatch: func(ctx context.Context, runs []oncemill.Run) []error {
			return p.handleBatch(ctx, s, runs)
		},
	}
	if p.Batch {
		w.batch = 8
	}
	return w.run(ctx)
}

// A crashPublisher is a publisher with a crash point behind it.
type crashPublisher struct {
	producer.Publisher
	p     *crashProcess
	point string
}

func (c crashPublisher) Publish(ctx context.Context, messages ...producer.Message) error {
	err := c.Publisher.Publish(ctx, messages...)
	var ids []string
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	if err == nil {
		c.p.at(c.point, ids...)
	}
	return err
}

// crashCommits are crash points behind commits of offsets.
type crashCommits struct{ p *crashProcess }

var _ interface {
	kgo.HookBrokerWrite
	kgo.HookBrokerRead
} = crashCommits{}

// OnBrokerWrite implements [kgo.HookBrokerWrite].
func (c crashCommits) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == kmsg.OffsetCommit.Int16() && err == nil {
		c.p.at(ackSent)
	}
}

// OnBrokerRead implements [kgo.HookBrokerRead].
func (c crashCommits) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == kmsg.OffsetCommit.Int16() && err == nil {
		c.p.at(ackAnswered)
	}
}

// Messages whose handler refuses them, and those whose handler has a step, by what their IDs begin with.
const (
	refusedMessage = "refused-"
	steppedMessage = "stepped-"
)

func (p *crashProcess) handle(ctx context.Context, s *crashStore, run oncemill.Run) error {
	id := run.Key.ID
	p.at(handlerStarted, id)
	switch {
	case strings.HasPrefix(id, refusedMessage):
		return oncemill.Permanent(errors.New("no such customer"))
	case strings.HasPrefix(id, steppedMessage):
		_, err := oncemill.Step(ctx, "charge", func(ctx context.Context) (string, error) {
			err := s.effect(ctx, run)
			p.at(stepGap, id)
			return "charged", err
		})
		if err == nil {
			p.at(stepRecorded, id)
		}
		return err
	}
	if err := s.effect(ctx, run); err != nil {
		return err
	}
	p.at(effectMade, id)
	return nil
}

func (p *crashProcess) handleBatch(ctx context.Context, s *crashStore, runs []oncemill.Run) []error {
	errs := make([]error, len(runs))
	var did []string
	for i, run := range runs {
		if len(did) > 0 {
			p.at(betweenMembers, did...)
		}
		if errs[i] = p.handle(ctx, s, run); errs[i] == nil {
			did = append(did, run.Key.ID)
		}
	}
	return errs
}

// relay relays until ctx ends.
func (p *crashProcess) relay(ctx context.Context, s *crashStore) error {
	pub, end, err := p.publisher(p.js, 0)
	if err != nil {
		return err
	}
	defer end()
	notes := ledger.KeepRelay(p.T, p.Relay, p.Journal, func() {})
	pub = notes.Publisher(crashPublisher{pub, p, rowsPublished})
	relay, err := outbox.NewRelay(s.relayed(notes), pub, shortLease())
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

// A crashStore is the store of a process, and how a handler has its effect.
type crashStore struct {
	store   dedupstore.Store
	effect  func(ctx context.Context, run oncemill.Run) error
	relayed func(notes *ledger.Relay) outbox.Store // nil: the pair has no outbox
	close   func()
}

// A crashingStore has crash points around the operations of a store.
type crashingStore struct {
	dedupstore.Store
	p *crashProcess
}

func (s crashingStore) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	var ids []string
	for _, r := range requests {
		ids = append(ids, r.Key.ID)
	}
	s.p.claims.Store(&ids)
	results := s.Store.Claim(ctx, requests)
	s.p.claims.Store(nil)
	s.p.at(claimAnswered, ids...)
	return results
}

func (s crashingStore) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	var ids, done []string
	for _, x := range settlings {
		ids = append(ids, x.Claim.Key.ID)
	}
	s.p.settings.Store(&ids)
	errs := s.Store.Settle(ctx, settlings)
	s.p.settings.Store(nil)
	for i, err := range errs {
		if err == nil {
			done = append(done, ids[i])
		}
	}
	s.p.at(settleAnswered, done...)
	return errs
}

// A crashingRows has crash points behind the operations of an outbox.
type crashingRows struct {
	outbox.Store
	p   *crashProcess
	ids *sync.Map // of messages, by the numbers of rows
}

func (s crashingRows) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	rows, err := s.Store.Lease(ctx, r)
	var ids []string
	for _, row := range rows {
		ids = append(ids, row.Message.ID)
		s.ids.Store(row.Number, row.Message.ID)
	}
	if len(ids) > 0 {
		s.p.at(rowsRead, ids...)
	}
	return rows, err
}

func (s crashingRows) Settle(ctx context.Context, token string, results []outbox.Result) error {
	err := s.Store.Settle(ctx, token, results)
	var ids []string
	for _, r := range results {
		if id, known := s.ids.Load(r.Number); known {
			ids = append(ids, id.(string))
		}
	}
	if err == nil && len(ids) > 0 {
		s.p.at(rowsMarked, ids...)
	}
	return err
}

// A crashWire dials connections with crash points.
type crashWire struct {
	p     *crashProcess
	rules []crashRule
}

// A crashRule has crash points around what is sent: before it, behind its half, behind it, and when the answer came.
type crashRule struct {
	is                           func(sent []byte) bool
	before, half, sent, answered string
	answers                      func(read []byte) bool // nil: what is read next
}

func has(text []byte) func([]byte) bool {
	return func(b []byte) bool { return bytes.Contains(b, text) }
}

func isAck(b []byte) bool {
	return bytes.Contains(b, []byte("PUB $JS.ACK.")) && bytes.Contains(b, []byte("+ACK"))
}

// Dial is for nats.SetCustomDialer.
func (w crashWire) Dial(network, addr string) (net.Conn, error) {
	return w.DialContext(context.Background(), network, addr)
}

// DialContext is for the other clients.
func (w crashWire) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &crashConn{Conn: conn, crashWire: w}, nil
}

type crashConn struct {
	net.Conn
	crashWire
	waits atomic.Pointer[crashRule] // for an answer
}

func (c *crashConn) Write(b []byte) (int, error) {
	claims, settles := c.p.claims.Load(), c.p.settings.Load()
	for i, r := range c.rules {
		if !r.is(b) {
			continue
		}
		c.p.at(r.before)
		if at := bytes.LastIndex(b, published); r.half != "" && r.half == c.p.Point && at > 0 {
			_, _ = c.Conn.Write(b[:at+2])
			c.p.at(r.half)
			return len(b), nil
		}
		c.waits.Store(&c.rules[i])
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		return n, err
	}
	for _, r := range c.rules {
		if r.is(b) {
			c.p.at(r.sent)
		}
	}
	if concerns(b, claims) {
		c.p.at(claimSent, *claims...)
	}
	if concerns(b, settles) {
		c.p.at(settleSent, *settles...)
	}
	return n, nil
}

// concerns reports whether one of these messages is named in what was sent, as it is or in hexadecimal digits.
func concerns(sent []byte, ids *[]string) bool {
	return ids != nil && slices.ContainsFunc(*ids, func(id string) bool {
		return bytes.Contains(sent, []byte(id)) || bytes.Contains(sent, []byte(hex.EncodeToString([]byte(id))))
	})
}

func (c *crashConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if r := c.waits.Load(); r != nil && n > 0 && (r.answers == nil || r.answers(b[:n])) {
		c.waits.Store(nil)
		c.p.at(r.answered)
	}
	return n, err
}
