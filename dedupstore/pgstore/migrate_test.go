package pgstore

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
)

func TestPlan_SaysWhatMigrateWouldDo(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := unmigrated(t, pool, Config{})
	plan, err := s.Plan(t.Context())
	if err != nil || plan.Found != 0 || plan.Wanted != version {
		t.Fatalf("%+v, %v, want that there is no table", plan, err)
	}
	mustExec(t, pool, plan.SQL, pgx.QueryExecModeSimpleProtocol)
	if plan, err := s.Plan(t.Context()); err != nil || plan != (dedupstore.Migration{Found: version, Wanted: version}) {
		t.Errorf("%+v, %v, want nothing to do", plan, err)
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun)
}
