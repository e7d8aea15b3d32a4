package operate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

func failure(id, reason string, at time.Time) *dedupstore.Record {
	outcome := dedupstore.Outcome{Kind: dedupstore.Failed, Reason: reason}
	return &dedupstore.Record{Key: key(id), Outcome: outcome, Ended: at}
}

// Reasons without end are counted together.
func TestFailures_GroupsAreBounded(t *testing.T) {
	t.Parallel()
	f := NewFailures(time.Now())
	for i := range 3 * MostGroups {
		f.Add(failure(fmt.Sprint(i), strings.Repeat("x", i%300)+strings.Repeat("y", i/300), time.Now()))
	}
	groups := f.Sorted()
	if len(groups) != MostGroups+1 || f.N != 3*MostGroups || groups[0].Pattern != OtherReasons {
		t.Errorf("%d groups of %d failures", len(groups), f.N)
	}
}

// Whatever the order of a store: what failed last comes first, a record that is seen twice once, and each failure
// counts in the hour in which it ended.
func TestFailures_TheLatestAndTheLastDay(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	f := NewFailures(now)
	for i := range 3 * mostLatest {
		n := i * 7 % (3 * mostLatest)
		for range 2 {
			f.Add(failure(fmt.Sprint(n), "refused", now.Add(-time.Duration(n)*time.Hour)))
		}
	}
	for i, r := range f.Latest {
		if r.Key.ID != fmt.Sprint(i) {
			t.Errorf("number %d is %s", i, r.Key.ID)
		}
	}
	g := f.Sorted()[0]
	if len(f.Latest) != mostLatest || g.Day() != 48 || g.Hour() != 2 || g.N != 60 {
		t.Errorf("%d of the latest; of %d %d in the last day, %d in the last hour", len(f.Latest), g.N, g.Day(),
			g.Hour())
	}
}
