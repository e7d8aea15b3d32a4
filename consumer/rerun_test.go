package consumer_test

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/producer"
)

// A desk is a consumer with dead letters, and an operator who runs them again.
type desk struct {
	t           *testing.T
	store       *dedupstore.Memory
	deadLetters deadLetters
	once        *consumer.Processor

	mu   sync.Mutex
	runs []dedupstore.Key
	ids  []string // of the effect, by run
	err  error    // what the handler returns
}

func newDesk(t *testing.T, c consumer.Config) *desk {
	t.Helper()
	d := &desk{t: t, store: newStore(t)}
	c.Tenant, c.DeadLetters, c.DeadLetterTopic = "acme", &d.deadLetters, "dead"
	d.once = newProcessor(t, d.store, c)
	return d
}

func (d *desk) handle(ctx context.Context) error {
	run := oncemill.FromContext(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs, d.ids = append(d.runs, run.Key), append(d.ids, run.ID("charge"))
	return d.err
}

// deliver delivers a message until it is acknowledged.
func (d *desk) deliver(in consumer.Delivery) consumer.Decision {
	d.t.Helper()
	for range 100 {
		decision := d.once.Process(d.t.Context(), in, d.handle)
		if decision.Action == consumer.Ack {
			return decision
		}
		time.Sleep(decision.Delay)
	}
	d.t.Fatal("not acknowledged after 100 deliveries")
	return consumer.Decision{}
}

// rerun runs the last dead letter again.
func (d *desk) rerun() producer.Message {
	d.t.Helper()
	again, err := consumer.Rerun(d.last())
	if err != nil {
		d.t.Fatal(err)
	}
	return again
}

func (d *desk) last() producer.Message {
	d.t.Helper()
	if len(d.deadLetters.Sent) == 0 {
		d.t.Fatal("no dead letter")
	}
	return d.deadLetters.Sent[len(d.deadLetters.Sent)-1]
}

// arrives is a message as a broker delivers it.
func arrives(t *testing.T, m producer.Message) consumer.Delivery {
	t.Helper()
	out, err := producer.Outgoing(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	header := maps.Clone(out.Header)
	if m.Key != "" {
		header[producer.HeaderKey] = m.Key
	}
	return consumer.Delivery{Handler: "charge", Topic: m.Topic, Header: header, Payload: m.Payload}
}

// crash leaves a run whose holder has died.
func (d *desk) crash(id string) {
	d.t.Helper()
	a, err := dedupstore.ClaimOne(d.t.Context(), d.store, dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id},
		Owner: "owner-that-will-die", Lease: time.Second, Retention: time.Hour, MaxAttempts: 1,
	})
	if err == nil {
		// It has started.
		err = dedupstore.ExtendOne(d.t.Context(), d.store, dedupstore.Extension{
			Claim: a.Claim, Lease: time.Second, Started: true,
		})
	}
	if err != nil {
		d.t.Fatal(err)
	}
	time.Sleep(time.Second)
}

var errRefused = errors.New("card declined")

// ways are all ways in which what was recorded ends in a dead letter.
var ways = map[string]struct {
	config  consumer.Config
	err     error // of the handler
	crash   bool  // before the first delivery that is acknowledged
	outcome string
}{
	"permanent":            {err: oncemill.Permanent(errRefused), outcome: "failed"},
	"exhausted":            {config: consumer.Config{Policy: oncemill.Policy{MaxAttempts: 3}}, err: errRefused, outcome: "failed"},
	"exhausted by crashes": {config: consumer.Config{Policy: oncemill.Policy{MaxAttempts: 1}}, crash: true, outcome: "failed"},
	"unknown":              {config: consumer.Config{Policy: oncemill.Irreversible()}, err: errRefused, outcome: "unknown"},
	"parked after a crash": {config: consumer.Config{Policy: oncemill.Irreversible()}, crash: true, outcome: "unknown"},
	"irreversible, refused": {
		config: consumer.Config{Policy: oncemill.Irreversible()}, err: oncemill.Permanent(errRefused), outcome: "failed",
	},
}

