package sqlitestore

import (
	"strings"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
)

func TestNoteScopes_WithoutTheirTableClaimsGoOn(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	mustExec(t, db, `DROP TABLE oncemill_dedup_scopes`)
	if err := claimtest.NoteScope(t.Context(), s); err == nil || !strings.Contains(err.Error(), "call Migrate") {
		t.Errorf("without the table: %v", err)
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := claimtest.NoteScope(t.Context(), s); err != nil {
		t.Error(err)
	}
}
