package postgrestest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

func TestPostgres_KeepsCommitsThroughKillAndRestart(t *testing.T) {
	t.Parallel()
	s := postgrestest.Start(t, "fsync=off")
	pool := s.Pool(t)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE kept AS SELECT 1 AS n"); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if conn, err := pgx.Connect(t.Context(), s.DSN()); err == nil {
		conn.Close(t.Context())
		t.Error("the killed server answers")
	}
	s.Restart()
	var n int
	if err := s.Pool(t).QueryRow(t.Context(), "SELECT n FROM kept").Scan(&n); err != nil || n != 1 {
		t.Errorf("after the restart: %d, %v", n, err)
	}
}

func TestSharedPostgres_GivesEachTestADatabase(t *testing.T) {
	t.Parallel()
	s := postgrestest.Shared(t)
	for range 2 {
		db := s.NewDatabase(t)
		pool := db.Pool(t)
		if _, err := pool.Exec(context.Background(), "CREATE TABLE mine ()"); err != nil {
			t.Errorf("%s: %v", db.DSN(), err)
		}
		var level string
		if err := pool.QueryRow(t.Context(), "SHOW wal_level").Scan(&level); err != nil || level != "logical" {
			t.Errorf("wal_level %q, %v", level, err)
		}
	}
}
