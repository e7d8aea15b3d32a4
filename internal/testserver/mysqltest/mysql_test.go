package mysqltest_test

import (
	"testing"

	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

func TestMySQL_KeepsCommitsThroughKillAndRestart(t *testing.T) {
	t.Parallel()
	s := mysqltest.Start(t, "--innodb-flush-log-at-trx-commit=1")
	d := s.NewDatabase(t)
	db := d.Open(t)
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE kept AS SELECT 1 AS n"); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := db.PingContext(t.Context()); err == nil {
		t.Error("the killed server answers")
	}
	s.Restart()
	var n int
	if err := d.Open(t).QueryRowContext(t.Context(), "SELECT n FROM kept").Scan(&n); err != nil || n != 1 {
		t.Errorf("after the restart: %d, %v", n, err)
	}
}

func TestSharedMySQL_GivesEachTestADatabase(t *testing.T) {
	t.Parallel()
	s := mysqltest.Shared(t)
	for range 2 {
		d := s.NewDatabase(t)
		if _, err := d.Open(t).ExecContext(t.Context(), "CREATE TABLE mine (n INT)"); err != nil {
			t.Errorf("%s: %v", d.URL(), err)
		}
	}
}
