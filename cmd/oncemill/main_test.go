package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/dynamostore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// proof is set where time does not matter.
var proof = os.Getenv("ONCEMILL_PROOF") == "1"

func TestMain(m *testing.M) {
	testscript.Main(strangers{m}, map[string]func(){"oncemill": main})
}

// strangers are tests that your own settings do not reach.
type strangers struct{ tests *testing.M }

func (s strangers) Run() int {
	dir, err := os.MkdirTemp("", "oncemill-config-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	os.Setenv("XDG_CONFIG_HOME", dir)
	for _, name := range credentials {
		os.Setenv(name, "test")
	}
	for _, name := range variables {
		os.Unsetenv("ONCEMILL_" + name)
	}
	return s.tests.Run()
}

// credentials are those of AWS. dynalite takes any.
var credentials = []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}

// variables are those of the command.
var variables = []string{"STORE", "OUTBOX", "NATS", "KAFKA", "TRACE", "CONTEXT", "CONFIG"}

// TestCommand_WithoutServers has what needs none.
func TestCommand_WithoutServers(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{Dir: filepath.Join("testdata", "plain"), Setup: alone})
}

// alone hides your own settings from a script.
func alone(env *testscript.Env) error {
	env.Setenv("XDG_CONFIG_HOME", env.WorkDir)
	for _, name := range variables {
		env.Setenv("ONCEMILL_"+name, "")
	}
	for _, name := range credentials {
		env.Setenv(name, "test")
	}
	return nil
}

// TestCommand_OnEachStore runs the same scripts on each store. A script has records of its own.
func TestCommand_OnEachStore(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (address func(dir, own string) string){
		"sqlite": func(t *testing.T) func(dir, own string) string {
			return func(dir, _ string) string {
				path := filepath.Join(dir, "records.db")
				db, err := sqliteoutbox.Open(t.Context(), path)
				if err != nil {
					t.Fatal(err)
				}
				db.Close()
				return "sqlite:" + path
			}
		},
		"redis": func(t *testing.T) func(dir, own string) string {
			server := redistest.Start(t)
			return func(_, own string) string { return "redis://" + server.Addr + "?prefix=" + own }
		},
		"nats": func(t *testing.T) func(dir, own string) string {
			server := natstest.Start(t)
			js := server.JetStream()
			return func(_, own string) string {
				if _, err := js.CreateStream(t.Context(), natskv.Bucket(own, 1)); err != nil {
					t.Fatal(err)
				}
				return strings.Replace(server.URL(), "nats://", "nats+kv://", 1) + "/" + own
			}
		},
		"nats, a stream": func(t *testing.T) func(dir, own string) string {
			server := natstest.Start(t)
			js := server.JetStream()
			return func(_, own string) string {
				if _, err := js.CreateStream(t.Context(), natskv.Stream(own, 1, own+".>")); err != nil {
					t.Fatal(err)
				}
				return strings.Replace(server.URL(), "nats://", "nats+kv://", 1) + "/" + own + "?subject=" + own + ".once"
			}
		},
		"dynamodb": func(t *testing.T) func(dir, own string) string {
			endpoint := dynamotest.Shared(t)
			return func(_, own string) string {
				address := "dynamodb://" + own + "?region=eu-central-1&endpoint=" + url.QueryEscape(endpoint)
				at, err := url.Parse(address)
				if err != nil {
					t.Fatal(err)
				}
				client, err := dynamo(t.Context(), at)
				if err == nil {
					table := dynamostore.Table(own)
					table.DeletionProtectionEnabled = nil
					err = dynamostore.CreateTable(t.Context(), client, table)
				}
				if err != nil {
					t.Fatal(err)
				}
				return address
			}
		},
		"cassandra": func(t *testing.T) func(dir, own string) string {
			server := cassandratest.Shared(t)
			keyspace := server.Keyspace(t)
			return func(_, own string) string { return server.URL(keyspace) + "?table=" + own }
		},
		"postgres": func(t *testing.T) func(dir, own string) string {
			database := postgrestest.Shared(t).NewDatabase(t)
			return func(_, own string) string { return database.DSN() + "&table=" + own }
		},
		"mysql": func(t *testing.T) func(dir, own string) string {
			database := mysqltest.Shared(t).NewDatabase(t)
			return func(_, own string) string { return database.URL() + "?table=" + own }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // some servers take long to start
			address := start(t)
			testscript.Run(t, testscript.Params{
				Dir: filepath.Join("testdata", "stores"),
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"seed": seed, "spoil": spoil, "browse": browse,
				},
				Setup: func(env *testscript.Env) error {
					at := address(env.WorkDir, "t"+strings.ToLower(rand.Text()[:12]))
					if err := alone(env); err != nil {
						return err
					}
					env.Setenv("ONCEMILL_STORE", at)
					env.Setenv("PORT", freePort(t))
					return migrate(at)
				},
			})
		})
	}
}

