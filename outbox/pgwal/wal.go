package pgwal

import (
	"context"
	"time"
)

// A walWatch says when the slot makes the server keep too much.
type walWatch struct {
	warnAt  time.Time
	limited bool // somebody was told that there is no limit
}

const warnEvery = time.Minute

// watch looks at the slot.
func (r *Relay) watch(ctx context.Context) {
	f, err := r.look(ctx)
	if err != nil {
		return // the next look, or the connection, will say so
	}
	r.wal.look(ctx, r, f)
}

func (w *walWatch) look(ctx context.Context, r *Relay, f facts) {
	if f.keepWAL < 0 && !w.limited {
		w.limited = true
		r.log.WarnContext(ctx, "pgwal: max_slot_wal_keep_size is unlimited: if no relay runs or the broker is away for long, the log fills the server's disk; set it to what the disk can spare")
	}
	now := time.Now()
	most := r.cfg.WarnWAL
	if f.keepWAL > 0 {
		most = min(most, f.keepWAL<<20/2)
	}
	if f.retained < most || now.Before(w.warnAt) {
		return
	}
	w.warnAt = now.Add(warnEvery)
	r.log.WarnContext(ctx, "pgwal: the slot makes the server keep much log", "slot", r.cfg.Slot,
		"bytes", f.retained, "wal_status", f.status, "max_slot_wal_keep_size_mb", f.keepWAL)
}
