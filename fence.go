package oncemill

import (
	"errors"
	"fmt"
)

// FenceWhere returns the condition under which a row may be written: neither this run nor a newer one has written it. A
// NULL column was written by none. Column and parameter go into the text as they are, so they must not come from
// outside.
//
// A fence keeps stale writers out of a database other than the inbox's. Give each row a signed 64 bit column that holds
// the fence of the run that wrote it last:
//
//	run := oncemill.FromContext(ctx)
//	res, err := db.ExecContext(ctx,
//		`UPDATE orders SET state = $1, fence = $2 WHERE id = $3 AND `+run.FenceWhere("fence", "$2"),
//		state, run.FenceArg(), id)
//	…
//	rows, err := res.RowsAffected()
//	…
//	err = run.FenceApplied(rows)
//
// Each run then applies the UPDATE at most once, and never after a newer run's. The limits:
//
//   - It does not keep a second effect out. The next run of the message, after a crash or an error, has a newer fence
//     and applies its UPDATE again. That is harmless if it sets a value, and wrong if it adds to one.
//   - It is for rows that one key alone writes. In a row that several messages write, such as a balance, a run would be
//     refused because another message was claimed later.
//
// If something must happen once, use an INSERT with a unique key that all runs share:
//
//	INSERT INTO payments (id, …) VALUES ($1, …) ON CONFLICT (id) DO NOTHING   -- $1 is run.ID("charge")
//
// No affected row then means that this run, or an earlier one, has done it: that is a success. Put an UPDATE that adds
// into one transaction with such an INSERT, and make it only if the INSERT affected a row.
func (r Run) FenceWhere(column, parameter string) string {
	return "(" + column + " IS NULL OR " + column + " < " + parameter + ")"
}

// FenceArg returns the fence as SQL drivers take it. In an unguarded run it is zero, which can write only a row that no
// run has written yet.
func (r Run) FenceArg() int64 { return int64(r.Fence) } //nolint:gosec // microseconds: 63 bits last for 290,000 years

// FenceApplied takes the number of rows that a fenced statement affected, and returns ErrFenced if there was none.
func (r Run) FenceApplied(rows int64) error {
	switch {
	case rows > 0:
		return nil
	case r.Fence == 0:
		return fmt.Errorf("%w: the run is not guarded and has no fence", ErrFenced)
	}
	return fmt.Errorf("%w %d: this run or a newer one has written it, or it does not exist", ErrFenced, r.Fence)
}

// ErrFenced says that a fenced statement affected no row. There are three reasons. This run has applied it already, as
// when it was sent again because the reply was lost: then the column holds FenceArg, and all is well. A newer run has
// written the row: then this one is a zombie, and its outcome will be refused, so stop. Or there is no such row.
//
// Read the column to know which. A handler that returns this error runs again with a newer fence, and applies the
// statement again.
var ErrFenced = errors.New("oncemill: no row was written under the fence")
