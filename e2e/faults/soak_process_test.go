package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// What a process of a soak is.
const (
	soakProducer = "producer"
	soakRelay    = "relay"
	soakWorker   = "worker"
	soakBatches  = "batch worker"
	soakOperator = "operator"
)

// A soakTask says what a process does.
type soakTask struct {
	Pair, Role string
	Version    int  // of the policy: 0 or 1
	Number     int  // of a relay: no other has it
	Rate       int  // of a producer: messages a second
	Rests      bool // a producer only ends what another one has begun, and an operator changes no record

	pairTask // through proxies

	Journal string // a file: see ledger.Keep, ledger.KeepRelay, soakAsked and soakForgot
	Status  string // a file: see soakStatus
}

// orders is where orders are published to.
func (j soakTask) orders() string {
	if j.Kafka != "" {
		return j.Topic
	}
	return ordersStream
}

// A soakStatus is what a process says about itself.
type soakStatus struct {
	Goroutines int
	Heap       uint64
}

// soakPolicies are two versions, which run side by side.
var soakPolicies = []oncemill.Policy{
	{Lease: 4 * time.Second, MaxAttempts: 20, Backoff: oncemill.Backoff{Min: 50 * time.Millisecond, Max: time.Second}},
	{Lease: 6 * time.Second, MaxAttempts: 40, Backoff: oncemill.Backoff{
		Min: 200 * time.Millisecond, Max: 2 * time.Second,
	}},
}

// TestSoak_Process is no test, but what [TestSoak] runs in processes. They work until SIGTERM, whatever their servers
// do.
func TestSoak_Process(t *testing.T) {
	p := &soakProcess{soakTask: taskOf[soakTask](t), T: t}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	telling := make(chan struct{})
	go func() {
		defer close(telling)
		p.tell(ctx)
	}()
	defer func() { <-telling }()
	for ctx.Err() == nil {
		if err := p.run(ctx); err != nil && ctx.Err() == nil {
			fmt.Println(time.Now().UTC().Format(clockFormat), err) // servers are away on purpose
			wait(ctx, 200*time.Millisecond)
		}
	}
}

// A soakProcess is one of the processes.
type soakProcess struct {
	soakTask
	*testing.T
	noted *ledger.Ledger // of a worker over Redis
	notes *ledger.Relay  // of a relay
	nc    *nats.Conn
	js    jetstream.JetStream
}

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// tell writes the status until ctx ends.
func (p *soakProcess) tell(ctx context.Context) {
	for ctx.Err() == nil {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		text, err := json.Marshal(soakStatus{runtime.NumGoroutine(), m.HeapAlloc})
		if err == nil {
			err = os.WriteFile(p.Status+".new", text, 0o600)
		}
		if err == nil {
			err = os.Rename(p.Status+".new", p.Status)
		}
		if err != nil {
			panic(err)
		}
		wait(ctx, 2*time.Second)
	}
}

