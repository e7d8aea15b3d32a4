package mysqloutbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/outbox"
)

// The states of rows.
const (
	pending   = 0
	suspect   = 1 // or leased: a suspect if the lease ends
	dead      = 2
	published = 3
)

const now = string(sqlstore.MySQLNow)

// Lease implements [outbox.Store]. It passes over rows that somebody has locked. It reads rows when they are leased: a
// relay that reads slowly, or no more, must not keep their locks.
func (o *Outbox) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	choose, state := o.due, pending
	if o.cfg.Ordered {
		choose = o.inOrder
	}
	if r.Suspects {
		state = suspect
	}
	var chosen []any // numbers
	err := o.inTx(ctx, func(tx sqlstore.Querier) (err error) {
		if chosen, err = choose(ctx, tx, state, r.Limit); err != nil || len(chosen) == 0 {
			return err
		}
		_, err = sqlstore.Change(ctx, tx, o.sql("UPDATE `{table}` FORCE INDEX (`{table}_number`) "+
			"SET unknowns = unknowns + (token IS NOT NULL), token = %s, state = %d, at = %s + %d WHERE number IN %s",
			list(r.Token), suspect, now, sqlstore.Micros(r.Lease), list(chosen...)))
		return err
	})
	if err != nil || len(chosen) == 0 {
		return nil, err
	}
	rows, err := o.read(ctx, r.Token)
	if err != nil {
		return nil, o.explain(err)
	}
	place := make(map[int64]int, len(chosen))
	for i, number := range chosen {
		place[number.(int64)] = i
	}
	slices.SortFunc(rows, func(a, b outbox.Row) int { return place[a.Number] - place[b.Number] })
	return rows, nil
}

// due locks rows by when they became due.
func (o *Outbox) due(ctx context.Context, tx sqlstore.Querier, state, limit int) ([]any, error) {
	return numbers(ctx, tx, o.sql("SELECT number FROM `{table}` FORCE INDEX (`{table}_next`) "+
		"WHERE state = %d AND at <= %s ORDER BY at, number LIMIT %d FOR UPDATE SKIP LOCKED", state, now, limit))
}

// inOrder locks rows that need not wait for an earlier row of their key. Relays take turns: so it sees what others have
// chosen. Rows that somebody has locked, and what waits for them, must not fill its choice: then it chooses again, from
// other keys and from more rows.
func (o *Outbox) inOrder(ctx context.Context, tx sqlstore.Querier, state, limit int) ([]any, error) {
	turn := o.in("SELECT number FROM `{table}_settings` WHERE number = 0 FOR UPDATE")
	if _, err := numbers(ctx, tx, turn); err != nil {
		return nil, err
	}
	stopped := map[string]bool{} // keys
	for n := limit; ; n *= 2 {
		free, passed, err := o.lockInOrder(ctx, tx, state, n, stopped)
		if err != nil || len(free) >= limit || len(free)+passed < n {
			return free[:min(len(free), limit)], err
		}
	}
}

// lockInOrder locks the first n rows of keys that are not stopped, but those that somebody has locked, and what waits
// for them. It chooses without locks, because a locked row is read as it is now, and others as they were.
func (o *Outbox) lockInOrder(
	ctx context.Context, tx sqlstore.Querier, state, n int, stopped map[string]bool,
) (free []any, passed int, err error) {
	query := o.pendingInOrder
	if state == suspect {
		query = o.suspectsInOrder
	}
	others := ""
	if len(stopped) > 0 {
		var keys []any
		for key := range stopped {
			keys = append(keys, key)
		}
		others = " AND (r.order_hash IS NULL OR r.order_hash NOT IN " + list(keys...) + ")"
	}
	var chosen []any // numbers
	keys := map[any]string{}
	err = sqlstore.EachRow(ctx, tx, query(others, n), func(rows *sql.Rows) error {
		var number int64
		var key []byte
		err := rows.Scan(&number, &key)
		chosen, keys[number] = append(chosen, number), string(key)
		return err
	})
	if err != nil || len(chosen) == 0 {
		return nil, 0, err
	}
	locked, err := numbers(ctx, tx, o.sql("SELECT number FROM `{table}` FORCE INDEX (`{table}_number`) "+
		"WHERE number IN %s AND state = %d AND at <= %s FOR UPDATE SKIP LOCKED", list(chosen...), state, now))
	if err != nil {
		return nil, 0, err
	}
	taken := map[any]bool{}
	for _, number := range locked {
		taken[number] = true
	}
	for _, number := range chosen {
		switch key := keys[number]; {
		case stopped[key]:
		case taken[number]:
			free = append(free, number)
		case key != "": // a writer has locked the row, or a relay whose lease had ended has settled it
			stopped[key] = true
		}
	}
	return free, len(chosen) - len(free), nil
}

