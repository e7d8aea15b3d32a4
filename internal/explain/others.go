package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// mostOthers bounds how many handlers of a group are looked at.
const mostOthers = 20

// Others looks under the names of the group's other handlers for records of the same message, at most 20 of them, those
// used last, and for those of its steps. There are none if the store remembers no names, or cannot say.
func Others(ctx context.Context, store dedupstore.Inspector, key dedupstore.Key) []dedupstore.Record {
	keeper, ok := store.(dedupstore.ScopeKeeper)
	if !ok {
		return nil
	}
	uses, err := keeper.Scopes(ctx, key.Tenant, key.Group)
	if err != nil { // the message's own record is told all the same
		return nil
	}
	slices.SortFunc(uses, func(a, b dedupstore.ScopeUse) int { return b.Last.Compare(a.Last) })
	var keys []dedupstore.Key
	handlers := 0
	for _, u := range uses {
		other := key
		other.Handler = u.Handler
		if _, is := stepOf(key, other); is {
			keys = append(keys, other)
		} else if u.Handler != key.Handler && !ids.IsOfStep(u.Handler) && handlers < mostOthers {
			keys = append(keys, other)
			handlers++
		}
	}
	if len(keys) == 0 {
		return nil
	}
	records, err := store.Look(ctx, keys)
	if err != nil {
		return nil
	}
	return records
}

// elsewhere says under which other names the group has handled the message, too.
func (t teller) elsewhere(others []dedupstore.Record) string {
	var names []string
	for i := range others {
		k, o := t.Key, &others[i]
		k.Handler = o.Key.Handler
		if o.Key == k && o.Key != t.Key && happened(o) && !strings.HasPrefix(o.Key.Handler, "~") &&
			!ids.IsOfStep(k.Handler) && !ids.IsOfStep(t.Key.Handler) {
			names = append(names, o.Key.Handler)
		}
	}
	if len(names) == 0 || !happened(t.Record) {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("The same group handled it as %s, too: if one is a new name of the other, its effect happened "+
		"twice.", strings.Join(names, ", "))
}

func happened(r *dedupstore.Record) bool {
	return r.State != dedupstore.Absent && r.Outcome.Kind == dedupstore.Succeeded
}
