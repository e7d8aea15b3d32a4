package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/answertest"
	"github.com/oncemill/oncemill/producer"
)

// comeBack is the delivery of a dead letter.
func comeBack(handler string, m producer.Message) consumer.Delivery {
	return consumer.Delivery{Handler: handler, Topic: m.Topic, Header: m.Header, Payload: m.Payload}
}

var errDeclined = oncemill.Permanent(errors.New("declined"))

func TestProcess_HandlerNeverRunsForItsOwnDeadLetters(t *testing.T) {
	foreign := func(c *consumer.Config) {
		c.Extractors = []producer.Extractor{producer.ExtractNatsMsgID} // which no dead letter has
	}
	for name, tc := range map[string]struct {
		configure func(*consumer.Config)
		change    func(*consumer.Delivery)
		first     consumer.Action
		runs      int
	}{
		"failed":             {runs: 1},
		"without an ID":      {change: func(d *consumer.Delivery) { d.Header = nil }},
		"with unusable ID":   {change: func(d *consumer.Delivery) { d.Header[producer.HeaderID] = "~x" }},
		"unreadable rerun":   {change: func(d *consumer.Delivery) { d.Header[producer.HeaderRerun] = "x" }},
		"IDs of others":      {configure: foreign},
		"unknown":            {configure: func(c *consumer.Config) { c.Policy = oncemill.Irreversible() }, runs: 1},
		"bypass without IDs": {configure: func(c *consumer.Config) { c.Policy.MissingID = oncemill.MissingIDBypass; foreign(c) }, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var l deadLetters
				c := consumer.Config{DeadLetters: &l, DeadLetterTopic: "orders.dead"}
				if tc.configure != nil {
					tc.configure(&c)
				}
				p, log := logged(t, c)
				runs := 0
				declines := func(context.Context) error { runs++; return errDeclined }
				d := delivery("o1")
				if tc.change != nil {
					tc.change(&d)
				}
				if got := p.Process(t.Context(), d, declines); got.Action != consumer.Ack {
					t.Fatalf("%+v", got)
				}
				letter := l.Only(t)
				for range 3 {
					got := p.Process(t.Context(), comeBack("charge", letter), declines)
					says := fmt.Sprintf("message %q from %q", letter.ID, "orders.dead")
					if got.Action != consumer.Ack || !errors.Is(got.Err, consumer.ErrOwnDeadLetter) ||
						!strings.Contains(got.Err.Error(), says) {
						t.Errorf("%+v", got)
					}
				}
				l.Only(t)
				if runs != tc.runs {
					t.Errorf("handler ran %d times, want %d", runs, tc.runs)
				}
				if n := strings.Count(log.String(), "own dead letter came back"); n != 3 {
					t.Errorf("said %d times, want 3:\n%s", n, log)
				}
			})
		})
	}
}

// An operator, or a tool, that sends a dead letter to its handler as it is may have deleted it by then.
func TestProcess_OwnDeadLetterThatIsSentToItsHandlerGoesBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p, log := logged(t, consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		p.Process(t.Context(), delivery("o1"), failing(errDeclined))
		first := l.Only(t)
		never := func(context.Context) error { t.Error("the handler ran"); return nil }
		send := func(m producer.Message) consumer.Decision {
			d := comeBack("charge", m)
			d.Topic = "orders"
			return p.Process(t.Context(), d, never)
		}

		l.Fail = errors.New("no stream listens")
		if got := send(first); got.Action != consumer.RetryLater {
			t.Errorf("while it cannot go back: %+v", got)
		}
		l.Fail = nil
		if got := send(first); got.Action != consumer.Ack || len(l.Sent) != 2 {
			t.Fatalf("%+v, and %d dead letters, want it to go back", got, len(l.Sent))
		}
		back := l.Sent[1]
		if back.ID != first.ID || back.Topic != "dead" || !bytes.Equal(back.Payload, first.Payload) {
			t.Errorf("went back as %+v", back)
		}
		want, err := consumer.Rerun(first)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := consumer.Rerun(back); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("run again as %+v, %v; want it as the first, %+v", got, err, want)
		}
		generations := map[string]bool{back.Header.Get(producer.HeaderGeneration): true}
		for n := 3; n <= 11; n++ { // by somebody who tries again
			if got := send(back); got.Action != consumer.Ack || len(l.Sent) != n {
				t.Fatalf("%+v, and %d dead letters, want it to go back again, as number %d", got, len(l.Sent), n)
			}
			back = l.Sent[n-1]
			generation := back.Header.Get(producer.HeaderGeneration)
			if back.ID != first.ID || generations[generation] {
				t.Errorf("went back as %+v, which JetStream takes for an earlier one", back)
			}
			generations[generation] = true
		}
		if got := send(back); got.Action != consumer.Ack || len(l.Sent) != 11 ||
			!strings.Contains(log.String(), "goes back no more") {
			t.Errorf("it goes round: %+v, %d dead letters\n%s", got, len(l.Sent), log)
		}
		l.Sent = l.Sent[:2]
		first.Header = first.Header.With(producer.HeaderID, "")
		if got := send(first); got.Action != consumer.Ack || len(l.Sent) != 3 || l.Sent[2].ID == "" {
			t.Fatalf("without its ID: %+v, and %d dead letters, want it to go back under another", got, len(l.Sent))
		}
		if got := send(l.Sent[2]); got.Action != consumer.Ack || len(l.Sent) != 4 || l.Sent[3].ID != l.Sent[2].ID {
			t.Errorf("that is gone: %+v, %d dead letters", got, len(l.Sent))
		}
		unmarked := l.Sent[3] // as from before there were marks
		unmarked.Header = unmarked.Header.With("oncemill-gave-up", "")
		for n := 5; n <= 6; n++ {
			if got := send(unmarked); got.Action != consumer.Ack || len(l.Sent) != n ||
				l.Sent[n-1].Header.Get(producer.HeaderGeneration) != strconv.Itoa(n-3) {
				t.Fatalf("without its mark: %+v, and %+v", got, l.Sent)
			}
			unmarked = l.Sent[n-1]
		}
	})
}

