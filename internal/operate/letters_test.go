package operate

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
)

func key(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id}
}

// failed makes the record of a message that failed for good.
func failed(t *testing.T, store *dedupstore.Memory, id string) dedupstore.Record {
	t.Helper()
	a, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
		Key: key(id), Owner: rand.Text(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1,
	})
	if err == nil {
		err = dedupstore.SettleOne(t.Context(), store, a.Claim, dedupstore.Finish{
			Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "refused"}, Retention: time.Hour,
		})
	}
	all, look := store.Look(t.Context(), []dedupstore.Key{key(id)})
	if err = errors.Join(err, look); err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// A rig is a redrive of letters in memory, to a handler that succeeds.
type rig struct {
	*Redrive
	store   *dedupstore.Memory
	letters *consumertest.Letters
	reruns  *consumertest.Reruns
	told    []string
}

func newRig(t *testing.T) *rig {
	store := consumertest.NewStore(t)
	r := &rig{store: store, letters: &consumertest.Letters{}, reruns: &consumertest.Reruns{Store: store}}
	r.letters.To = r.reruns
	r.Redrive = &Redrive{Source: r.letters, Store: store, Rate: 10_000}
	r.Tell = func(result string, ids []string, err error, _ Redriven) {
		r.told = append(r.told, fmt.Sprint(result, ids, err))
	}
	return r
}

// fails adds a failure with its letter.
func (r *rig) fails(t *testing.T, id, reason string) dedupstore.Record {
	t.Helper()
	record := failed(t, r.store, id)
	r.letters.Add(consumertest.DeadLetter(record.Key, record.Fence, reason))
	return record
}

func (r *rig) predicts(t *testing.T) *Prediction {
	t.Helper()
	p, err := r.Predict(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What is sent is what was shown: no other letter, no other topic, and no other fate.
func TestRedrive_DoesOnlyWhatItsPlanShowed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		every bool
		then  func(t *testing.T, r *rig, first dedupstore.Record)
		want  string
	}{
		"nothing else happens": {want: "orders/0 orders/1"},
		"a letter comes with the time of another": {
			then: func(_ *testing.T, r *rig, first dedupstore.Record) {
				late := consumertest.DeadLetter(key("1"), first.Fence, "refused")
				late.ID, late.Time = "dead-late", r.letters.All()[1].Time
				r.letters.Change(func(all []deadletters.Letter) []deadletters.Letter {
					late.Position = "7"
					return append([]deadletters.Letter{late}, all...)
				})
			},
			want: "orders/0 orders/1",
		},
		"the topic of dead letters is made again": {
			then: func(_ *testing.T, r *rig, _ dedupstore.Record) {
				r.letters.Change(func(all []deadletters.Letter) []deadletters.Letter {
					all[0].Header[producer.HeaderTopic] = "refunds"
					return all
				})
			},
			want: "orders/1",
		},
		"an outcome is forgotten": {
			every: true,
			then: func(t *testing.T, r *rig, first dedupstore.Record) {
				if err := r.store.Change(t.Context(), first, dedupstore.Forget{}); err != nil {
					t.Error(err)
				}
			},
			want: "orders/1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			first := r.fails(t, "0", "refused")
			r.fails(t, "1", "refused")
			r.Every = c.every
			p := r.predicts(t)
			if c.then != nil {
				c.then(t, r, first)
			}
			if _, err := r.Do(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.reruns.Sent(), " "); got != c.want {
				t.Errorf("sent %s, want %s", got, c.want)
			}
		})
	}
}

