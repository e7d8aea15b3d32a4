package engine_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/cassandrastore"
	"github.com/oncemill/oncemill/dedupstore/dynamostore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// A made is a store with its tables. A guard may use another form of it.
type made struct {
	dedupstore.ScopeKeeper
	dedupstore.Store
}

func madeOf[S interface {
	dedupstore.Store
	dedupstore.ScopeKeeper
}](t *testing.T, s S, err error) made {
	t.Helper()
	if m, ok := any(s).(interface{ Migrate(context.Context) error }); ok && err == nil {
		err = m.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return made{s, s}
}

// inboxOf is a store whose guard uses the inbox.
func inboxOf(m made, inbox dedupstore.Transactor) made { return made{m.ScopeKeeper, inbox} }

func onPostgres(t *testing.T) *pgstore.Store {
	pool, err := pgxpool.New(t.Context(), postgrestest.Shared(t).NewDatabase(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := pgstore.New(pool, pgstore.Config{})
	madeOf(t, s, err)
	return s
}

func onMySQL(t *testing.T) *mysqlstore.Store {
	db, err := sql.Open("mysql", mysqltest.Shared(t).NewDatabase(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s, err := mysqlstore.New(db, mysqlstore.Config{})
	madeOf(t, s, err)
	return s
}

func onSQLite(t *testing.T) *sqlitestore.Store {
	db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s, err := sqlitestore.New(db, sqlitestore.Config{})
	madeOf(t, s, err)
	return s
}

func onDynamoDB(t *testing.T) made {
	endpoint, transport := dynamotest.Shared(t), &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: &endpoint, HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	})
	table := dynamostore.Table("scopes")
	table.DeletionProtectionEnabled = nil
	s, err := dynamostore.New(client, dynamostore.Config{Table: "scopes"})
	return madeOf(t, s, errors.Join(err, dynamostore.CreateTable(t.Context(), client, table)))
}

// A handler's new name is noticed over each store, when its worker starts, and once.
func TestStores_WarnOfANewNameInAnOldGroup(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) made{
		"memory": func(t *testing.T) made {
			m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
			return madeOf(t, m, err)
		},
		"redis": func(t *testing.T) made {
			rdb := redis.NewClient(redistest.Start(t).Options())
			t.Cleanup(func() { rdb.Close() })
			s, err := redisstore.New(rdb, redisstore.Config{})
			return madeOf(t, s, err)
		},
		"postgres":       func(t *testing.T) made { return madeOf(t, onPostgres(t), nil) },
		"postgres inbox": func(t *testing.T) made { s := onPostgres(t); return inboxOf(madeOf(t, s, nil), s.Inbox()) },
		"mysql":          func(t *testing.T) made { return madeOf(t, onMySQL(t), nil) },
		"mysql inbox":    func(t *testing.T) made { s := onMySQL(t); return inboxOf(madeOf(t, s, nil), s.Inbox()) },
		"sqlite":         func(t *testing.T) made { return madeOf(t, onSQLite(t), nil) },
		"sqlite inbox":   func(t *testing.T) made { s := onSQLite(t); return inboxOf(madeOf(t, s, nil), s.Inbox()) },
		"natskv": func(t *testing.T) made {
			js := natstest.Start(t).JetStream()
			natstest.Ask(t, "a bucket", func(ctx context.Context) (jetstream.Stream, error) {
				return js.CreateStream(ctx, natskv.Bucket("oncemill", 1))
			})
			s, err := natskv.New(js, natskv.Config{})
			return madeOf(t, s, err)
		},
		"dynamodb": onDynamoDB,
		"cassandra": func(t *testing.T) made {
			if os.Getenv("ONCEMILL_PROOF") != "1" {
				t.Skip("only with ONCEMILL_PROOF=1: a node takes half a minute to start")
			}
			server := cassandratest.Shared(t)
			s, err := cassandrastore.New(server.Session(t), cassandrastore.Config{Keyspace: server.Keyspace(t)})
			return madeOf(t, s, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			now := time.Now()
			settle := dedupstore.Scope{Tenant: "default", Group: "payments", Handler: "settle"}
			old := dedupstore.ScopeUse{Scope: settle, First: now.Add(-24 * time.Hour), Last: now.Add(-time.Minute)}
			if err := s.NoteScopes(t.Context(), []dedupstore.ScopeUse{old}); err != nil {
				t.Fatal(err)
			}
			if log := startAs(t, s.Store, "settle-v2"); !strings.Contains(log, "settle-v2 has no records in group payments") {
				t.Errorf("of a new name the log says %q", log)
			}
			for _, known := range []string{"settle-v2", "settle"} {
				if log := startAs(t, s.Store, known); log != "" {
					t.Errorf("of the known name %s the log says %q", known, log)
				}
			}
		})
	}
}

// startAs runs a few messages under a handler's name, and returns the warnings.
func startAs(t *testing.T, s dedupstore.Store, handler string) string {
	t.Helper()
	var log bytes.Buffer
	warnings := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})
	g, err := oncemill.NewGuard(s, oncemill.Policy{Logger: slog.New(warnings)})
	if err != nil {
		t.Fatal(err)
	}
	scope := dedupstore.Scope{Tenant: "default", Group: "payments", Handler: handler}
	g.Announce(scope)
	for i := range 3 {
		key := dedupstore.Key{Tenant: scope.Tenant, Group: scope.Group, Handler: handler, ID: strconv.Itoa(i)}
		_, err := g.Run(t.Context(), oncemill.Call{Key: key}, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	g.Close()
	return log.String()
}