// A dead letter of a dead letter has two handlers that it may be sent to, one after the other.
func TestProcess_OwnDeadLetterThatTwoHandlersSendBackIsNoDuplicateToJetStream(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p, _ := logged(t, consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		p.Process(t.Context(), delivery("o1"), failing(errDeclined))
		p.Process(t.Context(), comeBack("bury", l.Only(t)), failing(errDeclined))
		for n, handler := range []string{"charge", "bury", "charge"} {
			d := comeBack(handler, l.Sent[n+1])
			d.Topic = "orders"
			got := p.Process(t.Context(), d, failing(errDeclined))
			if got.Action != consumer.Ack || len(l.Sent) != n+3 {
				t.Fatalf("%+v, and %d dead letters, want it to go back", got, len(l.Sent))
			}
		}
		seen := map[string]bool{}
		for _, m := range l.Sent[1:] {
			generation := m.Header.Get(producer.HeaderGeneration)
			if m.ID != l.Sent[1].ID || seen[generation] {
				t.Errorf("went back as %+v, which JetStream takes for an earlier one", m)
			}
			seen[generation] = true
		}
	})
}

// A handler of dead letters under the group and handler that made them would lose them all by acknowledging.
func TestProcess_DeadLettersAreKeptWhereTheirHandlerHasNoDeadLetters(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		p.Process(t.Context(), delivery("o1"), failing(errDeclined))
		reader, log := logged(t, consumer.Config{})
		got := reader.Process(t.Context(), comeBack("charge", l.Only(t)),
			func(context.Context) error { t.Error("the handler ran"); return nil })
		if got.Action != consumer.RetryLater || got.Delay <= 0 || !errors.Is(got.Err, consumer.ErrOwnDeadLetter) ||
			!strings.Contains(log.String(), "original=o1") || !strings.Contains(log.String(), "a Group or a Handler of its own") {
			t.Errorf("%+v\n%s", got, log)
		}
	})
}

// While a deployment brings dead letters, or takes them away, a message may come to a process without them whose dead letter
// another one has stored. Rejecting it would lose both.
func TestProcess_AStoredDeadLetterWaitsForAProcessThatCanPublishIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l, store := &deadLetters{Fail: errors.New("no answer")}, newStore(t)
		with := newProcessor(t, store, consumer.Config{DeadLetters: l, DeadLetterTopic: "dead"})
		with.Process(t.Context(), delivery("o1"), failing(errDeclined))
		var log strings.Builder
		without := newProcessor(t, store, consumer.Config{Policy: oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
		got := without.Process(t.Context(), delivery("o1"), failing(errDeclined))
		answertest.Want(t, got.Err, oncemill.StatusUnpublished)
		if got.Action != consumer.RetryLater || got.Delay <= 0 || got.Result.Publication != nil {
			t.Errorf("%+v, want it to be kept", got)
		}
		for _, want := range []string{"level=ERROR", "dead letter cannot be published", "topic=dead", "Config.DeadLetters is nil"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, &log)
			}
		}
		l.Fail = nil
		if got = with.Process(t.Context(), delivery("o1"), failing(errDeclined)); got.Action != consumer.Ack {
			t.Errorf("%+v, want an ack", got)
		}
		l.Only(t)
		if got = without.Process(t.Context(), delivery("o1"), failing(errDeclined)); got.Action != consumer.Ack {
			t.Errorf("%+v, want a duplicate whose dead letter is published to be acknowledged", got)
		}
		l.Only(t)
	})
}

