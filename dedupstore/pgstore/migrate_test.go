package pgstore

import (
	"slices"
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

// Processes of older versions call their functions until they have ended.
func TestDropOld_DropsTheFunctionsOfOlderVersionsThatMigrateLeaves(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for _, name := range []string{
		"oncemill_dedup_claim_8", "oncemill_dedup_clean_up_7", "oncemill_dedup_2_claim_8", "oncemill_dedup_claim", "own",
	} {
		mustExec(t, pool, `CREATE FUNCTION `+name+`(a text) RETURNS text LANGUAGE sql AS 'SELECT a'`)
	}
	functions := func() (names []string) {
		t.Helper()
		rows, _ := pool.Query(t.Context(),
			`SELECT proname::text FROM pg_proc WHERE pronamespace = current_schema()::regnamespace ORDER BY 1`)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	if err := s.Migrate(t.Context()); err != nil || len(functions()) != 5 {
		t.Errorf("Migrate returned %v and left %q, want all", err, functions())
	}
	want := []string{"oncemill_dedup_claim_8(text)", "oncemill_dedup_clean_up_7(text)"}
	if dropped, err := s.DropOld(t.Context()); err != nil || !slices.Equal(dropped, want) {
		t.Errorf("DropOld dropped %q, %v, want %q", dropped, err, want)
	}
	if left := functions(); !slices.Equal(left, []string{"oncemill_dedup_2_claim_8", "oncemill_dedup_claim", "own"}) {
		t.Errorf("%q are left", left)
	}
	if dropped, err := s.DropOld(t.Context()); err != nil || len(dropped) != 0 {
		t.Errorf("then it dropped %q, %v", dropped, err)
	}
}
