package sqlitestore

import (
	"context"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
)

// settings are what Check looks at.
type settings struct {
	version, journal, file, locking, attached string
	synchronous, timeout                      int
	connections                               int // 0: no limit
	uncommitted                               bool
}

// Check implements [dedupstore.Checker]. It looks at one connection of the pool; open all of them alike. It returns a
// [*dedupstore.SetupError] for a setting that loses records or keeps duplicates waiting, and an error if the database
// cannot be written.
func (s *Store) Check(ctx context.Context) (dedupstore.Report, error) {
	set, err := s.settings(ctx)
	if err != nil {
		return dedupstore.Report{}, fmt.Errorf("sqlitestore: check: %w", err)
	}
	report := dedupstore.Report{
		Store: "sqlite", Version: set.version, Durability: set.durability(), Warnings: set.warnings(),
	}
	if set.synchronous == 1 {
		report.Losses = report.Warnings[:1]
	}
	if err := set.problem(); err != nil {
		return report, err
	}
	if err := s.usable(ctx); err != nil {
		return report, err
	}
	if err := s.write(ctx, s.gate.enterLast, func(context.Context, *lockedTx) error { return nil }); err != nil {
		return report, fmt.Errorf("sqlitestore: the database cannot be written: %w", err)
	}
	return report, nil
}

func (s *Store) settings(ctx context.Context) (set settings, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return set, err
	}
	defer conn.Close()
	for query, to := range map[string]any{
		"SELECT sqlite_version()": &set.version, "PRAGMA journal_mode": &set.journal,
		"PRAGMA synchronous": &set.synchronous, "PRAGMA busy_timeout": &set.timeout,
		"PRAGMA read_uncommitted": &set.uncommitted, "PRAGMA locking_mode": &set.locking,
		`SELECT coalesce((SELECT file FROM pragma_database_list WHERE name = 'main'), '')`: &set.file,
		`SELECT coalesce(group_concat(name, ', '), '') FROM pragma_database_list
			WHERE name NOT IN ('main', 'temp')`: &set.attached,
	} {
		if err := conn.QueryRowContext(ctx, query).Scan(to); err != nil {
			return set, err
		}
	}
	set.connections = s.db.Stats().MaxOpenConnections
	return set, nil
}

func (set settings) problem() error {
	switch {
	case set.file == "":
		return unfit("database", ":memory:", "its records end with its connection: open a file")
	case !strings.EqualFold(set.journal, "wal"):
		return unfit("journal_mode", set.journal, "a duplicate waits for the handler instead of being answered: open "+
			"the database with _journal_mode=WAL")
	case strings.EqualFold(set.locking, "exclusive") && set.connections != 1:
		return unfit("locking_mode", set.locking, "the first connection locks all others out for as long as it is "+
			"open, and claims wait in vain: leave it NORMAL")
	case set.uncommitted:
		return unfit("read_uncommitted", "1", "a duplicate may be answered with an outcome that is rolled back, and "+
			"its message is lost: leave it off, and cache=shared, too")
	case set.synchronous == 0:
		return unfit("synchronous", "OFF", "a power cut may lose records, and the database with them: set it to FULL")
	}
	return nil
}

func (set settings) warnings() (all []string) {
	for _, setting := range [...]struct {
		wrong   bool
		warning string
	}{
		{set.synchronous == 1, "synchronous is NORMAL: a power cut may lose the last transactions, of messages that " +
			"were acknowledged: set it to FULL."},
		{set.timeout < 100, fmt.Sprintf("busy_timeout is %d ms: transactions of the program's own are refused at "+
			"once when another one writes: open the database with _busy_timeout=10000.", set.timeout)},
		{set.connections == 1, "The database has one connection: claims wait while it is in use, and a handler of " +
			"the inbox that uses the database itself, where it has to use Tx, waits for its own transaction for as " +
			"long as its context lasts: SetMaxOpenConns to 0, or some more."},
		{set.attached != "", "Attached: " + set.attached + ". Under WAL each file commits by itself, the records' " +
			"first: a message may count as done whose writes to an attached database are lost when the process " +
			"dies then, or the disk is full: let handlers write to none."},
	} {
		if setting.wrong {
			all = append(all, setting.warning)
		}
	}
	return all
}

func (set settings) durability() string {
	mode, keeps := [...]string{"OFF", "NORMAL", "FULL", "EXTRA"}[set.synchronous&3], "survives a killed process"
	if set.synchronous >= 2 {
		keeps += ", and a power cut as far as the disk keeps what it confirmed"
	}
	return fmt.Sprintf("journal_mode=%s synchronous=%s: what is committed %s", set.journal, mode, keeps)
}
