package mysqloutbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/outgoing"
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

// Lease implements [outbox.Store]. It passes over rows that somebody has locked.
func (o *Outbox) Lease(ctx context.Context, r outbox.LeaseRequest) (rows []outbox.Row, err error) {
	choose, state := o.due, pending
	if o.cfg.Ordered {
		choose = o.inOrder
	}
	if r.Suspects {
		state = suspect
	}
	err = o.inTx(ctx, func(tx *sql.Tx) error {
		if o.left.Swap(false) {
			if _, err := o.remove(ctx, tx, fmt.Sprintf(" WHERE state = %d AND at = 0", published)); err != nil {
				return err
			}
		}
		chosen, err := choose(ctx, tx, state, r.Limit)
		if rows = nil; err != nil || len(chosen) == 0 {
			return err
		}
		these := list(chosen...)
		if rows, err = o.read(ctx, tx, these); err != nil {
			return err
		}
		n, err := sqlstore.Change(ctx, tx, o.sql("UPDATE `{table}` SET unknowns = unknowns + (token IS NOT NULL), "+
			"token = %s, state = %d, at = %s + %d WHERE number IN %s AND state = %d AND at <= %s",
			list(r.Token), suspect, now, sqlstore.Micros(r.Lease), these, state, now))
		if err != nil || n == len(rows) {
			return err
		}
		// inOrder locks no rows: a relay whose lease had ended has settled some of these meanwhile.
		leased, err := numbers(ctx, tx, o.in("SELECT number FROM `{table}` WHERE token = ")+list(r.Token))
		rows = slices.DeleteFunc(rows, func(row outbox.Row) bool { return !slices.Contains(leased, any(row.Number)) })
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// due chooses rows by when they became due.
func (o *Outbox) due(ctx context.Context, tx *sql.Tx, state, limit int) ([]any, error) {
	return numbers(ctx, tx, o.sql("SELECT number FROM `{table}` FORCE INDEX (`{table}_next`) "+
		"WHERE state = %d AND at <= %s ORDER BY at, number LIMIT %d FOR UPDATE SKIP LOCKED", state, now, limit))
}

// inOrder chooses rows that need not wait for an earlier row of their key. Relays take turns: so it sees what others
// have chosen. It locks nothing else, because a locked row is read as it is now, and others as they were.
func (o *Outbox) inOrder(ctx context.Context, tx *sql.Tx, state, limit int) ([]any, error) {
	turn := o.in("SELECT number FROM `{table}_settings` WHERE number = 0 FOR UPDATE")
	if _, err := numbers(ctx, tx, turn); err != nil {
		return nil, err
	}
	// A pending row goes with those before it that are due, which come first. Of suspects each key has its first row.
	index, order := "waiting", "r.number"
	blocks := fmt.Sprintf("e.state = %d OR e.state = %d AND e.at > %s", suspect, pending, now)
	if state == suspect {
		index, order = "next", "r.at, r.number"
		blocks = fmt.Sprintf("e.state IN (%d, %d)", pending, suspect)
	}
	if !o.cfg.SkipDead {
		blocks += fmt.Sprintf(" OR e.state = %d", dead)
	}
	return numbers(ctx, tx, o.sql("SELECT r.number FROM `{table}` AS r FORCE INDEX (`{table}_%s`) "+
		"WHERE r.state = %d AND r.at <= %s AND (r.order_hash IS NULL OR NOT EXISTS (SELECT 1 FROM `{table}` AS e "+
		"FORCE INDEX (`{table}_order`) WHERE e.order_hash = r.order_hash AND (e.token IS NOT NULL AND e.at > %s OR "+
		"e.number < r.number AND (%s)))) ORDER BY %s LIMIT %d", index, state, now, now, blocks, order, limit))
}

func numbers(ctx context.Context, tx *sql.Tx, query string) (found []any, err error) {
	err = sqlstore.EachRow(ctx, tx, query, func(rows *sql.Rows) error {
		var number int64
		err := rows.Scan(&number)
		found = append(found, number)
		return err
	})
	return found, err
}

// read reads rows that are about to be leased, in the order of their numbers if that is kept, else the longest due
// first.
func (o *Outbox) read(ctx context.Context, tx *sql.Tx, these string) (rows []outbox.Row, err error) {
	order := "at, number"
	if o.cfg.Ordered {
		order = "number"
	}
	query := o.sql("SELECT number, id, topic, message_key, header, replays, payload, failures, "+
		"unknowns + (token IS NOT NULL), %s - not_before FROM `{table}` WHERE number IN %s ORDER BY %s",
		now, these, order)
	err = sqlstore.EachRow(ctx, tx, query, func(found *sql.Rows) error {
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

// Settle implements [outbox.Store].
func (o *Outbox) Settle(ctx context.Context, token string, results []outbox.Result) error {
	var acknowledged, removed []any
	unsent := map[int64]outbox.Result{}
	for _, r := range results {
		switch r.State {
		case outbox.Published:
			acknowledged = append(acknowledged, r.Number)
		case outbox.Removed:
			removed = append(removed, r.Number)
		case outbox.Failed, outbox.Unknown, outbox.Dead:
			if _, twice := unsent[r.Number]; !twice {
				unsent[r.Number] = r
			}
		default:
			return &dedupstore.InvalidError{Package: "mysqloutbox", Field: "Result.State",
				Problem: fmt.Sprintf("is %q", r.State)}
		}
	}
	mine := " WHERE token = " + list(token)
	var statements []string
	if len(acknowledged) > 0 {
		statements = append(statements, o.sql("UPDATE `{table}` SET token = NULL, order_hash = NULL, state = %d, "+
			"at = %s%s AND number IN %s", published, now, mine, list(acknowledged...)))
	}
	if len(unsent) > 0 {
		statements = append(statements, o.unsent(mine, unsent))
	}
	statements = append(statements,
		o.in("UPDATE `{table}` SET token = NULL, state = (unknowns > 0), at = not_before")+mine)
	return o.inTx(ctx, func(tx *sql.Tx) error {
		if len(removed) > 0 {
			if _, err := o.remove(ctx, tx, mine+" AND number IN "+list(removed...)); err != nil {
				return err
			}
		}
		for _, statement := range statements {
			if _, err := sqlstore.Change(ctx, tx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// unsent is the statement that counts attempts that were not acknowledged.
func (o *Outbox) unsent(mine string, results map[int64]outbox.Result) string {
	var numbers []any
	var failures, unknowns, state, at, texts strings.Builder
	for number, r := range results {
		numbers = append(numbers, number)
		failed, lost, becomes, due := 1, 0, "unknowns > 0", fmt.Sprintf("%s + %d", now, sqlstore.Micros(r.Delay))
		switch r.State {
		case outbox.Unknown:
			failed, lost, becomes = 0, 1, strconv.Itoa(suspect)
		case outbox.Dead:
			becomes, due = strconv.Itoa(dead), now
		}
		fmt.Fprintf(&failures, " WHEN %d THEN %d", number, failed)
		fmt.Fprintf(&unknowns, " WHEN %d THEN %d", number, lost)
		fmt.Fprintf(&state, " WHEN %d THEN %s", number, becomes)
		fmt.Fprintf(&at, " WHEN %d THEN %s", number, due)
		fmt.Fprintf(&texts, " WHEN %d THEN %s", number, list(r.Error[:min(len(r.Error), maxError)]))
	}
	return o.sql("UPDATE `{table}` SET token = NULL, failures = failures + CASE number%s END, "+
		"unknowns = unknowns + CASE number%s END, state = CASE number%s END, at = CASE number%s END, "+
		"last_error = CASE number%s END%s AND number IN %s",
		&failures, &unknowns, &state, &at, &texts, mine, list(numbers...))
}

// maxError is the longest text of an error, in bytes.
const maxError = 4096

// remove deletes rows, and returns how many. It locks them by their names first, as writers do, and so never deadlocks
// with them. What a writer has locked, because it writes the same message again, is published for now, and goes with
// the next lease. If it was published already it stays so: to change it would wait for the writer.
func (o *Outbox) remove(ctx context.Context, tx *sql.Tx, where string) (n int, err error) {
	var names []any
	err = sqlstore.EachRow(ctx, tx, o.in("SELECT name FROM `{table}`")+where, func(rows *sql.Rows) error {
		var name []byte
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	})
	if err != nil || len(names) == 0 {
		return 0, err
	}
	free, err := numbers(ctx, tx, o.sql("SELECT number FROM `{table}` FORCE INDEX (`{table}_name`) WHERE name IN %s "+
		"FOR UPDATE SKIP LOCKED", list(names...)))
	if err == nil && len(free) > 0 { // they may have changed before they were locked
		n, err = sqlstore.Change(ctx, tx, o.in("DELETE FROM `{table}`")+where+" AND number IN "+list(free...))
	}
	if err == nil && len(free) < len(names) {
		o.left.Store(true)
		_, err = sqlstore.Change(ctx, tx, o.sql("UPDATE `{table}` SET token = NULL, order_hash = NULL, state = %d, "+
			"at = 0%s AND state <> %d", published, where, published))
	}
	return n, err
}

// Clean implements [outbox.Store].
func (o *Outbox) Clean(ctx context.Context, age time.Duration, limit int) (removed int, err error) {
	err = o.inTx(ctx, func(tx *sql.Tx) error {
		old, err := numbers(ctx, tx, o.sql("SELECT number FROM `{table}` FORCE INDEX (`{table}_next`) "+
			"WHERE state = %d AND at <= %s - %d ORDER BY at LIMIT %d", published, now, age.Microseconds(), limit))
		if removed = 0; err != nil || len(old) == 0 {
			return err
		}
		removed, err = o.remove(ctx, tx, fmt.Sprintf(" WHERE state = %d AND number IN %s", published, list(old...)))
		return err
	})
	return removed, err
}
