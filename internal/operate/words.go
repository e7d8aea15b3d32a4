package operate

import (
	"context"
	"fmt"
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

// KeysIn are the keys of a message in all scopes that a store remembers, as far as a filter lets them through.
func KeysIn(ctx context.Context, store dedupstore.Inspector, f dedupstore.Filter) map[dedupstore.Key]bool {
	keys := map[dedupstore.Key]bool{}
	keeper, ok := store.(dedupstore.ScopeKeeper)
	if !ok {
		return keys
	}
	uses, _ := keeper.Scopes(ctx, "", "") // without an answer all records have to be looked through
	f = dedupstore.Filter{Tenant: f.Tenant, Group: f.Group, Handler: f.Handler, ID: f.ID}
	for _, u := range uses {
		key := dedupstore.Key{Tenant: u.Tenant, Group: u.Group, Handler: u.Handler, ID: f.ID}
		if f.Matches(&dedupstore.Record{Key: key, State: dedupstore.Running}) && key.Validate() == nil {
			keys[key] = true
		}
	}
	return keys
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
