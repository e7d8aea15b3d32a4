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
const patience = 10 * time.Second

// Open opens the database file at path, and makes it if it is missing. It uses the settings that the package doc
// advises: WAL, transactions that take the write lock when they begin, and 10 s of patience with other writers. The
// caller closes it. Open refuses in-memory databases: each connection would have its own.
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

// connect makes the first connection, which turns a new database to WAL. If others do that at the same time, SQLite
// does not wait, whatever its busy_timeout.
func connect(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
	settings := url.Values{"_busy_timeout": {strconv.FormatInt(patience.Milliseconds(), 10)}, "_journal_mode": {"WAL"},
		"_txlock": {"immediate"}}
	name := url.URL{Scheme: "file", Path: path, RawQuery: settings.Encode()}
	return name.String(), nil
}
