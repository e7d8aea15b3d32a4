package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/producer"
)

func delivery(id string) consumer.Delivery {
	return consumer.Delivery{
		Handler: "charge", Topic: "orders", Header: producer.Header{producer.HeaderID: id, "color": "blue"}, Payload: []byte("order " + id),
	}
}

func failing(err error) consumer.Handler { return func(context.Context) error { return err } }

func TestProcess_DecidesByOutcome(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		p := newProcessor(t, store, consumer.Config{MaxWait: consumer.NoWait})
		want := func(id string, handle consumer.Handler, action consumer.Action) consumer.Decision {
			t.Helper()
			d := p.Process(t.Context(), delivery(id), handle)
			if d.Action != action {
				t.Errorf("%s: %s (%v), want %s", id, d.Action, d.Err, action)
			}
			if d.ID != id {
				t.Errorf("%s: the decision is for %q", id, d.ID)
			}
			return d
		}
		want("ok", failing(nil), consumer.Ack)
		if d := want("ok", failing(errors.New("must not run")), consumer.Ack); !d.Result.Duplicate {
			t.Errorf("%+v, want a duplicate", d)
		}
		if d := want("retryable", failing(oncemill.RetryAfter(time.Minute, errors.New("no"))), consumer.RetryLater); d.Delay != time.Minute {
			t.Errorf("delay %v, want a minute", d.Delay)
		}
		if d := want("retryable", failing(nil), consumer.RetryLater); d.Delay < time.Minute || d.Delay > 2*time.Minute {
			t.Errorf("not due: delay %v, want what remains and jitter", d.Delay)
		}
		want("permanent", failing(oncemill.Permanent(errors.New("no"))), consumer.Reject)
		d := want("permanent", failing(nil), consumer.Reject)
		answertest.Want(t, d.Err, oncemill.StatusDone)

		key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "held"}
		if _, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
			Key: key, Owner: ids.Token(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1,
		}); err != nil {
			t.Fatal(err)
		}
		if d := want("held", failing(nil), consumer.RetryLater); d.Delay < time.Minute {
			t.Errorf("busy: delay %v, want what remains of the lease", d.Delay)
		}
		want("lost", failing(oncemill.ErrClaimLost), consumer.RetryLater) // a handler's say-so is no proof
	})
}

func TestProcess_ZombieNeitherAcksNorNaks(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, lossy{Store: newStore(t)}, consumer.Config{})
		if d := p.Process(t.Context(), delivery("o1"), failing(nil)); d.Action != consumer.Leave {
			t.Errorf("%+v, want to leave it", d)
		}
	})
}

func TestProcess_DeadLettersCarryTheMessageAndTheReason(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		in := delivery("o1")
		in.Header["Nats-Msg-Id"] = "of this copy"
		in.Header["Nats-Expected-Stream"] = "ORDERS"
		in.Header["nats-rollup"] = "all"
		in.Header["not:portable"] = "two\nlines"
		for range 3 {
			d := p.Process(t.Context(), in, failing(oncemill.Permanent(errors.New("card\nstolen"))))
			if d.Action != consumer.Ack {
				t.Errorf("%+v", d)
			}
		}
		got := l.Only(t)
		for name, want := range map[string]string{
			"color": "blue", "Nats-Msg-Id": "", "Nats-Expected-Stream": "", "nats-rollup": "", "not:portable": "", producer.HeaderEscaped + "not%3Aportable": "two%0Alines", producer.HeaderOriginalID: "o1", producer.HeaderTopic: "orders",
			producer.HeaderReason: "card stolen", producer.HeaderOutcome: "failed", producer.HeaderAttempts: "1",
			producer.HeaderHandler: "default/billing/charge", producer.HeaderPurpose: producer.PurposeDeadLetter,
		} {
			if got.Header[name] != want {
				t.Errorf("header %s is %q, want %q", name, got.Header[name], want)
			}
		}
		if string(got.Payload) != "order o1" || got.Topic != "dead" || got.ID == "o1" || got.ID != got.Header[producer.HeaderID] {
			t.Errorf("dead letter %+v", got)
		}

		again := delivery("o1") // an operator sends it again
		again.Header[producer.HeaderRerun] = got.Header[producer.HeaderFence]
		if d := p.Process(t.Context(), again, failing(nil)); d.Action != consumer.Ack || d.Result.Duplicate {
			t.Errorf("rerun: %+v", d)
		}
		again.Header[producer.HeaderRerun] = "yes, please"
		d := p.Process(t.Context(), again, failing(nil))
		as[*consumer.ContentError](t, d.Err)
	})
}

