package consumertest

import (
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// Letters are dead letters in memory. Their positions are what Add makes them.
type Letters struct {
	To   producer.Publisher // gets the messages of redrives
	Fail error              // of all that is asked
	Stay bool               // discarded letters stay, as in Kafka

	mu    sync.Mutex
	all   []deadletters.Letter // the oldest first
	reads int
}

var _ deadletters.Source = (*Letters)(nil)

// Add adds letters, the oldest first.
func (l *Letters) Add(letters ...deadletters.Letter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range letters {
		if one.Position == "" {
			one.Position = strconv.Itoa(len(l.all) + 1)
		}
		l.all = append(l.all, one)
	}
}

// Change changes the letters.
func (l *Letters) Change(change func([]deadletters.Letter) []deadletters.Letter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = change(l.all)
}

// Reads is how often pages were read.
func (l *Letters) Reads() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads
}

// All are the letters that are there.
func (l *Letters) All() []deadletters.Letter {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// Page implements [deadletters.Source].
func (l *Letters) Page(
	_ context.Context, after string, most int, wanted func(*deadletters.Letter) bool,
) (p deadletters.Page, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	p.Total = len(l.all)
	at := len(l.all)
	if after != "" {
		at, _ = strconv.Atoi(after)
	}
	for at--; at >= 0 && len(p.Letters) < most; at-- {
		p.Looked++
		if one := l.all[at]; wanted(&one) {
			one.Payload = nil
			p.Letters = append(p.Letters, one)
		}
	}
	if at >= 0 {
		p.Next = strconv.Itoa(at + 1)
	}
	return p, l.Fail
}

// Each implements [deadletters.Source].
func (l *Letters) Each(_ context.Context, r deadletters.Reading, do func(deadletters.Letter) bool) error {
	for _, one := range l.All() {
		if r.Left && one.Done {
			continue
		}
		one.Done = one.Done && r.Done && l.Stay
		if !do(one) {
			break
		}
	}
	return l.Fail
}

// Show implements [deadletters.Source].
func (l *Letters) Show(_ context.Context, position string) (deadletters.Letter, error) {
	for _, one := range l.All() {
		if one.Position == position {
			one.Done = one.Done && l.Stay
			return one, l.Fail
		}
	}
	return deadletters.Letter{}, deadletters.ErrGone
}

// Discard implements [deadletters.Source].
func (l *Letters) Discard(_ context.Context, letters []deadletters.Letter) error {
	if l.Stay {
		return l.mark(letters)
	}
	l.Change(func(all []deadletters.Letter) []deadletters.Letter {
		return slices.DeleteFunc(all, func(one deadletters.Letter) bool { return isIn(letters, &one) })
	})
	return l.Fail
}

// mark notes that letters are done.
func (l *Letters) mark(done []deadletters.Letter) error {
	l.Change(func(all []deadletters.Letter) []deadletters.Letter {
		for i := range all {
			all[i].Done = all[i].Done || isIn(done, &all[i])
		}
		return all
	})
	return l.Fail
}

func isIn(letters []deadletters.Letter, one *deadletters.Letter) bool {
	return slices.ContainsFunc(letters, func(other deadletters.Letter) bool { return other.Position == one.Position })
}

// Redrive implements [deadletters.Source].
func (l *Letters) Redrive(_ context.Context, t deadletters.Taking) (deadletters.Redrive, error) {
	r := &lettersRedrive{of: l}
	for _, one := range l.All() {
		if !one.Done && (len(t.Positions) == 0 || slices.Contains(t.Positions, one.Position)) {
			r.left = append(r.left, one)
		}
	}
	return r, l.Fail
}

type lettersRedrive struct {
	of   *Letters
	left []deadletters.Letter
}

func (r *lettersRedrive) Take(_ context.Context, n int) (taken []deadletters.Letter, err error) {
	taken = r.left[:min(n, len(r.left))]
	r.left = r.left[len(taken):]
	return taken, r.of.Fail
}

func (r *lettersRedrive) Done(_ context.Context, sent []deadletters.Letter) error {
	return r.of.mark(sent)
}

func (r *lettersRedrive) Publisher() (producer.Publisher, error) { return r.of.To, r.of.Fail }

func (*lettersRedrive) Close() {}

// DeadLetter is the letter of a message of the topic orders that failed under a fence.
func DeadLetter(key dedupstore.Key, fence uint64, reason string) deadletters.Letter {
	return deadletters.Letter{Time: time.Now(), Message: producer.Message{
		ID: "dead-" + key.ID, Payload: []byte("payload of " + key.ID), Header: producer.Header{
			producer.HeaderPurpose: producer.PurposeDeadLetter, producer.HeaderID: "dead-" + key.ID,
			producer.HeaderOriginalID: key.ID, producer.HeaderTopic: "orders",
			producer.HeaderHandler: key.Tenant + "/" + key.Group + "/" + key.Handler,
			producer.HeaderFence:   strconv.FormatUint(fence, 10), producer.HeaderOutcome: "failed",
			producer.HeaderReason: reason, producer.HeaderAttempts: "1",
		},
	}}
}

// Reruns is a publisher whose messages reach the handler charge of the group billing at once, and succeed.
type Reruns struct {
	Store dedupstore.Store

	mu   sync.Mutex
	sent []producer.Message
}

// Publish implements [producer.Publisher].
func (r *Reruns) Publish(ctx context.Context, all ...producer.Message) error {
	for _, m := range all {
		fence, _ := strconv.ParseUint(m.Header.Get(producer.HeaderGeneration), 10, 64)
		a, err := dedupstore.ClaimOne(ctx, r.Store, dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: m.ID},
			Owner: rand.Text(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1, Rerun: fence,
		})
		if err == nil && a.Status == dedupstore.AcquiredRun {
			err = dedupstore.SettleOne(ctx, r.Store, a.Claim, dedupstore.Finish{
				Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour,
			})
		}
		if err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, all...)
	return nil
}

// Sent are the topics and IDs of what was published, as topic/ID, sorted.
func (r *Reruns) Sent() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.sent {
		all = append(all, m.Topic+"/"+m.ID)
	}
	slices.Sort(all)
	return all
}
