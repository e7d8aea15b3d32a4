package pgwal

import (
	"context"
	"time"
)

// A walWatch says when the slot makes the server keep too much, or the server keeps the log from the slot.
type walWatch struct {
	warnAt   time.Time
	awayAt   time.Time // of the next warning that the server waits for a standby
	hiddenAt time.Time // of the next warning that rows are not shown
	limited  bool      // somebody was told that there is no limit
}

const warnEvery = time.Minute

// watch looks at the slot, and at what the log shows. It reports true if the log is to be read again: nobody reads the slot there, or
// another relay does, so that the log comes from another server, which lives on although the pool's name has moved; or the outbox table
// is another one than the log is read for, and shown too. The facts are those of the beginning.
func (r *Relay) watch(ctx context.Context, began facts) (other bool) {
	f, err := r.look(ctx)
	if err != nil {
		return false // the next look, or the connection, will say so
	}
	r.wal.look(ctx, r, f)
	if f.standby { // one that takes over says so then; until then the primary's log is the one
		return false
	}
	if !f.active || f.reader != began.reader {
		return true
	}
	if r.cfg.messages() || f.table == 0 {
		return false
	}
	shown := f.covers && f.publishes
	if now := time.Now(); !shown && !now.Before(r.wal.hiddenAt) {
		r.wal.hiddenAt = now.Add(warnEvery)
		r.log.WarnContext(ctx, "pgwal: the publication does not show new rows of the outbox table any more: they are found in the table, late; call Setup, or ALTER PUBLICATION … SET (publish = 'insert')",
			"publication", r.cfg.Publication, "table", r.cfg.Table)
	}
	return shown && f.table != began.table
}

func (w *walWatch) look(ctx context.Context, r *Relay, f facts) {
	if f.keepWAL < 0 && !w.limited {
		w.limited = true
		r.log.WarnContext(ctx, "pgwal: max_slot_wal_keep_size is unlimited: if no relay runs or the broker is away for long, the log fills the server's disk; set it to what the disk can spare")
	}
	now := time.Now()
	if f.away != "" && !now.Before(w.awayAt) {
		w.awayAt = now.Add(warnEvery)
		r.log.WarnContext(ctx, "pgwal: nothing new is published while the server waits for a standby that does not use the slot which synchronized_standby_slots names: bring it back, or take it out of there",
			"slot", r.cfg.Slot, "standby", f.away)
	}
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
