// Package census adds up what a store's Inspector counts, by scope.
package census

import (
	"maps"
	"slices"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Scope is how many records a scope has in each state.
type Scope struct {
	Tenant     string `json:"tenant"`
	Group      string `json:"group"`
	Handler    string `json:"handler"`
	N          int    `json:"-"` // all records
	Running    int    `json:"running"`
	Retryable  int    `json:"retryable"`
	Publishing int    `json:"publishing"`
	Succeeded  int    `json:"succeeded"`
	Failed     int    `json:"failed"`
	Unknown    int    `json:"unknown"`
	Duplicates int    `json:"duplicates"`
}

// Add counts records of any scope.
func (s *Scope) Add(t dedupstore.Tally) {
	s.N += t.Records
	s.Duplicates += t.Duplicates
	switch {
	case t.State == dedupstore.Running:
		s.Running += t.Records
	case t.State == dedupstore.Retryable:
		s.Retryable += t.Records
	case t.State == dedupstore.Publishing:
		s.Publishing += t.Records
	case t.Kind == dedupstore.Succeeded:
		s.Succeeded += t.Records
	case t.Kind == dedupstore.Failed:
		s.Failed += t.Records
	default:
		s.Unknown += t.Records
	}
}

// Scopes have tenant, group and handler as their key.
type Scopes map[[3]string]*Scope

// Add counts records in their scope.
func (all Scopes) Add(t dedupstore.Tally) {
	key := [3]string{t.Tenant, t.Group, t.Handler}
	if all[key] == nil {
		all[key] = &Scope{Tenant: t.Tenant, Group: t.Group, Handler: t.Handler}
	}
	all[key].Add(t)
}

// Sorted returns the scopes by tenant, group and handler.
func (all Scopes) Sorted() (sorted []Scope) {
	byName := func(a, b [3]string) int { return slices.Compare(a[:], b[:]) }
	for _, key := range slices.SortedFunc(maps.Keys(all), byName) {
		sorted = append(sorted, *all[key])
	}
	return sorted
}