// TestCommand_OnEachOutbox runs the same scripts on each outbox, with a store beside it. FRESH_STORE and FRESH_OUTBOX
// have no tables yet.
func TestCommand_OnEachOutbox(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (addresses func(dir, own string) (base, fresh string)){
		"sqlite": func(t *testing.T) func(dir, own string) (string, string) {
			return func(dir, own string) (string, string) {
				path := filepath.Join(dir, "shop.db")
				db, err := sqliteoutbox.Open(t.Context(), path)
				if err != nil {
					t.Fatal(err)
				}
				db.Close()
				return "sqlite:" + path + "?", ""
			}
		},
		"postgres": func(t *testing.T) func(dir, own string) (string, string) {
			database := postgrestest.Shared(t).NewDatabase(t)
			return func(_, own string) (string, string) { return database.DSN() + "&", "&schema=Fresh" + own }
		},
		"mysql": func(t *testing.T) func(dir, own string) (string, string) {
			database := mysqltest.Shared(t).NewDatabase(t)
			return func(_, own string) (string, string) { return database.URL() + "?", "" }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addresses := start(t)
			testscript.Run(t, testscript.Params{
				Dir:  filepath.Join("testdata", "outboxes"),
				Cmds: map[string]func(*testscript.TestScript, bool, []string){"seed": seed, "row": row},
				Setup: func(env *testscript.Env) error {
					own := "t" + strings.ToLower(rand.Text()[:12])
					base, fresh := addresses(env.WorkDir, own)
					if err := alone(env); err != nil {
						return err
					}
					env.Setenv("ONCEMILL_STORE", base+"table="+own+"_records")
					env.Setenv("ONCEMILL_OUTBOX", base+"table="+own+"_outbox")
					env.Setenv("FRESH_STORE", base+"table="+own+"_fresh_records"+fresh)
					env.Setenv("FRESH_OUTBOX", base+"table="+own+"_fresh_outbox"+fresh)
					a := &app{settings: settings{servers: servers{
						Store: env.Getenv("ONCEMILL_STORE"), Outbox: env.Getenv("ONCEMILL_OUTBOX"),
					}}}
					defer a.close()
					_, err := a.migrations(context.Background(), false, false, false)
					return err
				},
			})
		})
	}
}

// row STATE ID [TOPIC] writes a message, and leads its row to a state.
func row(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: row STATE ID [TOPIC]")
	}
	ctx := context.Background()
	state, m := outbox.State(args[0]), producer.Message{ID: args[1], Topic: "orders", Payload: []byte("secret")}
	if len(args) > 2 {
		m.Topic, m.Key = args[2], "customer-of-"+args[2]
	}
	m.Header = producer.Header{"tenant": m.Topic + "-tenant"}
	if state == outbox.Delayed {
		m.NotBefore = time.Now().Add(window)
	}
	a := &app{settings: settings{servers: servers{Outbox: ts.Getenv("ONCEMILL_OUTBOX")}}}
	defer a.close()
	opened, err := a.reachBox(ctx, false)
	ts.Check(err)
	at, _, err := split(a.settings.Outbox, boxParameters...)
	ts.Check(err)
	var db *sql.DB
	switch at.Scheme {
	case "sqlite":
		db, err = a.database(ctx, at)
		ts.Check(err)
	case "mysql":
		db, err = a.mysql(at)
		ts.Check(err)
	default:
		pool, err := a.pool(ctx, at)
		ts.Check(err)
		db = stdlib.OpenDBFromPool(pool)
		defer db.Close()
	}
	tx, err := db.BeginTx(ctx, nil)
	ts.Check(err)
	store := opened.(interface {
		outbox.Store
		InSQL(tx *sql.Tx) producer.Publisher
	})
	ts.Check(store.InSQL(tx).Publish(ctx, m))
	ts.Check(tx.Commit())
	if state == outbox.Pending || state == outbox.Delayed {
		return
	}
	token := rand.Text()
	rows, err := store.Lease(ctx, outbox.LeaseRequest{Token: token, Limit: 100, Lease: window})
	ts.Check(err)
	for _, r := range rows {
		if r.Message.ID == m.ID && r.Message.Topic == m.Topic && state != outbox.Leased {
			result := outbox.Result{Number: r.Number, State: state, Error: "broker: too \x1b large"}
			ts.Check(store.Settle(ctx, token, []outbox.Result{result}))
		}
	}
}

