package franz

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/contexts"
)

// At each poll, kgo (1.22.2) accepts the records of the poll before that nobody has acknowledged. A record whose
// handler still runs would be lost with the process. It keeps its state of a record in the record's context, which
// interceptors may replace. So that is hidden until the poll has returned, and kgo remembers none of the records that
// it hands out. Each Run proves that with its client: see shareSession.prove.

// hide hides what the client knows of a record. It is for a record that was not polled.
func hide(rec *kgo.Record) {
	if rec.Context != nil {
		rec.Context = contexts.Hide(rec.Context)
	}
}

// show lets a record be acknowledged. It reports false if that cannot be, or could before.
func show(rec *kgo.Record) bool {
	if rec.Context == nil || rec.DeliveryCount() > 0 {
		return false
	}
	if v := contexts.VeilOf(rec.Context); v != nil {
		v.Lift()
	}
	return rec.DeliveryCount() > 0
}
