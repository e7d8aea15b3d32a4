package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/cassandrastore"
	"github.com/oncemill/oncemill/dedupstore/dynamostore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

var quiet = slog.New(slog.DiscardHandler)

// A store is one that operators look into and change.
type store interface {
	dedupstore.Inspector
	dedupstore.ScopeKeeper
	dedupstore.Checker
}

// inspector opens the store that the settings name, whose every answer comes in time.
func (a *app) inspector(ctx context.Context) (store, error) {
	opened, err := a.reachStore(ctx)
	if err != nil {
		return nil, err
	}
	return timedStore{opened, a.server("store", a.settings.Store)}, nil
}

// reachStore opens the store that the settings name, and waits for its first answer.
func (a *app) reachStore(ctx context.Context) (opened store, err error) {
	err = a.reach(ctx, "store", a.settings.Store, func(ctx context.Context) error {
		if opened, err = a.openStore(ctx); err != nil {
			return err
		}
		_, err := opened.Look(ctx, []dedupstore.Key{{Tenant: "default", Group: "oncemill", Handler: "timeout", ID: "1"}})
		if errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return nil // what is asked for will say it in other words
	})
	return opened, err
}

// timeout is how long a server may take to answer.
func (a *app) timeout() time.Duration { return cmp.Or(a.settings.timeout, 10*time.Second) }

// reach does what has to be answered in time.
func (a *app) reach(ctx context.Context, what, address string, do func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, a.timeout())
	defer cancel()
	err := do(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%s gave no answer in %v: is it there, and does it want TLS, or none? %w",
			a.server(what, address).name, a.timeout(), err)
	}
	return err
}

// openStore opens the store that the settings name.
func (a *app) openStore(ctx context.Context) (store, error) {
	if a.settings.Store == "" {
		return nil, usagef("no store is named: set --store, ONCEMILL_STORE or a context of the config file")
	}
	at, own, err := split(a.settings.Store, "prefix", "table", "schema")
	if err != nil {
		return nil, err
	}
	switch at.Scheme {
	case "redis", "rediss", "redis+cluster", "rediss+cluster":
		rdb, err := connect(at)
		if err != nil {
			return nil, err
		}
		a.closers = append(a.closers, func() { _ = rdb.Close() })
		return redisstore.New(rdb,
			redisstore.Config{Prefix: own["prefix"], SkipCheck: true, AllowEviction: true, Logger: quiet})
	case "postgres", "postgresql":
		pool, err := a.pool(ctx, at)
		if err != nil {
			return nil, err
		}
		return pgstore.New(pool, pgstore.Config{Schema: own["schema"], Table: own["table"], Logger: quiet})
	case "mysql":
		db, err := a.mysql(at)
		if err != nil {
			return nil, err
		}
		return mysqlstore.New(db, mysqlstore.Config{Table: own["table"], Logger: quiet})
	case "sqlite":
		db, err := a.database(ctx, at)
		if err != nil {
			return nil, err
		}
		return sqlitestore.New(db, sqlitestore.Config{Table: own["table"], Logger: quiet})
	case "nats+kv", "tls+kv":
		js, config, err := a.kv(at)
		if err != nil {
			return nil, err
		}
		return natskv.New(js, config)
	case "dynamodb":
		client, err := dynamo(ctx, at)
		if err != nil {
			return nil, err
		}
		return dynamostore.New(client, dynamostore.Config{Table: at.Host})
	case "cassandra":
		return a.cassandra(at, own["table"])
	default:
		return nil, usagef("store address begins with %q, want redis, rediss, redis+cluster, rediss+cluster, "+
			"postgres, mysql, sqlite, nats+kv, tls+kv, dynamodb or cassandra", at.Scheme)
	}
}

// A box is an outbox that operators look into and change.
type box interface {
	outbox.Inspector
	outbox.Replayer
	migrator
}

// box opens the outbox that the settings name, whose every answer comes in time.
func (a *app) box(ctx context.Context) (box, error) {
	opened, err := a.reachBox(ctx, false)
	if err != nil {
		return nil, err
	}
	return timedBox{opened, a.server("outbox", a.settings.Outbox)}, nil
}