// open opens the store at an address, as the command does.
func open(address string) (dedupstore.Inspector, func(), error) {
	a := &app{settings: settings{servers: servers{Store: address}}}
	store, err := a.reachStore(context.Background())
	return store, a.close, err
}

func migrate(address string) error {
	store, done, err := open(address)
	if err != nil {
		return err
	}
	defer done()
	if s, ok := store.(migrator); ok {
		return s.Migrate(context.Background())
	}
	return nil
}

// seed HISTORY ID [GROUP:HANDLER] makes the record of a message with a history.
func seed(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: seed HISTORY ID [GROUP:HANDLER]")
	}
	store, done, err := open(ts.Getenv("ONCEMILL_STORE"))
	ts.Check(err)
	defer done()
	g := &seeder{t: ts, store: store, key: dedupstore.Key{
		Tenant: "default", Group: "billing", Handler: "charge", ID: args[1],
	}}
	if len(args) > 2 {
		g.key.Group, g.key.Handler, _ = strings.Cut(args[2], ":")
	}
	history, ok := seeds[args[0]]
	if !ok {
		ts.Fatalf("no history %q", args[0])
	}
	history(g)
	if keeper, ok := store.(dedupstore.ScopeKeeper); ok {
		now := time.Now()
		uses := []dedupstore.ScopeUse{{Scope: g.key.Scope(), First: now, Last: now}}
		ts.Check(keeper.NoteScopes(context.Background(), uses))
	}
}

// spoil ID makes a record unreadable.
func spoil(ts *testscript.TestScript, _ bool, args []string) {
	at, own, err := split(ts.Getenv("ONCEMILL_STORE"), "prefix", "table", "schema")
	ts.Check(err)
	ctx, key := context.Background(), "default:billing:charge:"+args[0]
	a := &app{}
	defer a.close()
	switch at.Scheme {
	case "redis":
		rdb, err := connect(at)
		ts.Check(err)
		defer rdb.Close()
		ts.Check(rdb.Set(ctx, own["prefix"]+":"+key, "2, of a later version", window).Err())
	case "sqlite":
		db, err := a.database(ctx, at)
		ts.Check(err)
		_, err = db.ExecContext(ctx, `UPDATE oncemill_dedup SET state = 'of a later version' WHERE key = ?`, key)
		ts.Check(err)
	case "nats+kv":
		js, config, err := a.kv(at)
		ts.Check(err)
		subject := cmp.Or(config.Subject, "$KV."+config.Bucket) + "." + strings.ReplaceAll(key, ":", ".")
		_, err = js.Publish(ctx, subject, []byte("of a later version"))
		ts.Check(err)
	case "mysql":
		db, err := a.mysql(at)
		ts.Check(err)
		_, err = db.ExecContext(ctx, "UPDATE "+own["table"]+" SET state = 'later' WHERE record_key = ?", key)
		ts.Check(err)
	case "dynamodb":
		client, err := dynamo(ctx, at)
		ts.Check(err)
		type value = map[string]types.AttributeValue
		_, err = client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: &at.Host, Key: value{"pk": &types.AttributeValueMemberS{Value: key}},
			UpdateExpression:          new("SET rec = :later"),
			ExpressionAttributeValues: value{":later": &types.AttributeValueMemberB{Value: []byte{9}}},
		})
		ts.Check(err)
	case "cassandra":
		session, _, err := a.session(at)
		ts.Check(err)
		table := strings.Trim(at.Path, "/") + "." + own["table"]
		ts.Check(session.Query("UPDATE "+table+" SET rec = 0x09 WHERE id = ? IF rec != null", key).ExecContext(ctx))
	default:
		pool, err := a.pool(ctx, at)
		ts.Check(err)
		_, err = pool.Exec(ctx, `UPDATE `+own["table"]+` SET kind = 'of a later version' WHERE key = $1`, key)
		ts.Check(err)
	}
}

type seeder struct {
	t     interface{ Fatalf(string, ...any) }
	store dedupstore.Inspector
	key   dedupstore.Key
}

func (g *seeder) check(err error) {
	if err != nil {
		g.t.Fatalf("%v", err)
	}
}

