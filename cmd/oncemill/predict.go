package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/producer"
)

// A fate is what becomes of a dead letter's message if its rerun is published.
type fate string

const (
	fateRuns      fate = "will run"
	fateUnknown   fate = "will run, and the effect may happen twice: the outcome is unknown"
	fateSucceeded fate = "succeeded since"
	fateRunning   fate = "running now"
	fateDue       fate = "to run again already"
	fateFailed    fate = "failed again since: a later dead letter stands for it"
	fateDecided   fate = "not to be tried again: an operator decided that"
	fateAbsent    fate = "no record: it would run as a first run"
	fateCannot    fate = "cannot be rerun"
)

var fates = []fate{
	fateRuns, fateUnknown, fateSucceeded, fateRunning, fateDue, fateFailed, fateDecided, fateAbsent, fateCannot,
}

func (f fate) runs() bool { return f == fateRuns || f == fateUnknown }

// fateOf says what becomes of a message that failed under a fence.
func fateOf(r *dedupstore.Record, fence uint64) fate {
	switch r.State {
	case dedupstore.Absent:
		return fateAbsent
	case dedupstore.Running:
		return fateRunning
	case dedupstore.Retryable:
		if r.Fence == fence { // oncemill rerun said so, and delivers nothing
			return fateRuns
		}
		return fateDue
	}
	switch {
	case r.Outcome.Kind == dedupstore.Succeeded:
		return fateSucceeded
	case r.Decided != fence:
		return fateFailed
	case r.Outcome.Kind == dedupstore.Unknown:
		return fateUnknown
	case r.ByOperator:
		return fateDecided
	}
	return fateRuns
}

// A rerunCase is a letter, and what would become of its rerun.
type rerunCase struct {
	letter
	again producer.Message
	key   dedupstore.Key
	fence uint64
	fate  fate
	err   error // why it cannot be rerun
}

// cases looks at the records of letters.
func (d *dlq) cases(ctx context.Context, store dedupstore.Inspector, all []letter) ([]rerunCase, error) {
	cases := make([]rerunCase, len(all))
	var keys []dedupstore.Key
	var of []*rerunCase
	for i, l := range all {
		c := &cases[i]
		c.letter = l
		if c.again, c.err = consumer.Rerun(l.Message); c.err == nil {
			c.fence, _ = strconv.ParseUint(l.get(producer.HeaderFence), 10, 64) // Rerun has read it
			c.key, c.err = d.keyOf(&l)
		}
		if strings.HasPrefix(c.again.Topic, "$") { // the operator may do more there than who wrote the letter
			c.err = errors.New("its topic begins with $: such subjects are the NATS server's own")
		}
		if c.err != nil {
			c.fate = fateCannot
			continue
		}
		keys, of = append(keys, c.key), append(of, c)
	}
	if len(keys) == 0 {
		return cases, nil
	}
	records, err := store.Look(ctx, keys)
	for i := range records {
		of[i].fate = fateOf(&records[i], of[i].fence)
	}
	return cases, err
}

// A shown is what a prediction has shown of each letter that would be sent: its fate and its topic. A redrive does
// nothing else. It takes some 20 bytes a letter.
type shown struct {
	seed   maphash.Seed
	all    map[uint64]struct{}
	newest time.Time // NATS delivers letters in this order: those that came later need not be read
}

// of stands for a letter, its fate and its topic.
func (s *shown) of(c *rerunCase) uint64 {
	return maphash.Comparable(s.seed, struct {
		mark  string
		fence uint64
		bound
	}{c.mark(), c.fence, bound{c.fate, c.again.Topic}})
}

func (s *shown) add(c *rerunCase) { s.all[s.of(c)] = struct{}{} }

func (s *shown) has(c *rerunCase) bool {
	_, ok := s.all[s.of(c)]
	return ok
}

// A prediction is what would happen to letters, by reason.
type prediction struct {
	shown   *shown
	fates   map[bound]int
	reasons map[string]*foreseen          // by pattern
	topics  map[*foreseen]map[string]bool // where those that run go
	cannot  map[string]int                // by error
	samples map[string]dedupstore.Key
	missing []string // IDs of the filter that no letter has
}

// bound is what becomes of messages, and the topic that they would go to: the writer of the dead letters chose it.
type bound struct {
	fate  fate
	topic string
}

// foreseen is what would happen to the letters of a reason.
type foreseen struct {
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
}

func (f *foreseen) of(what fate) *int {
	return map[fate]*int{
		fateRuns: &f.Run, fateUnknown: &f.Unknown, fateSucceeded: &f.Succeeded, fateRunning: &f.Running,
		fateDue: &f.Due, fateFailed: &f.Failed, fateDecided: &f.Decided, fateAbsent: &f.Absent, fateCannot: &f.Cannot,
	}[what]
}

