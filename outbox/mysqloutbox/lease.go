package mysqloutbox

import (
	"context"
	"database/sql"
	"fmt"
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
	choose := o.due
	if o.cfg.Ordered {
		choose = o.inOrder
	}
	err = o.inTx(ctx, func(tx *sql.Tx) error {
		numbers, err := choose(ctx, tx, r)
		if err != nil || len(numbers) == 0 {
			rows = nil
			return err
		}
		of := string(sqlstore.AppendRow(nil, numbers...))
		if rows, err = o.read(ctx, tx, of); err != nil {
			return err
		}
		query := sqlstore.AppendRow([]byte(o.in("UPDATE `{table}` SET unknowns = unknowns + (token IS NOT NULL), token = ")),
			r.Token)
		query = fmt.Appendf(query, ", state = %d, at = %s + %d WHERE number IN %s", suspect, now, sqlstore.Micros(r.Lease), of)
		_, err = change(ctx, tx, string(query))
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// due chooses rows by when they became due.
func (o *Outbox) due(ctx context.Context, tx *sql.Tx, r outbox.LeaseRequest) ([]any, error) {
	return numbers(ctx, tx, fmt.Sprintf(o.in("SELECT number FROM `{table}` FORCE INDEX (`{table}_next`) WHERE state = %d "+
		"AND at <= %s ORDER BY at, number LIMIT %d FOR UPDATE SKIP LOCKED"), stateOf(r), now, r.Limit))
}

func stateOf(r outbox.LeaseRequest) int {
	if r.Suspects {
		return suspect
	}
	return pending
}

// inOrder chooses rows of which no earlier one of the same key has to be waited for. Relays take turns: so it sees what
// others have chosen. It locks nothing else, because a locked row is read as it is now, and others as they were.
func (o *Outbox) inOrder(ctx context.Context, tx *sql.Tx, r outbox.LeaseRequest) ([]any, error) {
	if _, err := numbers(ctx, tx, o.in("SELECT number FROM `{table}_settings` WHERE number = 0 FOR UPDATE")); err != nil {
		return nil, err
	}
	// A pending row goes with those before it that are due, which come first. Of suspects each key has its first row.
	index, order := "waiting", "r.number"
	blocks := fmt.Sprintf("e.state = %d OR e.state = %d AND e.at > %s", suspect, pending, now)
	if r.Suspects {
		index, order = "next", "r.at, r.number"
		blocks = fmt.Sprintf("e.state IN (%d, %d)", pending, suspect)
	}
	if !o.cfg.SkipDead {
		blocks += fmt.Sprintf(" OR e.state = %d", dead)
	}
	return numbers(ctx, tx, fmt.Sprintf(o.in("SELECT r.number FROM `{table}` AS r FORCE INDEX (`{table}_%s`) "+
		"WHERE r.state = %d AND r.at <= %s AND (r.order_hash IS NULL OR NOT EXISTS ("+
		"SELECT 1 FROM `{table}` AS e FORCE INDEX (`{table}_order`) WHERE e.order_hash = r.order_hash AND "+
		"(e.token IS NOT NULL AND e.at > %s OR e.number < r.number AND (%s)))) ORDER BY %s LIMIT %d"),
		index, stateOf(r), now, now, blocks, order, r.Limit))
}

func numbers(ctx context.Context, tx *sql.Tx, query string) (found []any, err error) {
	err = each(ctx, tx, query, func(rows *sql.Rows) error {
		var number int64
		err := rows.Scan(&number)
		found = append(found, number)
		return err
	})
	return found, err
}

// read reads rows that are about to be leased, in the order of their numbers if that is kept, else the longest due first.
func (o *Outbox) read(ctx context.Context, tx *sql.Tx, of string) (rows []outbox.Row, err error) {
	order := "at, number"
	if o.cfg.Ordered {
		order = "number"
	}
	query := fmt.Sprintf(o.in("SELECT number, id, topic, message_key, header, replays, payload, failures, "+
		"unknowns + (token IS NOT NULL), %s - not_before FROM `{table}` WHERE number IN %s ORDER BY %s"), now, of, order)
	err = each(ctx, tx, query, func(found *sql.Rows) error {
		var r outbox.Row
		var header []byte
		var replays int
		var age int64
		m := &r.Message
		if err := found.Scan(&r.Number, &m.ID, &m.Topic, &m.Key, &header, &replays, &m.Payload, &r.Failures, &r.Unknowns,
			&age); err != nil {
			return err
		}
		var err error
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
	mine := " WHERE token = " + string(sqlstore.AppendRow(nil, token))
	var statements []string
	if len(acknowledged) > 0 {
		statements = append(statements, fmt.Sprintf(o.in("UPDATE `{table}` SET token = NULL, order_hash = NULL, state = %d, "+
			"at = %s%s AND number IN %s"), published, now, mine, sqlstore.AppendRow(nil, acknowledged...)))
	}
	if len(unsent) > 0 {
		statements = append(statements, o.unsent(mine, unsent))
	}
	statements = append(statements, o.in("UPDATE `{table}` SET token = NULL, state = (unknowns > 0), at = not_before"+mine))
	return o.inTx(ctx, func(tx *sql.Tx) error {
		if len(removed) > 0 {
			if _, err := o.remove(ctx, tx, mine+" AND number IN "+string(sqlstore.AppendRow(nil, removed...))); err != nil {
				return err
			}
		}
		for _, statement := range statements {
			if _, err := change(ctx, tx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// unsent is the statement that counts attempts that were not acknowledged.
func (o *Outbox) unsent(mine string, results map[int64]outbox.Result) string {
	var numbers []any
	cases := map[string]*strings.Builder{}
	columns := []string{"failures", "unknowns", "state", "at", "last_error"}
	for _, column := range columns {
		cases[column] = new(strings.Builder)
	}
	when := func(column string, number int64, value string) {
		fmt.Fprintf(cases[column], " WHEN %d THEN %s", number, value)
	}
	for number, r := range results {
		numbers = append(numbers, number)
		failures, unknowns, state, at := "failures + 1", "unknowns", "(unknowns > 0)", fmt.Sprintf("%s + %d", now,
			sqlstore.Micros(r.Delay))
		switch r.State {
		case outbox.Unknown:
			failures, unknowns, state = "failures", "unknowns + 1", fmt.Sprint(suspect)
		case outbox.Dead:
			state, at = fmt.Sprint(dead), now
		}
		when("failures", number, failures)
		when("unknowns", number, unknowns)
		when("state", number, state)
		when("at", number, at)
		when("last_error", number, string(sqlstore.AppendRow(nil, r.Error[:min(len(r.Error), 4096)])))
	}
	query := o.in("UPDATE `{table}` SET token = NULL")
	for _, column := range columns {
		query += fmt.Sprintf(", %s = CASE number%s END", column, cases[column])
	}
	return query + mine + " AND number IN " + string(sqlstore.AppendRow(nil, numbers...))
}

// remove deletes rows, and returns how many. It locks them by their names first, as writers do, and so never deadlocks
// with them. What a writer has locked, because it writes the same message again, is published for now; Clean removes it.
func (o *Outbox) remove(ctx context.Context, tx *sql.Tx, where string) (int, error) {
	var names []any
	err := each(ctx, tx, o.in("SELECT name FROM `{table}`")+where, func(rows *sql.Rows) error {
		var name []byte
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	})
	if err != nil || len(names) == 0 {
		return 0, err
	}
	free, err := numbers(ctx, tx, fmt.Sprintf(o.in("SELECT number FROM `{table}` FORCE INDEX (`{table}_name`) "+
		"WHERE name IN %s FOR UPDATE SKIP LOCKED"), sqlstore.AppendRow(nil, names...)))
	if err != nil {
		return 0, err
	}
	n := 0
	if len(free) > 0 {
		// They may have changed before they were locked.
		n, err = change(ctx, tx, o.in("DELETE FROM `{table}`")+where+" AND number IN "+
			string(sqlstore.AppendRow(nil, free...)))
	}
	if err == nil && len(free) < len(names) {
		_, err = change(ctx, tx, fmt.Sprintf(o.in("UPDATE `{table}` SET token = NULL, order_hash = NULL, state = %d, at = 0%s"),
			published, where))
	}
	return n, err
}

// Clean implements [outbox.Store].
func (o *Outbox) Clean(ctx context.Context, age time.Duration, limit int) (removed int, err error) {
	err = o.inTx(ctx, func(tx *sql.Tx) error {
		old, err := numbers(ctx, tx, fmt.Sprintf(o.in("SELECT number FROM `{table}` FORCE INDEX (`{table}_next`) "+
			"WHERE state = %d AND at <= %s - %d ORDER BY at LIMIT %d"), published, now, age.Microseconds(), limit))
		if removed = 0; err != nil || len(old) == 0 {
			return err
		}
		removed, err = o.remove(ctx, tx, fmt.Sprintf(" WHERE state = %d AND number IN %s", published,
			sqlstore.AppendRow(nil, old...)))
		return err
	})
	return removed, err
}
