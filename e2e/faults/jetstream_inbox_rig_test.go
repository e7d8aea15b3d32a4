package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
)

// clockFormat is how the log tells times.
const clockFormat = "15:04:05.000"

// does notes what is done to a server.
func (r *inboxRig) does(what string, node int) {
	r.servers[what]++
	r.events = append(r.events, fmt.Sprintf("%s %s %d", time.Now().UTC().Format(clockFormat), what, node))
}

// An inboxRig runs workers over the inbox of natskv and harms them and the servers. In the end it looks at each input.
type inboxRig struct {
	t       *testing.T
	cluster *natstest.Cluster
	nodes   int
	scales  bool // the stream's replicas become one, and three again
	js      jetstream.JetStream
	task    inboxTask
	dir     string

	inputs, copies, killed, died, stopped, started atomic.Int64
	servers                                        map[string]int // what was done to them, how often
	events                                         []string       // the same, with times
}

func newInboxRig(t *testing.T, nodes int, task inboxTask) *inboxRig {
	t.Helper()
	program := testserver.BuildProgram(t, "github.com/nats-io/nats-server/v2")
	cluster := natstest.StartDivisibleCluster(t, nodes, program)
	task.URLs = cluster.URLs()
	r := &inboxRig{t: t, cluster: cluster, nodes: nodes, js: cluster.JetStream(), task: task, dir: t.TempDir(),
		servers: map[string]int{}}
	for _, config := range []jetstream.StreamConfig{
		{Name: ordersStream, Subjects: []string{ordersStream}, Replicas: nodes, Duplicates: 100 * time.Millisecond},
		r.prices(nodes),
	} {
		natstest.Ask(t, config.Name, func(ctx context.Context) (jetstream.Stream, error) {
			return r.js.CreateOrUpdateStream(ctx, config)
		})
	}
	natstest.Ask(t, "the consumer", func(ctx context.Context) (jetstream.Consumer, error) {
		return r.js.CreateOrUpdateConsumer(ctx, ordersStream, jetstream.ConsumerConfig{
			Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 10 * time.Second, MaxAckPending: 3000,
		})
	})
	return r
}

func (r *inboxRig) prices(replicas int) jetstream.StreamConfig {
	return natskv.Stream(pricesStream, replicas, "prices.>")
}

// offer publishes inputs at a rate until ctx ends, a fifth of them again and again.
func (r *inboxRig) offer(ctx context.Context, rate int) {
	var late sync.WaitGroup
	defer late.Wait()
	publish := func(id string) {
		for {
			within, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			_, err := r.js.PublishMsg(within, &nats.Msg{
				Subject: ordersStream, Header: nats.Header{producer.HeaderID: {"input-" + id}}, Data: []byte(id),
			})
			cancel()
			if err == nil {
				return
			}
			lasts(50 * time.Millisecond)
		}
	}
	room := make(chan struct{}, 300)
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for ; ctx.Err() == nil; <-tick.C {
		id := fmt.Sprint(r.inputs.Add(1))
		room <- struct{}{}
		late.Go(func() {
			publish(id)
			<-room
			for rand.IntN(5) == 0 {
				r.copies.Add(1)
				lasts(rand.N(time.Second))
				publish(id)
			}
		})
	}
}

// keep keeps a worker running until work ends, and kills or stops it now and then while harm lives.
func (r *inboxRig) keep(harm, work context.Context) {
	for work.Err() == nil {
		j := r.task
		if harm.Err() != nil {
			j.Faults = 0
		}
		dir := filepath.Join(r.dir, fmt.Sprint(r.started.Add(1)))
		if err := os.Mkdir(dir, 0o700); err != nil {
			r.t.Error(err)
			return
		}
		w, err := testserver.StartProgram(dir, executable(r.t), taskArguments(r.t, "TestJetStreamInbox_Worker", j)...)
		if err != nil {
			r.t.Error(err)
			return
		}
		life := time.After(300*time.Millisecond + rand.N(2500*time.Millisecond))
		if harm.Err() != nil {
			life = nil
		}
		select {
		case <-w.Ended():
			r.died.Add(1)
			continue
		case <-work.Done():
		case <-life:
			r.killed.Add(1)
			if rand.IntN(5) == 0 { // some for longer than a lease
				r.stopped.Add(1)
				_ = w.Pause()
				lasts(time.Second + rand.N(4*time.Second)*time.Duration(1+4*rand.IntN(2)))
				_ = w.Resume()
				lasts(300 * time.Millisecond)
			}
		}
		_ = w.Kill()
	}
}

