package mysqloutbox

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Stats implements [outbox.Inspector]. It reads each pending row.
func (o *Outbox) Stats(ctx context.Context) (s outbox.Stats, err error) {
	if err := o.check(ctx, o.db); err != nil {
		return s, err
	}
	var oldest int64
	err = o.db.QueryRowContext(ctx, o.sql("SELECT count(*), coalesce(%s - min(not_before), 0), "+
		"(SELECT count(*) FROM `{table}` FORCE INDEX (`{table}_next`) WHERE state = %d) "+
		"FROM `{table}` FORCE INDEX (`{table}_next`) WHERE state IN (%d, %d)",
		now, dead, pending, suspect)).Scan(&s.Pending, &oldest, &s.Dead)
	if err != nil {
		return outbox.Stats{}, o.explain(err)
	}
	s.Oldest = sqlstore.Duration(oldest)
	return s, nil
}

var waiting = []outbox.State{outbox.Pending, outbox.Delayed, outbox.Leased}

// parts are what the rows of each state can be. Published ones come last, so that a row that is published meanwhile is
// not missed.
var parts = [...][]outbox.State{pending: waiting, suspect: waiting, dead: {outbox.Dead}, published: {outbox.Published}}

// List implements [outbox.Inspector]. A filter by message ID reads all rows: they have no index for it.
func (o *Outbox) List(ctx context.Context, f outbox.Filter, after string) (page outbox.Page, err error) {
	page.Next, page.Looked, err = o.look(ctx, f, after, outgoing.PageRows,
		func(r outbox.RowInfo, _ time.Duration) bool {
			page.Rows = append(page.Rows, r)
			return len(page.Rows) < outgoing.PageRows
		})
	if err != nil {
		return outbox.Page{}, err
	}
	return page, nil
}

// Count implements [outbox.Inspector].
func (o *Outbox) Count(ctx context.Context, f outbox.Filter, after string) (count outbox.Count, err error) {
	type group struct {
		topic string
		state outbox.State
	}
	tallies := map[group]outbox.Tally{}
	all := outgoing.LookedRows
	count.Next, count.Looked, err = o.look(ctx, f, after, all, func(r outbox.RowInfo, age time.Duration) bool {
		g := group{r.Topic, r.State}
		t := tallies[g]
		t.Topic, t.State, t.Rows = r.Topic, r.State, t.Rows+1
		if slices.Contains(waiting, r.State) {
			t.Oldest = max(t.Oldest, age)
		}
		tallies[g] = t
		return true
	})
	if err != nil {
		return outbox.Count{}, err
	}
	count.Tallies = slices.Collect(maps.Values(tallies))
	return count, nil
}

// look reads the first part behind after that has rows, so many with a statement, and calls a function for those that
// the filter lets through, with their age, until it wants no more. It says where the next page begins.
func (o *Outbox) look(
	ctx context.Context, f outbox.Filter, after string, together int,
	row func(r outbox.RowInfo, age time.Duration) (more bool),
) (next string, looked int, err error) {
	if err := f.Validate(); err != nil {
		return "", 0, err
	}
	at, err := outgoing.ReadCursor(after)
	if err != nil {
		return "", 0, err
	}
	if err := o.check(ctx, o.db); err != nil {
		return "", 0, err
	}
	for more := true; at.Part < len(parts); {
		if !f.Wants(parts[at.Part]...) {
			at = outgoing.Part(at.Part + 1)
			continue
		}
		read := 0
		query := o.sql("SELECT %s, number, at, token IS NOT NULL, id, topic, message_key, IF(%t, header, ''), "+
			"written_at, not_before, failures, unknowns, replays, last_error FROM `{table}` "+
			"FORCE INDEX (`{table}_next`) WHERE state = %d AND at >= %d AND (at > %[4]d OR number > %d) "+
			"ORDER BY at, number LIMIT %d", now, f.Header, at.Part, at.At, at.Number, together)
		err := sqlstore.EachRow(ctx, o.db, query, func(rows *sql.Rows) error {
			r, age, err := scanInfo(rows, f, &at)
			if read++; err == nil && wanted(&r, f) && !row(r, age) {
				more, err = false, io.EOF
			}
			return err
		})
		if err != nil {
			return "", 0, o.explain(err)
		}
		switch looked += read; {
		case looked > 0 && (!more || read < together || looked >= outgoing.LookedRows):
			return at.String(), looked, nil
		case looked == 0:
			at = outgoing.Part(at.Part + 1)
		}
	}
	return "", 0, nil
}

// scanInfo reads a row, and how long ago it was due for the first time.
func scanInfo(rows *sql.Rows, f outbox.Filter, at *outgoing.Cursor) (r outbox.RowInfo, age time.Duration, err error) {
	var now, written, notBefore int64
	var leased bool
	var header []byte
	if err := rows.Scan(&now, &at.Number, &at.At, &leased, &r.ID, &r.Topic, &r.Key, &header, &written, &notBefore,
		&r.Failures, &r.Unknowns, &r.Replays, &r.Error); err != nil {
		return r, 0, err
	}
	r.Written = time.UnixMicro(written)
	switch when := time.UnixMicro(at.At); {
	case at.Part == dead:
		r.State, r.Ended = outbox.Dead, when
	case at.Part == published:
		r.State, r.Ended = outbox.Published, when
	case at.At <= now:
		r.State, r.Due = outbox.Pending, when
	case leased:
		r.State = outbox.Leased
	default:
		r.State, r.Due = outbox.Delayed, when
	}
	if f.Header {
		r.Header, _ = outgoing.Header(r.ID, header, r.Replays) // nil if it cannot be read
	}
	return r, sqlstore.Duration(now - notBefore), nil
}

