package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/natsjs"
)

var reasons = []string{"card refused", "bank: no answer", "no such order", "address unknown", "out of stock"}

// A deadRig is a consumer of orders whose handler does what the test says, with its dead letters in topic "dead".
type deadRig struct {
	t     *testing.T
	js    jetstream.JetStream // NATS
	pub   producer.Publisher
	count func(topic string) int // messages in it, so far
	store dedupstore.Inspector
	flags []string
	own   string // what the topics' names end in

	mu   sync.Mutex
	mode map[string]func(ctx context.Context) error // by message; none: it fails for its reason
	heal bool                                       // those without a mode succeed
	runs map[string]int                             // that succeeded
}

func newDeadRig(t *testing.T) *deadRig {
	t.Helper()
	r := &deadRig{t: t, mode: map[string]func(context.Context) error{}, runs: map[string]int{}}
	address := "redis://" + redistest.Start(t).Addr
	r.flags = []string{"--store", address}
	store, done, err := open(address)
	r.must(err)
	t.Cleanup(done)
	r.store = store
	return r
}

func newNATSRig(t *testing.T, retention jetstream.RetentionPolicy) *deadRig {
	t.Helper()
	r := newDeadRig(t)
	server := natstest.Start(t)
	r.flags = append(r.flags, "--nats", server.URL())
	js := server.JetStream()
	r.js = js
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
	r.must(err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "DEAD", Subjects: []string{"dead"}, Retention: retention,
	})
	r.must(err)
	cons, err := js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy,
	})
	r.must(err)
	r.count = func(topic string) int {
		s, err := js.Stream(t.Context(), strings.ToUpper(topic))
		r.must(err)
		return int(s.CachedInfo().State.LastSeq)
	}
	r.pub, err = natsjs.NewPublisher(js, natsjs.PublisherConfig{Logger: quiet})
	r.must(err)
	w, err := natsjs.NewWorker(r.processor(), js, cons, func(ctx context.Context, msg jetstream.Msg) error {
		return r.handle(ctx, msg.Headers().Get(producer.HeaderID))
	}, natsjs.Config{Handler: "charge", Grace: time.Millisecond, Logger: quiet})
	r.must(err)
	r.work(func(ctx context.Context) { _ = w.Run(ctx) })
	return r
}

func newKafkaRig(t *testing.T) *deadRig {
	t.Helper()
	r := newDeadRig(t)
	server := kafkatest.Shared(t)
	r.own = "-" + rand.Text()
	server.CreateTopic("orders"+r.own, 3)
	server.CreateTopic("dead"+r.own, 3)
	r.flags = append(r.flags, "--kafka", server.Addr)
	cl := server.Client(franz.PublisherOpts()...)
	r.count = func(topic string) (n int) {
		ends, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), topic+r.own)
		r.must(err)
		ends.Each(func(end kadm.ListedOffset) { n += int(end.Offset) })
		return n
	}
	var err error
	r.pub, err = franz.NewPublisher(cl, franz.PublisherConfig{})
	r.must(err)
	w, err := franz.NewWorker(r.processor(), func(ctx context.Context, record *kgo.Record) error {
		return r.handle(ctx, idOf(record))
	}, franz.Config{Handler: "charge", Grace: time.Millisecond, Order: franz.PerKey, Logger: quiet})
	r.must(err)
	member, err := kgo.NewClient(append(w.Opts(), kgo.SeedBrokers(server.Addr), kgo.ConsumerGroup("billing"+r.own),
		kgo.ConsumeTopics("orders"+r.own))...)
	r.must(err)
	t.Cleanup(member.CloseAllowingRebalance)
	r.work(func(ctx context.Context) { _ = w.Run(ctx, member) })
	return r
}

func idOf(record *kgo.Record) string {
	for _, h := range record.Headers {
		if h.Key == producer.HeaderID {
			return string(h.Value)
		}
	}
	return ""
}

func (r *deadRig) processor() *consumer.Processor {
	r.t.Helper()
	policy := oncemill.LowValue()
	policy.Logger = quiet
	once, err := consumer.New(r.store, consumer.Config{
		Group: "billing", Policy: policy, DeadLetters: r.pub, DeadLetterTopic: "dead" + r.own, MaxWait: consumer.NoWait,
	})
	r.must(err)
	return once
}