// harm does to the servers what may happen to some, one thing after the other, until ctx ends.
func (r *inboxRig) harm(ctx context.Context) {
	for ctx.Err() == nil {
		lasts(300*time.Millisecond + rand.N(2*time.Second))
		what, node := rand.IntN(9), rand.IntN(r.nodes)
		if r.scales && rand.IntN(6) == 0 {
			what = 9
		}
		switch {
		case r.nodes == 1 || what < 4:
			if what == 0 {
				node = r.cluster.StreamLeader(pricesStream)
			}
			r.does("killed", node)
			r.cluster.Kill(node)
			lasts(rand.N(2 * time.Second))
			r.cluster.Restart(node)
		case what < 7:
			r.stepDown([]string{pricesStream, pricesStream, ordersStream}[rand.IntN(3)])
		case what == 7:
			node = r.cluster.StreamLeader(pricesStream)
			r.does("leaders stopped", node)
			resume := r.cluster.Pause(node)
			lasts(time.Second + rand.N(6*time.Second))
			resume()
		case what == 8:
			if rand.IntN(2) == 0 {
				node = r.cluster.StreamLeader(pricesStream)
			}
			r.does("isolated", node)
			mend := r.cluster.Isolate(node)
			lasts(time.Second + rand.N(5*time.Second))
			mend()
		default:
			r.scale(1)
			lasts(rand.N(2 * time.Second))
			r.scale(r.nodes)
		}
		r.settleDown()
		r.events = append(r.events, time.Now().UTC().Format(clockFormat)+" all are back")
	}
}

func (r *inboxRig) stepDown(stream string) {
	reply, err := r.js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, 2*time.Second)
	if err == nil && strings.Contains(string(reply.Data), `"success":true`) {
		r.does("stepped down", 0)
	}
}

// scale changes which servers have the stream: fewer, then others.
func (r *inboxRig) scale(replicas int) {
	r.does("scaled", replicas)
	natstest.Ask(r.t, "another size", func(ctx context.Context) (jetstream.Stream, error) {
		return r.js.UpdateStream(ctx, r.prices(replicas))
	})
}

// settleDown waits until the streams could lose another server.
func (r *inboxRig) settleDown() {
	r.cluster.StreamLeader(ordersStream)
	if r.nodes > 1 {
		r.cluster.AwaitCurrent(ordersStream)
		r.cluster.AwaitCurrent(pricesStream)
	}
}

// run does all that for a time, and then lets the workers end their work in peace.
func (r *inboxRig) run(length time.Duration, rate int) {
	harm, stop := context.WithTimeout(r.t.Context(), length)
	defer stop()
	work, stopWork := context.WithCancel(r.t.Context())
	defer stopWork()
	var offering, workers sync.WaitGroup
	defer workers.Wait()
	defer stopWork()
	offering.Go(func() { r.offer(harm, rate) })
	for range 3 {
		workers.Go(func() { r.keep(harm, work) })
	}
	if r.task.Control {
		<-harm.Done()
	} else {
		r.harm(harm)
	}
	offering.Wait()
	r.awaitEmpty()
}