// A stored dead letter keeps its topic, which the log names.
func TestProcess_AStoredDeadLetterGoesToTheTopicOfWhoMadeIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		l, store := &deadLetters{Fail: errors.New("no stream listens")}, newStore(t)
		before := newProcessor(t, store, consumer.Config{DeadLetters: l, DeadLetterTopic: "old"})
		before.Process(t.Context(), delivery("o1"), failing(errDeclined))
		var log strings.Builder
		after := newProcessor(t, store, consumer.Config{
			DeadLetters: l, DeadLetterTopic: "new", Policy: oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))},
		})
		after.Process(t.Context(), delivery("o1"), failing(errDeclined))
		l.Fail = nil
		after.Process(t.Context(), delivery("o1"), failing(errDeclined))
		if got := l.Only(t).Topic; got != "old" {
			t.Errorf("the dead letter went to %q, want \"old\"", got)
		}
		for line := range strings.Lines(log.String()) {
			if !strings.Contains(line, "topic=old") {
				t.Errorf("the log speaks of another topic than \"old\": %s", line)
			}
		}
		if strings.Count(log.String(), "topic=old") != 2 {
			t.Errorf("want a line about the failure and one about the success:\n%s", &log)
		}
	})
}

func TestProcess_DeadLettersOfOthersAreHandled(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		p.Process(t.Context(), delivery("o1"), failing(errDeclined))
		letter := l.Only(t)
		store := newStore(t)
		ran := func(who, handler string, c consumer.Config) {
			t.Helper()
			runs := 0
			p := newProcessor(t, store, c)
			if d := p.Process(t.Context(), comeBack(handler, letter), func(context.Context) error { runs++; return nil }); d.Action != consumer.Ack || runs != 1 {
				t.Errorf("%s: %+v after %d runs, want one", who, d, runs)
			}
		}
		ran("another group", "charge", consumer.Config{Group: "undertaker"})
		ran("another handler", "bury", consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
		ran("another tenant", "charge", consumer.Config{Tenant: "acme"})
		ran("another scope that reads the same", "charge", consumer.Config{Tenant: "default/billing"}) // default/billing/billing/charge
		ran("a trial", "charge", consumer.Config{Policy: oncemill.Policy{Shadow: true}})

		again := comeBack("charge", letter) // as an operator sends the message again
		again.Header = letter.Header.With(producer.HeaderPurpose, producer.PurposeReplay).With(producer.HeaderID, "o1").With(producer.HeaderRerun, letter.Header[producer.HeaderFence])
		runs := 0
		if d := p.Process(t.Context(), again, func(context.Context) error { runs++; return nil }); d.Action != consumer.Ack || runs != 1 {
			t.Errorf("rerun: %+v after %d runs", d, runs)
		}
	})
}

// Two scopes whose texts are equal, because names may hold slashes, are two.
func TestProcess_SlashesInNamesDoNotMakeADeadLetterOnesOwn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{Group: "a", DeadLetters: &l, DeadLetterTopic: "dead"})
		d := delivery("o1")
		d.Handler = "b/c"
		p.Process(t.Context(), d, failing(errDeclined))
		runs := 0
		p = newProcessor(t, newStore(t), consumer.Config{Group: "a/b"})
		p.Process(t.Context(), comeBack("c", l.Only(t)), func(context.Context) error { runs++; return nil })
		if runs != 1 {
			t.Errorf("%d runs, want 1", runs)
		}
	})
}

// Groups that consume each other's dead letters end.
func TestProcess_DeadLettersOfDeadLettersEnd(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var l deadLetters
		groups := map[string]*consumer.Processor{}
		for _, group := range []string{"a", "b", "c"} {
			groups[group] = newProcessor(t, newStore(t), consumer.Config{Group: group, DeadLetters: &l, DeadLetterTopic: "dead"})
		}
		runs := map[string]int{}
		everybody := func(d consumer.Delivery) {
			for group, p := range groups {
				if got := p.Process(t.Context(), d, func(context.Context) error { runs[group]++; return errDeclined }); got.Action != consumer.Ack {
					t.Errorf("%+v", got)
				}
			}
		}
		everybody(delivery("o1"))
		for done := 0; done < len(l.Sent); done++ { //nolint:intrange // it grows
			if done > 100 {
				t.Fatalf("no end: %v", runs)
			}
			everybody(comeBack("charge", l.Sent[done]))
		}
		// Each group has the message, those of the two others, and those that these made of each other's.
		for group, n := range runs {
			if n != 1+2+2 {
				t.Errorf("group %s ran %d times, want 5", group, n)
			}
		}
	})
}

