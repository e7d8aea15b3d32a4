package pgstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A shelf is a store with records as a test has written them. What the quick statements leave out takes a second look,
// which decides again, so only the statements themselves tell whether they are right.
type shelf struct {
	t    *testing.T
	pool *pgxpool.Pool
	*Store
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	pool := newPool(t)
	return &shelf{t, pool, newStore(t, pool, Config{})}
}

// record is one that "owner" has claimed under fence 7, for hours, with changes.
func (s *shelf) record(name string, changes ...string) {
	s.t.Helper()
	mustExec(s.t, s.pool, `
INSERT INTO oncemill_dedup (id, key, state, owner, fence, attempts, returned, first_at, lease_until, expires_at, clean_at,
	print, trace)
VALUES ($1, $2, 'running', 'owner', 7, 1, 0, now(), now() + interval '1 hour', now() + interval '2 hours',
	now() + interval '3 hours', '', '')`, idOf(name), name)
	for _, change := range changes {
		mustExec(s.t, s.pool, `UPDATE oncemill_dedup SET `+change+` WHERE id = $1`, idOf(name))
	}
}

// beat is the heartbeat of a record, for hours, with changes.
func (s *shelf) beat(name string, changes ...string) {
	s.t.Helper()
	mustExec(s.t, s.pool, `
INSERT INTO oncemill_dedup_beats (id, fence, state, lease_until, expires_at)
VALUES ($1, 7, 'running', now() + interval '1 hour', now() + interval '5 hours')`, idOf(name))
	for _, change := range changes {
		mustExec(s.t, s.pool, `UPDATE oncemill_dedup_beats SET `+change+` WHERE id = $1`, idOf(name))
	}
}

// is wants something to be true of each record of the name, or of its heartbeat.
func (s *shelf) is(table, name, what string) {
	s.t.Helper()
	var n int
	var row *string
	err := s.pool.QueryRow(s.t.Context(), `SELECT count(*) FILTER (WHERE `+what+`), max(x::text) FROM `+table+
		` x WHERE id = $1`, idOf(name)).Scan(&n, &row)
	if err != nil || n != 1 {
		text := "not there"
		if row != nil {
			text = *row
		}
		s.t.Errorf("%s: want %s: %v; it is %s", name, what, err, text)
	}
}

// names are those of records or heartbeats that are there.
func (s *shelf) names(table string, of ...string) (there []string) {
	s.t.Helper()
	for _, name := range of {
		var n int
		row := s.pool.QueryRow(s.t.Context(), `SELECT count(*) FROM `+table+` WHERE id = $1`, idOf(name))
		if err := row.Scan(&n); err != nil {
			s.t.Fatal(err)
		}
		if n > 0 {
			there = append(there, name)
		}
	}
	return there
}

// soon is a context for what must not wait.
func (s *shelf) soon() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	s.t.Cleanup(cancel)
	return ctx
}

// lock locks records or heartbeats until the test ends.
func (s *shelf) lock(table string, names ...string) {
	s.t.Helper()
	s.holding(`SELECT FROM `+table+` WHERE id = $1 FOR UPDATE`, names...)
}