// awaitEmpty waits until all inputs are acknowledged.
func (r *inboxRig) awaitEmpty() {
	r.t.Helper()
	left := ""
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); lasts(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		cons, err := r.js.Consumer(ctx, ordersStream, consumerName)
		cancel()
		if err != nil {
			left = err.Error()
			continue
		}
		i := cons.CachedInfo()
		if i.NumPending == 0 && i.NumAckPending == 0 {
			return
		}
		left = fmt.Sprintf("%d pending, %d not acknowledged", i.NumPending, i.NumAckPending)
	}
	r.t.Fatalf("inputs are left: %s", left)
}

// A verdict counts what is wrong with the outputs of all inputs.
type inboxVerdict struct{ outputs, missing, twice, mixed, partial, apart, open int }

func (v inboxVerdict) violations() int {
	return v.missing + v.twice + v.mixed + v.partial + v.apart + v.open
}

func (v inboxVerdict) String() string {
	return fmt.Sprintf("%d outputs; inputs without outputs %d, outputs twice %d, of two runs %d, inputs with a part %d, "+
		"not in one piece %d, without an outcome %d", v.outputs, v.missing, v.twice, v.mixed, v.partial, v.apart, v.open)
}

// judge reads the stream, under several leaders, and the records.
func (r *inboxRig) judge() (worst inboxVerdict) {
	r.t.Helper()
	for range r.nodes {
		v := r.read()
		r.t.Log(v)
		if v.violations() >= worst.violations() {
			worst = v
		}
		if r.nodes > 1 {
			r.stepDown(pricesStream)
			r.cluster.StreamLeader(pricesStream)
		}
	}
	worst.open = r.unfinished()
	r.t.Logf("%d inputs, %d copies; workers killed %d, died in a batch or handler %d, stopped %d; servers %v",
		r.inputs.Load(), r.copies.Load(), r.killed.Load(), r.died.Load(), r.stopped.Load(), r.servers)
	return worst
}

// ofInput is what the stream has of an input.
type ofInput struct {
	run   string
	first uint64
	seen  []bool
	lines []string // what the log says of it if it is wrong
	wrong bool
}

// read judges the outputs that the stream has.
func (r *inboxRig) read() (v inboxVerdict) {
	r.t.Helper()
	inputs := map[string]*ofInput{}
	stream := natstest.Ask(r.t, "the stream", func(ctx context.Context) (jetstream.Stream, error) {
		return r.js.Stream(ctx, pricesStream)
	})
	info := natstest.Ask(r.t, "what is in it", func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return stream.Info(ctx, jetstream.WithSubjectFilter(pricesSubject+">"))
	})
	left := 0
	for _, n := range info.State.Subjects {
		left += int(n)
	}
	for next := uint64(1); left > 0; {
		batch := natstest.Ask(r.t, "outputs", func(ctx context.Context) ([]jetstream.Msg, error) {
			return fetch(ctx, stream, next, min(left, 500))
		})
		for _, m := range batch {
			left--
			v.outputs++
			meta, err := m.Metadata()
			if err != nil {
				r.t.Fatal(err)
			}
			next = meta.Sequence.Stream + 1
			v.note(inputs, m, meta)
		}
	}
	for i := range r.inputs.Load() {
		id := fmt.Sprint(i + 1)
		switch of := inputs[id]; {
		case of == nil && !strings.HasSuffix(id, "13"):
			v.missing++
		case of != nil && len(of.seen) == 0:
			v.twice++
		case of != nil:
			for _, seen := range of.seen {
				if !seen {
					v.partial++
					break
				}
			}
		}
	}
	for id, of := range inputs {
		if of.wrong {
			r.t.Logf("input %s, with what was done to servers at that time:\n%s", id,
				strings.Join(append(of.lines, r.events...), "\n"))
		}
	}
	return v
}

// fetch reads so many outputs from a sequence on.
func fetch(ctx context.Context, stream jetstream.Stream, from uint64, n int) (all []jetstream.Msg, err error) {
	cons, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		FilterSubject: pricesSubject + ">", DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Minute, MemoryStorage: true,
	})
	if err != nil {
		return nil, err
	}
	batch, err := cons.Fetch(n, jetstream.FetchContext(ctx))
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		all = append(all, m)
	}
	if len(all) < n && batch.Error() == nil {
		return nil, fmt.Errorf("%d of %d outputs came", len(all), n)
	}
	return all, batch.Error()
}