// Without an ID, nothing else says which message it was.
func TestProcess_DeadLettersAreSaidWithThePlaceOfTheirMessages(t *testing.T) {
	for name, d := range map[string]consumer.Delivery{"failed": delivery("o1"), "without an ID": {Handler: "charge", Topic: "orders", Payload: []byte("x")}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				d.Topic, d.Position = "orders", "17@5"
				for _, l := range []*deadLetters{{}, {Fail: errors.New("no stream listens")}} {
					p, log := logged(t, consumer.Config{DeadLetters: l, DeadLetterTopic: "dead"})
					p.Process(t.Context(), d, failing(errDeclined))
					if got := log.String(); strings.Count(got, "from=orders position=17@5") != 1 {
						t.Errorf("want one line with the place of the message:\n%s", got)
					}
				}
			})
		})
	}
}

func TestProcess_DeadLetterThatCannotBePublishedIsSaidLoudly(t *testing.T) {
	for name, d := range map[string]consumer.Delivery{"failed": delivery("o1"), "without an ID": {Handler: "charge", Topic: "orders", Payload: []byte("x")}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				l := &deadLetters{Fail: errors.New("no stream listens")}
				p, log := logged(t, consumer.Config{DeadLetters: l, DeadLetterTopic: "nowhere"})
				got := p.Process(t.Context(), d, failing(errDeclined))
				answertest.Want(t, got.Err, oncemill.StatusUnpublished)
				for _, want := range []string{"level=ERROR", "dead letter cannot be published", "topic=nowhere", "no stream listens"} {
					if !strings.Contains(log.String(), want) {
						t.Errorf("the log does not say %q:\n%s", want, log)
					}
				}
			})
		})
	}
}

// Nobody else would say why the message is held: it does not come again, and the publisher returns no error.
func TestProcess_PublisherOfDeadLettersThatHangsIsSaidLoudly(t *testing.T) {
	for name, d := range map[string]consumer.Delivery{"failed": delivery("o1"), "without an ID": {Handler: "charge", Topic: "orders", Payload: []byte("x")}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				p, log := logged(t, consumer.Config{DeadLetters: silent{}, DeadLetterTopic: "dead"})
				p.Process(ctx, d, failing(errDeclined))
				synctest.Wait() // the line is from another goroutine
				for _, want := range []string{"level=ERROR", "dead letter is still being published", "topic=dead", "from=orders", "for=1m0s"} {
					if !strings.Contains(log.String(), want) {
						t.Errorf("the log does not say %q:\n%s", want, log)
					}
				}
			})
		})
	}
}

// silent is a publisher that gets no answer.
type silent struct{}

func (silent) Publish(ctx context.Context, _ ...producer.Message) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// A handler of dead letters would take the second for a duplicate, as a JetStream stream would.
func TestProcess_MessagesWithoutAnIDHaveDeadLettersOfTheirOwn(t *testing.T) {
	t.Parallel()
	var l deadLetters
	p, _ := logged(t, consumer.Config{DeadLetters: &l, DeadLetterTopic: "dead"})
	tombstone := func(key, position string) consumer.Delivery {
		return consumer.Delivery{Handler: "charge", Topic: "orders", Position: position, Header: producer.Header{producer.HeaderKey: key}}
	}
	for _, d := range []consumer.Delivery{
		tombstone("a", "0-1-0"), tombstone("a", "0-1-0"), // delivered again
		tombstone("a", "0-2-0"), tombstone("a", ""), tombstone("b", ""), // of adapters that know no positions
	} {
		if got := p.Process(t.Context(), d, failing(errDeclined)); got.Action != consumer.Ack {
			t.Fatalf("%+v, want it dead-lettered", got)
		}
	}
	ids := map[string]bool{}
	for _, m := range l.Sent {
		ids[m.ID] = true
	}
	if len(l.Sent) != 5 || len(ids) != 4 || l.Sent[0].ID != l.Sent[1].ID {
		t.Errorf("%d IDs of %d dead letters, want one for each message", len(ids), len(l.Sent))
	}
}
