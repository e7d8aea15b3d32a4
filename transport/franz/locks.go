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

	// Held for writing while locks are prolonged. An acknowledgement beside that could be sent twice, and the broker
	// would refuse with the second what stands beside it.
	acking sync.RWMutex

	mu       sync.Mutex
	locked   map[*kgo.Record]bool // false: the lock is lost, and the broker is told nothing of the record any more
	ends     map[place]int64      // the last offset that came of a partition of which something is locked
	refused  map[place]error      // what the broker said of the last that it was told
	renewals map[place]error      // the same of a renewal under way; nil: there is none
	mixed    bool                 // what was said before the renewal had no answer yet
	anew     map[string]bool      // topics to be consumed anew, and whether they were made again: see bringBack
	lost     chan struct{}        // holds a token when there are such
}

// unknown reports whether the client knows nothing of the records that it has just handed out, the first. Whatever it
// marks as "all of the last poll", to kgo, it would also accept by itself. A mark that is not answered keeps flush from
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
		at := place{rec.Topic, rec.Partition}
		l.ends[at] = max(l.ends[at], rec.Offset)
	}
}

// A span is from the first offset of a partition of which the lock is held to the last that came.
type span struct{ first, last int64 }

// spans returns those of the partitions of which locks are held.
func (l *locks) spans() map[place]span {
	l.mu.Lock()
	defer l.mu.Unlock()
	spans := map[place]span{}
	for rec, locked := range l.locked {
		at := place{rec.Topic, rec.Partition}
		if known, ok := spans[at]; locked && (!ok || rec.Offset < known.first) {
			spans[at] = span{rec.Offset, l.ends[at]}
		}
	}
	for at := range l.ends {
		if _, ok := spans[at]; !ok {
			delete(l.ends, at)
		}
	}
	return spans
}

// settle tells the broker what becomes of a record.
func (l *locks) settle(rec *kgo.Record, status kgo.AckStatus) {
	l.acking.RLock()
	defer l.acking.RUnlock()
	l.mu.Lock()
	locked := l.locked[rec]
	delete(l.locked, rec)
	l.mu.Unlock()
	if locked {
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

func (l *locks) prolong(ctx context.Context) {
	l.acking.Lock()
	defer l.acking.Unlock()
	l.mu.Lock()
	var records []*kgo.Record
	for rec, locked := range l.locked {
		if locked {
			records = append(records, rec)
		}
	}
	l.mu.Unlock()
	// A broker that does not answer must not keep the locks of others from being prolonged.
	mixed := l.flush(ctx, l.every/2) != nil // what was said before
	ctx, cancel := context.WithTimeout(ctx, l.every/2)
	defer cancel()
	l.renew(ctx, records, mixed)
}

// renew prolongs locks. The broker refuses all of a partition if one of them is lost, which then has to be found: it
// would take the others along. Those that were lost with their session need not be: kgo knows them, and leaves them
// out.
func (l *locks) renew(ctx context.Context, records []*kgo.Record, mixed bool) {
	if len(records) == 0 || ctx.Err() != nil {
		return // without records, kgo would take all
	}
	l.renewal(map[place]error{}, mixed)
	l.cl.MarkAcks(kgo.AckRenew, records...)
	_ = l.flush(ctx, l.every) // who does not answer may do so before the locks end
	refused := l.renewal(nil, false)
	for at, err := range refused {
		if !errors.Is(err, kerr.InvalidRecordState) {
			continue
		}
		var those []*kgo.Record
		for _, rec := range records {
			if (place{rec.Topic, rec.Partition}) == at {
				those = append(those, rec)
			}
		}
		if len(those) == 1 {
			l.lose(ctx, those[0], err)
			continue
		}
		l.renew(ctx, those[:len(those)/2], mixed)
		l.renew(ctx, those[len(those)/2:], mixed)
	}
}

// lose gives a lock up. Its record comes again, here or elsewhere, and the guard keeps the copies apart.
func (l *locks) lose(ctx context.Context, rec *kgo.Record, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.locked[rec] {
		l.locked[rec] = false
	}
	l.log.WarnContext(ctx, "franz: the lock of a record is lost, and the record is delivered again", "group", l.group,
		"topic", rec.Topic, "partition", rec.Partition,
		"offset", rec.Offset, "error", err)
}

// flush waits until the broker has answered all that it was told.
func (l *locks) flush(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return l.cl.FlushAcks(ctx)
}

// answered notes what the broker said.
func (l *locks) answered(results kgo.ShareAckResults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		if l.renewals != nil {
			l.renewals[place{r.Topic, r.Partition}] = r.Err
		}
		if l.renewals == nil || l.mixed { // nobody knows of which it is
			l.refused[place{r.Topic, r.Partition}] = r.Err
		}
		switch {
		case errors.Is(r.Err, kerr.InvalidRecordState):
			l.markAnew(r.Topic, false)
		case errors.Is(r.Err, kerr.TopicAuthorizationFailed):
			l.fail(refusal(l.group, r.Topic, r.Err))
		}
		l.log.Warn("franz: the broker has refused acknowledgements: these records are delivered again, and do not "+
			"run again if they are settled", "group", l.group,
			"partition", placeName(r.Topic, r.Partition), "error", r.Err)
	}
}

// forgive forgets what the broker has refused.
func (l *locks) forgive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.refused)
}

// renewal says where to note what the broker refuses, while nothing else is told it than to prolong locks, or nothing
// new if answers are mixed; nil: with the rest. It returns what was noted.
func (l *locks) renewal(refused map[place]error, mixed bool) (before map[place]error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, l.renewals, l.mixed = l.renewals, refused, mixed
	return before
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
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, err := range l.refused {
		return err
	}
	return nil
}
