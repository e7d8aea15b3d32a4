package sqliteoutbox_test

import (
	"testing"
	"time"
)

func TestRelay_StopDoesNotWaitForOtherWriters(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	tx := begin(t, db) // holds the write lock
	defer tx.Rollback()
	stop := start(t, box, &broker{}, quick())
	<-time.After(100 * time.Millisecond)
	began := time.Now()
	stop()
	t.Log(time.Since(began))
}
