// Package servers runs those that package kit does not, from the packages that give them to tests. Callers give them
// back.
package servers

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/middleware"
	_ "modernc.org/sqlite" // the driver

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
)

// StartMySQL runs MariaDB so that commits wait for the disk, with room for what is measured.
func StartMySQL(connections int) (db *sql.DB, giveBack func() error, err error) {
	giveBack, err = kit.Borrow(func(t testing.TB) {
		db = mysqltest.Start(t, "--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=fsync",
			"--innodb-buffer-pool-size=2G", "--innodb-log-file-size=1G").NewDatabase(t).Open(t)
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
	})
	return db, giveBack, err
}

// SQLite is the name of a database in a new folder, as the driver reads it. All connections see the pages that the system
// keeps in memory: the cache of a connection would be empty again after each write of another.
func SQLite() (name string, remove func() error, err error) {
	dir, err := os.MkdirTemp("", "oncemill-bench-")
	settings := url.Values{
		"_busy_timeout": {"10000"}, "_journal_mode": {"WAL"}, "_txlock": {"immediate"},
		"_pragma": {"mmap_size(2147418112)"},
	}
	name = "file:" + filepath.Join(dir, "bench.db") + "?" + settings.Encode()
	return name, func() error { return os.RemoveAll(dir) }, err
}

// OpenSQLite opens a database in a new folder.
func OpenSQLite() (db *sql.DB, giveBack func() error, err error) {
	name, remove, err := SQLite()
	if err != nil {
		return nil, nil, err
	}
	if db, err = sql.Open("sqlite", name); err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	return db, func() error { return errors.Join(db.Close(), remove()) }, nil
}

// StartDynamoDB runs dynalite, which keeps tables in memory and has one thread.
func StartDynamoDB(connections int, options ...func(*middleware.Stack) error) (
	client *dynamodb.Client, giveBack func() error, err error,
) {
	var endpoint string
	giveBack, err = kit.Borrow(func(t testing.TB) {
		endpoint = dynamotest.Shared(t)
		transport := &http.Transport{MaxIdleConnsPerHost: connections}
		t.Cleanup(transport.CloseIdleConnections)
		client = dynamodb.New(dynamodb.Options{
			Region: "eu-central-1", BaseEndpoint: &endpoint, HTTPClient: &http.Client{Transport: transport},
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: "bench", SecretAccessKey: "bench"}, nil
			}),
			APIOptions: options,
		})
	})
	return client, giveBack, err
}

// StartCassandra runs one node.
func StartCassandra() (session *gocql.Session, keyspace string, giveBack func() error, err error) {
	giveBack, err = kit.Borrow(func(t testing.TB) {
		node := cassandratest.Start(t)
		keyspace = node.Keyspace(t)
		session = node.Session(t)
	})
	return session, keyspace, giveBack, err
}