func TestRerun_DeadLetterRunsAgainOnceUnderItsKey(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				d := newDesk(t, way.config)
				in := delivery("o1")
				in.Header[producer.HeaderKey] = "customer 7"
				if way.crash {
					d.crash("o1")
				}
				d.err = way.err
				d.deliver(in)
				if got := d.deadLetters.Only(t).Header[producer.HeaderOutcome]; got != way.outcome {
					t.Fatalf("dead letter of outcome %q, want %q", got, way.outcome)
				}
				key := dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "o1"}

				d.runs, d.ids = nil, nil
				d.err = oncemill.Permanent(errors.New("still not mended"))
				first := d.rerun()
				for range 2 {
					d.deliver(arrives(t, first))
				}
				if len(d.runs) != 1 || len(d.deadLetters.Sent) != 2 {
					t.Fatalf("%d runs and %d dead letters, want one rerun and a second dead letter",
						len(d.runs), len(d.deadLetters.Sent))
				}

				d.err = nil
				second := d.rerun()
				if first.Topic != "orders" || first.Key != "customer 7" || string(first.Payload) != "order o1" || first.ID != "o1" {
					t.Errorf("the rerun is %+v", first)
				}
				if a, b := first.Header[producer.HeaderGeneration], second.Header[producer.HeaderGeneration]; a == b {
					t.Errorf("both reruns are of generation %q: JetStream would drop the second", a)
				}
				d.deliver(arrives(t, first)) // late
				var wait sync.WaitGroup
				for range 4 {
					wait.Go(func() { d.deliver(arrives(t, second)) })
				}
				wait.Wait()
				d.deliver(arrives(t, first))
				d.deliver(arrives(t, second))
				d.deliver(in)
				if !slices.Equal(d.runs, []dedupstore.Key{key, key}) || d.ids[0] != d.ids[1] || d.ids[0] == "" {
					t.Errorf("reruns %v with IDs %v, want two of the message's key with one ID", d.runs, d.ids)
				}
				if len(d.deadLetters.Sent) != 2 {
					t.Errorf("%d dead letters, want no third", len(d.deadLetters.Sent))
				}
				if got := d.deliver(in); got.Result.Failure() != nil || !got.Result.Duplicate {
					t.Errorf("the message is answered with %+v, want the success of the rerun", got)
				}
			})
		})
	}
}

func TestRerun_HasAllAttemptsAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		d := newDesk(t, consumer.Config{Policy: oncemill.Policy{MaxAttempts: 3}})
		d.err = errRefused
		d.deliver(delivery("o1"))
		d.deliver(arrives(t, d.rerun()))
		if len(d.runs) != 6 || len(d.deadLetters.Sent) != 2 || d.last().Header[producer.HeaderAttempts] != "3" {
			t.Errorf("%d runs, %d dead letters, the last after %s attempts; want 6, 2 and 3",
				len(d.runs), len(d.deadLetters.Sent), d.last().Header[producer.HeaderAttempts])
		}
	})
}

func TestRerun_FailureFromBeforeTheDeadLetterTopic(t *testing.T) {
	virtual(t, func(t *testing.T) {
		d := newDesk(t, consumer.Config{})
		before := newProcessor(t, d.store, consumer.Config{Tenant: "acme"})
		if got := before.Process(t.Context(), delivery("o1"), failing(oncemill.Permanent(errRefused))); got.Action != consumer.Reject {
			t.Fatalf("%+v", got)
		}
		d.deliver(delivery("o1"))
		for range 2 {
			d.deliver(arrives(t, d.rerun()))
		}
		if len(d.runs) != 1 {
			t.Errorf("%d runs, want one", len(d.runs))
		}
	})
}