func TestProcess_NothingIsAckedBeforeItsDeadLetterIs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l := deadLetters{Fail: errors.New("broker is down")}
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		runs := 0
		handle := func(context.Context) error { runs++; return oncemill.Permanent(errors.New("no")) }
		noID := delivery("")
		delete(noID.Header, producer.HeaderID)
		for range 3 {
			for _, d := range []consumer.Delivery{delivery("o1"), noID} {
				if got := p.Process(t.Context(), d, handle); got.Action != consumer.RetryLater {
					t.Errorf("%+v, want to retry", got)
				}
			}
		}
		l.Fail = nil
		time.Sleep(time.Minute)
		if got := p.Process(t.Context(), delivery("o1"), handle); got.Action != consumer.Ack || runs != 1 {
			t.Errorf("%+v after %d runs", got, runs)
		}
		l.Only(t)
	})
}

func TestProcess_MessageWithoutAnID(t *testing.T) {
	virtual(t, func(t *testing.T) {
		in := delivery("")
		delete(in.Header, producer.HeaderID)
		runs := 0
		handle := func(context.Context) error { runs++; return nil }

		d := newProcessor(t, newStore(t), consumer.Config{}).Process(t.Context(), in, handle)
		as[*consumer.MissingIDError](t, d.Err)
		if d.Action != consumer.Reject || runs != 0 {
			t.Errorf("by default: %+v after %d runs, want it rejected", d, runs)
		}
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		if d := p.Process(t.Context(), in, handle); d.Action != consumer.Ack || runs != 0 {
			t.Errorf("with dead letters: %+v after %d runs", d, runs)
		}
		l.Only(t)
		store := newStore(t)
		p = newProcessor(t, store, consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}})
		for range 2 {
			if d := p.Process(t.Context(), in, handle); d.Action != consumer.Ack {
				t.Errorf("bypass: %+v", d)
			}
		}
		kept, err := store.Count(t.Context(), dedupstore.Filter{}, "")
		if err != nil || runs != 2 || kept.Looked != 0 {
			t.Errorf("bypass: %d runs, %d records, %v; want 2 and none", runs, kept.Looked, err)
		}
		d = p.Process(t.Context(), in, func(context.Context) error {
			return oncemill.Uncounted(oncemill.RetryAfter(time.Minute, errors.New("later")))
		})
		if d.Action != consumer.RetryLater || d.Delay != time.Minute || !d.Result.Uncounted {
			t.Errorf("bypass: %+v, want a retry in a minute that does not count", d)
		}
		for name, id := range map[string]string{"binary": "a\x00b", "oversized": strings.Repeat("x", 513), "not UTF-8": "\xff"} {
			bad := delivery(id)
			d := p.Process(t.Context(), bad, handle)
			if d.Action != consumer.Reject || runs != 2 {
				t.Errorf("%s ID: %+v after %d runs, want it rejected", name, d, runs)
			}
		}
	})
}

func TestProcess_ReusedIDWithOtherContentIsDeadLettered(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		runs := 0
		handle := func(context.Context) error { runs++; return nil }
		other := delivery("o1")
		other.Payload = []byte("another amount")
		for _, d := range []consumer.Delivery{delivery("o1"), other} {
			if got := p.Process(t.Context(), d, handle); got.Action != consumer.Ack {
				t.Errorf("%+v", got)
			}
		}
		if got := l.Only(t); got.Header[producer.HeaderOutcome] != "mismatch" ||
			string(got.Payload) != "another amount" || runs != 1 {
			t.Errorf("%+v after %d runs", got, runs)
		}
	})
}

func TestConfig_BadValuesNameTheirField(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]consumer.Config{
		"Config.Group":           {},
		"Config.Tenant":          {Group: "g", Tenant: "\n"},
		"Config.MaxWait":         {Group: "g", MaxWait: -2},
		"Config.DeadLetterTopic": {Group: "g", DeadLetters: &deadLetters{}},
		"Config.DeadLetters":     {Group: "g", DeadLetterTopic: "dead"},
		"Config.DeadLetters ":    {Group: "g", DeadLetters: (*deadLetters)(nil), DeadLetterTopic: "dead"},
		"Config.Extractors[1]":   {Group: "g", Extractors: []producer.Extractor{producer.ExtractMessageID, nil}},
		"Policy.Lease":           {Group: "g", Policy: oncemill.Policy{Lease: 1}},
	} {
		_, err := consumer.New(newStore(t), c)
		if e := as[*dedupstore.InvalidError](t, err); e.Field != strings.TrimSpace(field) {
			t.Errorf("%v, want it to name %s", err, field)
		}
		if text := err.Error(); !strings.HasPrefix(text, "consumer: ") && !strings.HasPrefix(text, "oncemill: Policy.") {
			t.Errorf("%v does not say whose field it is", err)
		}
	}
	for _, store := range []dedupstore.Store{nil, (*dedupstore.Memory)(nil)} {
		_, err := consumer.New(store, consumer.Config{Group: "g"})
		if e := as[*dedupstore.InvalidError](t, err); e.Field != "store" {
			t.Errorf("%v, want it to name the store", err)
		}
	}
	for name, says := range map[string]string{
		"": "another name runs everything again", "~x": "shadow", "charge/step=x": "steps", strings.Repeat("h", 129): "129",
	} {
		if problem := consumer.HandlerProblem(name); !strings.Contains(problem, says) {
			t.Errorf("handler %q: %q, want it to say %q", name, problem, says)
		}
	}
	if problem := consumer.HandlerProblem("charge"); problem != "" {
		t.Error(problem)
	}
	p := newProcessor(t, newStore(t), consumer.Config{})
	d := delivery("o1")
	d.Handler = ""
	if got := p.Process(t.Context(), d, failing(nil)); got.Action != consumer.RetryLater || !strings.Contains(got.Err.Error(), "Delivery.Handler") {
		t.Errorf("%+v", got)
	}
}

