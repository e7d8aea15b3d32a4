package sqlitestore

import (
	"path/filepath"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
)

func TestPlan_SaysWhatMigrateWouldDo(t *testing.T) {
	t.Parallel()
	db := openAt(t, filepath.Join(t.TempDir(), "records.db"))
	s, err := New(db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.Plan(t.Context())
	if err != nil || plan.Found != 0 || plan.Wanted != schemaVersion {
		t.Fatalf("%+v, %v, want that there is no table", plan, err)
	}
	mustExec(t, db, plan.SQL)
	want := dedupstore.Migration{Found: schemaVersion, Wanted: schemaVersion}
	if plan, err := s.Plan(t.Context()); err != nil || plan != want {
		t.Errorf("%+v, %v, want nothing to do", plan, err)
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun)
}