// The message goes to all who consume the topic, and asks for one failure of one of them.
func TestRerun_IsADuplicateForOtherGroups(t *testing.T) {
	virtual(t, func(t *testing.T) {
		desks := map[string]*desk{}
		for group, err := range map[string]error{"billing": errRefused, "shipping": errRefused, "mailing": nil} {
			d := newDesk(t, consumer.Config{Group: group})
			d.err = oncemill.Permanent(err)
			d.deliver(delivery("o1"))
			d.err = nil
			desks[group] = d
			time.Sleep(time.Second) // a fence is a time
		}
		again := arrives(t, desks["billing"].rerun())
		for group, runs := range map[string]int{"billing": 2, "shipping": 1, "mailing": 1} {
			desks[group].deliver(again)
			if got := len(desks[group].runs); got != runs {
				t.Errorf("%s: %d runs, want %d", group, got, runs)
			}
		}
	})
}

// Wherever the ID was found, the rerun has it where every consumer looks first.
func TestRerun_KeepsTheIDWhereverItWasFound(t *testing.T) {
	for name, in := range map[string]consumer.Delivery{
		"nats":            {Header: producer.Header{"Nats-Msg-Id": "n1"}},
		"cloud event":     {Header: producer.Header{"ce-id": "c1", "ce-source": "/shop", "ce-specversion": "1.0", "ce-type": "order"}},
		"idempotency key": {Header: producer.Header{"Idempotency-Key": `"i1"`}},
		"watermill":       {UUID: "w1"},
		"position":        {Position: "3-17"},
		"spelled":         {Header: producer.Header{"Oncemill-ID": "o1"}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				d := newDesk(t, consumer.Config{Extractors: append(producer.DefaultExtractors(), producer.ExtractPosition)})
				in.Handler, in.Topic, in.Origin, in.Payload = "charge", "orders", "ORDERS", []byte("order")
				d.err = oncemill.Permanent(errRefused)
				d.deliver(in)
				d.err = nil
				again := arrives(t, d.rerun())
				again.Header["Nats-Msg-Id"], again.Position, again.Origin = "of this copy", "3-18", "ORDERS"
				d.deliver(again)
				d.deliver(again)
				d.deliver(in)
				if len(d.runs) != 2 || d.runs[0] != d.runs[1] || d.ids[0] != d.ids[1] {
					t.Errorf("runs %v, want two under one key", d.runs)
				}
			})
		})
	}
}

func TestRerun_HeaderIsThatOfTheMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		d := newDesk(t, consumer.Config{})
		in := delivery("o1")
		sent := producer.Header{
			"color": "blue", "not:portable": "two\nlines", " spaced ": " around ", "ünïcode": "\xff", "empty": "",
			"plus+": "a+b %41", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		}
		maps.Copy(in.Header, sent)
		in.Header[producer.HeaderKey] = " key\x00of bytes "
		d.err = oncemill.Permanent(errRefused)
		d.deliver(in)

		dead := d.last()
		dead.Header["Nats-Msg-Id"] = "of the dead letter" // as it is read from a stream
		dead.Header["Nats-Stream"] = "DEAD"
		dead.Header["_watermill_message_uuid"] = dead.ID
		dead.Header[producer.HeaderResend] = "1"
		before := maps.Clone(dead.Header)
		again, err := consumer.Rerun(dead)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(before, dead.Header) {
			t.Error("the dead letter was changed")
		}
		fence := dead.Header[producer.HeaderFence]
		want := producer.Message{ID: "o1", Topic: "orders", Key: " key\x00of bytes ", Header: maps.Clone(sent), Payload: []byte("order o1")}
		maps.Copy(want.Header, producer.Header{
			producer.HeaderID: "o1", producer.HeaderRerun: fence, producer.HeaderReruns: "1", producer.HeaderPurpose: "replay", producer.HeaderGeneration: fence,
		})
		if !reflect.DeepEqual(again, want) {
			t.Errorf("rerun %+v, want %+v", again, want)
		}

		http := producer.Message{Header: producer.Header{}, Payload: dead.Payload} // as spelled by what canonicalises names
		for name, value := range dead.Header {
			if strings.HasPrefix(name, "oncemill-") && !strings.HasPrefix(name, producer.HeaderEscaped) {
				name = strings.ToUpper(name)
			}
			http.Header[name] = value
		}
		if again, err = consumer.Rerun(http); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(again, want) {
			t.Errorf("rerun of other spellings %+v, want %+v", again, want)
		}
	})
}