// Else one message would end the process, at each start again, or a mistake of the program's would throw messages away.
func TestProcess_MessageWhoseIDCannotBeFoundForAPanicComesAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]consumer.Config{
		"extractor": {Extractors: []producer.Extractor{func(producer.Incoming) (producer.Identity, error) { panic("secret") }}},
		"fingerprint": {Fingerprint: func(payload []byte) (dedupstore.Fingerprint, error) {
			_ = payload[100]
			return dedupstore.Fingerprint{}, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			c.DeadLetters, c.DeadLetterTopic = &deadLetters{}, "dead"
			c.Policy.Logger = slog.New(slog.NewTextHandler(&log, nil))
			c.Group = "billing"
			p, err := consumer.New(newStore(t), c)
			if err != nil {
				t.Fatal(err)
			}
			d := consumer.Delivery{Handler: "charge", Topic: "orders", Header: producer.Header{producer.HeaderID: "o1"}, Payload: []byte("x")}
			decision := p.Process(t.Context(), d, func(context.Context) error {
				t.Error("the handler ran")
				return nil
			})
			if decision.Action != consumer.RetryLater || !decision.Keep || decision.Delay <= 0 || decision.Err == nil {
				t.Errorf("decision %+v, want to keep the message for later", decision)
			}
			if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "processor_test.go") || strings.Contains(text, "secret") {
				t.Errorf("the log does not say where it was, or says too much:\n%s", text)
			}
		})
	}
}

func TestProcess_AttemptThatFailsIsSaidAtLevelInfo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{Logger: logger}})
		p.Process(t.Context(), delivery("o1"), failing(errors.New("bank is away")))
		for _, want := range []string{"level=INFO", "attempt failed", "id=o1", "handler=", "bank is away"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, log.String())
			}
		}
		log.Reset()
		p.Process(t.Context(), delivery("o3"), failing(oncemill.Uncounted(errors.New("bank is away"))))
		if !strings.Contains(log.String(), "level=DEBUG") || !strings.Contains(log.String(), "not acknowledged") {
			t.Errorf("the log of an attempt that does not count:\n%s", log.String())
		}
		log.Reset()
		p.Process(t.Context(), delivery("o2"), failing(nil))
		if strings.Contains(log.String(), "not acknowledged") || strings.Contains(log.String(), "attempt failed") {
			t.Errorf("said of a success:\n%s", log.String())
		}
	})
}

// docs/operations.md says what a fingerprint of one's own has to do when it changes.
func TestProcess_AnotherFingerprintOfOneSchemeEndsWhatWaitsForItsNextAttempt(t *testing.T) {
	for name, test := range map[string]struct {
		scheme      string
		runs        int
		deadLetters int
	}{
		"the same scheme": {scheme: "own", deadLetters: 1},
		"another scheme":  {scheme: "own.2", runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store, l := newStore(t), &deadLetters{}
				with := func(scheme, sum string) *consumer.Processor {
					return newProcessor(t, store, consumer.Config{
						DeadLetters: l, DeadLetterTopic: "dead",
						Fingerprint: func([]byte) (dedupstore.Fingerprint, error) {
							return dedupstore.Fingerprint{Scheme: scheme, Sum: sum}, nil
						},
					})
				}
				before := with("own", "first").Process(t.Context(), delivery("o1"), failing(errors.New("no answer")))
				answertest.Want(t, before.Err, oncemill.StatusRetry)
				runs := 0
				with(test.scheme, "second").Process(t.Context(), delivery("o1"), func(context.Context) error { runs++; return nil })
				if runs != test.runs || len(l.Sent) != test.deadLetters {
					t.Errorf("%d runs and %d dead letters, want %d and %d",
						runs, len(l.Sent), test.runs, test.deadLetters)
				}
			})
		})
	}
}