// pendingInOrder finds rows that go with those of their key before them, which are due, too, and come first. The rows
// that block others are read once: those that are delayed, without an answer, or dead. A leased one blocks all of its
// key.
func (o *Outbox) pendingInOrder(others string, limit int) string {
	blocks := fmt.Sprintf("state = %d OR state = %d AND at > %s", suspect, pending, now)
	if !o.cfg.SkipDead {
		blocks += fmt.Sprintf(" OR state = %d", dead)
	}
	return o.sql("SELECT r.number, r.order_hash FROM `{table}` AS r FORCE INDEX (`{table}_waiting`) LEFT JOIN ("+
		"SELECT order_hash, MIN(IF(token IS NOT NULL AND at > %s, 0, number)) AS first FROM `{table}` "+
		"FORCE INDEX (`{table}_next`) WHERE order_hash IS NOT NULL AND (%s) GROUP BY order_hash ORDER BY NULL) AS b "+
		"ON b.order_hash = r.order_hash WHERE r.state = %d AND r.at <= %s AND "+
		"(b.first IS NULL OR r.number < b.first)%s ORDER BY r.number LIMIT %d",
		now, blocks, pending, now, others, limit)
}

// suspectsInOrder finds the first row of each key that has one without an answer, if that is the first and none of the
// key is leased.
func (o *Outbox) suspectsInOrder(others string, limit int) string {
	waits := fmt.Sprintf("e.state IN (%d, %d)", pending, suspect)
	if !o.cfg.SkipDead {
		waits = fmt.Sprintf("e.state IN (%d, %d, %d)", pending, suspect, dead)
	}
	return o.sql("SELECT r.number, r.order_hash FROM `{table}` AS r FORCE INDEX (`{table}_next`) "+
		"WHERE r.state = %d AND r.at <= %s AND (r.order_hash IS NULL OR "+
		"r.number = (SELECT e.number FROM `{table}` AS e FORCE INDEX (`{table}_order`) "+
		"WHERE e.order_hash = r.order_hash AND %s ORDER BY e.number LIMIT 1) AND "+
		"r.order_hash NOT IN (SELECT l.order_hash FROM `{table}` AS l FORCE INDEX (`{table}_leased`) "+
		"WHERE l.token IS NOT NULL AND l.at > %s AND l.order_hash IS NOT NULL))%s ORDER BY r.at, r.number LIMIT %d",
		suspect, now, waits, now, others, limit)
}

func numbers(ctx context.Context, q sqlstore.Querier, query string) (found []any, err error) {
	err = sqlstore.EachRow(ctx, q, query, func(rows *sql.Rows) error {
		var number int64
		err := rows.Scan(&number)
		found = append(found, number)
		return err
	})
	return found, err
}

// read reads rows that a token holds.
func (o *Outbox) read(ctx context.Context, token string) (rows []outbox.Row, err error) {
	query := o.sql("SELECT number, id, topic, message_key, header, replays, payload, failures, unknowns, "+
		"%s - not_before FROM `{table}` FORCE INDEX (`{table}_leased`) WHERE token = ", now) + list(token)
	err = sqlstore.EachRow(ctx, o.db, query, func(found *sql.Rows) error {
		var r outbox.Row
		var header []byte
		var replays int
		var age int64
		m := &r.Message
		err := found.Scan(&r.Number, &m.ID, &m.Topic, &m.Key, &header, &replays, &m.Payload, &r.Failures, &r.Unknowns,
			&age)
		if err != nil {
			return err
		}
		if m.Header, err = outgoing.Header(m.ID, header, replays); err != nil { // it must not hold up other rows
			r.Problem = err.Error()
		}
		if o.cfg.Ordered {
			r.OrderKey = m.Key
		}
		r.Age = sqlstore.Duration(age)
		rows = append(rows, r)
		return nil
	})
	return rows, err
}

// errLocked says that the rest of a lease is not settled.
var errLocked = errors.New("rows are locked by writers that write their messages again")

// Settle implements [outbox.Store]. A row waits for a writer that writes its message again, and others do not wait for
// that row.
func (o *Outbox) Settle(ctx context.Context, token string, results []outbox.Result) error {
	of := make(map[int64]outbox.Result, len(results))
	for _, r := range results {
		switch r.State {
		case outbox.Published, outbox.Removed, outbox.Failed, outbox.Unknown, outbox.Dead:
		default:
			return &dedupstore.InvalidError{Package: "mysqloutbox", Field: "Result.State",
				Problem: fmt.Sprintf("is %q", r.State)}
		}
		if _, twice := of[r.Number]; !twice {
			of[r.Number] = r
		}
	}
	mine := "FROM `{table}` FORCE INDEX (`{table}_leased`) WHERE token = " + list(token)
	pauses := pace.Pace{Shortest: 10 * time.Millisecond, Longest: time.Second}
	for {
		var left []any
		err := o.inTx(ctx, func(tx sqlstore.Querier) error {
			free, err := numbers(ctx, tx, o.in("SELECT number "+mine+" FOR UPDATE SKIP LOCKED"))
			if err != nil {
				return err
			}
			if err := o.record(ctx, tx, free, of); err != nil {
				return err
			}
			left, err = numbers(ctx, tx, o.in("SELECT number "+mine+" LIMIT 1"))
			return err
		})
		switch {
		case err != nil || len(left) == 0:
			return err
		case !pace.Sleep(ctx, pace.Jitter(pauses.Next())):
			return errors.Join(ctx.Err(), errLocked)
		}
	}
}

