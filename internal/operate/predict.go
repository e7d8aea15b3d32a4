package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/producer"
)

// lookAt is how many records are looked at together.
const lookAt = 200

// A Prediction is what would happen to letters, by reason.
type Prediction struct {
	Found   int            // letters that are meant
	Sent    map[Bound]int  // of these would be sent, or discarded
	Cannot  map[string]int // be rerun, by error
	Missing []string       // IDs of the choice that no letter has
	Seen    time.Time      // if there was no time for all: of the last letter that was read

	reasons map[string]*Foreseen
	seed    maphash.Seed
	shown   map[uint64]struct{} // to be sent, or discarded, and not done yet
	newest  time.Time           // JetStream delivers letters in this order: those that came later need not be read
}

// Bound is what becomes of messages, and the topic that they would go to: the writer of the dead letters chose it.
type Bound struct {
	Fate  Fate
	Topic string
}

// Foreseen is what would happen to the letters of a reason.
type Foreseen struct {
	Reason      string `json:"reason"`
	DeadLetters int    `json:"letters"`
	Run         int    `json:"will_run"`
	Unknown     int    `json:"will_run_unknown"`
	Succeeded   int    `json:"succeeded"`
	Running     int    `json:"running"`
	Due         int    `json:"due"`
	Failed      int    `json:"failed_again"`
	Decided     int    `json:"decided"`
	Absent      int    `json:"no_record"`
	Cannot      int    `json:"cannot"`

	topics map[string]bool // where those that run go
}

// Left is how many would not run. Letters that are done are among them.
func (f *Foreseen) Left() int { return f.DeadLetters - f.Run - f.Unknown }

// To has the topics that those which will run go to. The writer of the letters chose them.
func (f *Foreseen) To() []string { return slices.Sorted(maps.Keys(f.topics)) }

// by has the counts by fate.
func (f *Foreseen) by() map[Fate]*int {
	return map[Fate]*int{
		FateRuns: &f.Run, FateUnknown: &f.Unknown, FateSucceeded: &f.Succeeded, FateRunning: &f.Running,
		FateDue: &f.Due, FateFailed: &f.Failed, FateDecided: &f.Decided, FateAbsent: &f.Absent, FateCannot: &f.Cannot,
	}
}

// N is how many letters would be sent, or discarded.
func (p *Prediction) N() (n int) {
	for _, some := range p.Sent {
		n += some
	}
	return n
}

// of stands for a letter, its fate and its topic. It takes some 20 bytes a letter.
func (p *Prediction) of(c *Case) uint64 {
	return maphash.Comparable(p.seed, struct {
		position, id string
		fence        uint64
		Bound
	}{c.Position, c.ID, c.fence, Bound{c.Fate, c.again.Topic}})
}

// has reports whether the prediction has shown that a letter would be sent, with this fate and to this topic. Nothing
// else is sent.
func (p *Prediction) has(c *Case) bool {
	_, ok := p.shown[p.of(c)]
	return ok
}

// sent takes out of what was shown what is done.
func (p *Prediction) sent(went []Case) {
	for i := range went {
		delete(p.shown, p.of(&went[i]))
	}
}

// settle takes out of what was shown what is settled now, whatever fate it was shown with.
func (p *Prediction) settle(left []Case) {
	for _, c := range left {
		if c.Fate.settled() {
			for c.Fate = range new(Foreseen).by() {
				delete(p.shown, p.of(&c))
			}
		}
	}
}

