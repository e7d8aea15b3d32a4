package sqliteoutbox_test

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func TestLease_KeepsRowsFromOthersUntilItEnds(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"), message("2"))
	first := lease(t, box, "first", 2*time.Second)
	if len(first) != 2 || len(lease(t, box, "other", time.Minute)) != 0 || len(leaseKind(t, box, "other", time.Minute, true)) != 0 {
		t.Fatalf("first lease got %q, and another got rows too", idsOf(first))
	}
	var second []outbox.Row
	eventually(t, "the lease ends", func() bool {
		second = leaseKind(t, box, "second", time.Minute, true)
		return len(second) > 0
	})
	if diff := cmp.Diff(idsOf(first), idsOf(second)); diff != "" || second[0].Unknowns != 1 || second[0].Failures != 0 {
		t.Errorf("second lease: %d unknowns, IDs differ: %s", second[0].Unknowns, diff)
	}
	// What the first owner says now does not count.
	settle(t, box, "first", outbox.Result{Number: first[0].Number, State: outbox.Dead, Error: "late"})
	if n := count(t, db, `token = 'second' AND dead_at IS NULL`); n != 2 {
		t.Errorf("the second lease holds %d rows after the first settled, want 2", n)
	}
}

func TestLease_SuspectsAreHandedOutApart(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("new"), message("refused"), message("unanswered"), message("given back"))
	var results []outbox.Result
	for _, r := range lease(t, box, "t", time.Minute) {
		switch r.Message.ID {
		case "refused":
			results = append(results, outbox.Result{Number: r.Number, State: outbox.Failed})
		case "unanswered":
			results = append(results, outbox.Result{Number: r.Number, State: outbox.Unknown})
		}
	}
	settle(t, box, "t", results...)
	if diff := cmp.Diff([]string{"new", "refused", "given back"}, idsOf(lease(t, box, "t2", time.Minute))); diff != "" {
		t.Errorf("without an unknown attempt are: %s", diff)
	}
	if diff := cmp.Diff([]string{"unanswered"}, idsOf(leaseKind(t, box, "t3", time.Minute, true))); diff != "" {
		t.Errorf("suspects are: %s", diff)
	}
}

func TestSettle_ExpiredLeaseHoldsUntilSomebodyElseTakesIt(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"))
	rows := lease(t, box, "t", time.Microsecond)
	settle(t, box, "t", outbox.Result{Number: rows[0].Number, State: outbox.Published})
	if n := count(t, db, "published_at IS NOT NULL"); n != 1 {
		t.Error("a late result was refused although nobody else had the row")
	}
}

func TestSettle_RecordsEachStateAndGivesBackTheRest(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("published"), message("removed"), message("failed"), message("unknown"), message("dead"), message("rest"))
	number := map[string]int64{}
	for _, r := range lease(t, box, "t", time.Minute) {
		number[r.Message.ID] = r.Number
	}
	results := []outbox.Result{
		{Number: number["published"], State: outbox.Published},
		{Number: number["removed"], State: outbox.Removed},
		{Number: number["failed"], State: outbox.Failed, Delay: time.Hour, Error: "refused"},
		{Number: number["unknown"], State: outbox.Unknown, Delay: time.Hour, Error: "no answer"},
		{Number: number["dead"], State: outbox.Dead, Error: "too large"},
	}
	for range 2 { // the second one changes nothing
		settle(t, box, "t", results...)
		for where, want := range map[string]int{
			`true`:              5,
			`token IS NOT NULL`: 0,
			`id = 'published' AND published_at IS NOT NULL`:                                                         1,
			`id = 'failed' AND failures = 1 AND unknowns = 0 AND last_error = 'refused' AND due_at > written_at`:    1,
			`id = 'unknown' AND failures = 0 AND unknowns = 1 AND last_error = 'no answer' AND due_at > written_at`: 1,
			`id = 'dead' AND failures = 1 AND dead_at IS NOT NULL`:                                                  1,
			`id = 'rest' AND failures = 0 AND unknowns = 0 AND due_at = written_at`:                                 1,
		} {
			if n := count(t, db, where); n != want {
				t.Errorf("%d rows where %s, want %d", n, where, want)
			}
		}
	}
	if diff := cmp.Diff([]string{"rest"}, idsOf(lease(t, box, "again", time.Minute))); diff != "" {
		t.Errorf("due are: %s", diff)
	}
}

