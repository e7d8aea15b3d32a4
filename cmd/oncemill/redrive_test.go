package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// heldLetters are dead letters in memory, and where their messages go.
type heldLetters struct {
	all   []letter
	store *dedupstore.Memory
	sent  []producer.Message
}

func (h *heldLetters) each(_ context.Context, _ bool, do func(letter) bool) error {
	for _, l := range h.all {
		if !do(l) {
			break
		}
	}
	return nil
}

func (h *heldLetters) take(_ context.Context, n int) ([]letter, error) {
	taken := slices.Clone(h.all[:min(n, len(h.all))])
	h.all = h.all[len(taken):]
	return taken, nil
}

func (h *heldLetters) done(context.Context, []letter) error   { return nil }
func (h *heldLetters) leave()                                 {}
func (h *heldLetters) publisher() (producer.Publisher, error) { return h, nil }

// Publish has a consumer that succeeds at once.
func (h *heldLetters) Publish(ctx context.Context, all ...producer.Message) error {
	h.sent = append(h.sent, all...)
	for _, m := range all {
		fence, _ := strconv.ParseUint(m.Header.Get(producer.HeaderGeneration), 10, 64)
		got := h.store.Claim(ctx, []dedupstore.Request{orderRequest(m.ID, fence)})[0]
		if got.Answer.Status != dedupstore.AcquiredRun {
			continue
		}
		finish := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour}
		if err := h.store.Settle(ctx, []dedupstore.Settling{{Claim: got.Answer.Claim, Settlement: finish}})[0]; err != nil {
			return err
		}
	}
	return nil
}

func orderRequest(id string, rerun uint64) dedupstore.Request {
	return dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id},
		Owner: rand.Text(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1, Rerun: rerun,
	}
}

// A meanwhile is an operator who confirms a plan, after something else has happened.
type meanwhile func()

func (m meanwhile) Read(b []byte) (int, error) {
	m()
	return copy(b, "yes\n"), io.EOF
}

// What is sent is what was shown: no other letter, no other topic, and no other fate.
func TestRedrive_DoesOnlyWhatItsPlanShowed(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		all  bool
		then func(t *testing.T, store *dedupstore.Memory, dead *heldLetters, made map[string]dedupstore.Record)
		want string
	}{
		"nothing else happens": {want: "orders/0 orders/1"},
		"a letter comes with the time of another": {
			then: func(_ *testing.T, _ *dedupstore.Memory, h *heldLetters, made map[string]dedupstore.Record) {
				late := deadLetter("1", "orders", made["1"].Fence, at)
				late.ID, late.position = "dead-late", "7"
				h.all = append([]letter{late}, h.all...)
			},
			want: "orders/0 orders/1",
		},
		"the topic of dead letters is made again": {
			then: func(_ *testing.T, _ *dedupstore.Memory, h *heldLetters, made map[string]dedupstore.Record) {
				h.all[0] = deadLetter("0", "refunds", made["0"].Fence, at)
			},
			want: "orders/1",
		},
		"an outcome is forgotten": {
			all: true,
			then: func(t *testing.T, store *dedupstore.Memory, _ *heldLetters, made map[string]dedupstore.Record) {
				if err := store.Change(t.Context(), made["0"], dedupstore.Forget{}); err != nil {
					t.Error(err)
				}
			},
			want: "orders/1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
			if err != nil {
				t.Fatal(err)
			}
			made, dead := map[string]dedupstore.Record{}, &heldLetters{store: store}
			for i := range 2 {
				id := fmt.Sprint(i)
				made[id] = failed(t, store, id)
				dead.all = append(dead.all, deadLetter(id, "orders", made[id].Fence, at))
				dead.all[i].position = id
			}
			var log strings.Builder
			a := &app{out: io.Discard, log: &log, in: meanwhile(func() {
				if c.then != nil {
					c.then(t, store, dead, made)
				}
			})}
			r := &redriving{
				consent: consent{verb: "redrive", rate: 1000, every: c.all}, topic: "dead", store: store, source: dead,
			}
			if err := a.redrives(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			var sent []string
			for _, m := range dead.sent {
				sent = append(sent, m.Topic+"/"+m.ID)
			}
			slices.Sort(sent)
			if got := strings.Join(sent, " "); got != c.want {
				t.Errorf("sent %s, want %s\n%s", got, c.want, log.String())
			}
		})
	}
}

// failed makes the record of a message that failed for good.
func failed(t *testing.T, store *dedupstore.Memory, id string) dedupstore.Record {
	t.Helper()
	request := orderRequest(id, 0)
	got := store.Claim(t.Context(), []dedupstore.Request{request})
	if got[0].Err != nil {
		t.Fatal(got[0].Err)
	}
	errs := store.Settle(t.Context(), []dedupstore.Settling{{Claim: got[0].Answer.Claim, Settlement: dedupstore.Finish{
		Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "refused"}, Retention: time.Hour,
	}}})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	all, err := store.Look(t.Context(), []dedupstore.Key{request.Key})
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

func deadLetter(id, topic string, fence uint64, at time.Time) letter {
	return letter{position: id, at: at, Message: producer.Message{ID: "dead-" + id, Header: producer.Header{
		producer.HeaderPurpose: producer.PurposeDeadLetter, producer.HeaderOriginalID: id,
		producer.HeaderID: "dead-" + id, producer.HeaderTopic: topic, producer.HeaderHandler: "default/billing/charge",
		producer.HeaderFence: fmt.Sprint(fence), producer.HeaderOutcome: "failed", producer.HeaderReason: "refused",
	}}}
}

// Reasons that differ in IDs and numbers only are one, and of a thousand reasons a plan lists the largest and a sum.
func TestDeadLetters_SumByCause(t *testing.T) {
	t.Parallel()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	dead := &heldLetters{store: store}
	add := func(reason string) {
		id := fmt.Sprint(len(dead.all))
		l := deadLetter(id, "orders", failed(t, store, id).Fence, time.Unix(1_800_000_000, 0))
		l.Header[producer.HeaderReason] = reason
		dead.all = append(dead.all, l)
	}
	for range 100 {
		add("card service: POST /charges/" + producer.NewID() + ": 503")
	}
	for i := range 1000 {
		add("refused" + strings.Repeat("!", i))
	}
	var out strings.Builder
	a := &app{out: &out, log: io.Discard}
	groups, more, err := a.groupLetters(t.Context(), dead, &dlq{}, 10)
	if err != nil || groups != 1001 || more != 991 ||
		!strings.Contains(out.String(), "card service: POST /charges/#: #") {
		t.Errorf("%d groups, %d more, %v\n%s", groups, more, err, out.String())
	}
	r := &redriving{consent: consent{verb: "redrive", rate: 1000}, topic: "dead", store: store, source: dead}
	p, err := a.predict(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	all := p.list()
	last := all[len(all)-1]
	if len(all) != mostReasons+1 || all[0].Run != 100 || last.Run != 1001-mostReasons || len(p.topics[last]) != 1 {
		t.Errorf("%d reasons, the first %+v, the last %+v", len(all), all[0], last)
	}
	r.until = time.Now().Add(-time.Second) // a large topic is read as far as time allows
	if p, err = a.predict(t.Context(), r); err != nil || !r.cut || len(p.reasons) != 0 {
		t.Errorf("%d reasons, cut %t, %v", len(p.reasons), r.cut, err)
	}
	r.until = time.Time{}
	r.reason = "/charges/#" // as the list shows it
	if p, err = a.predict(t.Context(), r); err != nil || len(p.reasons) != 1 {
		t.Errorf("%d reasons of %q, %v", len(p.reasons), r.reason, err)
	}
}