// If the broker has a place for the key, the dead letter has the key of the message there.
func TestRerun_KeyThatTheBrokerKeepsApart(t *testing.T) {
	virtual(t, func(t *testing.T) {
		d := newDesk(t, consumer.Config{})
		in := delivery("o1")
		in.Header[producer.HeaderKey] = "customer 7"
		d.err = oncemill.Permanent(errRefused)
		d.deliver(in)
		dead := d.last()
		dead.Key, dead.Header = dead.Header[producer.HeaderKey], maps.Clone(dead.Header)
		delete(dead.Header, producer.HeaderKey)
		if _, kept := dead.Header[producer.HeaderKey]; kept || dead.Key != "customer 7" {
			t.Fatalf("dead letter %+v, want its key apart", dead)
		}
		again, err := consumer.Rerun(dead)
		if err != nil || again.Key != "customer 7" {
			t.Errorf("%+v, %v", again, err)
		}
	})
}

func FuzzRerun_UndoesWhatTheDeadLetterDoesToAHeader(f *testing.F) {
	f.Add("color", "blue")
	f.Add("not:portable", "two\nlines")
	f.Add("a+b%41", "\xff ")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, name, value string) {
		for _, own := range []string{"oncemill-", "nats-", "_watermill_message_uuid"} {
			if strings.HasPrefix(strings.ToLower(name), own) || strings.HasPrefix(strings.ToUpper(name), strings.ToUpper(own)) {
				t.Skip("a header of the copy, or this project's own")
			}
		}
		var l deadLetters
		once := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		in := delivery("o1")
		in.Header[name] = value
		once.Process(t.Context(), in, failing(oncemill.Permanent(errRefused)))
		again, err := consumer.Rerun(l.Only(t))
		if err != nil {
			t.Fatal(err)
		}
		if got, found := again.Header[name]; !found || got != value {
			t.Errorf("header %q is %q, %v; want %q", name, got, found, value)
		}
	})
}

