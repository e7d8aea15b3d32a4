package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
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
	path := newRecords(t)
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
		{"log none.jsonl --limit -1", exitUsage, "--limit is -1, want at least 1"},
		{"explain order-17 --group nobody --handler nothing --store sqlite:" + path, exitNone, ""},
		{"stats --group nobody --store sqlite:" + path, 0, ""},
		{"ls --group nobody --check --store sqlite:" + path, 0, ""},
		{"forget order-17 --group nobody --yes --store sqlite:" + path, exitError, "has no record in the scopes"},
		{"forget order-17 --reason typo --yes --store sqlite:" + path, exitError, "with what --reason"},
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

// A server that takes connections and says nothing is given up, by name.
func TestCommand_GivesUpOnSilentServers(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
	at := l.Addr().String()
	for _, args := range []string{
		"ls --store postgres://app:secret@" + at + "/shop", "ls --store mysql://app:secret@" + at + "/shop",
		"outbox ls --outbox postgres://app:secret@" + at + "/shop",
		"outbox ls --outbox mysql://app:secret@" + at + "/shop", "ls --store redis://:secret@" + at,
		"ls --store rediss://:secret@" + at, "ls --store nats+kv://" + at + "/records",
		"dlq ls dead --kafka " + at, "dlq ls dead --nats nats://" + at,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			var out, log bytes.Buffer
			began := time.Now()
			status := run(t.Context(), strings.Fields(args+" --timeout 1s"), strings.NewReader(""), &out, &log)
			if took := time.Since(began); status != exitError || took > 20*time.Second ||
				strings.Contains(log.String(), "secret") {
				t.Errorf("status %d after %v: %s", status, took, log.String())
			}
			named := strings.Contains(args, "store") && !strings.Contains(args, "nats")
			if named && !strings.Contains(log.String(), at) {
				t.Errorf("it does not say which server: %s", log.String())
			}
		})
	}
}

// A change that is interrupted says how far it came, and calls no record failed.
func TestCommand_InterruptedChangeSaysWhatItDid(t *testing.T) {
	t.Parallel()
	path := newRecords(t)
	store, closeStore, err := open("sqlite:" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore()
	claims := store.(dedupstore.Store)
	for i := range 200 {
		r := dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: fmt.Sprint(i)},
			Owner: rand.Text(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1,
		}
		a := claims.Claim(t.Context(), []dedupstore.Request{r})[0]
		finish := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Retention: time.Hour}
		errs := claims.Settle(t.Context(), []dedupstore.Settling{{Claim: a.Answer.Claim, Settlement: finish}})
		if err := errors.Join(a.Err, errs[0]); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log := &cutAfter{lines: 7, cut: stop}
	args := []string{"rerun", "--kind", "failed", "--yes", "--rate", "1000", "--store", "sqlite:" + path}
	if status := run(ctx, args, strings.NewReader(""), io.Discard, log); status != exitError {
		t.Errorf("status %d", status)
	}
	text := log.String()
	if n := strings.Count(text, `"changed"`); n >= 200 ||
		!strings.Contains(text, fmt.Sprintf("oncemill: interrupted: %d of 200 records changed", n)) ||
		strings.Contains(text, `"failed"`) {
		t.Errorf("%d were changed, and it says %s", n, text[max(0, len(text)-600):])
	}
}

// A cutAfter is a log that ends a command after some lines.
type cutAfter struct {
	strings.Builder
	lines int
	cut   func()
}

func (c *cutAfter) Write(b []byte) (int, error) {
	if c.lines--; c.lines == 0 {
		c.cut()
	}
	return c.Builder.Write(b)
}