func TestSettle_UnknownStateChangesNothing(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"), message("2"))
	rows := lease(t, box, "t", time.Minute)
	err := box.Settle(t.Context(), "t", []outbox.Result{
		{Number: rows[0].Number, State: outbox.Failed},
		{Number: rows[1].Number, State: "odd"},
	})
	if err == nil || count(t, db, "token = 't' AND failures = 0") != 2 {
		t.Errorf("error %v, and rows have changed", err)
	}
}

func TestLease_HoldsUntilNotBefore(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	later := message("later")
	later.NotBefore = time.Now().Add(time.Hour)
	write(t, box, db, later)
	if s := stats(t, box); s.Pending != 1 || s.Oldest != 0 {
		t.Errorf("stats %+v, want one pending row that is not late", s)
	}
	soon := message("soon")
	soon.NotBefore = time.Now().Add(300 * time.Millisecond)
	write(t, box, db, soon)
	var rows []outbox.Row
	eventually(t, "a row is due", func() bool { rows = lease(t, box, "t", time.Minute); return len(rows) > 0 })
	if time.Now().Before(soon.NotBefore) || !rows[0].Message.NotBefore.IsZero() {
		t.Errorf("handed out %v early, with NotBefore %v", time.Until(soon.NotBefore), rows[0].Message.NotBefore)
	}
	if diff := cmp.Diff([]string{"soon"}, idsOf(rows)); diff != "" {
		t.Errorf("due are: %s", diff)
	}
	settle(t, box, "t")
	if len(lease(t, box, "again", time.Minute)) != 1 {
		t.Error("a row that was given back is not due at once")
	}
}

// The statement is the package doc's.
func TestLease_RowsFromBeforeTheClockWasSetBackCanBeMadeDue(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	statement := regexp.MustCompile(`//\t(UPDATE .*)\n//\t(WHERE .*)`).FindSubmatch(doc)
	if statement == nil {
		t.Fatal("the package doc has no UPDATE")
	}
	box, db := newBox(t)
	later := message("later")
	later.NotBefore = time.Now().Add(time.Hour)
	write(t, box, db, message("1"), later)
	mustExec(t, db, `UPDATE oncemill_outbox SET written_at = written_at + 86400000000, not_before = not_before + 86400000000, due_at = due_at + 86400000000`)
	if rows := lease(t, box, "early", time.Minute); len(rows) != 0 {
		t.Errorf("due are: %v", idsOf(rows))
	}
	mustExec(t, db, string(statement[1])+" "+string(statement[2]))
	for _, token := range []string{"t", "again"} {
		if diff := cmp.Diff([]string{"1"}, idsOf(lease(t, box, token, time.Minute))); diff != "" {
			t.Errorf("due are: %s", diff)
		}
		settle(t, box, token)
	}
}

func TestLease_SmallerNumberThatAppearsLaterIsNotSkipped(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"), message("2"))
	for _, r := range lease(t, box, "t", time.Minute) {
		settle(t, box, "t", outbox.Result{Number: r.Number, State: outbox.Published})
		lease(t, box, "t", time.Minute)
	}
	mustExec(t, db, `INSERT INTO oncemill_outbox (number, id, topic, payload, written_at, not_before, due_at) VALUES (-5, 'late', 'orders', x'', 1, 1, 1)`)
	if diff := cmp.Diff([]string{"late"}, idsOf(lease(t, box, "t2", time.Minute))); diff != "" {
		t.Errorf("due are: %s", diff)
	}
}

func TestLease_UnreadableRowBlocksNobody(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"), message("odd"), message("2"))
	mustExec(t, db, `UPDATE oncemill_outbox SET header = '[1]' WHERE id = 'odd'`)
	for _, row := range lease(t, box, "t", time.Minute) {
		if (row.Problem != "") != (row.Message.ID == "odd") {
			t.Errorf("row %q has the problem %q", row.Message.ID, row.Problem)
		}
	}
}

func TestClean_RemovesOldPublishedRowsOnly(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"), message("2"), message("3"), message("dead"), message("pending"))
	var results []outbox.Result
	for _, r := range lease(t, box, "t", time.Minute) {
		switch r.Message.ID {
		case "dead":
			results = append(results, outbox.Result{Number: r.Number, State: outbox.Dead})
		case "pending":
		default:
			results = append(results, outbox.Result{Number: r.Number, State: outbox.Published})
		}
	}
	settle(t, box, "t", results...)
	for _, step := range []struct {
		age   time.Duration
		limit int
		want  int
	}{{time.Hour, 10, 0}, {0, 2, 2}, {0, 2, 1}, {0, 2, 0}} {
		if n, err := box.Clean(t.Context(), step.age, step.limit); err != nil || n != step.want {
			t.Errorf("Clean(%v, %d) = %d, %v, want %d", step.age, step.limit, n, err, step.want)
		}
	}
	if n := count(t, db, "id IN ('dead', 'pending')"); n != 2 {
		t.Errorf("%d of the dead and the pending row are left, want both", n)
	}
}

