package consumer_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// A second try in the same transaction commits what the first one had written as well, which is why it is refused.
func TestChain_RefusesRetryInsideAnInbox(t *testing.T) {
	t.Parallel()
	db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store, err := sqlitestore.New(db, sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, made := db.ExecContext(t.Context(), "CREATE TABLE ledger (id TEXT)")
	if err := errors.Join(made, store.Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
	p := newProcessor(t, store.Inbox(), consumer.Config{Handler: "charge"})
	h := handler{then: func(msg *message.Message, run int) ([]*message.Message, error) {
		if _, err := sqlitestore.Tx(msg.Context()).ExecContext(context.Background(), "INSERT INTO ledger VALUES (?)", msg.UUID); err != nil {
			return nil, err
		}
		if run == 1 {
			return nil, errors.New("no answer")
		}
		return nil, nil
	}}
	retry := middleware.Retry{MaxRetries: 1}
	if _, err := p.Middleware(retry.Middleware(h.handle))(order("o1")); err != nil {
		t.Fatal(err)
	}
	var rows int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM ledger").Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows, %v: if it is one, there is no reason to refuse it any more", rows, err)
	}
	_, err = consumer.Chain(consumer.Guarded(p), consumer.Retry(retry))
	if e := as[*consumer.OrderError](t, err); !strings.Contains(e.Error(), "inbox") {
		t.Error(e)
	}
}