// work runs a worker until the test ends.
func (r *deadRig) work(run func(ctx context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	r.t.Cleanup(func() { stop(); <-ended })
}

func (r *deadRig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *deadRig) handle(ctx context.Context, id string) error {
	var n int
	fmt.Sscanf(id, "order-%d", &n)
	r.mu.Lock()
	mode, heal := r.mode[id], r.heal
	r.mu.Unlock()
	switch {
	case mode != nil:
		return mode(ctx)
	case !heal:
		return oncemill.Permanent(errors.New(reasons[n%len(reasons)]))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs[id]++
	return nil
}

func (r *deadRig) publish(n int) {
	r.t.Helper()
	var all []producer.Message
	for i := range n {
		all = append(all, producer.Message{
			ID: fmt.Sprintf("order-%d", i), Topic: "orders" + r.own, Key: fmt.Sprint(i),
			Payload: fmt.Appendf(nil, "secret of %d", i),
		})
	}
	r.must(r.pub.Publish(r.t.Context(), all...))
}

func (r *deadRig) until(what string, met func() bool) {
	r.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !met(); <-tick.C {
		if time.Now().After(end) {
			r.t.Fatalf("waited a minute for %s", what)
		}
	}
}

func (r *deadRig) buried(n int) {
	r.t.Helper()
	r.until(fmt.Sprint(n, " dead letters"), func() bool { return r.count("dead") >= n })
}

// command runs the command in this process.
func (r *deadRig) command(args ...string) (status int, out, log string) {
	var o, l bytes.Buffer
	args = slices.Clone(args)
	if at := slices.Index(args, "dead"); at >= 0 {
		args[at] += r.own
	}
	status = run(r.t.Context(), append(args, r.flags...), strings.NewReader(""), &o, &l)
	return status, o.String(), l.String()
}

func (r *deadRig) predicted() (sum operate.Foreseen, reasons int) {
	r.t.Helper()
	status, out, log := r.command("dlq", "redrive", "dead", "--dry-run", "-o", "json")
	if status != 0 {
		r.t.Fatalf("status %d: %s", status, log)
	}
	var all []operate.Foreseen
	r.must(json.Unmarshal([]byte(out), &all))
	for _, f := range all {
		sum.DeadLetters += f.DeadLetters
		sum.Run += f.Run
		sum.Unknown += f.Unknown
		sum.Succeeded += f.Succeeded
		sum.Running += f.Running
		sum.Due += f.Due
		sum.Failed += f.Failed
		sum.Absent += f.Absent
		sum.Cannot += f.Cannot
	}
	return sum, len(all)
}

func (r *deadRig) state(id string) dedupstore.Record {
	r.t.Helper()
	all, err := r.store.Look(r.t.Context(), []dedupstore.Key{
		{Tenant: "default", Group: "billing", Handler: "charge", ID: id},
	})
	r.must(err)
	return all[0]
}

// Predicted to the message; killed half way, none is forgotten.
func TestRedrive_PredictsAndGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	for name, start := range rigs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			predictsAndGoesOn(t, start(t))
		})
	}
}

// source opens the dead letters as the command does.
func (r *deadRig) source() deadletters.Source {
	r.t.Helper()
	a, cmd := &app{}, &cobra.Command{}
	r.t.Cleanup(a.close)
	a.settings.flags(cmd.Flags())
	r.must(cmd.ParseFlags(r.flags))
	source, err := a.open(cmd.Flags(), &dlq{}, "dead"+r.own)
	r.must(err)
	return source
}

// deadLetters are the dead letters by message.
func (r *deadRig) deadLetters() map[string]producer.Message {
	r.t.Helper()
	found := map[string]producer.Message{}
	reading := deadletters.Reading{Payload: true}
	r.must(r.source().Each(r.t.Context(), reading, func(l deadletters.Letter) bool {
		found[l.Original()] = l.Message
		return true
	}))
	return found
}

