package webhook_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/webhook"
)

// inbox is a store with transactions that hold messages: what was written in one is there when it commits.
type inbox struct {
	dedupstore.Store
	commit    error // what the next commits answer
	undecided bool  // the answer to the next commit is lost: it says so
	committed []producer.Message
}

type transaction struct{ written []producer.Message }

type txKey struct{}

var _ dedupstore.Transactor = (*inbox)(nil)

func (i *inbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	claims, err := dedupstore.ClaimsOf(runs)
	if err != nil {
		return nil, err
	}
	var tx transaction
	settlements, err := work(context.WithValue(ctx, txKey{}, &tx), claims)
	if err != nil {
		return nil, err
	}
	if i.commit != nil {
		return nil, i.commit
	}
	if err := dedupstore.SettleOne(ctx, i, claims[0], settlements[0]); err != nil {
		return nil, err
	}
	i.committed = append(i.committed, tx.written...)
	if i.undecided {
		i.undecided = false
		return nil, &dedupstore.UndecidedError{Err: errDown}
	}
	return nil, nil
}

func (*inbox) TakesFirst() bool { return false }

// write joins the transaction of the context.
func write(ctx context.Context, messages ...producer.Message) error {
	tx, ok := ctx.Value(txKey{}).(*transaction)
	if !ok {
		return errors.New("no transaction in the context")
	}
	tx.written = append(tx.written, messages...)
	return nil
}

func TestReceiver_OverAnInboxMessageAndClaimCommitTogether(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		box := &inbox{Store: newStore(t).Store}
		rc := receiver(t, newGuard(t, box, oncemill.Policy{}), webhook.PublisherFunc(write),
			webhook.Config{Verifier: must(webhook.GitHub(secret))})

		box.commit = &dedupstore.ConflictError{Err: errDown}
		for range 30 { // three times the attempts of a message
			sendAsTold(t, rc, fromGitHub("d1", "a"))
		}
		if len(box.committed) != 0 {
			t.Fatalf("enqueued %v", box.committed)
		}
		box.commit, box.undecided = nil, true
		for len(box.committed) == 0 { // committed in the end, but nobody can say so
			sendAsTold(t, rc, fromGitHub("d1", "a"))
		}
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		if len(box.committed) != 1 || box.committed[0].ID != webhook.MessageID("", "shop", "d1") {
			t.Errorf("enqueued %v", box.committed)
		}
	})
}

func TestReceiver_CommitsThatFailUseUpNothing(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		box := &inbox{Store: newStore(t).Store}
		rc := receiver(t, newGuard(t, box, oncemill.Policy{}), webhook.PublisherFunc(write),
			webhook.Config{Verifier: must(webhook.GitHub(secret))})
		box.commit = errDown
		for range 30 {
			sendAsTold(t, rc, fromGitHub("d1", "a"))
		}
		box.commit = nil
		time.Sleep(5 * time.Minute) // the longest pause
		send(t, rc, fromGitHub("d1", "a"), http.StatusOK)
		if len(box.committed) != 1 {
			t.Errorf("%d messages are enqueued, want 1", len(box.committed))
		}
	})
}