// holding makes a statement about records, and leaves its transaction open until the test ends.
func (s *shelf) holding(query string, names ...string) {
	s.t.Helper()
	tx, err := s.pool.Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	for _, name := range names {
		if _, err := tx.Exec(s.t.Context(), query, idOf(name)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// repeated is an argument that is the same for all names.
func repeated[T any](v T, names []string) []T { return slices.Repeat([]T{v}, len(names)) }

// answered are the names whose IDs a query returns.
func (s *shelf) answered(names []string, query string, args ...any) (got []string) {
	s.t.Helper()
	rows, err := s.pool.Query(s.soon(), query, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range names {
		if slices.ContainsFunc(ids, func(id []byte) bool { return string(id) == string(idOf(name)) }) {
			got = append(got, name)
		}
	}
	if len(got) != len(ids) {
		s.t.Errorf("%d IDs, of which %v are known", len(ids), got)
	}
	return got
}

// sift makes records, and returns the names of all, and of those that a statement has to take.
func (s *shelf) sift(records map[string][]string) (all, good []string) {
	s.t.Helper()
	all = slices.Sorted(maps.Keys(records))
	for _, name := range all {
		s.record(name, records[name]...)
		if strings.HasPrefix(name, "good") {
			good = append(good, name)
		}
	}
	return all, good
}

func idsNamed(names []string) (ids [][]byte) {
	for _, name := range names {
		ids = append(ids, idOf(name))
	}
	return ids
}

const (
	expired = `expires_at = now() - interval '1 minute'`
	another = `owner = 'another'`
	older   = `fence = 6`
)

func TestExtendSQL_LeavesOutWhatDoesNotHold(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	all, good := s.sift(map[string][]string{
		"good": nil, "good: publishing": {`state = 'publishing'`}, "good: with a beat": {expired},
		"good: unstarted, extended so": nil, "good: started, extended as not": nil, "good: of a fence before": nil,
		"another": {another}, "older": {older}, "retryable": {`state = 'retryable'`}, "done": {`state = 'done'`},
		"past": {expired}, "past, with one": {expired}, "past, of a fence before": {expired},
		"past, of another state": {expired}, "locked": nil,
	})
	s.record("bystander")
	s.record("bystander, too", another, `state = 'done'`)
	s.beat("good: with a beat")
	s.beat("good: unstarted, extended so", `unstarted = 7`)
	s.beat("good: started, extended as not")
	s.beat("good: of a fence before", older)
	s.beat("past, with one", expired)
	s.beat("past, of a fence before", older)
	s.beat("past, of another state", `state = 'publishing'`)
	s.lock("oncemill_dedup", "locked")
	hour := time.Hour.Microseconds()
	got := s.answered(all, s.sql.extend, idsNamed(all), repeated("owner", all), repeated(int64(7), all),
		repeated(hour, all), repeated(2*hour, all), repeated(false, all))
	if !slices.Equal(got, good) {
		t.Errorf("extended are %q, want %q", got, good)
	}
	for _, name := range good {
		s.is("oncemill_dedup_beats", name, `fence = 7 AND lease_until BETWEEN now() + interval '50 minutes' AND `+
			`now() + interval '70 minutes' AND expires_at - lease_until = interval '1 hour'`)
	}
	for name, unstarted := range map[string]string{
		"good": "7", "good: unstarted, extended so": "7", "good: started, extended as not": "NULL",
		"good: of a fence before": "7",
	} {
		s.is("oncemill_dedup_beats", name, `unstarted IS NOT DISTINCT FROM `+unstarted)
	}
	s.is("oncemill_dedup_beats", "good: publishing", `state = 'publishing'`)
	if there := s.names("oncemill_dedup_beats", "bystander", "bystander, too", "locked"); there != nil {
		t.Errorf("%q have heartbeats", there)
	}
	s.answered(all, s.sql.extend, idsNamed(good), repeated("owner", good), repeated(int64(7), good),
		repeated(hour, good), repeated(2*hour, good), repeated(true, good))
	for _, name := range good {
		s.is("oncemill_dedup_beats", name, `unstarted IS NULL`)
	}
}

// settlers are as many tokens of owners that settled before.
func settlers(n int) string {
	var tokens []string
	for i := range n {
		tokens = append(tokens, fmt.Sprint("t", i))
	}
	return `settled = ARRAY['` + strings.Join(tokens, "', '") + `']`
}

// settledBy is what a record then has, without so many of the oldest.
func settledBy(n, without int) string {
	return `settled = (SELECT array_append((` + strings.TrimPrefix(settlers(n), "settled = ") + `)[` +
		fmt.Sprint(without+1) + `:], 'owner'))`
}

// What is beside a record counts if it is of the same claim, and one row is read for each.
func TestLoadSQL_ReadsWhatIsOfTheSameClaim(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	all, _ := s.sift(map[string][]string{
		"alone": nil, "beat": nil, "beat, unstarted": nil, "beat, unstarted before": nil, "beat of a fence before": nil,
		"beat of another state": nil, "beat while it publishes": {`state = 'publishing'`, `kind = 'failed'`, `decided = 7`},
		"done":              {`state = 'done'`, `kind = 'succeeded'`, `decided = 7`, `settled = ARRAY['owner', 'operator']`},
		"done by its owner": {`state = 'done'`, `kind = 'succeeded'`, `decided = 7`, `settled = ARRAY['operator', 'owner']`},
		"done, with a beat": {`state = 'done'`, `kind = 'succeeded'`, `decided = 7`},
		"copies":            nil, "copies before": nil,
	})
	for _, name := range []string{"beat", "copies"} {
		s.beat(name)
	}
	s.beat("beat, unstarted", `unstarted = 7`)
	s.beat("beat, unstarted before", `unstarted = 6`)
	s.beat("beat of a fence before", older)
	s.beat("beat of another state", `state = 'publishing'`)
	s.beat("beat while it publishes", `state = 'publishing'`)
	s.beat("done, with a beat", `state = 'done'`) // which no statement writes
	for name, first := range map[string]string{"copies": "0", "copies before": "1 minute"} {
		mustExec(t, s.pool, `INSERT INTO oncemill_dedup_duplicates SELECT id, 3, first_at - $2::text::interval, now()
			FROM oncemill_dedup WHERE id = $1`, idOf(name), first)
	}
	s.record("bystander")
	s.beat("bystander")
	for query, people := range map[string]bool{s.sql.load: false, s.sql.look: true} {
		found, rows, now := map[string]*sqlstore.Row{}, 0, time.Time{}
		var b pgx.Batch
		load(&b, query, idsNamed(all), found, &now)
		b.Queue(query, idsNamed(all)).Exec(func(tag pgconn.CommandTag) error {
			rows = int(tag.RowsAffected())
			return nil
		})
		if err := s.pool.SendBatch(s.soon(), &b).Close(); err != nil {
			t.Fatal(err)
		}
		if rows != len(all) || len(found) != len(all) {
			t.Errorf("%d rows of %d records were read, want %d", rows, len(found), len(all))
		}
		for _, name := range all {
			r := found[string(idOf(name))]
			if r == nil || r.Err != nil {
				t.Errorf("%s: %+v", name, r)
				continue
			}
			lives := slices.Contains([]string{"beat", "beat, unstarted", "beat, unstarted before", "copies",
				"beat while it publishes"}, name)
			if got := r.Expires.Sub(now) > 3*time.Hour; got != lives {
				t.Errorf("%s: expires %v later, its heartbeat counts: %v", name, r.Expires.Sub(now), lives)
			}
			if started := lives && name != "beat, unstarted"; r.Started != started {
				t.Errorf("%s: started is %v", name, r.Started)
			}
			copies := 0
			if people && name == "copies" {
				copies = 3
			}
			if r.Duplicates != copies {
				t.Errorf("%s: %d duplicates, want %d", name, r.Duplicates, copies)
			}
			if operator := slices.Equal(r.Settled, []string{"operator"}); people && operator != (name == "done") {
				t.Errorf("%s: settled by %q", name, r.Settled)
			}
		}
	}
}

func TestSettleSQL_LeavesOutWhatDoesNotHold(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	const most = dedupstore.MaxSettled
	all, good := s.sift(map[string][]string{
		"good": nil, "good: with room": {settlers(most - 1)}, "good: full": {settlers(most)},
		"another": {another}, "older": {older}, "retryable": {`state = 'retryable'`}, "done": {`state = 'done'`},
		"publishing": {`state = 'publishing'`}, "past": {expired}, "past, with a beat": {expired}, "locked": nil,
	})
	s.beat("past, with a beat")
	s.record("bystander")
	s.lock("oncemill_dedup", "locked")
	got := s.answered(all, s.sql.settle, idsNamed(all), repeated("owner", all), repeated(int64(7), all),
		repeated(time.Hour.Microseconds(), all), repeated([]byte("paid"), all), repeated(new(int64(5)), all))
	if !slices.Equal(got, good) {
		t.Errorf("settled are %q, want %q", got, good)
	}
	for _, name := range good {
		s.is("oncemill_dedup", name, `state = 'done' AND kind = 'succeeded' AND decided = 7 AND result = 'paid'`)
	}
	s.is("oncemill_dedup", "good", `settled = ARRAY['owner']`)
	s.is("oncemill_dedup", "good: with room", settledBy(most-1, 0))
	s.is("oncemill_dedup", "good: full", settledBy(most, 1))
	s.is("oncemill_dedup", "bystander", `state = 'running'`)
	one := []string{"bystander"}
	got = s.answered(one, s.sql.settle, idsNamed(one), repeated("owner", one), repeated(int64(7), one),
		repeated(time.Hour.Microseconds(), one), repeated([]byte(nil), one), repeated((*int64)(nil), one))
	if !slices.Equal(got, one) {
		t.Errorf("settled are %q, want %q", got, one)
	}
}

func TestFinishSQL_FailsWhereTheClaimDoesNotHold(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	const most, window = dedupstore.MaxSettled, 40 * time.Minute
	all, good := s.sift(map[string][]string{
		"good": nil, "good: full": {settlers(most)}, "good: with room": {settlers(most - 1)},
		"good: barred another": {`barred = 'before'`}, "good: with a beat": {expired},
		"good: done by itself":  {`state = 'done'`, settlers(2), expired},
		"good: cleaned in time": {`clean_at = now() + interval '80 minutes'`},
		"good: cleaned early":   {`clean_at = now() + interval '20 minutes'`},
		"good: cleaned late":    {`clean_at = now() + interval '140 minutes'`},
		"another":               {another}, "older": {older}, "retryable": {`state = 'retryable'`},
		"done":   {`state = 'done'`},
		"barred": {`barred = 'token'`}, "past": {expired}, "past, with one": {expired}, "past, of a fence before": {expired},
		"past, of another state": {expired}, "done by itself, of another": {`state = 'done'`, another},
		"done by itself, and running": {`state = 'running'`},
	})
	s.beat("good: with a beat")
	s.beat("past, with one", expired)
	s.beat("past, of a fence before", older)
	s.beat("past, of another state", `state = 'publishing'`)
	s.record("bystander", expired)
	s.beat("bystander")
	for _, name := range all {
		was := dedupstore.Running
		if strings.Contains(name, "done by itself") {
			was = dedupstore.Finished
		}
		args := finishArgs("token", was, dedupstore.Claim{Owner: "owner", Fence: 7}, dedupstore.Finish{
			Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "declined"}, Retention: window,
		})
		args[1] = idOf(name)
		_, err := s.pool.Exec(s.soon(), s.sql.finish, args...)
		refusal, is := errors.AsType[*pgconn.PgError](err)
		if wants := slices.Contains(good, name); wants != (err == nil) || !wants && !(is && refusal.Code == "22012") {
			t.Errorf("%s: the error is %v", name, err)
		}
		if err == nil {
			s.is("oncemill_dedup", name, `state = 'done' AND kind = 'failed' AND reason = 'declined' AND decided = 7 AND `+
				`expires_at BETWEEN now() + interval '30 minutes' AND now() + interval '50 minutes'`)
		}
	}
	s.is("oncemill_dedup", "good", `settled = ARRAY['owner']`)
	s.is("oncemill_dedup", "good: full", settledBy(most, 1))
	s.is("oncemill_dedup", "good: with room", settledBy(most-1, 0))
	s.is("oncemill_dedup", "good: done by itself", `settled = ARRAY['owner']`)
	s.is("oncemill_dedup", "bystander", `state = 'running'`)
	const soonAfter = `clean_at BETWEEN now() + interval '40 minutes' AND now() + interval '43 minutes'`
	s.is("oncemill_dedup", "good: cleaned in time", `clean_at > now() + interval '70 minutes'`)
	s.is("oncemill_dedup", "good: cleaned early", soonAfter)
	s.is("oncemill_dedup", "good: cleaned late", soonAfter)
}

func TestJoinSQL_TellsWhatIsSettledFromWhatIsLost(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	const zero, settled = "22012", "22P02" // division_by_zero, invalid_text_representation
	mine := `settled = ARRAY['owner', 'later']`
	records := map[string][]string{
		"holds": nil, "holds, and was released before": {mine},
		"settled": {`state = 'done'`, mine, `decided = 7`}, "lost": {another},
		"settled under another fence": {`state = 'done'`, mine, `decided = 6`},
		"settled by another":          {`state = 'done'`, `settled = ARRAY['later']`, `decided = 7`},
		"never settled":               {`state = 'retryable'`},
	}
	s.sift(records)
	s.record("bystander", `state = 'done'`, mine, `decided = 7`)
	for name := range maps.Keys(records) {
		args := finishArgs("token", dedupstore.Running, dedupstore.Claim{Owner: "owner", Fence: 7}, success)
		args[1] = idOf(name)
		_, err := s.pool.Exec(s.soon(), s.sql.join, args[:len(args)-1]...)
		want := zero
		switch {
		case strings.HasPrefix(name, "holds"):
			want = ""
		case name == "settled":
			want = settled
		}
		got := ""
		if refusal, is := errors.AsType[*pgconn.PgError](err); is {
			got = refusal.Code
		}
		if got != want || err != nil && want == "" {
			t.Errorf("%s: %v, want code %q", name, err, want)
		}
	}
}

func TestBarSQL_BarsARunOnly(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	all, good := s.sift(map[string][]string{
		"good": nil, "another": {another}, "older": {older}, "done": {`state = 'done'`},
		"publishing": {`state = 'publishing'`},
	})
	s.record("bystander")
	for _, name := range all {
		if _, err := s.pool.Exec(s.soon(), s.sql.bar, idOf(name), "owner", int64(7), "token"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range append(all, "bystander") {
		want := `barred IS NULL`
		if slices.Contains(good, name) {
			want = `barred = 'token'`
		}
		s.is("oncemill_dedup", name, want)
	}
}

func TestCleanSQL_KeepsWhatLives(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	const due, old = `clean_at = now() - interval '1 second'`, `lease_until = now() - interval '2 minutes'`
	s.sift(map[string][]string{
		"expired": {expired, due}, "expired, of a fence before": {expired, due}, "expired, of another state": {expired, due},
		"not due": {expired}, "lives": {due}, "lives by a beat": {expired, due}, "locked": {expired, due},
		"lives a moment": {due, `expires_at = now() + interval '20 seconds'`},
		"old beat":       {}, "old beat of a fence before": {}, "old beat of another state": {}, "young beat": {}, "locked beat": {},
	})
	for _, name := range []string{"expired", "lives"} {
		mustExec(t, s.pool, `INSERT INTO oncemill_dedup_duplicates VALUES ($1, 3, now(), now())`, idOf(name))
	}
	s.beat("lives by a beat")
	s.beat("expired, of a fence before", older)
	s.beat("expired, of another state", `state = 'publishing'`)
	s.beat("old beat", old)
	s.beat("old beat of a fence before", old, older)
	s.beat("old beat of another state", old, `state = 'publishing'`)
	s.beat("old beat of nothing", old)
	s.beat("young beat", older, `lease_until = now() - interval '30 seconds'`)
	s.beat("locked beat", old, older)
	s.lock("oncemill_dedup", "locked")
	s.lock("oncemill_dedup_beats", "locked beat")
	records, beats, err := s.clean(s.soon(), 100)
	if err != nil || records != 3 || beats != 3 {
		t.Errorf("deleted are %d records and %d heartbeats, %v, want 3 and 3", records, beats, err)
	}
	for table, want := range map[string][]string{
		"oncemill_dedup":            {"not due", "lives", "lives by a beat", "lives a moment", "locked", "old beat"},
		"oncemill_dedup_duplicates": {"lives"},
		"oncemill_dedup_beats":      {"lives by a beat", "old beat", "young beat", "locked beat"},
	} {
		more := []string{"expired", "old beat of a fence before", "old beat of another state", "old beat of nothing"}
		if table == "oncemill_dedup" {
			more = []string{"expired", "expired, of a fence before", "expired, of another state"}
		}
		if there := s.names(table, append(want, more...)...); !slices.Equal(there, want) {
			t.Errorf("%s has %q, want %q", table, there, want)
		}
	}
	s.is("oncemill_dedup", "lives", `clean_at = expires_at`)
	s.is("oncemill_dedup", "lives by a beat",
		`clean_at = (SELECT b.expires_at FROM oncemill_dedup_beats b WHERE b.id = x.id)`)
	s.is("oncemill_dedup", "not due", `clean_at BETWEEN now() + interval '2 hours' AND now() + interval '3 hours'`)
	s.is("oncemill_dedup", "old beat", `clean_at BETWEEN now() + interval '2 hours' AND now() + interval '3 hours'`)
}

func TestCleanSQL_OneAtATime(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.record("expired", expired, `clean_at = now() - interval '1 second'`)
	s.beat("of nothing", `lease_until = now() - interval '2 minutes'`)
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), s.sql.pick, 0); err != nil {
		t.Fatal(err)
	}
	if records, beats, err := s.clean(s.soon(), 100); records+beats != 0 || err != nil {
		t.Errorf("beside another cleaning, %d records and %d heartbeats are deleted, %v", records, beats, err)
	}
}

// made are the names whose records a statement makes, which it returns by their owners.
func (s *shelf) made(tx pgx.Tx, sql string, args ...any) (owners []string) {
	s.t.Helper()
	rows, err := tx.Query(s.soon(), sql, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	owners, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (owner string, err error) {
		var id []byte
		var fence int64
		return owner, row.Scan(&id, &owner, &fence)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(owners)
	return owners
}

// Four statements make records: those of claims and of first runs, of one key and of several.
func TestFreshSQL_MakesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	hour := interval(time.Hour.Microseconds())
	args := func(first, many bool, names []string) (args []any) {
		if many {
			none := repeated("", names)
			if args = []any{idsNamed(names), names, names, hour, hour, hour, none, none, none}; first {
				args = []any{idsNamed(names), names, names, hour, hour, none, none, none, "5000"}
			}
			return args
		}
		if args = []any{idOf(names[0]), names[0], names[0], hour, hour, hour, "", "", ""}; first {
			args = []any{idOf(names[0]), names[0], names[0], hour, hour, "", "", "", "5000"}
		}
		return args
	}
	role := fmt.Sprintf("oncemill_reader_%d", os.Getpid())
	mustExec(t, s.pool, `CREATE ROLE `+role)
	t.Cleanup(func() {
		mustExec(t, s.pool, `DROP OWNED BY `+role)
		mustExec(t, s.pool, `DROP ROLE `+role)
	})
	schema := s.pool.Config().ConnConfig.RuntimeParams["search_path"]
	mustExec(t, s.pool, `GRANT USAGE ON SCHEMA `+schema+` TO `+role)
	mustExec(t, s.pool, `GRANT SELECT, INSERT ON oncemill_dedup TO `+role)
	s.record("there")
	s.holding(`UPDATE oncemill_dedup SET clean_at = clean_at + interval '1 second' WHERE id = $1`, "there")
	for _, tc := range []struct {
		name, sql   string
		first, many bool
		most        int
	}{
		{"fresh", s.sql.fresh, false, false, 1}, {"fresh_many", s.sql.freshMany, false, true, 16},
		{"first", s.sql.first, true, false, 1}, {"first_many", s.sql.firstMany, true, true, 64},
	} {
		begin := func() pgx.Tx {
			tx, err := s.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
			return tx
		}
		var names []string
		for n := range tc.most {
			names = append(names, fmt.Sprintf("%s-%02d", tc.name, n))
		}
		making := begin()
		if got := s.made(making, tc.sql, args(tc.first, tc.many, names)...); !slices.Equal(got, names) {
			t.Errorf("%s makes %q, want all of %d", tc.name, got, len(names))
		}
		if got := s.made(begin(), tc.sql, args(tc.first, tc.many, names)...); len(got) != 0 {
			t.Errorf("%s makes %q, which somebody else is making", tc.name, got)
		}
		making.Rollback(t.Context())
		other := tc.name + "-other"
		if !tc.first { // whose records nobody has locked
			if got := s.made(begin(), tc.sql, args(tc.first, tc.many, []string{"there"})...); len(got) != 0 {
				t.Errorf("%s makes %q, which is there", tc.name, got)
			}
			tx := begin()
			if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role); err != nil {
				t.Fatal(err)
			}
			if got := s.made(tx, tc.sql, args(tc.first, tc.many, []string{other})...); len(got) != 0 {
				t.Errorf("%s makes %q without the right to settle it", tc.name, got)
			}
		}
		s.record(tc.name + "-settled")
		some, want := []string{other, tc.name + "-settled"}, []string{other}
		if !tc.many {
			some, want = some[1:], nil
		}
		if got := s.made(begin(), tc.sql, args(tc.first, tc.many, some)...); !slices.Equal(got, want) {
			t.Errorf("%s makes %q of %q, want %q", tc.name, got, some, want)
		}
	}
}