// record writes what became of rows that are locked.
func (o *Outbox) record(ctx context.Context, tx sqlstore.Querier, rows []any, of map[int64]outbox.Result) error {
	var acknowledged, removed, back []any
	var unsent []outbox.Result
	for _, number := range rows {
		switch r := of[number.(int64)]; r.State {
		case outbox.Published:
			acknowledged = append(acknowledged, number)
		case outbox.Removed:
			removed = append(removed, number)
		case "":
			back = append(back, number)
		default:
			unsent = append(unsent, r)
		}
	}
	var statements []string
	if len(removed) > 0 {
		statements = append(statements, o.remove(removed))
	}
	update := func(rows []any, set string, args ...any) {
		statements = append(statements, o.sql("UPDATE `{table}` FORCE INDEX (`{table}_number`) SET token = NULL, ")+
			fmt.Sprintf(set, args...)+" WHERE number IN "+list(rows...))
	}
	if len(acknowledged) > 0 {
		update(acknowledged, "order_hash = NULL, state = %d, at = %s", published, now)
	}
	if len(back) > 0 {
		update(back, "state = (unknowns > 0), at = not_before")
	}
	for part := range slices.Chunk(unsent, unsentRows) {
		numbers, set := unsentSQL(part)
		update(numbers, "%s", set)
	}
	for _, statement := range statements {
		if _, err := sqlstore.Change(ctx, tx, statement); err != nil {
			return err
		}
	}
	return nil
}

const (
	maxError = 1024 // the longest text of an error, in bytes

	// unsentRows is how many attempts that were not acknowledged one statement counts. Any server takes as many.
	unsentRows = 100
)

// unsentSQL counts attempts that were not acknowledged.
func unsentSQL(results []outbox.Result) (numbers []any, set string) {
	var failures, unknowns, state, at, texts strings.Builder
	for _, r := range results {
		numbers = append(numbers, r.Number)
		failed, lost, becomes, due := 1, 0, "unknowns > 0", fmt.Sprintf("%s + %d", now, sqlstore.Micros(r.Delay))
		switch r.State {
		case outbox.Unknown:
			failed, lost, becomes = 0, 1, strconv.Itoa(suspect)
		case outbox.Dead:
			becomes, due = strconv.Itoa(dead), now
		}
		fmt.Fprintf(&failures, " WHEN %d THEN %d", r.Number, failed)
		fmt.Fprintf(&unknowns, " WHEN %d THEN %d", r.Number, lost)
		fmt.Fprintf(&state, " WHEN %d THEN %s", r.Number, becomes)
		fmt.Fprintf(&at, " WHEN %d THEN %s", r.Number, due)
		fmt.Fprintf(&texts, " WHEN %d THEN %s", r.Number, list(r.Error[:min(len(r.Error), maxError)]))
	}
	return numbers, fmt.Sprintf("failures = failures + CASE number%s END, unknowns = unknowns + CASE number%s END, "+
		"state = CASE number%s END, at = CASE number%s END, last_error = CASE number%s END",
		&failures, &unknowns, &state, &at, &texts)
}

// remove is the statement that deletes rows.
func (o *Outbox) remove(rows []any) string {
	return o.in("DELETE gone FROM `{table}` AS gone FORCE INDEX (`{table}_number`) WHERE gone.number IN ") +
		list(rows...)
}

// Clean implements [outbox.Store]. It passes over rows that somebody has locked.
func (o *Outbox) Clean(ctx context.Context, age time.Duration, limit int) (removed int, err error) {
	err = o.inTx(ctx, func(tx sqlstore.Querier) error {
		old, err := numbers(ctx, tx, o.sql("SELECT number FROM `{table}` FORCE INDEX (`{table}_next`) "+
			"WHERE state = %d AND at <= %s - %d ORDER BY at, number LIMIT %d FOR UPDATE SKIP LOCKED",
			published, now, age.Microseconds(), limit))
		if removed = 0; err != nil || len(old) == 0 {
			return err
		}
		removed, err = sqlstore.Change(ctx, tx, o.remove(old))
		return err
	})
	return removed, err
}