// What is discarded is what was shown; records and other letters stay.
func TestDiscard_OfWhatItsPlanShowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 250 {
		r.fails(t, fmt.Sprint(i), []string{"no such order", "card refused"}[i%2])
	}
	r.Discards, r.Reason = true, "no such"
	p := r.predicts(t)
	r.fails(t, "late", "no such order")
	done, err := r.Do(t.Context(), p)
	left := r.letters.All()
	if err != nil || p.N() != 125 || done.Sent != 125 || len(left) != 126 || left[125].Original() != "late" {
		t.Errorf("%d of %d were discarded, %d are left, %v", done.Sent, p.N(), len(left), err)
	}
	if len(r.told) != 2 || !strings.HasPrefix(r.told[0], "discarded[0 2 4 ") || len(r.reruns.Sent()) > 0 {
		t.Errorf("told %v, and sent %v", r.told, r.reruns.Sent())
	}
}

// A message without a usable ID has a letter all the same: what is told names that.
func TestDiscard_NamesLettersWithoutAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fails(t, "0", "no usable ID")
	r.letters.Change(func(all []deadletters.Letter) []deadletters.Letter {
		delete(all[0].Header, producer.HeaderOriginalID)
		return all
	})
	r.Discards = true
	done, err := r.Do(t.Context(), r.predicts(t))
	if err != nil || done.Sent != 1 || r.told[0] != "discarded[dead-0] <nil>" {
		t.Errorf("told %v, %v", r.told, err)
	}
}

// A letter that was redriven or discarded, and is still there, is left alone: by its position, and by a discard of all
// where discarded letters stay. Where they go, a discard removes it.
func TestPrediction_LeavesAloneWhatIsDone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stay, discards bool
		positions      []string
		found, n, left int
	}{
		{true, false, []string{"1", "2"}, 2, 1, 1},
		{true, false, nil, 1, 1, 0}, // those that are done are not read
		{true, true, []string{"1", "2"}, 2, 1, 2},
		{true, true, nil, 2, 1, 2},
		{false, false, nil, 1, 1, 0},
		{false, true, []string{"1", "2"}, 2, 2, 2},
		{false, true, nil, 2, 2, 2},
	} {
		r := newRig(t)
		r.letters.Stay = c.stay
		r.fails(t, "0", "refused")
		r.fails(t, "1", "refused")
		r.letters.Change(func(all []deadletters.Letter) []deadletters.Letter {
			all[0].Done = true
			return all
		})
		r.Discards, r.Positions = c.discards, c.positions
		p := r.predicts(t)
		done, err := r.Do(t.Context(), p)
		if left := p.Reasons()[0].Left(); err != nil || p.Found != c.found || p.N() != c.n || left != c.left ||
			done.Sent != c.n {
			t.Errorf("%+v: found %d, %d to change, %d left; changed %d, %v", c, p.Found, p.N(), left, done.Sent, err)
		}
	}
}

// A discard also leaves a letter alone that somebody has redriven after its plan was made.
func TestDiscard_LeavesAloneWhatIsDoneSince(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.letters.Stay, r.Discards = true, true
	r.fails(t, "0", "refused")
	p := r.predicts(t)
	r.letters.Change(func(all []deadletters.Letter) []deadletters.Letter {
		all[0].Done = true
		return all
	})
	if done, err := r.Do(t.Context(), p); err != nil || done.Sent != 0 {
		t.Errorf("%d were discarded, %v", done.Sent, err)
	}
}

// Reasons that differ in IDs and numbers only are one, and of a thousand reasons a plan lists the largest and a sum.
func TestPrediction_SumsByCause(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 100 {
		r.fails(t, fmt.Sprint("card-", i), "card service: POST /charges/"+producer.NewID()+": 503")
	}
	for i := range 1000 {
		r.fails(t, fmt.Sprint("order-", i), "refused"+strings.Repeat("!", i))
	}
	p := r.predicts(t)
	all := p.Reasons()
	last := all[len(all)-1]
	if len(all) != mostReasons+1 || all[0].Run != 100 || all[0].Reason != "card service: POST /charges/#: #" ||
		last.Run != 1001-mostReasons || !slices.Equal(last.To(), []string{"orders"}) {
		t.Errorf("%d reasons, the first %+v, the last %+v", len(all), all[0], last)
	}
	r.Until = time.Now().Add(-time.Second) // a large topic is read as far as time allows
	if p = r.predicts(t); p.Seen.IsZero() || p.Found != 0 {
		t.Errorf("%d letters were read, and all is seen", p.Found)
	}
	r.Until, r.Reason = time.Time{}, "/charges/#" // as the list shows it
	if p = r.predicts(t); p.Found != 100 || len(p.Reasons()) != 1 {
		t.Errorf("%d letters of %d reasons", p.Found, len(p.Reasons()))
	}
}