func wanted(r *outbox.RowInfo, f outbox.Filter) bool {
	return f.Wants(r.State) && (f.Topic == "" || f.Topic == r.Topic) && (f.ID == "" || f.ID == r.ID) &&
		!r.Written.Before(f.Since) && (f.Before.IsZero() || r.Written.Before(f.Before))
}

// Requeue implements [outbox.Inspector], and wakes a relay of this process.
func (o *Outbox) Requeue(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	return o.free(ctx, dead, "UPDATE `{table}` AS r FORCE INDEX (`{table}_number`) SET r.state = %d, r.failures = 0, "+
		"r.unknowns = 0, r.at = %s", pending, now)
}

// Discard implements [outbox.Inspector], and wakes a relay of this process.
func (o *Outbox) Discard(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	return o.free(ctx, dead, "DELETE r FROM `{table}` AS r FORCE INDEX (`{table}_number`)")
}

// free acts on dead rows, and on the rows that wait for them. It looks for them without locks, and so waits only for
// writers of their messages.
func (o *Outbox) free(ctx context.Context, shown []outbox.RowInfo, act string, args ...any) (n int, err error) {
	if len(shown) == 0 {
		return 0, nil
	}
	var ids []string
	for i := range shown {
		ids = append(ids, shown[i].ID)
	}
	err = o.inTx(ctx, func(tx sqlstore.Querier) error {
		var rows, since []any
		query := o.sql("SELECT number, id, topic, at FROM `{table}` FORCE INDEX (`{table}_next`) "+
			"WHERE state = %d AND id IN %s", dead, texts(ids))
		err := sqlstore.EachRow(ctx, tx, query, func(found *sql.Rows) error {
			var number, at int64
			var id, topic string
			err := found.Scan(&number, &id, &topic, &at)
			if slices.ContainsFunc(shown, func(r outbox.RowInfo) bool {
				return r.ID == id && (r.Topic == "" || r.Topic == topic) &&
					(r.Ended.IsZero() || r.Ended.UnixMicro() == at)
			}) {
				rows, since = append(rows, number), append(since, at)
			}
			return err
		})
		if n = 0; err != nil || len(rows) == 0 {
			return err
		}
		n, err = sqlstore.Change(ctx, tx, o.sql(act, args...)+fmt.Sprintf(
			" WHERE r.number IN %s AND r.state = %d AND r.at IN %s", list(rows...), dead, list(since...)))
		return err
	})
	if err == nil {
		o.Wake()
	}
	return n, err
}

// texts is a list of them in SQL.
func texts(values []string) string {
	all := make([]any, len(values))
	for i, v := range values {
		all[i] = v
	}
	return list(all...)
}

// orderSQL is the order_hash of a row.
const orderSQL = "CASE WHEN message_key <> '' THEN LEFT(UNHEX(SHA2(message_key, 256)), 16) END"

// Replay implements [outbox.Replayer], and wakes a relay of this process. Times are compared with the database's clock.
func (o *Outbox) Replay(ctx context.Context, r outbox.ReplayRequest) (n int, err error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	where := fmt.Sprintf("state = %d AND at < %d", published, r.Before.UnixMicro())
	if !r.Since.IsZero() {
		where += fmt.Sprintf(" AND at >= %d", r.Since.UnixMicro())
	}
	if r.Topic != "" {
		where += " AND topic = " + list(r.Topic)
	}
	if len(r.IDs) > 0 {
		where += " AND id IN " + texts(r.IDs)
	}
	order := "NULL"
	if o.cfg.Ordered {
		order = orderSQL
	}
	if err := o.check(ctx, o.db); err != nil {
		return 0, err
	}
	for n < r.Limit {
		chosen, err := o.replayable(ctx, where, r.Header, r.Limit-n)
		if err != nil {
			return n, o.explain(err)
		}
		if len(chosen) == 0 {
			break
		}
		changed := 0
		err = o.inTx(ctx, func(tx sqlstore.Querier) (err error) {
			changed, err = sqlstore.Change(ctx, tx, o.sql("UPDATE `{table}` FORCE INDEX (`{table}_number`) "+
				"SET state = %d, at = %s, failures = 0, unknowns = 0, replays = replays + 1, order_hash = %s "+
				"WHERE number IN %s AND state = %d", pending, now, order, list(chosen...), published))
			return err
		})
		if err != nil {
			return n, err
		}
		o.Wake()
		last := len(chosen) < r.Limit-n
		if n += changed; last {
			break
		}
	}
	return n, nil
}

// replayable returns the numbers of rows to replay. It locks none: headers are looked at here, and there may be
// millions of rows without those.
func (o *Outbox) replayable(
	ctx context.Context, where string, want producer.Header, most int,
) (chosen []any, err error) {
	var at, number int64
	page := max(most, 1000)
	for found := page; found == page && len(chosen) < most && err == nil; {
		found = 0
		query := o.sql("SELECT at, number, id, header FROM `{table}` FORCE INDEX (`{table}_next`) "+
			"WHERE %s AND at >= %d AND (at > %d OR number > %d) ORDER BY at, number LIMIT %d",
			where, at, at, number, page)
		err = sqlstore.EachRow(ctx, o.db, query, func(rows *sql.Rows) error {
			var id string
			var header []byte
			err := rows.Scan(&at, &number, &id, &header)
			found++
			if h, unreadable := outgoing.Header(id, header, 0); len(chosen) < most &&
				(len(want) == 0 || unreadable == nil && has(h, want)) {
				chosen = append(chosen, number)
			}
			return err
		})
	}
	return chosen, err
}

// has reports whether a message was written with headers. The ID is none of them.
func has(h, want producer.Header) bool {
	for name, value := range want {
		if strings.EqualFold(name, producer.HeaderID) || h.Get(name) != value {
			return false
		}
	}
	return true
}