func (a *app) predict(ctx context.Context, r *redriving) (*prediction, error) {
	p := &prediction{
		shown: &shown{seed: maphash.MakeSeed(), all: map[uint64]struct{}{}},
		fates: map[bound]int{}, topics: map[*foreseen]map[string]bool{}, reasons: map[string]*foreseen{},
		cannot: map[string]int{}, samples: map[string]dedupstore.Key{}, missing: slices.Clone(r.ids),
	}
	var some []letter
	var failed error
	look := func() {
		cases, err := r.cases(ctx, r.store, some)
		if failed = cmp.Or(failed, err); err == nil {
			p.add(r, cases)
		}
		some = some[:0]
	}
	err := a.eachLetter(ctx, r.source, &r.dlq, true, func(l letter) {
		if l.at.After(p.shown.newest) {
			p.shown.newest = l.at
		}
		p.missing = slices.DeleteFunc(p.missing, l.hasID)
		if some = append(some, l); len(some) == lookAt && failed == nil {
			look()
		}
	})
	if err == nil && failed == nil {
		look()
	}
	if err == nil && len(p.missing) > 0 { // a redrive that was cut off has sent some
		err = a.eachLetter(ctx, r.source, &r.dlq, false, func(l letter) {
			p.missing = slices.DeleteFunc(p.missing, l.hasID)
		})
	}
	return p, cmp.Or(err, failed)
}

func (p *prediction) add(r *redriving, cases []rerunCase) {
	for i := range cases {
		c := &cases[i]
		if r.sends(c.fate) {
			p.shown.add(c)
		}
		reason := c.get(producer.HeaderReason)
		pattern := operate.Pattern(reason)
		of := p.reasons[pattern]
		switch {
		case of == nil:
			of = &foreseen{Reason: reason}
			p.reasons[pattern], p.topics[of] = of, map[string]bool{}
		case of.Reason != reason:
			of.Reason = pattern
		}
		of.DeadLetters++
		*of.of(c.fate)++
		if c.fate.runs() {
			p.topics[of][c.again.Topic] = true
		}
		p.fates[bound{c.fate, c.again.Topic}]++
		switch {
		case c.err != nil:
			p.cannot[cmp.Or(errors.Unwrap(c.err), c.err).Error()]++ // without the message's ID
		case len(p.samples) < 3 && c.fate.runs():
			p.samples[c.again.Topic] = c.key
		}
	}
}

// mostReasons is how many reasons a prediction lists. What is beyond is one sum.
const mostReasons = 50

// list has the reasons with the most letters first.
func (p *prediction) list() []*foreseen {
	all := slices.SortedFunc(maps.Values(p.reasons), func(x, y *foreseen) int {
		return cmp.Or(cmp.Compare(y.DeadLetters, x.DeadLetters), strings.Compare(x.Reason, y.Reason))
	})
	if len(all) <= mostReasons {
		return all
	}
	rest := &foreseen{Reason: fmt.Sprintf("%d %s", len(all)-mostReasons, operate.OtherReasons)}
	p.topics[rest] = map[string]bool{}
	for _, f := range all[mostReasons:] {
		rest.DeadLetters += f.DeadLetters
		for _, what := range fates {
			*rest.of(what) += *f.of(what)
		}
		maps.Copy(p.topics[rest], p.topics[f])
	}
	return append(all[:mostReasons:mostReasons], rest)
}

func (a *app) showPrediction(p *prediction) error {
	all := p.list()
	if !a.forPeople() {
		return items(a, all)
	}
	t := table{{
		"LETTERS", "WILL RUN", "OF UNKNOWN OUTCOME", "SUCCEEDED SINCE", "RUNNING", "TO RUN AGAIN", "FAILED AGAIN",
		"DECIDED", "NO RECORD", "CANNOT RERUN", "REASON",
	}}
	for _, f := range all {
		var line []string
		for _, n := range []int{
			f.DeadLetters, f.Run + f.Unknown, f.Unknown, f.Succeeded, f.Running, f.Due, f.Failed, f.Decided, f.Absent,
			f.Cannot,
		} {
			line = append(line, fmt.Sprint(n))
		}
		t = append(t, append(line, safe(f.Reason, 80)))
	}
	a.table(t)
	for _, why := range slices.Sorted(maps.Keys(p.cannot)) {
		fmt.Fprintf(a.log, "%s cannot be rerun: %s\n", plural(p.cannot[why], "letter"), safe(why, 300))
	}
	return nil
}

// others tells which other scopes know a message of each source topic: they get what is sent.
func (a *app) others(ctx context.Context, r *redriving, p *prediction) error {
	for _, topic := range slices.Sorted(maps.Keys(p.samples)) {
		sample, scopes := p.samples[topic], map[string]bool{}
		unreadable, err := a.each(ctx, r.store, dedupstore.Filter{ID: sample.ID}, func(found *dedupstore.Record) bool {
			if key := found.Key; key != sample {
				scopes[scopeOf(key)] = true
			}
			return true
		})
		if err != nil {
			return err
		}
		a.leftOut(unreadable)
		names := cmp.Or(strings.Join(slices.Sorted(maps.Keys(scopes)), ", "), "none")
		fmt.Fprintf(a.log, "Other scopes that know message %s of %s, and get what is sent there: %s\n",
			safe(sample.ID, 100), safe(topic, 200), names)
	}
	return nil
}