// Who may write dead letters has nothing purged by an operator who redrives them.
func TestCases_NothingGoesToTheServersOwnSubjects(t *testing.T) {
	t.Parallel()
	for topic, want := range map[string]Fate{"orders": FateAbsent, "$JS.API.STREAM.PURGE.ORDERS": FateCannot} {
		l := consumertest.DeadLetter(key("1"), 7, "refused")
		l.Header[producer.HeaderTopic] = topic
		cases, err := Cases(t.Context(), consumertest.NewStore(t), []deadletters.Letter{l})
		if err != nil || cases[0].Fate != want {
			t.Errorf("%s: %q, %v, %v; want %q", topic, cases[0].Fate, cases[0].Err, err, want)
		}
	}
}

func TestFateOf(t *testing.T) {
	t.Parallel()
	finished := func(kind dedupstore.Kind, decided uint64) dedupstore.Record {
		return dedupstore.Record{
			State: dedupstore.Finished, Fence: decided, Decided: decided, Outcome: dedupstore.Outcome{Kind: kind},
		}
	}
	publishing := finished(dedupstore.Failed, 7)
	publishing.State = dedupstore.Publishing
	decided := finished(dedupstore.Failed, 7)
	decided.ByOperator = true
	said := finished(dedupstore.Failed, 7)
	said.Outcome.Reason = "decided by an operator: do not retry"
	for _, c := range []struct {
		record dedupstore.Record
		want   Fate
	}{
		{dedupstore.Record{State: dedupstore.Absent}, FateAbsent},
		{dedupstore.Record{State: dedupstore.Running, Fence: 8}, FateRunning},
		{dedupstore.Record{State: dedupstore.Retryable, Fence: 8}, FateDue},
		{dedupstore.Record{State: dedupstore.Retryable, Fence: 7}, FateRuns}, // oncemill rerun
		{finished(dedupstore.Failed, 7), FateRuns},
		{publishing, FateRuns},
		{finished(dedupstore.Unknown, 7), FateUnknown},
		{decided, FateDecided},
		{said, FateRuns},
		{finished(dedupstore.Failed, 8), FateFailed},
		{finished(dedupstore.Unknown, 8), FateFailed},
		{finished(dedupstore.Succeeded, 7), FateSucceeded}, // completed by an operator
		{finished(dedupstore.Succeeded, 8), FateSucceeded},
	} {
		if got := FateOf(&c.record, 7); got != c.want {
			t.Errorf("%+v: %q, want %q", c.record, got, c.want)
		}
	}
}

func TestLetters_AGroupIsNoPrefixOfOthers(t *testing.T) {
	t.Parallel()
	l := &deadletters.Letter{Message: producer.Message{Header: producer.Header{
		producer.HeaderHandler: "default/a%2Fb/h", producer.HeaderOriginalID: "1",
	}}}
	if (&Letters{Tenant: "default", Group: "a"}).Matches(l) ||
		!(&Letters{Tenant: "default", Group: "a/b", Handler: "h"}).Matches(l) {
		t.Error("a letter of group a/b is taken for one of group a, or not for its own")
	}
	if key, err := keyOf(l); err != nil || key.Group != "a/b" || key.Handler != "h" {
		t.Errorf("its key is %+v, %v", key, err)
	}
}
