package sqlitestore

import (
	"path/filepath"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
)

// The package doc says this about backups.
func TestStore_AVacuumedCopyOfADatabaseInUseIsWhole(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	charge := func(id string) {
		if _, err := inTx(t, s, request(id), settlesWith(succeeded)); err != nil {
			t.Fatal(err)
		}
	}
	charge("before")
	taken := request("held")
	claim(t, s, taken, dedupstore.AcquiredRun)
	path := filepath.Join(t.TempDir(), "copy.db")
	mustExec(t, db, `VACUUM INTO ?`, path)
	charge("after")

	restored := storeIn(t, openAt(t, path))
	if _, err := restored.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	claim(t, restored, request("before"), dedupstore.Done)
	claim(t, restored, request("held"), dedupstore.Busy)
	claim(t, restored, request("after"), dedupstore.AcquiredRun)
}