func predictsAndGoesOn(t *testing.T, r *deadRig) {
	u, rate := 2, "50"
	if proof {
		u, rate = 10, "200"
	}
	n := 100 * u
	r.publish(n)
	r.buried(n)

	// Some are run again by others meanwhile.
	dead := r.deadLetters()
	forever := make(chan struct{})
	want := operate.Foreseen{DeadLetters: n}
	var again []producer.Message
	r.mu.Lock()
	for i := range n {
		id := fmt.Sprintf("order-%d", i)
		switch {
		case i < 15*u:
			want.Succeeded++
			r.mode[id] = func(context.Context) error { return nil }
		case i < 18*u:
			want.Running++
			r.mode[id] = func(ctx context.Context) error {
				select {
				case <-forever:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
		case i < 20*u:
			want.Due++
			r.mode[id] = func(context.Context) error { return oncemill.RetryAfter(time.Hour, errors.New("later")) }
		case i < 21*u:
			want.Failed++
			want.DeadLetters++ // the later one
			want.Run++
		default:
			want.Run++
			continue
		}
		m, err := consumer.Rerun(dead[id])
		r.must(err)
		again = append(again, m)
	}
	r.mu.Unlock()
	r.must(r.pub.Publish(t.Context(), again...))
	r.buried(n + u)
	for i := range 20 * u {
		id, ends := fmt.Sprintf("order-%d", i), dedupstore.Finished
		switch {
		case i >= 18*u:
			ends = dedupstore.Retryable
		case i >= 15*u:
			ends = dedupstore.Running
		}
		r.until(id, func() bool { return r.state(id).State == ends })
	}
	// Some are forgotten, and one was never recorded.
	for i := 21 * u; i < 22*u; i++ {
		want.Absent++
		want.Run--
		r.must(r.store.Change(t.Context(), r.state(fmt.Sprintf("order-%d", i)), dedupstore.Forget{}))
	}
	want.Cannot++
	want.DeadLetters++
	r.must(r.pub.Publish(t.Context(), producer.Message{
		ID: fmt.Sprint("order-", 30*u), Topic: "orders" + r.own, Key: fmt.Sprint(30 * u), Payload: []byte("another"),
		Header: producer.Header{producer.HeaderPurpose: producer.PurposeReplay, producer.HeaderGeneration: "1"},
	}))
	r.buried(n + u + 1)
	if got, reasons := r.predicted(); fmt.Sprint(got) != fmt.Sprint(want) || reasons != 6 {
		t.Errorf("predicted %+v of %d reasons, want %+v of 6", got, reasons, want)
	}

	// Killed half way.
	r.mu.Lock()
	r.heal = true
	r.mu.Unlock()
	args := append([]string{"dlq", "redrive", "dead" + r.own, "--yes", "--rate", rate}, r.flags...)
	done := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.runs)
	}
	killed := exec.Command("oncemill", args...)
	r.must(killed.Start())
	r.until("half of them", func() bool { return done() >= want.Run/2 })
	r.must(killed.Process.Kill())
	_ = killed.Wait()
	before := done()
	if before >= want.Run {
		t.Fatalf("it had sent all %d before it was killed", before)
	}
	out, err := exec.Command("oncemill", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.until("all of them", func() bool { return done() >= want.Run })
	t.Logf("killed after %d; then: %s", before, lastLine(string(out)))
	r.mu.Lock()
	for id, runs := range r.runs {
		if runs != 1 {
			t.Errorf("message %s ran %d times", id, runs)
		}
	}
	if len(r.runs) != want.Run {
		t.Errorf("%d messages ran, want %d", len(r.runs), want.Run)
	}
	r.mu.Unlock()

	// What did not run is left, and first runs are for those who ask.
	if got, _ := r.predicted(); got.Run != 0 || got.Absent != want.Absent || got.Cannot != 1 {
		t.Errorf("then predicted %+v", got)
	}
	close(forever)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func TestRedrive_StopsWhereMessagesFailAgain(t *testing.T) {
	t.Parallel()
	r := newNATSRig(t, jetstream.LimitsPolicy)
	r.publish(200)
	r.buried(200)
	status, _, log := r.command("dlq", "redrive", "dead", "--yes", "--rate", "1000")
	if status != exitError || !strings.Contains(log, "stopped: ") || !strings.Contains(log, "failed again") {
		t.Errorf("status %d: %s", status, log)
	}
	if sent := r.count("orders") - 200; sent != 20 {
		t.Errorf("%d were sent, want 20", sent)
	}
	r.buried(220)

	// Mended, it goes on; the letters that failed again are redriven too.
	r.mu.Lock()
	r.heal = true
	r.mu.Unlock()
	status, _, log = r.command("dlq", "redrive", "dead", "--yes", "--rate", "1000", "--group", "billing")
	if status != 0 ||
		!strings.Contains(log, "200 letters redriven, 0 left, 0 refused; of those sent 200 succeeded") {
		t.Errorf("status %d: %s", status, log)
	}
}

// Otherwise a message that fails for good would be sent until its reruns are spent.
func TestRedrive_SendsNoLetterThatComesMeanwhile(t *testing.T) {
	t.Parallel()
	r := newNATSRig(t, jetstream.LimitsPolicy)
	r.mode["order-7"] = func(context.Context) error { return oncemill.Permanent(errors.New(reasons[0])) }
	r.publish(40)
	r.buried(40)
	r.mu.Lock()
	r.heal = true
	r.mu.Unlock()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r.work(func(context.Context) {
		for ctx.Err() == nil {
			_ = r.pub.Publish(ctx, producer.Message{ID: rand.Text(), Topic: "dead"})
			pace.Sleep(ctx, 2*time.Millisecond)
		}
	})
	status, _, log := r.command("dlq", "redrive", "dead", "--yes", "--rate", "20")
	stop()
	if status != 0 || !strings.Contains(log, "40 letters redriven") {
		t.Errorf("status %d: %s", status, log)
	}
	if sent := r.count("orders") - 40; sent != 40 {
		t.Errorf("%d messages were sent for 40 letters", sent)
	}
	dead := r.count("dead")
	cons, err := r.js.Consumer(t.Context(), "DEAD", "oncemill-redrive-dead")
	r.must(err)
	if taken := cons.CachedInfo().Delivered.Stream; dead < 200 || taken > 100 {
		t.Errorf("it took %d letters of %d, %d of them later than its plan", taken, dead, dead-40)
	}
}

// A plan that somebody confirms minutes later is for the letters that it showed.
func TestRedrive_SendsNoLetterThatItsPlanDidNotShow(t *testing.T) {
	t.Parallel()
	r := newNATSRig(t, jetstream.LimitsPolicy)
	o := &operate.Redrive{
		Source: r.source(), Store: r.store, Rate: 100,
		Tell: func(string, []string, error, operate.Redriven) {},
	}
	none, err := o.Predict(t.Context())
	r.must(err)
	r.publish(3)
	r.buried(3)
	plan, err := o.Predict(t.Context())
	r.must(err)
	r.must(r.pub.Publish(t.Context(), producer.Message{ID: "order-100", Topic: "orders"}))
	r.buried(4)
	r.mu.Lock()
	r.heal = true
	r.mu.Unlock()
	for _, p := range []*operate.Prediction{none, plan} {
		_, err := o.Do(t.Context(), p)
		r.must(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if plan.N() != 3 || len(r.runs) != 3 || r.runs["order-100"] != 0 {
		t.Errorf("%d were shown, and %v ran", plan.N(), r.runs)
	}
}

// rigs are the brokers, and the kinds of streams.
var rigs = map[string]func(t *testing.T) *deadRig{
	"limits":     func(t *testing.T) *deadRig { return newNATSRig(t, jetstream.LimitsPolicy) },
	"work queue": func(t *testing.T) *deadRig { return newNATSRig(t, jetstream.WorkQueuePolicy) },
	"Kafka":      newKafkaRig,
}

// On each broker letters are read by pages, the newest first, redriven by their positions, and discarded.
func TestDeadLetters_ByPagesAndPositions(t *testing.T) {
	t.Parallel()
	for name, start := range rigs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			r.publish(60)
			r.buried(60)
			source := r.source()
			var all []deadletters.Letter
			for after, pages := "", 0; ; pages++ {
				p, err := source.Page(t.Context(), after, 25, func(*deadletters.Letter) bool { return true })
				r.must(err)
				if all = append(all, p.Letters...); p.Next == "" || pages > 100 {
					break
				}
				if after = p.Next; len(p.Letters) > 25 || p.Total != 60 { // it looks for a while only
					t.Errorf("a page has %d letters of %d", len(p.Letters), p.Total)
				}
			}
			ids := map[string]bool{}
			for i, l := range all {
				ids[l.Original()] = true
				if i > 0 && l.Time.After(all[i-1].Time) {
					t.Errorf("letter %d came after the one before it", i)
				}
				if l.Done || l.Payload != nil && r.js == nil {
					t.Errorf("letter %d is %+v", i, l)
				}
			}
			if len(ids) != 60 || len(all) != 60 {
				t.Fatalf("%d letters of %d messages", len(all), len(ids))
			}
			is := func(id string) func(*deadletters.Letter) bool {
				return func(l *deadletters.Letter) bool { return l.Original() == id }
			}
			var found []deadletters.Letter
			looked := 0
			for after := ""; ; { // a page looks for letters for a while
				p, err := source.Page(t.Context(), after, 5, is("order-3"))
				r.must(err)
				found, looked = append(found, p.Letters...), looked+p.Looked
				if after = p.Next; after == "" {
					break
				}
			}
			if len(found) != 1 || looked != 60 {
				t.Fatalf("a search found %d, and looked at %d", len(found), looked)
			}
			shown, err := source.Show(t.Context(), found[0].Position)
			if err != nil || string(shown.Payload) != "secret of 3" {
				t.Errorf("shown is %q, %v", shown.Payload, err)
			}

			r.mu.Lock()
			r.heal = true
			r.mu.Unlock()
			o := &operate.Redrive{
				Source: source, Store: r.store, Rate: 1000,
				Tell: func(string, []string, error, operate.Redriven) {},
			}
			o.Positions = []string{all[7].Position, all[50].Position}
			plan, err := o.Predict(t.Context())
			r.must(err)
			done, err := o.Do(t.Context(), plan)
			if err != nil || done.Sent != 2 || done.Succeeded != 2 {
				t.Errorf("redriven %+v of %d, %v", done, plan.N(), err)
			}
			status, _, log := r.command("dlq", "discard", "dead", "--id", all[20].Original(), "--yes")
			if status != 0 || !strings.Contains(log, "1 letter discarded") {
				t.Errorf("status %d: %s", status, log)
			}
			if status, _, _ := r.command("dlq", "discard", "dead", "--yes"); status != exitUsage {
				t.Errorf("all letters by a slip: status %d", status)
			}
			sum, _ := r.predicted()
			if want := 57; sum.Run != want {
				t.Errorf("%d are left to run, want %d: %+v", sum.Run, want, sum)
			}
			gone, err := source.Show(t.Context(), all[20].Position)
			if r.js != nil && !errors.Is(err, deadletters.ErrGone) {
				t.Errorf("the discarded letter is %+v, %v", gone, err)
			}
			p, err := source.Page(t.Context(), "", 100, is(all[20].Original()))
			marked := len(p.Letters) == 1 && p.Letters[0].Done
			if err != nil || r.js == nil && !marked || r.js != nil && len(p.Letters) > 0 {
				t.Errorf("the page has %+v, %v", p, err)
			}
		})
	}
}

// One message of many whose outcome is unknown is run again when the other side has been asked about it.
func TestRedrive_OfChosenMessages(t *testing.T) {
	t.Parallel()
	r := newNATSRig(t, jetstream.LimitsPolicy)
	r.publish(20)
	r.buried(20)
	r.mu.Lock()
	r.heal = true
	r.mu.Unlock()
	letter := r.deadLetters()["order-11"].ID
	status, _, log := r.command("dlq", "redrive", "dead", "--yes", "--id", "order-7", "--id", letter)
	if status != 0 || !strings.Contains(log, "2 letters redriven, 0 left, 0 refused") {
		t.Errorf("status %d: %s", status, log)
	}
	r.mu.Lock()
	if r.runs["order-7"] != 1 || r.runs["order-11"] != 1 || len(r.runs) != 2 {
		t.Errorf("ran %v", r.runs)
	}
	r.mu.Unlock()

	// The others are still to be redriven.
	if got, _ := r.predicted(); got.Run != 18 {
		t.Errorf("then predicted %+v, want 18 to run", got)
	}

	// A redrive that was cut off goes on: the first of these has been sent, and is behind its progress.
	_, listed, _ := r.command("dlq", "ls", "dead", "--each")
	first := regexp.MustCompile(`order-\d+`).FindAllString(listed, -1)
	r.mu.Lock()
	first = slices.DeleteFunc(first, func(id string) bool { return r.runs[id] > 0 })
	r.mu.Unlock()
	for n := range 2 {
		args := []string{"dlq", "redrive", "dead", "--yes"}
		for _, id := range first[:n+1] {
			args = append(args, "--id", id)
		}
		status, _, log := r.command(args...)
		if status != 0 || !strings.Contains(log, "1 letter redriven, 0 left, 0 refused") {
			t.Errorf("%v: status %d: %s", args, status, log)
		}
	}
}

func TestDeadLetters_AreListedAndShown(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) *deadRig{
		"NATS":  func(t *testing.T) *deadRig { return newNATSRig(t, jetstream.LimitsPolicy) },
		"Kafka": newKafkaRig,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			areListedAndShown(t, start(t))
		})
	}
}