func TestRequeue_DeadRowsArePublishedAgain(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"), message("2"))
	for _, r := range lease(t, box, "t", time.Minute) {
		lease(t, box, "t", time.Minute)
		settle(t, box, "t", outbox.Result{Number: r.Number, State: outbox.Dead, Error: "too large"})
	}
	dead, err := box.Dead(t.Context(), 10)
	if err != nil || len(dead) != 2 || dead[0].Error != "too large" || dead[0].Failures != 1 || dead[0].Died.Before(dead[0].Written) {
		t.Fatalf("dead rows %+v, error %v", dead, err)
	}
	if s := stats(t, box); s.Dead != 2 || s.Pending != 0 {
		t.Errorf("stats %+v", s)
	}
	if n, err := box.Requeue(t.Context(), "1", "unheard of"); err != nil || n != 1 {
		t.Errorf("Requeue = %d, %v, want 1", n, err)
	}
	if n, err := box.Requeue(t.Context()); err != nil || n != 0 {
		t.Errorf("Requeue of nothing = %d, %v", n, err)
	}
	rows := lease(t, box, "again", time.Minute)
	if len(rows) != 1 || rows[0].Message.ID != "1" || rows[0].Failures != 0 {
		t.Errorf("due after Requeue: %+v", rows)
	}
}

func TestDiscard_RemovesDeadRowsOnly(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"), message("2"), message("3"))
	rows := lease(t, box, "t", time.Minute)
	settle(t, box, "t", outbox.Result{Number: rows[0].Number, State: outbox.Dead, Error: "no"}, outbox.Result{Number: rows[1].Number, State: outbox.Dead, Error: "no"})
	if n, err := box.Discard(t.Context(), rows[0].Message.ID, rows[2].Message.ID, "unheard of"); err != nil || n != 1 {
		t.Errorf("Discard = %d, %v, want 1", n, err)
	}
	if n := count(t, db, "id IN ('2', '3')"); n != 2 {
		t.Errorf("%d of the other rows are left, want both", n)
	}
}

func TestReplay_PublishedRowsComeAgainAsCopies(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"), message("2"), message("3"))
	publish := func() (rows []outbox.Row) {
		t.Helper()
		rows = lease(t, box, "t", time.Minute)
		var results []outbox.Result
		for _, r := range rows {
			results = append(results, outbox.Result{Number: r.Number, State: outbox.Published})
		}
		settle(t, box, "t", results...)
		return rows
	}
	began := time.Now()
	publish()
	asked := time.Now()
	for generation := 1; generation <= 2; generation++ {
		replay := outbox.ReplayRequest{Since: began.Add(-time.Second), Before: asked, IDs: []string{"1", "2"}, Topic: "orders", Limit: 1}
		for _, want := range []int{1, 1, 0} {
			if n, err := box.Replay(t.Context(), replay); err != nil || n != want {
				t.Fatalf("Replay = %d, %v, want %d", n, err, want)
			}
		}
		again := publish()
		if got := sorted(map[string]int{again[0].Message.ID: 1, again[1].Message.ID: 1}); len(again) != 2 || !slices.Equal(got, []string{"1", "2"}) {
			t.Fatalf("%v were published again, want 1 and 2", idsOf(again))
		}
		for _, r := range again {
			h := r.Message.Header
			if h[producer.HeaderPurpose] != producer.PurposeReplay || h[producer.HeaderGeneration] != strconv.Itoa(generation) || h[producer.HeaderID] != r.Message.ID {
				t.Errorf("header %v, want the purpose replay, generation %d, and the ID", h, generation)
			}
		}
		asked = time.Now()
	}
	write(t, box, db, message("1")) // the same action, repeated: the row is known by its first name
	if n := count(t, db, "id = '1'"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	if n, err := box.Replay(t.Context(), outbox.ReplayRequest{Before: time.Now(), Topic: "elsewhere", Limit: 10}); err != nil || n != 0 {
		t.Errorf("Replay of another topic = %d, %v", n, err)
	}
	for field, bad := range map[string]outbox.ReplayRequest{
		"ReplayRequest.Before": {Limit: 1}, "ReplayRequest.Limit": {Before: asked}, "ReplayRequest.Since": {Before: asked, Since: asked.Add(1), Limit: 1},
	} {
		var invalid *outbox.InvalidError
		if _, err := box.Replay(t.Context(), bad); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%v, want an error for %s", err, field)
		}
	}
}