func TestRerun_RefusesWhatCannotRunAgainAndSaysWhy(t *testing.T) {
	virtual(t, func(t *testing.T) {
		refused := func(what string, dead producer.Message, header, says string) {
			t.Helper()
			m, err := consumer.Rerun(dead)
			if m.ID != "" || m.Topic != "" || m.Header != nil {
				t.Errorf("%s: %+v, want no message", what, m)
			}
			if err == nil || !strings.Contains(err.Error(), "header "+header) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want it to name %s and to say %q", what, err, header, says)
			}
		}

		d := newDesk(t, consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}})
		d.err = oncemill.Permanent(errRefused)
		d.deliver(delivery("o1"))
		good := d.last()
		with := func(name, value string) producer.Message {
			dead := good
			dead.Header = good.Header.With(name, value)
			if value == "" {
				delete(dead.Header, name)
			}
			return dead
		}
		if _, err := consumer.Rerun(good); err != nil {
			t.Fatal(err)
		}
		refused("nothing", producer.Message{}, producer.HeaderPurpose, "no dead letter")
		refused("the message itself", producer.Message{ID: "o1", Topic: "orders", Header: delivery("o1").Header}, producer.HeaderPurpose, "no dead letter")
		again, _ := consumer.Rerun(good)
		refused("a rerun", again, producer.HeaderPurpose, `is "replay"`)
		refused("no fence", with(producer.HeaderFence, ""), producer.HeaderFence, "is missing")
		for _, fence := range []string{"0", "-1", "1.5", "soon", "99999999999999999999"} {
			refused("fence "+fence, with(producer.HeaderFence, fence), producer.HeaderFence, fence)
		}
		refused("no ID", with(producer.HeaderOriginalID, ""), producer.HeaderOriginalID, "is missing")
		refused("no topic", with(producer.HeaderTopic, ""), producer.HeaderTopic, "is missing")
		refused("no outcome", with(producer.HeaderOutcome, ""), producer.HeaderOutcome, `is ""`)
		refused("success", with(producer.HeaderOutcome, "succeeded"), producer.HeaderOutcome, `is "succeeded"`)
		refused("escaped name", with(producer.HeaderEscaped+"%zz", "x"), `"`+producer.HeaderEscaped+`%zz"`, "name")
		refused("escaped value", with(producer.HeaderEscaped+"a%20b", "%zz"), `"`+producer.HeaderEscaped+`a%20b"`, "value")

		other := delivery("o1")
		other.Payload = []byte("another amount")
		other.Header[producer.HeaderFence] = "17" // copied from an earlier dead letter
		d.deliver(other)
		refused("mismatch", d.last(), producer.HeaderOutcome, "ID of its own")

		unnamed := delivery("")
		delete(unnamed.Header, producer.HeaderID)
		if got := d.once.Process(t.Context(), unnamed, failing(d.err)); got.Action != consumer.Ack {
			t.Fatalf("%+v", got)
		}
		refused("bypassed", d.last(), producer.HeaderFence, "MissingIDBypass")

		for name, bad := range map[string]consumer.Delivery{"unusable ID": delivery("a\x00b"), "unreadable rerun": delivery("o1")} {
			bad.Header[producer.HeaderRerun] = "yes, please"
			d.deliver(bad)
			refused(name, d.last(), producer.HeaderOutcome, producer.HeaderReason)
		}
		strict := newDesk(t, consumer.Config{})
		strict.deliver(unnamed)
		refused("no ID at all", strict.last(), producer.HeaderOutcome, "nothing was recorded")
		if len(strict.runs) != 0 {
			t.Error("a message without an ID ran")
		}
	})
}

// The sender of a message without an ID must not choose which record a rerun of its dead letter uses.
func TestRerun_RefusesWhatASenderWithoutAnIDSaysOfARecord(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{
			Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}, DeadLetters: &l, DeadLetterTopic: "dead",
		})
		p.Process(t.Context(), consumer.Delivery{Handler: "charge", Topic: "orders", Payload: []byte("x"), Header: producer.Header{
			producer.HeaderFence: "77", "Oncemill-Original-Id": "of another", producer.HeaderAttempts: "3", "color": "blue",
		}}, failing(oncemill.Permanent(errors.New("no"))))
		letter := l.Only(t)
		if letter.Header.Get("color") != "blue" {
			t.Errorf("the dead letter has %v", letter.Header)
		}
		if again, err := consumer.Rerun(letter); err == nil {
			t.Errorf("a rerun of a message of which there is no record: %+v", again)
		}
	})
}

