package mysqloutbox_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/producer"
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "12") // unless -parallel says otherwise: most tests wait for the end of a lease
	goleak.VerifyTestMain(m)
}

// full is a count of a proof, or a smaller one.
func full(inProof, reduced int) int {
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		return inProof
	}
	return reduced
}

func newDB(t testing.TB) *sql.DB {
	t.Helper()
	db := mysqltest.Shared(t).NewDatabase(t).Open(t)
	db.SetMaxIdleConns(16)
	return db
}

func boxIn(t testing.TB, db *sql.DB, cfg mysqloutbox.Config) *mysqloutbox.Outbox {
	t.Helper()
	box := unmigrated(t, db, cfg)
	if err := box.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return box
}

func unmigrated(t testing.TB, db *sql.DB, cfg mysqloutbox.Config) *mysqloutbox.Outbox {
	t.Helper()
	box, err := mysqloutbox.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func mustExec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// write commits messages in a transaction of their own, and again after a deadlock.
func write(ctx context.Context, box *mysqloutbox.Outbox, db *sql.DB, messages ...producer.Message) error {
	for {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err = box.InSQL(tx).Publish(ctx, messages...); err == nil {
			err = tx.Commit()
		}
		_ = tx.Rollback()
		if !isDeadlock(err) {
			return err
		}
	}
}

func mustWrite(t testing.TB, box *mysqloutbox.Outbox, db *sql.DB, messages ...producer.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if err := write(ctx, box, db, messages...); err != nil {
		t.Fatal(err)
	}
}

func message(key, id string) producer.Message {
	return producer.Message{ID: id, Topic: "orders", Key: key, Payload: []byte("payload of " + id)}
}

func wantSetup(t testing.TB, err error) {
	t.Helper()
	if _, ok := errors.AsType[*dedupstore.SetupError](err); !ok {
		t.Errorf("the error is %v, want a SetupError", err)
	}
}
