package operate

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// MostGroups is how many reasons are told apart. What is beyond is one group.
const MostGroups = 200

// mostLatest is how many failures are kept that came last.
const mostLatest = 10

// A Group is the failures whose reasons have one pattern.
type Group struct {
	Pattern string    `json:"reason"` // with # for what differs
	N       int       `json:"failures"`
	Unknown int       `json:"unknown"`
	Hours   [24]int   `json:"hours"` // of the last day, the oldest first, by when they ended
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Scopes  []string  `json:"scopes"` // some
}

// Failed counts those that did not end as unknown.
func (g Group) Failed() int { return g.N - g.Unknown }

// Day counts those of the last day.
func (g Group) Day() (n int) {
	for _, some := range g.Hours {
		n += some
	}
	return n
}

// Hour counts those of the last hour.
func (g Group) Hour() int { return g.Hours[len(g.Hours)-1] }

// Failures are failed and unknown records by reason.
type Failures struct {
	Began      time.Time // what the last day ends with
	N, Unknown int
	Latest     []dedupstore.Record // that ended last, the last one first

	groups map[string]*Group
}

// Failed counts those that did not end as unknown.
func (f Failures) Failed() int { return f.N - f.Unknown }

// NewFailures has none yet.
func NewFailures(now time.Time) *Failures { return &Failures{Began: now, groups: map[string]*Group{}} }

// Add adds a failure.
func (f *Failures) Add(r *dedupstore.Record) {
	pattern, at := Pattern(r.Outcome.Reason), ended(r)
	g := f.groups[pattern]
	if g == nil && len(f.groups) >= MostGroups {
		pattern = OtherReasons
		g = f.groups[pattern]
	}
	if g == nil {
		g = &Group{Pattern: pattern, First: at}
		f.groups[pattern] = g
	}
	g.N++
	f.N++
	if r.Outcome.Kind == dedupstore.Unknown {
		g.Unknown++
		f.Unknown++
	}
	if at.Before(g.First) {
		g.First = at
	}
	if at.After(g.Last) {
		g.Last = at
	}
	if hours := int(f.Began.Sub(at) / time.Hour); hours < len(g.Hours) {
		g.Hours[len(g.Hours)-1-max(hours, 0)]++
	}
	scope := r.Key.Group + " / " + r.Key.Handler
	if len(g.Scopes) < 3 && !slices.Contains(g.Scopes, scope) {
		g.Scopes = append(g.Scopes, scope)
	}
	f.late(r)
}

// late keeps a failure if it is one of the last.
func (f *Failures) late(r *dedupstore.Record) {
	later := func(a, b dedupstore.Record) int {
		return cmp.Or(ended(&b).Compare(ended(&a)), strings.Compare(a.Key.String(), b.Key.String()))
	}
	at, there := slices.BinarySearchFunc(f.Latest, *r, later)
	if !there && at < mostLatest {
		f.Latest = slices.Insert(slices.Clone(f.Latest[:min(len(f.Latest), mostLatest-1)]), at, *r)
	}
}

// Sorted are the groups, the largest first.
func (f *Failures) Sorted() (all []Group) {
	for _, g := range slices.Collect(maps.Values(f.groups)) {
		of := *g
		of.Scopes = slices.Clone(g.Scopes)
		all = append(all, of)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.N, a.N), b.Last.Compare(a.Last), strings.Compare(a.Pattern, b.Pattern))
	})
	return all
}

// ended is when a run ended, or when it was claimed if that is not known.
func ended(r *dedupstore.Record) time.Time {
	if r.Ended.IsZero() {
		return r.Claimed
	}
	return r.Ended
}