// A dead letter that is published may be run again before that is recorded, as its process died in between.
func TestRerun_ThatMeetsItsDeadLetterStillToBePublishedRunsWhenThatIsDone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var copies []producer.Message
		unconfirmed := publisherFunc(func(_ context.Context, messages ...producer.Message) error {
			if copies = append(copies, messages...); len(copies) == 1 {
				return errors.New("no answer, although it has arrived")
			}
			return nil
		})
		once := newProcessor(t, newStore(t), consumer.Config{DeadLetters: unconfirmed, DeadLetterTopic: "dead"})
		if got := once.Process(t.Context(), delivery("o1"), failing(errDeclined)); got.Action != consumer.RetryLater || len(copies) != 1 {
			t.Fatalf("%+v with %d dead letters, want it to be kept for the one", got, len(copies))
		}
		m, err := consumer.Rerun(copies[0])
		if err != nil {
			t.Fatal(err)
		}
		again, runs := consumer.Delivery{Handler: "charge", Topic: m.Topic, Header: m.Header, Payload: m.Payload}, 0
		handle := func(context.Context) error { runs++; return nil }
		got := once.Process(t.Context(), again, handle)
		answertest.Want(t, got.Err, oncemill.StatusBusy, oncemill.StatusNotDue)
		if got.Action != consumer.RetryLater || got.Delay <= 0 || got.Result.Publication != nil || runs != 0 || len(copies) != 2 {
			t.Errorf("%+v, %d runs and %d dead letters, want it to be kept until its run", got, runs, len(copies))
		}
		for _, d := range []consumer.Delivery{delivery("o1"), again, again} {
			if got := once.Process(t.Context(), d, handle); got.Action != consumer.Ack {
				t.Errorf("%+v, want an ack", got)
			}
		}
		if runs != 1 || len(copies) != 2 {
			t.Errorf("%d runs and %d dead letters, want one rerun, and none", runs, len(copies))
		}
	})
}

type publisherFunc func(context.Context, ...producer.Message) error

func (f publisherFunc) Publish(ctx context.Context, messages ...producer.Message) error {
	return f(ctx, messages...)
}

// A program that publishes the rerun of each dead letter at once, of a message that always fails, is a loop.
func TestRerun_LoopOfDeadLettersEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		d := newDesk(t, consumer.Config{})
		d.err = oncemill.Permanent(errRefused)
		d.deliver(delivery("o1"))
		reruns := 0
		var refusal error
		for refusal == nil && reruns < 100 {
			var again producer.Message
			if again, refusal = consumer.Rerun(d.last()); refusal == nil {
				reruns++
				d.deliver(arrives(t, again))
			}
		}
		if reruns != 10 || len(d.runs) != 11 || d.last().Header.Get(producer.HeaderReruns) != "10" {
			t.Errorf("%d reruns, %d runs, the last dead letter: %v; want 10 reruns", reruns, len(d.runs), d.last().Header)
		}
		if refusal == nil || !strings.Contains(refusal.Error(), "delete this header") {
			t.Errorf("%v, want it to say how to go on", refusal)
		}
		dead := d.last()
		dead.Header = maps.Clone(dead.Header)
		delete(dead.Header, producer.HeaderReruns)
		if again, err := consumer.Rerun(dead); err != nil || again.Header[producer.HeaderReruns] != "1" {
			t.Errorf("without the header: %v, %v", again.Header, err)
		}
	})
}

func TestRerun_CountStaysWithTheMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		d := newDesk(t, consumer.Config{})
		d.err = oncemill.Permanent(errRefused)
		d.deliver(delivery("o1"))
		if n, there := d.last().Header[producer.HeaderReruns]; there {
			t.Errorf("the first dead letter was run again %s times", n)
		}
		again := arrives(t, d.rerun())
		got := d.once.ProcessOutputs(t.Context(), again, func(context.Context) ([]producer.Message, error) {
			return []producer.Message{{Topic: "receipts", Header: producer.Header{"Oncemill-Reruns": "1", "color": "blue"}}, {
				Topic: "receipts", Header: again.Header,
			}}, nil
		})
		if got.Result.Publication == nil {
			t.Fatalf("%+v", got)
		}
		defer got.Result.Publication.Abandon()
		for _, m := range got.Result.Publication.Messages() {
			if n := producer.Header(m.Header).Get(producer.HeaderReruns); n != "" {
				t.Errorf("an output carries the count on: %v", m.Header)
			}
		}
		dead := d.last()
		dead.Header = dead.Header.With(producer.HeaderReruns, "many")
		if _, err := consumer.Rerun(dead); err == nil || !strings.Contains(err.Error(), producer.HeaderReruns) {
			t.Errorf("a count that is no number: %v", err)
		}
	})
}
