package sqliteoutbox

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/oncemill/oncemill/dedupstore"
)

// patience is how long connections wait for other writers.
const busyTimeout = 10 * time.Second

// Open opens the database file at path, and makes it if it is missing. The caller closes it. It sets what avoids
// needless "database is locked" errors (SQLITE_BUSY). If you open the database in another way, set the same:
//
//   - journal_mode WAL, so that readers and the writer do not block each other;
//   - a busy_timeout, here 10 s, so that writers wait for each other;
//   - _txlock=immediate, because a transaction that begins with a read and writes later is refused at once if somebody
//     else wrote in between.
//
// In-memory databases are refused: each connection would have one of its own.
func Open(ctx context.Context, path string) (*sql.DB, error) {
	if path == "" || strings.HasPrefix(path, ":memory:") || strings.HasPrefix(path, "file:") {
		return nil, &dedupstore.InvalidError{Package: "sqliteoutbox", Field: "path",
			Problem: fmt.Sprintf("is %q, want the path of a file", path)}
	}
	name, err := dataSource(path)
	if err != nil {
		return nil, fmt.Errorf("open outbox database %q: %w", path, err)
	}
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, fmt.Errorf("open outbox database %q: %w", path, err)
	}
	if err := connect(ctx, db); err != nil {
		db.Close()
		return nil, fmt.Errorf("open outbox database %q: %w", path, err)
	}
	return db, nil
}

// connect makes the first connection, which turns a new database to WAL. SQLite does not wait there for others who do
// the same at the same time, whatever its busy_timeout.
func connect(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	return whileBusy(ctx, func() error { return db.PingContext(ctx) })
}

func dataSource(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/… on Windows
	}
	settings := url.Values{
		"_busy_timeout": {strconv.FormatInt(busyTimeout.Milliseconds(), 10)}, "_journal_mode": {"WAL"},
		"_txlock": {"immediate"},
	}
	name := url.URL{Scheme: "file", Path: path, RawQuery: settings.Encode()}
	return name.String(), nil
}
