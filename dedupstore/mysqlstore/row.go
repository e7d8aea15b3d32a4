package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// columns are those of a record: what scan reads and appendRow writes, but for what is only needed to publish or to
// answer, which comes last.
const (
	columns = `id, record_key, state, owner, fence, attempts, returned, reruns, started, lease_until, due_at,
	expires_at, scheme, fingerprint, settled, trace, decided, kind, exhausted, truncated, reason,
	first_at, claimed_at, ended_at, holder, history, duplicates, last_duplicate, crashes`
	blobColumns = `, result, stubs, contents`
)

// load reads the records of IDs, and the server's time, which is zero if there are none. More is what the statement
// ends with.
func (s *Store) load(
	ctx context.Context, q sqlstore.Querier, ids []string, more string,
) (found map[string]*sqlstore.Row, now time.Time, err error) {
	query := fmt.Appendf(nil, "SELECT %s, %s%s FROM `%s` FORCE INDEX (PRIMARY) WHERE id IN ", sqlstore.MySQLNow,
		columns,
		blobColumns, s.config.Table)
	values := make([]any, len(ids))
	for i, id := range ids {
		values[i] = id
	}
	found = make(map[string]*sqlstore.Row, len(ids))
	err = sqlstore.EachRow(ctx, q, string(sqlstore.AppendRow(query, values...))+more, func(rows *sql.Rows) error {
		r, at, err := scan(rows)
		if err == nil {
			found[r.ID], now = r, at
		}
		return err
	})
	return found, now, err
}

// scan reads a record, after the server's time.
func scan(rows *sql.Rows) (r *sqlstore.Row, now time.Time, err error) {
	r = new(sqlstore.Row)
	s, o := &r.Stored, &r.Outcome
	var at, lease, due, expires, first, claimed, ended, last int64
	var settled string
	var history, stubs, contents []byte
	err = rows.Scan(&at, &r.ID, &r.Key, &s.State, &s.Owner, &s.Fence, &s.Attempts, &s.Returned, &s.Reruns, &s.Started,
		&lease, &due, &expires, &s.Fingerprint.Scheme, &s.Fingerprint.Sum, &settled, &s.Trace, &s.Decided, &o.Kind,
		&o.Exhausted, &o.Truncated, &o.Reason, &first, &claimed, &ended, &s.Holder, &history, &s.Duplicates, &last,
		&s.Crashes, &o.Result, &stubs, &contents)
	if err != nil {
		return nil, now, err
	}
	s.Lease, s.Due, s.Expires = sqlstore.TimeAt(lease), sqlstore.TimeAt(due), sqlstore.TimeAt(expires)
	s.First, s.Claimed, s.Ended = sqlstore.TimeAt(first), sqlstore.TimeAt(claimed), sqlstore.TimeAt(ended)
	s.LastDuplicate = sqlstore.TimeAt(last)
	if settled != "" {
		s.Settled = strings.Split(settled, ",")
	}
	if history != nil {
		_ = json.Unmarshal(history, &s.History) // evidence: a text that is none counts for nothing
	}
	now = sqlstore.TimeAt(at)
	r.Read(stubs, contents, now)
	return r, now, nil
}

// appendRow appends the values of a record.
func appendRow(b []byte, r *sqlstore.Row) []byte {
	s, o := &r.Stored, &r.Outcome
	var history []byte
	if len(s.History) > 0 {
		history, _ = json.Marshal(s.History)
	}
	blobs := blobsOf(s)
	return sqlstore.AppendRow(b, r.ID, r.Key, string(s.State), s.Owner, s.Fence, s.Attempts, s.Returned, s.Reruns,
		s.Started, sqlstore.MicrosAt(s.Lease), sqlstore.MicrosAt(s.Due), sqlstore.MicrosAt(s.Expires),
		s.Fingerprint.Scheme, s.Fingerprint.Sum,
		strings.Join(s.Settled, ","), s.Trace, s.Decided, string(o.Kind), o.Exhausted, o.Truncated, o.Reason,
		sqlstore.MicrosAt(s.First), sqlstore.MicrosAt(s.Claimed), sqlstore.MicrosAt(s.Ended), s.Holder, history,
		s.Duplicates, sqlstore.MicrosAt(s.LastDuplicate), s.Crashes,
		blobs[0].inline(), blobs[1].inline(), blobs[2].inline())
}

// A blob is what may be large. Then it has a statement of its own, and the driver sends it as it is.
type blob struct {
	column string
	value  []byte // nil: NULL
}

// largeBlob is the shortest one that is large.
const largeBlob = 64 << 10

// inline is the blob in a statement about the whole record.
func (b blob) inline() []byte {
	if len(b.value) >= largeBlob {
		return nil
	}
	return b.value
}

func blobsOf(s *dedupstore.Stored) [3]blob {
	return [...]blob{
		{"result", sqlstore.Result(s.Outcome)}, {"stubs", sqlstore.EncodeStubs(s.Outcome.Produced)},
		{"contents", sqlstore.Contents(s)},
	}
}

// statementBytes is how long a statement that writes several records becomes: any server takes that.
const statementBytes = 256 << 10

// save writes records that the transaction has locked.
func (s *Store) save(ctx context.Context, tx sqlstore.Querier, records []*sqlstore.Row) error {
	head := "REPLACE INTO `" + s.config.Table + "` (" + columns + blobColumns + ") VALUES "
	b := []byte(head)
	for i, r := range records {
		if b = appendRow(b, r); i < len(records)-1 && len(b) < statementBytes {
			b = append(b, ',')
			continue
		}
		if _, err := tx.ExecContext(ctx, string(b)); err != nil {
			return err
		}
		b = b[:len(head)]
	}
	for _, r := range records {
		if err := s.saveLarge(ctx, tx, r.ID, &r.Stored); err != nil {
			return err
		}
	}
	return nil
}

// saveLarge writes what is large of a record, unless the server would not take it: then it ends the connection.
func (s *Store) saveLarge(ctx context.Context, tx sqlstore.Querier, id string, rec *dedupstore.Stored) error {
	for _, b := range blobsOf(rec) {
		if len(b.value) < largeBlob {
			continue
		}
		if limit := s.packet.Load(); int64(len(b.value))+1024 > limit {
			return fmt.Errorf("%w: a %s of %d bytes does not fit into max_allowed_packet, which is %d: raise it",
				dedupstore.ErrTooLarge, b.column, len(b.value), limit)
		}
		query := fmt.Appendf(nil, "UPDATE `%s` SET %s = ? WHERE id = ", s.config.Table, b.column)
		if _, err := sqlstore.ChangeLarge(ctx, tx, string(sqlstore.AppendRow(query, id)), b.value); err != nil {
			return err
		}
	}
	return nil
}