func areListedAndShown(t *testing.T, r *deadRig) {
	r.publish(50)
	r.buried(50)
	for _, c := range []struct {
		args   string
		status int
		want   []string
		not    string
	}{
		{"ls dead --check", exitFound, []string{"10         10        10        0 ", "billing / charge  card refused"}, "order-"},
		{"ls dead --each --reason refused", 0, []string{"order-45", "card refused"}, "order-1 "},
		{"ls dead --handler ship --check -o json", 0, []string{"[]"}, ""},
		{"ls dead --each --limit 2 -o jsonl", 0, []string{`"fence":`, `"attempts":1`}, "secret"},
		{"show dead order-7", 0, []string{"oncemill-reason: no such order"}, "secret"},
		{"show dead order-7 --show-payload", 0, []string{`payload: "secret of 7"`}, ""},
		{"show dead order-99", exitError, nil, ""},
		{"ls nothing", exitError, nil, ""},
		{"ls dead --each --id order-7 --id order-8", 0, []string{"order-7 ", "order-8 "}, "order-9"},
		{"redrive dead", exitError, nil, ""}, // nobody confirms
		{"redrive dead --yes --id order-7 --id order-99", exitError, nil, ""},
		{"redrive dead --dry-run", 0, []string{"card refused"}, ""},
		{"/explain order-7 --dead-letters dead", 0, []string{
			"order-7 has dead letters", ` of default/billing/charge, since `, `: failed, "no such order"`,
		}, "order-8"},
		{"/explain order-7 --dead-letters dead -o jsonl", 0, []string{`"dead_letters":[{"id":`}, "order-8"},
		{"/explain order-99 --dead-letters dead", exitNone, []string{"There is no record of it"}, "dead letters"},
	} {
		args := append([]string{"dlq"}, strings.Fields(c.args)...)
		if command, top := strings.CutPrefix(c.args, "/"); top {
			args = strings.Fields(command)
		}
		status, out, log := r.command(args...)
		if status != c.status || c.not != "" && strings.Contains(out, c.not) {
			t.Errorf("%s: status %d, want %d\n%s%s", c.args, status, c.status, out, log)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s%s", c.args, want, out, log)
			}
		}
	}
}

// Reasons that differ in IDs and numbers only are one.
func TestDeadLetters_AreCountedByCause(t *testing.T) {
	t.Parallel()
	dead := &consumertest.Letters{}
	add := func(reason string) {
		key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: fmt.Sprint(len(dead.All()))}
		dead.Add(consumertest.DeadLetter(key, 7, reason))
	}
	for range 100 {
		add("card service: POST /charges/" + producer.NewID() + ": 503")
	}
	for i := range 100 {
		add("refused" + strings.Repeat("!", i))
	}
	var out strings.Builder
	a := &app{out: &out, log: io.Discard}
	groups, more, err := a.groupLetters(t.Context(), dead, &dlq{}, 10)
	if err != nil || groups != 101 || more != 91 ||
		!strings.Contains(out.String(), "card service: POST /charges/#: #") {
		t.Errorf("%d groups, %d more, %v\n%s", groups, more, err, out.String())
	}
}
