package operate

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// scopeless is a store that remembers no scopes, and so no steps.
type scopeless struct{ dedupstore.Inspector }

// halves are messages, and then a step of each.
func halves(n int) []dedupstore.Record {
	all := make([]dedupstore.Record, 2*n)
	for i := range n {
		all[i].Key = key(fmt.Sprint("order-", i))
		all[n+i].Key = all[i].Key
		all[n+i].Key.Handler += "/step=card"
	}
	return all
}

// A command that is about very many records asks soon. It takes 0.1 s of one core, and minutes if each record is
// compared with each other.
func TestWithSteps_OfVeryManyRecords(t *testing.T) {
	t.Parallel()
	all := halves(50_000)
	began := time.Now()
	with, err := WithSteps(t.Context(), scopeless{}, all)
	if took := time.Since(began); err != nil || len(with) != 50_000 || took > 10*time.Second {
		t.Errorf("%d messages after %v, %v", len(with), took, err)
	}
}

// A step stays if its message does.
func TestChange_KeepsTheStepsOfWhatIsRefused(t *testing.T) {
	t.Parallel()
	var items []Item
	for _, r := range halves(2) {
		items = append(items, Item{Record: r, Change: dedupstore.Forget{}})
	}
	do := func(_ context.Context, item *Item) error {
		if item.Record.Key == key("order-1") {
			return &dedupstore.RefusedError{Found: item.Record}
		}
		return nil
	}
	var told []bool
	err := Change(t.Context(), items, 1_000_000, time.Minute, do, func(item *Item, err error) {
		told = append(told, err == nil)
		if item == &items[3] && !errors.Is(err, ErrNeeded) {
			t.Errorf("the step of a message that is refused: %v", err)
		}
	})
	if err != nil || fmt.Sprint(told) != "[true false true false]" {
		t.Errorf("done are %v, %v", told, err)
	}
}
