package franz

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// locks are those that a broker keeps on the records that a member of a share group has in its hands. They are
// prolonged until their records are settled.
type locks struct {
	cl    *kgo.Client
	group string
	log   *slog.Logger
	fail  func(error)   // ends the run
	every time.Duration // how often they are prolonged

	mu      sync.Mutex
	locked  map[*kgo.Record]bool // false: the lock is lost, and the broker is told nothing of the record any more
	renewal bool                 // an acknowledgement beside that could be sent twice, and the second be refused
	later   []func()             // acknowledgements that wait for its end
	refused error                // what the broker refused last
	lost    bool                 // it has refused something because a lock was lost
}

// unknown reports whether the client knows nothing of the first records that it has just handed out. If it marks
// records for "all of the last poll", kgo would also accept them on its own. A mark without an answer keeps flush from
// returning, and answers are not let through here. If there are marks, they prolong locks, and do no harm.
func (l *locks) unknown(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cl.MarkAcks(kgo.AckRenew)
	return l.flush(ctx, l.every) == nil
}

// add notes records that the broker has locked for this member.
func (l *locks) add(records []*kgo.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, rec := range records {
		l.locked[rec] = true
	}
}

// settle tells the broker what becomes of a record.
func (l *locks) settle(rec *kgo.Record, status kgo.AckStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	locked := l.locked[rec]
	delete(l.locked, rec)
	switch {
	case locked && l.renewal:
		l.later = append(l.later, func() { rec.Ack(status) })
	case locked:
		rec.Ack(status)
	}
}

// prolongRegularly prolongs all locks, until ctx ends.
func (l *locks) prolongRegularly(ctx context.Context) {
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.prolong(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// prolong prolongs all locks. A broker that does not answer must not keep those of others from it.
func (l *locks) prolong(ctx context.Context) {
	l.mu.Lock()
	l.renewal = true
	var records []*kgo.Record
	for rec, locked := range l.locked {
		if locked {
			records = append(records, rec)
		}
	}
	l.mu.Unlock()
	if len(records) > 0 { // without records, kgo would take all
		_ = l.flush(ctx, l.every/2) // what was said before
		l.cl.MarkAcks(kgo.AckRenew, records...)
		_ = l.flush(ctx, l.every/2)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ack := range l.later {
		ack()
	}
	l.renewal, l.later = false, nil
}

// flush waits until the broker has answered all that it was told.
func (l *locks) flush(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return l.cl.FlushAcks(ctx)
}

// answered notes the broker's answers. If a lock was lost, the broker refuses everything of that partition in one
// answer and does not say which lock it was. So all locks there are given up. Their records come again, here or
// elsewhere, and the guard keeps the copies apart.
func (l *locks) answered(results kgo.ShareAckResults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		l.refused = r.Err
		switch {
		case errors.Is(r.Err, kerr.InvalidRecordState):
			l.lost = true
			for rec := range l.locked {
				if rec.Topic == r.Topic && rec.Partition == r.Partition {
					l.locked[rec] = false
				}
			}
		case errors.Is(r.Err, kerr.TopicAuthorizationFailed):
			l.fail(refusal(l.group, r.Topic, r.Err))
		}
		l.log.Warn("franz: the broker has refused acknowledgements: the records of the partition that wait or run are "+
			"delivered again, and do not run again if they are settled", "group", l.group,
			"partition", placeName(r.Topic, r.Partition), "error", r.Err)
	}
}

// forgive forgets what the broker has refused.
func (l *locks) forgive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = nil
}

// hasLost reports whether something was refused because a lock was lost.
func (l *locks) hasLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// confirm waits until the broker has answered all, and returns an error if it has refused something that was not
// forgiven. It asks more than once: what the broker puts off, kgo sends with the next flush.
func (l *locks) confirm(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := l.flush(ctx, timeout/10)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return unconfirmed(l.group, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused != nil {
		return unconfirmed(l.group, l.refused)
	}
	return nil
}
