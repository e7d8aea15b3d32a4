package operate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// StateOf is the state in a word: that of a finished record is its outcome.
func StateOf(r *dedupstore.Record) string {
	if r.State == dedupstore.Finished {
		return string(r.Outcome.Kind)
	}
	return string(r.State)
}

// LookUp looks for a message in all scopes that the store remembers, and in some more, as far as a filter lets them
// through. It returns how many scopes those are.
func LookUp(
	ctx context.Context, store dedupstore.Inspector, f dedupstore.Filter, more ...dedupstore.Scope,
) (found []dedupstore.Record, scopes int, err error) {
	if keeper, ok := store.(dedupstore.ScopeKeeper); ok {
		uses, _ := keeper.Scopes(ctx, "", "") // without an answer all records have to be looked through
		for _, u := range uses {
			more = append(more, u.Scope)
		}
	}
	of := dedupstore.Filter{Tenant: f.Tenant, Group: f.Group, Handler: f.Handler}
	keys := map[dedupstore.Key]bool{}
	for _, scope := range more {
		key := dedupstore.Key{Tenant: scope.Tenant, Group: scope.Group, Handler: scope.Handler, ID: f.ID}
		if of.Matches(&dedupstore.Record{Key: key, State: dedupstore.Running}) && key.Validate() == nil {
			keys[key] = true
		}
	}
	for some := range slices.Chunk(slices.Collect(maps.Keys(keys)), 1000) {
		records, err := store.Look(ctx, some)
		if err != nil {
			return nil, 0, err
		}
		for i := range records {
			if f.Matches(&records[i]) {
				found = append(found, records[i])
			}
		}
	}
	slices.SortFunc(found, LastFirst)
	return found, len(keys), nil
}

// LastFirst sorts by the last claim: stores keep no order, and a list should look the same when it is made again.
func LastFirst(a, b dedupstore.Record) int {
	return cmp.Or(b.Claimed.Compare(a.Claimed), strings.Compare(a.Key.String(), b.Key.String()))
}

// When reads a time, or how long ago it was. Empty: zero.
func When(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 { // before the future, there is everything
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("is %q, want a duration such as 2h, or a time such as 2026-01-02T15:04:05Z", text)
	}
	return at, nil
}
