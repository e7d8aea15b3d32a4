package pgoutbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

func TestRelay_SeveralOnOneDatabasePublishEachRowOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := &broker{}
	var boxes []*pgoutbox.Outbox
	var stops []func()
	for range 8 { // each with a store of its own, as in processes of their own
		box := boxIn(t, pool, pgoutbox.Config{})
		boxes = append(boxes, box)
		cfg := quick()
		cfg.BatchSize = 7
		stops = append(stops, start(t, box, b, cfg))
	}
	const writers, each = 4, 50
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				write(t, boxes[w], pool, message(fmt.Sprintf("%d-%d", w, i)))
				boxes[w].Wake()
			}
		})
	}
	all.Wait()
	eventually(t, "the outbox is empty", func() bool { return stats(t, boxes[0]).Pending == 0 })
	for _, stop := range stops {
		stop()
	}
	copies := b.copies()
	if len(copies) != writers*each {
		t.Errorf("%d different messages, want %d", len(copies), writers*each)
	}
	for id, n := range copies {
		if n != 1 {
			t.Errorf("%s was published %d times, want once", id, n)
		}
	}
}

func TestRelay_WakeAfterCommitPublishesAtOnce(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	b := &broker{}
	cfg := quick()
	cfg.PollInterval = time.Hour
	start(t, box, b, cfg)
	for i := range 20 {
		write(t, box, db, message(fmt.Sprint(i)))
		box.Wake()
		eventually(t, "a woken relay publishes", func() bool { return len(b.copies()) == i+1 })
	}
}

func TestRelay_PoisonRowIsParkedWithItsErrorAndOthersFlow(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	b := &broker{answer: func(_ context.Context, messages []producer.Message) error {
		if i := slices.IndexFunc(messages, func(m producer.Message) bool { return m.ID == "poison" }); i >= 0 {
			return &producer.PublishError{Failures: []producer.Failure{{Index: i, ID: "poison", Err: errors.New("payload is too large")}}}
		}
		return nil
	}}
	cfg := quick()
	cfg.MaxAttempts = 3
	stop := start(t, box, b, cfg)
	write(t, box, db, message("poison"), message("1"))
	write(t, box, db, message("2"))
	eventually(t, "the good rows are published and the bad one is dead", func() bool {
		s := stats(t, box)
		return s.Pending == 0 && s.Dead == 1
	})
	stop()
	if n := b.copies(); n["poison"] != 3 || n["1"] != 1 || n["2"] != 1 {
		t.Errorf("attempts %v, want 3 of the poison row and one of each other", n)
	}
	dead, err := box.Dead(t.Context(), 10)
	if err != nil || dead[0].Error != "payload is too large" || dead[0].Failures != 3 {
		t.Errorf("dead %+v, error %v", dead, err)
	}
}

func TestRelay_DiedBetweenPublishAndMark_NothingIsLostAndTheIDStays(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, producer.Message{Topic: "orders"}, producer.Message{Topic: "orders"})
	cfg := quick()
	cfg.PublishTimeout, cfg.Lease = 100*time.Millisecond, 300*time.Millisecond
	b := &broker{}
	stopDying := start(t, mute{box}, b, cfg)
	eventually(t, "the first relay publishes", func() bool { return len(b.copies()) == 2 })
	stopDying()
	if n := leased(t, db); n != 2 {
		t.Fatalf("%d rows are leased by the dead relay, want 2", n)
	}
	stop := start(t, box, b, quick())
	eventually(t, "the outbox is empty", func() bool { return stats(t, box).Pending == 0 })
	stop()
	copies := b.copies()
	if len(copies) != 2 {
		t.Errorf("%d different IDs, want 2", len(copies))
	}
	for id, n := range copies {
		if n < 2 { // more if the first relay was slow to die
			t.Errorf("%s was published %d times, want twice", id, n)
		}
	}
}

// mute is a store that its relay cannot tell results.
type mute struct{ *pgoutbox.Outbox }

func (mute) Settle(context.Context, string, []outbox.Result) error {
	return errors.New("disk I/O error")
}

func TestRelay_OutlivesAMissingTable(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	box := unmigrated(t, pool, pgoutbox.Config{})
	b := &broker{}
	stop := start(t, box, b, quick())
	boxIn(t, pool, pgoutbox.Config{})
	write(t, box, pool, message("1"))
	eventually(t, "the row is published", func() bool { return b.copies()["1"] == 1 })
	stop()
}

func TestRelay_CleanStopLeavesNoGoroutineAndNoLeasedRow(t *testing.T) {
	box, db := newBox(t) // not parallel: it counts goroutines
	before := goleak.IgnoreCurrent()
	write(t, box, db, message("acknowledged"), message("hanging"))
	entered := make(chan struct{})
	b := &broker{answer: func(ctx context.Context, messages []producer.Message) error {
		close(entered)
		<-ctx.Done()
		return &producer.PublishError{Failures: []producer.Failure{{Index: 1, ID: messages[1].ID, Err: ctx.Err(), Unknown: true}}}
	}}
	cfg := quick()
	cfg.PublishTimeout, cfg.Lease = 500*time.Millisecond, time.Minute
	stop := start(t, box, b, cfg)
	<-entered
	stop()
	if n := leased(t, db); n != 0 {
		t.Errorf("%d rows are still leased", n)
	}
	if n := count(t, db, "id = 'acknowledged' AND published_at IS NOT NULL OR id = 'hanging' AND unknowns IS NULL AND due_at IS NULL"); n != 2 {
		t.Error("the acknowledged row is not marked, or the other one was not given back")
	}
	goleak.VerifyNone(t, before)
}

func TestRelay_Retention(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retention time.Duration
		want      int
	}{"kept": {time.Hour, 3}, "deleted at once": {outbox.DeleteAtOnce, 0}, "over": {time.Millisecond, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box, db := newBox(t)
			write(t, box, db, message("1"), message("2"), message("3"))
			b := &broker{}
			cfg := quick()
			cfg.Retention = tc.retention
			stop := start(t, box, b, cfg)
			eventually(t, "the rows are published, and kept or not", func() bool {
				return len(b.copies()) == 3 && stats(t, box).Pending == 0 && count(t, db, "true") == tc.want
			})
			stop()
		})
	}
}

// TestRelay_ErrorsInAnotherEncodingAreRecordedInASCII has a batch whose results would otherwise never be recorded, so that it is
// published again and again.
func TestRelay_ErrorsInAnotherEncodingAreRecordedInASCII(t *testing.T) {
	t.Parallel()
	pool := postgrestest.Shared(t).NewDatabase(t, `ENCODING 'EUC_JP' LOCALE 'C' TEMPLATE template0`).Pool(t)
	box := boxIn(t, pool, pgoutbox.Config{})
	write(t, box, pool, message("order"), message("poison"))
	rows, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: "1", Limit: 10, Lease: time.Minute})
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v, want 2", len(rows), err)
	}
	if err := box.Settle(t.Context(), "1", []outbox.Result{
		{Number: rows[0].Number, State: outbox.Published},
		{Number: rows[1].Number, State: outbox.Dead, Error: "no such subject \U0001F4B8"},
	}); err != nil {
		t.Fatal(err)
	}
	dead, err := box.Dead(t.Context(), 10)
	if err != nil || len(dead) != 1 || dead[0].Error != "no such subject ?" {
		t.Errorf("dead are %+v, %v", dead, err)
	}
	if n := stats(t, box).Pending; n != 0 {
		t.Errorf("%d rows are pending, want 0", n)
	}
}