// reachBox opens the outbox that the settings name, and waits for its first answer. Ordered is for one that is not
// there yet.
func (a *app) reachBox(ctx context.Context, ordered bool) (opened box, err error) {
	err = a.reach(ctx, "outbox", a.settings.Outbox, func(ctx context.Context) error {
		opened, err = a.openBox(ctx, ordered)
		return err
	})
	return opened, err
}

// boxParameters are our own in the address of an outbox.
var boxParameters = []string{"table", "schema", "skip_dead"}

func (a *app) openBox(ctx context.Context, ordered bool) (box, error) {
	if a.settings.Outbox == "" {
		return nil, usagef("no outbox is named: set --outbox, ONCEMILL_OUTBOX or a context of the config file")
	}
	at, own, err := split(a.settings.Outbox, boxParameters...)
	if err != nil {
		return nil, err
	}
	skip := own["skip_dead"] == "true"
	if own["skip_dead"] != "" && !skip || skip && at.Scheme == "sqlite" {
		return nil, usagef("outbox address has skip_dead=%s, want true, of an ordered outbox in PostgreSQL or MySQL",
			own["skip_dead"])
	}
	switch at.Scheme {
	case "postgres", "postgresql":
		pool, err := a.pool(ctx, at)
		if err != nil {
			return nil, err
		}
		return pgoutbox.Find(ctx, pool,
			pgoutbox.Config{
				Schema: own["schema"], Table: own["table"], Ordered: ordered || skip, SkipDead: skip,
				Logger: cmp.Or(a.logger, quiet),
			})
	case "mysql":
		db, err := a.mysql(at)
		if err != nil {
			return nil, err
		}
		return mysqloutbox.Find(ctx, db,
			mysqloutbox.Config{Table: own["table"], Ordered: ordered || skip, SkipDead: skip})
	case "sqlite":
		db, err := a.database(ctx, at)
		if err != nil {
			return nil, err
		}
		return sqliteoutbox.New(db, sqliteoutbox.Config{Table: own["table"]})
	default:
		return nil, usagef("outbox address begins with %q, want postgres, mysql or sqlite", at.Scheme)
	}
}

// goDSN is what an address of Go's MySQL driver holds.
var goDSN = regexp.MustCompile(`(^|@)(tcp|unix)\(`)

// split takes our own parameters out of an address: drivers refuse what they do not know.
func split(address string, names ...string) (at *url.URL, own map[string]string, err error) {
	if !strings.Contains(address, "://") && goDSN.MatchString(address) {
		return nil, nil, usagef("address is a DSN of Go's MySQL driver, want mysql://USER:PASSWORD@HOST:PORT/DATABASE")
	}
	at, err = url.Parse(address)
	if err != nil || at.Scheme != "sqlite" && strings.Contains(at.Opaque+at.Path+at.Fragment, "@") {
		// The error, and what is taken for a host or a database, may be a part of the password.
		return nil, nil, usagef("address is no URL; write signs such as \"/\" in a password as %%2F")
	}
	own = map[string]string{}
	query := at.Query()
	for _, name := range names {
		own[name] = query.Get(name)
		query.Del(name)
	}
	at.RawQuery = query.Encode()
	return at, own, nil
}

// redacted is an address without passwords, wherever drivers look for them.
func redacted(at *url.URL) string {
	shown := *at
	shown.Fragment = ""
	query := at.Query()
	query.Del("password")
	query.Del("sslpassword")
	shown.RawQuery = query.Encode()
	if _, set := at.User.Password(); at.User != nil && !set && strings.HasSuffix(at.Scheme, "+kv") { // a token of NATS
		shown.User = url.User("xxxxx")
	}
	return shown.Redacted()
}

func connect(at *url.URL) (redis.UniversalClient, error) {
	logging.Disable() // of what the errors say, too
	scheme, cluster := strings.CutSuffix(at.Scheme, "+cluster")
	plain := *at
	plain.Scheme = scheme
	if cluster {
		options, err := redis.ParseClusterURL(plain.String())
		if err != nil {
			return nil, usagef("store %s: %w", redacted(at), err)
		}
		options.ContextTimeoutEnabled = true
		return redis.NewClusterClient(options), nil
	}
	options, err := redis.ParseURL(plain.String())
	if err != nil {
		return nil, usagef("store %s: %w", redacted(at), err)
	}
	options.ContextTimeoutEnabled = true
	return redis.NewClient(options), nil
}

