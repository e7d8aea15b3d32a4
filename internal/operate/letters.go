package operate

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/headers"
	"github.com/oncemill/oncemill/producer"
)

// Letters says which dead letters are meant. Each field narrows it; the zero value means all.
type Letters struct {
	Reason    string    `json:",omitempty"` // a part of it, or of its pattern
	Pattern   string    `json:",omitempty"` // of the reason: see Pattern
	Key       string    `json:",omitempty"` // the order key
	Handler   string    `json:",omitempty"` // its name, or tenant/group/handler
	IDs       []string  `json:",omitempty"` // of the letters or their messages
	Records   []string  `json:",omitempty"` // the keys of their messages' records
	Positions []string  `json:",omitempty"` // of the letters
	Outcomes  []string  `json:",omitempty"`
	From      time.Time `json:",omitzero"`
	To        time.Time `json:",omitzero"`
	Group     string    `json:",omitempty"`
	Tenant    string    `json:",omitempty"` // of the group

	// Archived are failures that are not meant, by the keys of their records, each with its fence.
	Archived map[string]uint64 `json:",omitempty"`
}

// Matches reports whether a letter is meant.
func (f *Letters) Matches(l *deadletters.Letter) bool {
	full, reason := l.Get(producer.HeaderHandler), l.Get(producer.HeaderReason)
	tenant, group, handler, _ := headers.SplitScope(full)
	return (strings.Contains(reason, f.Reason) || strings.Contains(Pattern(reason), f.Reason)) &&
		(f.Pattern == "" || Pattern(reason) == f.Pattern) &&
		(f.Key == "" || cmp.Or(l.Get(producer.HeaderKey), l.Key) == f.Key) &&
		(f.Handler == "" || full == f.Handler || handler == f.Handler) &&
		(len(f.IDs) == 0 || slices.ContainsFunc(f.IDs, l.HasID)) &&
		(len(f.Positions) == 0 || slices.Contains(f.Positions, l.Position)) &&
		(f.Group == "" || tenant == f.Tenant && group == f.Group) &&
		(len(f.Outcomes) == 0 || slices.Contains(f.Outcomes, l.Get(producer.HeaderOutcome))) &&
		!l.Time.Before(f.From) && (f.To.IsZero() || l.Time.Before(f.To)) && f.ofRecord(l)
}

// ofRecord reports whether the record of a letter is meant. One that was archived and failed again since is.
func (f *Letters) ofRecord(l *deadletters.Letter) bool {
	if len(f.Records) == 0 && len(f.Archived) == 0 {
		return true
	}
	key, err := keyOf(l)
	fence, archived := f.Archived[key.String()]
	return (len(f.Records) == 0 || err == nil && slices.Contains(f.Records, key.String())) &&
		(err != nil || !archived || fenceOf(l) > fence)
}

// A Fate is what becomes of a dead letter's message if its rerun is published.
type Fate string

// The fates.
const (
	FateRuns      Fate = "will run"
	FateUnknown   Fate = "will run, and the effect may happen twice: the outcome is unknown"
	FateSucceeded Fate = "succeeded since"
	FateRunning   Fate = "running now"
	FateDue       Fate = "to run again already"
	FateFailed    Fate = "failed again since: a later dead letter stands for it"
	FateDecided   Fate = "not to be tried again: an operator decided that"
	FateAbsent    Fate = "no record: it would run as a first run"
	FateCannot    Fate = "cannot be rerun"
)

// Runs reports whether the message would run as one that failed.
func (f Fate) Runs() bool { return f == FateRuns || f == FateUnknown }

// settled reports whether nobody needs to send the letter: its message runs, has run since, or is not to run.
func (f Fate) settled() bool {
	return slices.Contains([]Fate{FateSucceeded, FateRunning, FateDue, FateFailed, FateDecided}, f)
}

// FateOf says what becomes of a message that failed under a fence.
func FateOf(r *dedupstore.Record, fence uint64) Fate {
	switch r.State {
	case dedupstore.Absent:
		return FateAbsent
	case dedupstore.Running:
		return FateRunning
	case dedupstore.Retryable:
		if r.Fence == fence { // oncemill rerun said so, and delivers nothing
			return FateRuns
		}
		return FateDue
	}
	switch {
	case r.Outcome.Kind == dedupstore.Succeeded:
		return FateSucceeded
	case r.Decided != fence:
		return FateFailed
	case r.Outcome.Kind == dedupstore.Unknown:
		return FateUnknown
	case r.ByOperator:
		return FateDecided
	}
	return FateRuns
}

// A Case is a letter, and what would become of its rerun.
type Case struct {
	deadletters.Letter
	Key  dedupstore.Key // of the message's record
	Fate Fate
	Err  error // why it cannot be rerun

	again producer.Message
	fence uint64
}

var (
	// errScope says that the handler of a dead letter cannot be told.
	errScope = errors.New("header " + producer.HeaderHandler + " is not tenant/group/handler, with / in names as %2F")

	// errOwn keeps the operator's rights, which the writer of a letter may not have, from being used.
	errOwn = errors.New("its topic begins with $: such subjects are the NATS server's own")
)

// keyOf is the key of the record of a letter's message.
func keyOf(l *deadletters.Letter) (key dedupstore.Key, err error) {
	var ok bool
	key.Tenant, key.Group, key.Handler, ok = headers.SplitScope(l.Get(producer.HeaderHandler))
	if !ok {
		return key, errScope
	}
	key.ID = l.Original()
	return key, key.Validate()
}

// fenceOf is the fence under which a letter's message failed; 0: the letter does not say.
func fenceOf(l *deadletters.Letter) uint64 {
	fence, _ := strconv.ParseUint(l.Get(producer.HeaderFence), 10, 64)
	return fence
}

// Cases looks at the records of letters.
func Cases(ctx context.Context, store dedupstore.Inspector, all []deadletters.Letter) ([]Case, error) {
	cases := make([]Case, len(all))
	var keys []dedupstore.Key
	var of []*Case
	for i, l := range all {
		c := &cases[i]
		c.Letter = l
		if c.again, c.Err = consumer.Rerun(l.Message); c.Err == nil {
			c.fence = fenceOf(&l)
			c.Key, c.Err = keyOf(&l)
		}
		if strings.HasPrefix(c.again.Topic, "$") {
			c.Err = errOwn
		}
		if c.Err != nil {
			c.Fate = FateCannot
			continue
		}
		keys, of = append(keys, c.Key), append(of, c)
	}
	if len(keys) == 0 {
		return cases, nil
	}
	records, err := store.Look(ctx, keys)
	for i := range records {
		of[i].Fate = FateOf(&records[i], of[i].fence)
	}
	return cases, err
}
