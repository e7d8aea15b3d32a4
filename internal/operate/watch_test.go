package operate

import (
	"context"
	"fmt"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
)

// counting counts the records that are looked at. None has run.
type counting struct {
	dedupstore.Inspector
	looked map[dedupstore.Key]int
}

func (c counting) Look(_ context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	records := make([]dedupstore.Record, len(keys))
	for i, k := range keys {
		c.looked[k]++
		records[i] = dedupstore.Record{Key: k, State: dedupstore.Absent}
	}
	return records, nil
}

// While consumers are away, a redrive that has sent very many does not read all of them again and again.
func TestWatch_LooksAtSomeAfterTheOther(t *testing.T) {
	t.Parallel()
	store := counting{looked: map[dedupstore.Key]int{}}
	w := &watch{store: store}
	for i := range 3 * mostWatched {
		w.open = append(w.open, watched{key: dedupstore.Key{ID: fmt.Sprint(i)}})
	}
	for n := range 3 {
		if err := w.look(t.Context()); err != nil || len(store.looked) != (n+1)*mostWatched {
			t.Errorf("look %d: %d were looked at in all, %v", n+1, len(store.looked), err)
		}
	}
	if len(w.open) != 3*mostWatched {
		t.Errorf("%d are open", len(w.open))
	}
}