const window = time.Hour

func (g *seeder) claims(lease time.Duration, holder string) dedupstore.Claim {
	a, err := dedupstore.ClaimOne(context.Background(), g.store, dedupstore.Request{
		Key: g.key, Owner: rand.Text(), Lease: lease, Retention: window, MaxAttempts: 5, Holder: holder,
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	g.check(err)
	return a.Claim
}

func (g *seeder) ends(c dedupstore.Claim, s dedupstore.Settlement) {
	g.check(dedupstore.SettleOne(context.Background(), g.store, c, s))
}

func (g *seeder) finish(kind dedupstore.Kind, reason string) {
	o := dedupstore.Outcome{Kind: kind, Reason: reason}
	if kind == dedupstore.Succeeded {
		o.Result = []byte(`{"charge":"ch_1"}`)
	}
	g.ends(g.claims(window, "billing-1:417"), dedupstore.Finish{
		Outcome: o, Retention: window, Published: true, Took: 12 * time.Millisecond,
	})
}

var seeds = map[string]func(g *seeder){
	"running":   func(g *seeder) { g.claims(window, "billing-1:417") },
	"succeeded": func(g *seeder) { g.finish(dedupstore.Succeeded, "") },
	"failed":    func(g *seeder) { g.finish(dedupstore.Failed, "card refused") },
	"unknown":   func(g *seeder) { g.finish(dedupstore.Unknown, "no answer from the bank") },
	"retryable": func(g *seeder) {
		g.ends(g.claims(window, "billing-1:417"),
			dedupstore.Release{Reason: "bank: connection refused", Delay: time.Minute})
	},
	"retried": func(g *seeder) {
		g.ends(g.claims(window, "billing-1:417"), dedupstore.Release{Reason: "bank: connection refused"})
		g.finish(dedupstore.Succeeded, "")
	},
	"duplicates": func(g *seeder) {
		g.finish(dedupstore.Succeeded, "")
		g.check(g.store.NoteDuplicates(context.Background(),
			[]dedupstore.Duplicates{{Key: g.key, Count: 3, Last: time.Now(), Retention: window}}))
	},
	"chain": func(g *seeder) { // a message whose ID is derived, and what it has led to
		g.key.ID = producer.DeriveID("orders", "customer-7", "4711")
		g.ends(g.claims(window, "billing-1:417"), dedupstore.Finish{
			Outcome: dedupstore.Outcome{
				Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{{ID: "receipt-4711", Topic: "receipts"}},
			},
			Retention: window, Published: true,
		})
		g.key.Group, g.key.Handler, g.key.ID = "mail", "send", "receipt-4711"
		g.finish(dedupstore.Failed, "no such mailbox")
	},
	"markup": func(g *seeder) { g.finish(dedupstore.Failed, "bad \x1b[31mescape\x07 and <b>markup</b>") },
	"many": func(g *seeder) {
		for i := range 30 {
			g.key.ID = fmt.Sprintf("bulk-%02d", i)
			g.finish(dedupstore.Failed, "card refused")
		}
	},
}

// An address of a test's own database never has a password to hide; one that has is told without it.
func TestSplit_HidesPasswords(t *testing.T) {
	t.Parallel()
	_, _, err := split("postgres://app:secret@host:port/db")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error is %v, want one without the password", err)
	}
	odd := &url.URL{Scheme: "redis", Host: "h", User: url.UserPassword("u", "secret"), RawQuery: "no=1"}
	if _, err := connect(odd); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error is %v, want one without the password", err)
	}
	at, _, err := split("postgres://h/db?password=secret&sslpassword=secret&table=t")
	if err != nil {
		t.Fatal(err)
	}
	if shown := redacted(at); shown != "postgres://h/db?table=t" {
		t.Errorf("the address is told as %q, want it without passwords", shown)
	}
	token := &url.URL{Scheme: "nats+kv", User: url.User("secret"), Host: "h", Path: "/bucket"}
	if shown := redacted(token); shown != "nats+kv://xxxxx@h/bucket" {
		t.Errorf("the address is told as %q, want it without the token", shown)
	}
}

// What a server says may come from whoever wrote a key there: it must not steer the terminal.
func TestOneLine_HasNoControlCharacters(t *testing.T) {
	t.Parallel()
	if got := oneLine(errors.New("has version \"\x1b[2J\"\n\x9b31m")); got != `has version "�[2J" �31m` {
		t.Errorf("the line is %q", got)
	}
}
