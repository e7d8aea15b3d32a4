package sqliteoutbox_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

func TestRelay_OutlivesAMissingTable(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "shop.db"))
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := &relaytest.Broker{}
	stop := relaytest.Start(t, box, b, relaytest.Quick())
	boxIn(t, db)
	write(t, box, db, message("1"))
	relaytest.Eventually(t, "the row is published", func() bool { return b.Copies()["1"] == 1 })
	stop()
}

func TestRelay_WaitsForAnOpenTransactionAndStopsAllTheSame(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"))
	b := &relaytest.Broker{}

	tx := begin(t, db) // has the write lock
	stop := relaytest.Start(t, box, b, relaytest.Quick())
	<-time.After(100 * time.Millisecond)
	began := time.Now()
	stop()
	if d := time.Since(began); d > time.Minute {
		t.Errorf("stop took %v while somebody else had the write lock", d)
	}

	stop = relaytest.Start(t, box, b, relaytest.Quick())
	<-time.After(100 * time.Millisecond)
	tx.Rollback()
	relaytest.Eventually(t, "the row is published", func() bool { return stats(t, box).Pending == 0 })
	stop()
	if n := b.Copies()["1"]; n != 1 {
		t.Errorf("the row was published %d times, want once", n)
	}
}