func (v *inboxVerdict) note(inputs map[string]*ofInput, m jetstream.Msg, meta *jetstream.MsgMetadata) {
	var p price
	if err := json.Unmarshal(m.Data(), &p); err != nil {
		v.mixed++
		return
	}
	sequence, of := meta.Sequence.Stream, inputs[p.Input]
	defer func() {
		inputs[p.Input].lines = append(inputs[p.Input].lines, fmt.Sprintf("%d %s %s %s", sequence,
			meta.Timestamp.Format(clockFormat), m.Data(), m.Headers().Get("Nats-Batch-Id")))
	}()
	if of == nil {
		of = &ofInput{run: p.Run, first: sequence - uint64(p.N), seen: make([]bool, p.Of)}
		inputs[p.Input] = of
	}
	wrong := of.wrong
	of.wrong = true
	switch {
	case of.run != p.Run:
		v.mixed++
	case of.seen[p.N]:
		v.twice++
	case sequence != of.first+uint64(p.N):
		v.apart++
	default:
		of.seen[p.N], of.wrong = true, wrong
	}
}

// unfinished counts the inputs whose record has no outcome.
func (r *inboxRig) unfinished() (n int) {
	r.t.Helper()
	store, err := natskv.New(r.js, natskv.Config{Stream: pricesStream, Subject: pricesRecords})
	if err != nil {
		r.t.Fatal(err)
	}
	var keys []dedupstore.Key
	for i := range r.inputs.Load() {
		keys = append(keys, dedupstore.Key{
			Tenant: "default", Group: "pricing", Handler: "price", ID: "input-" + fmt.Sprint(i+1),
		})
	}
	for len(keys) > 0 {
		some := keys[:min(len(keys), 200)]
		keys = keys[len(some):]
		records := natstest.Ask(r.t, "records", func(ctx context.Context) ([]dedupstore.Record, error) {
			return store.Look(ctx, some)
		})
		for _, rec := range records {
			if rec.State != dedupstore.Finished {
				n++
			}
		}
	}
	return n
}

// Full: 10 minutes on three servers, 3 on one. Reduced: not at all, as the servers are processes.
func TestJetStreamInbox_EachInputHasTheOutputsOfOneRun(t *testing.T) {
	onlyProof(t)
	for nodes, length := range map[int]time.Duration{3: 10 * time.Minute, 1: 3 * time.Minute} {
		t.Run(fmt.Sprint(nodes, " servers"), func(t *testing.T) {
			r := newInboxRig(t, nodes, inboxTask{Faults: 0.02})
			r.scales = os.Getenv("ONCEMILL_TEST_SCALE") != "" // under load nats-server 2.15.2 fails it: see the docs
			r.run(lengthOf(length), map[int]int{3: 40, 1: 8}[nodes])
			if v := r.judge(); v.violations() > 0 {
				t.Errorf("violations: %v", v)
			}
		})
	}
}

// The same without batches: if this finds nothing, the proof proves nothing.
func TestJetStreamInbox_WithoutBatchesThereAreViolations(t *testing.T) {
	onlyProof(t)
	r := newInboxRig(t, 3, inboxTask{Faults: 0.02, Control: true})
	r.run(lengthOf(time.Minute), 40)
	v := r.judge()
	if v.violations() == 0 {
		t.Error("no violations")
	}
	t.Logf("as it should be: %v", v)
}

func onlyProof(t *testing.T) {
	t.Helper()
	if !proof {
		t.Skip("without ONCEMILL_PROOF=1")
	}
}

// lengthOf is how long a run takes, or what ONCEMILL_TEST_LENGTH says, for a try.
func lengthOf(full time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("ONCEMILL_TEST_LENGTH")); err == nil {
		return d
	}
	return full
}
