package pgstore

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// leastSilence is how long the session of a claimed run may stand still at least, however short its lease is.
const leastSilence = 5 * time.Second

// silence is how long the session may stand still: others get the locks of a host that has vanished after that. Only
// that of first runs is their lease, because for so long others wait for them.
func (r *run) silence() time.Duration {
	if len(r.Claimed) > 0 {
		return max(r.Stands.Claim.Lease, leastSilence)
	}
	return r.Stands.Claim.Lease
}

// milliseconds is a limit as PostgreSQL reads it.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt((sqlstore.Micros(d)+999)/1000, 10)
}

// keep sends an empty statement now and then until stop, because the server ends a session that stands still. When the
// connection is lost it calls lose.
func (r *run) keep(ctx context.Context, lose context.CancelCauseFunc) (stop func()) {
	lost := errLost
	if len(r.Claimed) == 0 {
		lost = dedupstore.ErrClaimLost // there is no record, and others may run
	}
	every := max(r.silence()/3, time.Millisecond)
	var beating sync.Mutex
	over := false
	var timer *time.Timer
	beating.Lock()
	defer beating.Unlock()
	timer = time.AfterFunc(every, func() {
		beating.Lock()
		defer beating.Unlock()
		if over {
			return
		}
		bounded, done := context.WithTimeout(ctx, sqlstore.EndTimeout)
		defer done()
		if err := r.session.beat(bounded); err != nil {
			lose(lost)
			return
		}
		timer.Reset(every)
	})
	return func() {
		beating.Lock()
		defer beating.Unlock()
		over = true
		timer.Stop()
	}
}

// note remembers that PostgreSQL refused a statement because of others, whatever the handler makes of it. The
// transaction can then only be rolled back. If the statement stood in a savepoint, the next one that succeeds, such as
// the rollback to that savepoint, shows that it goes on.
func (r *run) note(err error) {
	switch {
	case err == nil:
		r.conflict.Store(nil)
	case conflicts(err):
		r.conflict.CompareAndSwap(nil, &err)
	}
}

// because adds a conflict that was noted to the reason why a transaction was rolled back.
func (r *run) because(err error) error {
	if conflict := r.conflict.Load(); conflict != nil && !conflicts(err) {
		return errors.Join(*conflict, err)
	}
	return err
}