// Predict says what would happen. It changes nothing.
func (r *Redrive) Predict(ctx context.Context) (*Prediction, error) {
	p := &Prediction{
		seed: maphash.MakeSeed(), shown: map[uint64]struct{}{}, reasons: map[string]*Foreseen{},
		Sent: map[Bound]int{}, Cannot: map[string]int{},
		Missing: slices.Clone(r.IDs),
	}
	var some []deadletters.Letter
	var failed error
	look := func() {
		cases, err := r.cases(ctx, some)
		if failed = cmp.Or(failed, err); err == nil {
			p.add(r, cases)
		}
		some = some[:0]
	}
	err := r.each(ctx, func(l deadletters.Letter) bool {
		if !r.Until.IsZero() && time.Now().After(r.Until) {
			p.Seen = l.Time
			return false
		}
		if r.Looked != nil {
			r.Looked()
		}
		if !r.Matches(&l) {
			return true
		}
		if l.Time.After(p.newest) {
			p.newest = l.Time
		}
		p.Missing = slices.DeleteFunc(p.Missing, l.HasID)
		if some = append(some, l); len(some) == lookAt {
			look()
		}
		return failed == nil
	})
	if err == nil && failed == nil {
		look()
	}
	if err == nil && len(p.Missing) > 0 && p.Seen.IsZero() { // a redrive that was cut off has sent some
		err = r.Source.Each(ctx, deadletters.Reading{}, func(l deadletters.Letter) bool {
			p.Missing = slices.DeleteFunc(p.Missing, l.HasID)
			return len(p.Missing) > 0
		})
	}
	return p, cmp.Or(err, failed)
}

// each calls do with the letters at the positions that are meant, or with all. A broker that removes letters may
// remove those that were redriven, too.
func (r *Redrive) each(ctx context.Context, do func(deadletters.Letter) bool) error {
	if len(r.Positions) == 0 {
		return r.Source.Each(ctx, deadletters.Reading{Left: !r.Discards, Done: r.Discards}, do)
	}
	for _, position := range r.Positions {
		l, err := r.Source.Show(ctx, position)
		if errors.Is(err, deadletters.ErrGone) {
			continue
		}
		if err != nil || !do(l) {
			return err
		}
	}
	return nil
}

// cases looks at the records of letters, if they matter.
func (r *Redrive) cases(ctx context.Context, all []deadletters.Letter) ([]Case, error) {
	if !r.Discards {
		return Cases(ctx, r.Store, all)
	}
	cases := make([]Case, len(all))
	for i, l := range all {
		cases[i] = Case{Letter: l, Fate: FateCannot}
	}
	return cases, nil
}

func (p *Prediction) add(r *Redrive, cases []Case) {
	for i := range cases {
		c := &cases[i]
		p.Found++
		reason := c.Get(producer.HeaderReason)
		pattern := Pattern(reason)
		of := p.reasons[pattern]
		switch {
		case of == nil:
			of = &Foreseen{Reason: reason, topics: map[string]bool{}}
			p.reasons[pattern] = of
		case of.Reason != reason:
			of.Reason = pattern
		}
		of.DeadLetters++
		if c.Done { // nothing takes it any more
			continue
		}
		if r.sends(c.Fate) {
			p.shown[p.of(c)] = struct{}{}
			p.Sent[Bound{c.Fate, c.again.Topic}]++
		}
		*of.by()[c.Fate]++
		if c.Fate.Runs() {
			of.topics[c.again.Topic] = true
		}
		if c.Err != nil {
			p.Cannot[cmp.Or(errors.Unwrap(c.Err), c.Err).Error()]++ // without the message's ID
		}
	}
}

// mostReasons is how many reasons a prediction lists. What is beyond is one sum.
const mostReasons = 50

// Reasons are what is foreseen, the reasons with the most letters first.
func (p *Prediction) Reasons() []*Foreseen {
	all := slices.SortedFunc(maps.Values(p.reasons), func(x, y *Foreseen) int {
		return cmp.Or(cmp.Compare(y.DeadLetters, x.DeadLetters), strings.Compare(x.Reason, y.Reason))
	})
	if len(all) <= mostReasons {
		return all
	}
	rest := &Foreseen{
		Reason: fmt.Sprintf("%d %s", len(all)-mostReasons, OtherReasons), topics: map[string]bool{},
	}
	for _, f := range all[mostReasons:] {
		rest.DeadLetters += f.DeadLetters
		for fate, n := range f.by() {
			*rest.by()[fate] += *n
		}
		maps.Copy(rest.topics, f.topics)
	}
	return append(all[:mostReasons:mostReasons], rest)
}
