package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// What is wrong is told in one line, without a password, and by the exit status.
func TestCommand_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	redisAt := redistest.Start(t)
	if err := redisAt.Client().ACLSetUser(t.Context(), "looker", "on", ">secret", "~*", "+@all", "-scan", "-get",
		"-getrange", "-eval", "-evalsha").Err(); err != nil {
		t.Fatal(err)
	}
	database := postgrestest.Shared(t).NewDatabase(t)
	role := "looker_" + strings.ToLower(rand.Text())
	pool := database.Pool(t)
	if _, err := pool.Exec(t.Context(), fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret'`, role)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pool.Exec(t.Context(), `DROP ROLE `+role) })
	for _, address := range []string{database.DSN(), database.DSN() + "&table=shop"} {
		if err := migrate(address); err != nil {
			t.Fatal(err)
		}
	}
	at, err := url.Parse(database.DSN())
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword(role, "secret")
	path := filepath.Join(t.TempDir(), "records.db")
	db, err := sqliteoutbox.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	if err := migrate("sqlite:" + path); err != nil {
		t.Fatal(err)
	}
	redisURL := "redis://looker:secret@" + redisAt.Addr
	for _, c := range []struct {
		args   string
		status int
		want   string // on stderr; empty: nothing is there
	}{
		{"ls --store " + redisURL, exitError, "NOPERM"},
		{"stats --store " + redisURL, exitError, "NOPERM"},
		{"explain order-17 --store " + redisURL, exitError, "NOPERM"},
		{"explain order-17 --group billing --handler charge --store " + redisURL, exitError, "NOPERM"},
		{"ls --store redis://looker:wrong@" + redisAt.Addr, exitError, "WRONGPASS"},
		{"ls --store redis://" + redisAt.Addr + "/99", exitError, "DB index is out of range"},
		{"ls --store " + at.String(), exitError, "permission denied"},
		{"stats --store " + at.String(), exitError, "permission denied"},
		{"explain order-17 --store " + at.String(), exitError, "permission denied"},
		{"outbox ls --outbox " + at.String(), exitError, "is missing"},
		{"ls --store " + database.DSN() + "&table=nothing", exitError, "nothing"},
		{"ls --store http://127.0.0.1", exitUsage, "store address begins with"},
		{"explain", exitUsage, "accepts 1 arg"},
		{"nonsense", exitUsage, "unknown command"},
		{"explain order-17 --group nobody --handler nothing --store sqlite:" + path, 0, ""},
		{"stats --group nobody --store sqlite:" + path, 0, ""},
		{"ls --group nobody --check --store sqlite:" + path, 0, ""},
		{"forget order-17 --group nobody --yes --store sqlite:" + path, exitError, "has no record in the scopes"},
	} {
		var out, log bytes.Buffer
		status := run(t.Context(), strings.Fields(c.args), strings.NewReader(""), &out, &log)
		said := log.String()
		if status != c.status || !strings.Contains(said, c.want) || strings.Contains(said, "secret") ||
			c.want != "" && (strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "oncemill: ")) ||
			c.want == "" && said != "" {
			t.Errorf("%s: status %d, want %d, and on stderr %q, want one line with %q", c.args, status, c.status, said,
				c.want)
		}
	}
}