// run does the work until ctx ends or something cannot be had.
func (p *soakProcess) run(ctx context.Context) error {
	if p.NATS != "" {
		var err error
		p.nc, err = nats.Connect(p.NATS, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
			nats.IgnoreAuthErrorAbort(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			return err
		}
		defer p.nc.Close()
		if p.js, err = jetstream.New(p.nc); err != nil {
			return err
		}
	}
	s, err := soakPairs[p.Pair].open(ctx, p)
	if err != nil {
		return err
	}
	defer s.close()
	within := 2 * time.Second
	if p.NATS != "" {
		within = 500 * time.Millisecond
	}
	pub, end, err := p.publisher(p.js, within)
	if err != nil {
		return err
	}
	defer end()
	switch p.Role {
	case soakProducer:
		return p.produce(ctx, s, pub)
	case soakRelay:
		if p.notes == nil {
			p.notes = ledger.KeepRelay(p.T, p.Number, p.Journal, func() {})
		}
		relay, err := outbox.NewRelay(s.relayed(p.notes), p.notes.Publisher(pub), soakRelays())
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	case soakOperator:
		return p.operate(ctx, s, pub)
	}
	policy := soakPolicies[p.Version]
	if p.Redis != "" {
		policy.Window = 20 * time.Minute // so that it has no million of records to load after each kill
	}
	once, err := consumer.New(s.store, consumer.Config{
		Group: "billing", MaxWait: time.Second, DeadLetters: pub, DeadLetterTopic: p.letters(), Policy: policy,
	})
	if err != nil {
		return err
	}
	w := pairWorker{
		pairTask: p.pairTask, js: p.js, once: once, inFlight: 32, grace: 5 * time.Second,
		commitEvery: 100 * time.Millisecond,
		opts:        []kgo.Opt{kgo.SessionTimeout(3 * time.Second), kgo.RebalanceTimeout(6 * time.Second)},
		handle:      func(ctx context.Context, run oncemill.Run) error { return p.handle(ctx, s, run) },
		handleBatch: func(ctx context.Context, runs []oncemill.Run) []error {
			return p.handleBatch(ctx, s, runs)
		},
	}
	if p.Kafka != "" {
		w.grace = 3 * time.Second // within the time of a rebalance
	}
	if p.Role == soakBatches {
		w.batch = 16
	}
	return w.run(ctx)
}

// soakRelays is how relays are configured.
func soakRelays() outbox.Config {
	cfg := shortLease()
	cfg.BatchSize, cfg.MaxAttempts = 200, 1_000_000
	return cfg
}

// handle is the handler. For some seconds of each minute it refuses a third of the orders. It fails now and then, before
// its effect or after it. Once in 5,000 runs it hangs, perhaps for longer than a lease, whatever becomes of its
// context.
func (p *soakProcess) handle(ctx context.Context, s *soakStore, run oncemill.Run) error {
	hash := fnv.New32a()
	hash.Write([]byte(run.Key.ID))
	if time.Now().Unix()%60 < 3 && hash.Sum32()%3 == 0 {
		return oncemill.Permanent(errors.New("the customer is blocked"))
	}
	dice := rand.IntN(5000)
	switch {
	case dice == 0:
		if err := p.hangs(); err != nil {
			return err
		}
		lasts(time.Second + rand.N(9*time.Second))
	case dice < 25:
		return errors.New("the bank does not answer")
	case dice < 1000:
		lasts(rand.N(5 * time.Millisecond))
	}
	if err := s.effect(ctx, run); err != nil {
		return err
	}
	if dice >= 4980 {
		s.fails(run)
		return errors.New("the bank's answer was lost")
	}
	return nil
}

// hangs notes that a handler is about to hang, in a file of the pair.
func (p *soakProcess) hangs() error {
	name := filepath.Join(filepath.Dir(p.Journal), soakHung)
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write([]byte{'\n'})
	return errors.Join(err, file.Close())
}

// soakHung is a file with a byte for each handler that hung.
const soakHung = "hung"

func (p *soakProcess) handleBatch(ctx context.Context, s *soakStore, runs []oncemill.Run) []error {
	errs := make([]error, len(runs))
	for i, run := range runs {
		errs[i] = p.handle(ctx, s, run)
	}
	return errs
}

// A soakAsked is a line of a producer: it is about to publish these orders, or has done so.
type soakAsked struct {
	From, To int // of their numbers; To is not among them
	Done     bool
}

// soakID is the ID of an order.
func soakID(pair string, n int) string { return fmt.Sprintf("%s-%07d", soakPairs[pair].short, n) }

// produce publishes orders at the rate, each as often as it takes, under the same ID. It goes on where the producer
// before it was killed. One order in ten has a copy.
func (p *soakProcess) produce(ctx context.Context, s *soakStore, pub producer.Publisher) error {
	file, err := os.OpenFile(p.Journal, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	write := func(a soakAsked) error { return writeLine(file, a) }
	last, err := lastLine[soakAsked](p.Journal)
	if err != nil {
		return err
	}
	began, made := time.Now(), 0
	for ; ctx.Err() == nil; wait(ctx, time.Second/20) {
		if last.Done || last.To == 0 {
			if p.Rests {
				<-ctx.Done()
				break
			}
			due := int(time.Since(began).Seconds()*float64(p.Rate)) - made
			batch := min(max(due, 1), p.Rate/2) // it makes up for times in which servers were away
			made += batch
			last = soakAsked{From: last.To, To: last.To + batch}
			if err := write(last); err != nil {
				return err
			}
		}
		var messages, copies []producer.Message
		for n := last.From; n < last.To; n++ {
			messages = append(messages, p.order(n, 0))
			if n%10 == 0 {
				copies = append(copies, p.order(n, 1))
			}
		}
		for {
			if err = s.publish(ctx, pub, messages...); err == nil {
				err = pub.Publish(ctx, copies...)
			}
			if err == nil || ctx.Err() != nil {
				break
			}
			wait(ctx, 50*time.Millisecond)
		}
		if err == nil {
			last.Done = true
			err = write(last)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// order is an order, or a copy of it, with a number that no other copy has.
func (p *soakProcess) order(n int, copied uint64) producer.Message {
	id := soakID(p.Pair, n)
	m := producer.Message{ID: id, Topic: p.orders(), Key: id, Payload: []byte(id)}
	if copied > 0 {
		m.Header = producer.Header{
			producer.HeaderPurpose: producer.PurposeReplay, producer.HeaderGeneration: fmt.Sprint(copied),
		}
	}
	return m
}

// writeLine writes a line in one piece.
func writeLine(file *os.File, v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = file.Write(append(line, '\n'))
	}
	return err
}

// lastLine reads the last whole line of a file. A half of one behind it, of a process that was killed, is cut off.
func lastLine[T any](name string) (last T, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return last, err
	}
	whole := strings.LastIndexByte(string(text), '\n') + 1
	if err := os.Truncate(name, int64(whole)); err != nil || whole == 0 {
		return last, err
	}
	line := text[strings.LastIndexByte(string(text[:whole-1]), '\n')+1 : whole]
	return last, json.Unmarshal(line, &last)
}

// A soakForgot is a line of an operator: it is about to let an order run again.
type soakForgot struct {
	ID      string
	Failed  bool // its outcome is a failure
	At      time.Time
	Refused bool `json:",omitzero"` // the store has not done what the line before says
}

// operate redrives dead letters, and forgets or reruns an order now and then, until ctx ends.
func (p *soakProcess) operate(ctx context.Context, s *soakStore, pub producer.Publisher) error {
	file, err := os.OpenFile(p.Journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	letters, end, err := p.readLetters(ctx)
	if err != nil {
		return err
	}
	defer end()
	for ctx.Err() == nil {
		if err := p.redrive(ctx, file, letters, pub); err != nil {
			return err
		}
		if !p.Rests {
			if err := p.change(ctx, file, s, pub); err != nil {
				return err
			}
		}
		wait(ctx, 100*time.Millisecond+rand.N(500*time.Millisecond))
	}
	return nil
}

// A letterBox returns dead letters, and what acknowledges them.
type letterBox func(ctx context.Context) (letters []producer.Message, ack func(context.Context) error, err error)

func (p *soakProcess) readLetters(ctx context.Context) (read letterBox, end func(), err error) {
	if p.Kafka != "" {
		return p.readLettersOfKafka()
	}
	cons, err := p.js.CreateOrUpdateConsumer(ctx, lettersStream, jetstream.ConsumerConfig{
		Durable: soakOperator, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 5 * time.Second,
	})
	if err != nil {
		return nil, nil, err
	}
	return func(context.Context) (letters []producer.Message, ack func(context.Context) error, err error) {
		batch, err := cons.Fetch(50, jetstream.FetchMaxWait(100*time.Millisecond))
		if err != nil {
			return nil, nil, err
		}
		var msgs []jetstream.Msg
		for m := range batch.Messages() {
			header := producer.Header{}
			for name := range m.Headers() {
				header[name] = m.Headers().Get(name)
			}
			letters = append(letters, producer.Message{Header: header, Payload: m.Data()})
			msgs = append(msgs, m)
		}
		return letters, func(context.Context) error {
			for _, m := range msgs {
				if err := m.Ack(); err != nil {
					return err
				}
			}
			return nil
		}, nil
	}, func() {}, nil
}

func (p *soakProcess) readLettersOfKafka() (read letterBox, end func(), err error) {
	cl, err := kgo.NewClient(append(kafkaMemberOpts(p.Kafka, p.Topic+soakOperator, p.letters()),
		kgo.InstanceID(soakOperator), kgo.DisableAutoCommit())...)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) (letters []producer.Message, ack func(context.Context) error, err error) {
		bounded, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		records := cl.PollFetches(bounded).Records()
		for _, rec := range records {
			header := producer.Header{}
			for _, h := range rec.Headers {
				header[h.Key] = string(h.Value)
			}
			letters = append(letters, producer.Message{Header: header, Key: string(rec.Key), Payload: rec.Value})
		}
		return letters, func(ctx context.Context) error { return cl.CommitRecords(ctx, records...) }, nil
	}, cl.CloseAllowingRebalance, nil
}

// redrive runs dead letters again.
func (p *soakProcess) redrive(ctx context.Context, file *os.File, read letterBox, pub producer.Publisher) error {
	letters, ack, err := read(ctx)
	if err != nil || len(letters) == 0 {
		return err
	}
	for i := range letters {
		if letters[i], err = consumer.Rerun(letters[i]); err != nil {
			panic(err) // an end that everybody sees
		}
		if err := writeLine(file, soakForgot{ID: letters[i].ID, Failed: true, At: time.Now()}); err != nil {
			return err
		}
	}
	if err := pub.Publish(ctx, letters...); err != nil {
		return err
	}
	return ack(ctx)
}

// change takes some recent orders, forgets one that succeeded, and lets those run again that failed. Then it publishes
// these once more.
func (p *soakProcess) change(ctx context.Context, file *os.File, s *soakStore, pub producer.Publisher) error {
	last, err := lastOf(p.Journal)
	if err != nil || last < 100 {
		return err
	}
	var keys []dedupstore.Key
	number := map[string]int{}
	for range 10 {
		n := last - 1 - rand.IntN(100)
		id := soakID(p.Pair, n)
		if number[id] == 0 {
			keys, number[id] = append(keys, orderKey(id)), n
		}
	}
	records, err := s.inspector.Look(ctx, keys)
	if err != nil {
		return err
	}
	forgotten := false
	for _, rec := range records {
		var change dedupstore.Change
		switch {
		case rec.State != dedupstore.Finished:
			continue
		case rec.Outcome.Kind == dedupstore.Failed:
			change = dedupstore.Rerun{}
		case rec.Outcome.Kind == dedupstore.Succeeded && !forgotten:
			forgotten = true
			change = dedupstore.Forget{}
		default:
			continue
		}
		failed := rec.Outcome.Kind == dedupstore.Failed
		if err := writeLine(file, soakForgot{ID: rec.Key.ID, Failed: failed, At: time.Now()}); err != nil {
			return err
		}
		switch err := s.inspector.Change(ctx, rec, change); {
		case err == nil, p.Redis != "" && mayBeMade(&rec, err):
		case !is[*dedupstore.RefusedError](err):
			return err // perhaps it was made: the order comes again only if somebody publishes it
		default:
			if err := writeLine(file, soakForgot{ID: rec.Key.ID, At: time.Now(), Refused: true}); err != nil {
				return err
			}
			continue
		}
		if err := pub.Publish(ctx, p.order(number[rec.Key.ID], rand.Uint64())); err != nil {
			return err
		}
	}
	return nil
}

// mayBeMade reports whether a change may have been refused because it had been made: after a lost answer the client of
// Redis asks again.
func mayBeMade(seen *dedupstore.Record, err error) bool {
	e, refused := errors.AsType[*dedupstore.RefusedError](err)
	return refused && (e.Found.State != seen.State || e.Found.Fence != seen.Fence)
}

func is[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

// lastOf is the number of the last order that is published, by the journal of the producer beside an operator's.
func lastOf(journal string) (int, error) {
	name := journal[:strings.LastIndexByte(journal, '/')+1] + soakProducer + ".asked"
	file, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	text := make([]byte, min(info.Size(), 1000))
	if _, err := file.ReadAt(text, info.Size()-int64(len(text))); err != nil {
		return 0, err
	}
	lines := strings.Split(string(text), "\n")
	for _, line := range slices.Backward(lines) {
		var a soakAsked
		if json.Unmarshal([]byte(line), &a) == nil && a.Done {
			return a.To, nil
		}
	}
	return 0, nil
}
