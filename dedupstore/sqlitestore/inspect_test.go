package sqlitestore

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

func look(t testing.TB, s dedupstore.Inspector, id string) dedupstore.Record {
	t.Helper()
	records, err := s.Look(t.Context(), []dedupstore.Key{request(id).Key})
	if err != nil || len(records) != 1 {
		t.Fatalf("Look returned %d records, %v", len(records), err)
	}
	return records[0]
}

func TestInspector_DuplicatesGoWithTheirRecord(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	note := func(id string) {
		t.Helper()
		d := dedupstore.Duplicates{Key: request(id).Key, Count: 2, Last: time.Now(), Retention: time.Hour}
		if err := s.NoteDuplicates(t.Context(), []dedupstore.Duplicates{d, d}); err != nil {
			t.Fatal(err)
		}
		if n := look(t, s, id).Duplicates; n != 4 {
			t.Errorf("%d duplicates of %q, want 4", n, id)
		}
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	note("1")
	mustExec(t, db, `UPDATE oncemill_dedup SET expires_at = 1`)
	claim(t, s, request("1"), dedupstore.AcquiredRun) // in the same row
	if n := look(t, s, "1").Duplicates; n != 0 {
		t.Errorf("a new record has %d duplicates of the one that was forgotten", n)
	}
	note("1")
	mustExec(t, db, `UPDATE oncemill_dedup SET expires_at = 1`)
	if n, err := s.Clean(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("removed %d records, %v", n, err)
	}
	if n := count(t, db, `SELECT count(*) FROM oncemill_dedup_duplicates`); n != 0 {
		t.Errorf("%d rows of duplicates are left without a record", n)
	}
}

func TestInspector_AHistoryThatIsNoneHarmsNothing(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	mustExec(t, db, `UPDATE oncemill_dedup SET history = 'nonsense', lease_until = 1`)
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	if seen := look(t, s, "1"); len(seen.History) != 1 || seen.Attempts != 2 {
		t.Errorf("the record looks like %+v, want one past attempt", seen)
	}
}
