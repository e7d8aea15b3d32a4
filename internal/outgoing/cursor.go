package outgoing

import (
	"fmt"
	"math"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Cursor is where a list of rows goes on: behind a row, in the order of an index.
type Cursor struct {
	Part   int   // of the table, which has an index
	At     int64 // what the index sorts by
	Number int64 // of the row, among those that are equal there
}

// ReadCursor reads what String wrote; empty: the beginning.
func ReadCursor(text string) (c Cursor, err error) {
	if text == "" {
		return Part(0), nil
	}
	var rest string
	n, _ := fmt.Sscanf(text+" ", "%d/%d/%d%s", &c.Part, &c.At, &c.Number, &rest)
	if n != 3 || c.Part < 0 {
		return Cursor{}, &dedupstore.InvalidError{Package: "outbox", Field: "after",
			Problem: fmt.Sprintf("is %.100q, want the Next of the page before", text)}
	}
	return c, nil
}

// Part is the beginning of a part. Times and places are all above 0.
func Part(n int) Cursor { return Cursor{Part: n, Number: math.MinInt64} }

func (c Cursor) String() string { return fmt.Sprintf("%d/%d/%d", c.Part, c.At, c.Number) }

// A page looks at so many rows, and has so many at most.
const (
	LookedRows = 10_000
	PageRows   = 500
)