// Failures are counted by reason, those of the last day apart, and consumers by what waits.
func TestStats_FailuresByReason(t *testing.T) {
	t.Parallel()
	path := newRecords(t)
	store, done, err := open("sqlite:" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	for i, reason := range []string{"card 17 refused", "card 4711 refused", "no such order"} {
		a, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: fmt.Sprint(i)},
			Owner: rand.Text(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1,
		})
		if err == nil {
			err = dedupstore.SettleOne(t.Context(), store, a.Claim, dedupstore.Finish{
				Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: reason}, Retention: time.Hour,
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var out, log bytes.Buffer
	status := run(t.Context(), []string{"stats", "--reasons", "--store", "sqlite:" + path}, nil, &out, &log)
	rows := strings.Split(out.String(), "\n")
	if status != 0 || len(rows) != 4 || strings.Join(strings.Fields(rows[1])[:4], " ") != "2 2 2 0" ||
		!strings.HasSuffix(rows[1], "billing / charge  card # refused") ||
		!strings.HasSuffix(rows[2], "no such order") {
		t.Errorf("status %d: %s%s", status, &out, &log)
	}
}

// unlisted is a store whose records cannot be listed.
type unlisted struct{ *dedupstore.Memory }

func (unlisted) List(context.Context, dedupstore.Filter, string) (dedupstore.Page, error) {
	return dedupstore.Page{}, errors.New("looked through all records")
}

// An ID without a scope is looked up in the scopes that the store remembers, and nowhere else if one has it.
func TestExplain_LooksInKnownScopes(t *testing.T) {
	t.Parallel()
	memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	store := unlisted{memory}
	for _, group := range []string{"billing", "shipping"} {
		scope := dedupstore.Scope{Tenant: "acme", Group: group, Handler: "h"}
		a, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "acme", Group: group, Handler: "h", ID: "of " + group},
			Owner: rand.Text(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1,
		})
		use := dedupstore.ScopeUse{Scope: scope, First: time.Now(), Last: time.Now()}
		noted := store.NoteScopes(t.Context(), []dedupstore.ScopeUse{use})
		if err := errors.Join(err, noted); err != nil || a.Status != dedupstore.AcquiredRun {
			t.Fatal(a.Status, err)
		}
	}
	var out, log strings.Builder
	a := &app{out: &out, log: &log, settings: settings{output: "table"}}
	look := func(f dedupstore.Filter) error {
		_, _, err := a.explainOne(t.Context(), store, f, explaining{}, true, nil)
		return err
	}
	if err := look(dedupstore.Filter{ID: "of shipping"}); err != nil ||
		!strings.HasPrefix(out.String(), "of shipping in acme:shipping:h") ||
		!strings.Contains(log.String(), "2 scopes") {
		t.Errorf("%v: %s%s", err, &out, &log)
	}
	if err := look(dedupstore.Filter{ID: "of nobody"}); err == nil {
		t.Error("an ID that no scope knows is not looked for in all records")
	}
	if err := look(dedupstore.Filter{ID: "of shipping", Group: "billing"}); err == nil {
		t.Error("a filter of the scope is not heeded")
	}
}

// A chain of messages needs one connection to the outbox, not one for each message.
func TestExplain_OpensTheOutboxOnce(t *testing.T) {
	t.Parallel()
	path := "sqlite:" + newRecords(t)
	a := &app{out: io.Discard, log: io.Discard, settings: settings{servers: servers{Store: path, Outbox: path}}}
	defer a.close()
	store, err := a.reachStore(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	box, err := a.reachBox(t.Context(), false)
	if err == nil {
		err = box.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	claims := store.(dedupstore.Store)
	for i := range 5 {
		key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: fmt.Sprint(i)}
		c, err := dedupstore.ClaimOne(t.Context(), claims, dedupstore.Request{
			Key: key, Owner: rand.Text(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		err = dedupstore.SettleOne(t.Context(), claims, c.Claim, dedupstore.Finish{
			Outcome: dedupstore.Outcome{
				Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{{ID: fmt.Sprint(i + 1), Topic: "next"}},
			},
			Retention: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	opened := func(follow bool) int {
		before := len(a.closers)
		err := a.explains(t.Context(), dedupstore.Filter{Group: "billing", Handler: "charge", ID: "0"},
			explaining{follow: follow})
		if err != nil {
			t.Fatal(err)
		}
		return len(a.closers) - before
	}
	if one, chain := opened(false), opened(true); one != chain {
		t.Errorf("a message opens %d connections, a chain %d", one, chain)
	}
}