// dynamo makes a client with what AWS's own programs would use: credentials, and the region unless one is named.
func dynamo(ctx context.Context, at *url.URL) (*dynamodb.Client, error) {
	values, err := ours("--store", at.RawQuery, "region", "endpoint")
	if err != nil {
		return nil, err
	}
	options := []func(*config.LoadOptions) error{config.WithRegion(values.Get("region"))}
	if endpoint := values.Get("endpoint"); endpoint != "" {
		options = append(options, config.WithBaseEndpoint(endpoint))
	}
	c, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("AWS: %w", err)
	}
	return dynamodb.NewFromConfig(c), nil
}

func (a *app) cassandra(at *url.URL, table string) (*cassandrastore.Store, error) {
	session, datacenter, err := a.session(at)
	if err != nil {
		return nil, err
	}
	keyspace := strings.Trim(at.Path, "/")
	return cassandrastore.New(session, cassandrastore.Config{Keyspace: keyspace, Table: table, Local: datacenter != ""})
}

// session connects to the nodes of an address such as cassandra://USER:PASSWORD@HOST:PORT,HOST:PORT/KEYSPACE, of a
// datacenter if it names one.
func (a *app) session(at *url.URL) (session *gocql.Session, datacenter string, err error) {
	values, err := ours("--store", at.RawQuery, "datacenter", "tls", "ca", "cert", "key")
	if err != nil {
		return nil, "", err
	}
	c := gocql.NewCluster(strings.Split(at.Host, ",")...)
	c.ConnectTimeout, c.Timeout = a.timeout(), a.timeout()
	if at.User != nil {
		password, _ := at.User.Password()
		c.Authenticator = gocql.PasswordAuthenticator{Username: at.User.Username(), Password: password}
	}
	datacenter = values.Get("datacenter")
	if datacenter != "" {
		c.HostFilter = gocql.DataCenterHostFilter(datacenter)
	}
	config, err := tlsOf("--store", values)
	if err != nil {
		return nil, "", err
	}
	if config != nil {
		c.SslOpts = &gocql.SslOptions{Config: config, EnableHostVerification: true}
	}
	session, err = c.CreateSession()
	if err != nil {
		return nil, "", fmt.Errorf("connect to Cassandra: %w", err)
	}
	a.closers = append(a.closers, session.Close)
	return session, datacenter, nil
}

func (a *app) pool(ctx context.Context, at *url.URL) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(at.String())
	if err != nil {
		return nil, usagef("%s: %w", redacted(at), err)
	}
	config.MaxConns = 8 // what a relay needs; others use one or two
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(at), err)
	}
	a.closers = append(a.closers, pool.Close)
	return pool, nil
}

func (a *app) mysql(at *url.URL) (*sql.DB, error) {
	config, err := mysql.ParseDSN(sqlstore.MySQLDSN(at))
	if err != nil {
		return nil, usagef("%s: %w", redacted(at), err)
	}
	config.Logger = &mysql.NopLogger{} // of what the errors say, too
	if config.Params == nil {
		config.Params = map[string]string{}
	}
	if !a.asIs { // locks last as long if this process vanishes or stands still
		config.Params["wait_timeout"] = cmp.Or(config.Params["wait_timeout"], "60")
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, usagef("%s: %w", redacted(at), err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(8) // what a relay needs; others use one or two
	db.SetMaxIdleConns(8)
	db.SetConnMaxLifetime(time.Minute) // a switchover may leave connections to a server that only reads
	a.closers = append(a.closers, func() { _ = db.Close() })
	return db, nil
}

// database opens a file that is there: SQLite would make one of a slip of the keyboard.
func (a *app) database(ctx context.Context, at *url.URL) (*sql.DB, error) {
	path := at.Path
	if at.Opaque != "" { // a relative path
		path = at.Opaque
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("SQLite database: %w", err)
	}
	open := sqliteoutbox.Open
	if a.asIs {
		open = openAsIs
	}
	db, err := open(ctx, path)
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, func() { _ = db.Close() })
	return db, nil
}

// openAsIs opens a file without turning it to WAL, as sqliteoutbox.Open would.
func openAsIs(_ context.Context, path string) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	name := url.URL{Scheme: "file", Path: path, RawQuery: "mode=rw&_busy_timeout=10000&_txlock=immediate"}
	return sql.Open("sqlite", name.String())
}
