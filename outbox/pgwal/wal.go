package pgwal

import (
	"context"
	"time"
)

// A walWatch says when the slot makes the server keep too much.
type walWatch struct {
	warnAt   time.Time
	hiddenAt time.Time // of the next warning that rows are not shown
	limited  bool      // somebody was told that there is no limit
}

const warnEvery = time.Minute

// watch looks at the slot, and at what the log shows. It reports true if the outbox table is another one than that, and shown too:
// then the log is to be read again.
func (r *Relay) watch(ctx context.Context, table uint32) (other bool) {
	f, err := r.look(ctx)
	if err != nil {
		return false // the next look, or the connection, will say so
	}
	r.wal.look(ctx, r, f)
	if r.cfg.messages() || f.table == 0 {
		return false
	}
	shown := f.covers && f.publishes
	if now := time.Now(); !shown && !now.Before(r.wal.hiddenAt) {
		r.wal.hiddenAt = now.Add(warnEvery)
		r.log.WarnContext(ctx, "pgwal: the publication does not show new rows of the outbox table any more: they are found in the table, late; call Setup, or ALTER PUBLICATION … SET (publish = 'insert')",
			"publication", r.cfg.Publication, "table", r.cfg.Table)
	}
	return shown && f.table != table
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
