package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// Processes of older versions call these functions, so they stay until somebody asks.
func TestMigrate_DropsOldFunctionsOnRequest(t *testing.T) {
	t.Parallel()
	at := postgrestest.Shared(t).NewDatabase(t).DSN()
	const old = "oncemill_dedup_claim_8()"
	migrate := func(drops bool, args ...string) {
		t.Helper()
		var out, log bytes.Buffer
		args = append([]string{"migrate", "--store", at}, args...)
		status := run(t.Context(), args, strings.NewReader(""), &out, &log)
		if status != 0 || strings.Contains(out.String(), old) != drops {
			t.Errorf("migrate %q ended with %d and said %q, %q; it should drop: %t", args, status, &out, &log, drops)
		}
	}
	migrate(false)
	db, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	_, err = db.Exec(t.Context(), `CREATE FUNCTION `+old+` RETURNS integer LANGUAGE sql AS 'SELECT 1'`)
	if err != nil {
		t.Fatal(err)
	}
	migrate(false)
	migrate(true, "--drop-old")
	migrate(false, "--drop-old", "-o", "json")
}
