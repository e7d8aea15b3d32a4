package shop

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
)

// A Ledger is a file to which every process of a run appends what it did, a line each. It is safe for concurrent use,
// by several processes too.
type Ledger struct {
	file    *os.File
	charges atomic.Int64 // of this process
}

// What a line of the ledger begins with.
const (
	entryOrder   = "order"   // a producer places it
	entryCopy    = "copy"    // the producer or a relay has published it once more
	entryRun     = "run"     // a handler got it
	entryCharge  = "charge"  // the card was charged
	entryDecline = "decline" // the card will never be charged
)

// openLedger opens a ledger, or begins one. Fresh: it must have no entry yet, as with the orders of another run in it the books
// would miss the dead letters of that. What a start left that did not get to its first order is no run.
func openLedger(path string, fresh bool) (*Ledger, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("-ledger: %w", err)
	}
	info, err := f.Stat()
	if err == nil && fresh && info.Size() > 0 {
		err = &fs.PathError{Op: "begin a run", Path: path, Err: fs.ErrExist}
	}
	if err != nil {
		return nil, fmt.Errorf("-ledger: %w", errors.Join(err, f.Close()))
	}
	return &Ledger{file: f}, nil
}

// write appends an entry. One write of a short line is not torn by those of others.
func (l *Ledger) write(entry string, fields ...string) error {
	if _, err := l.file.WriteString(entry + " " + strings.Join(fields, " ") + "\n"); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	if entry == entryCharge {
		l.charges.Add(1)
	}
	return nil
}

// read counts the entries of each kind by order.
func (l *Ledger) read() (entries map[string]map[string]int, err error) {
	f, err := os.Open(l.file.Name())
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	entries = map[string]map[string]int{entryOrder: {}, entryCopy: {}, entryRun: {}, entryCharge: {}, entryDecline: {}}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || entries[fields[0]] == nil {
			return nil, fmt.Errorf("read the ledger %s: there is a line %q", f.Name(), lines.Text())
		}
		entries[fields[0]][fields[1]]++
	}
	return entries, lines.Err()
}
