package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// variables are those that Check looks at. Not every server has all of them.
const variables = `'version', 'read_only', 'super_read_only', 'innodb_read_only', 'innodb_flush_log_at_trx_commit',
	'innodb_doublewrite', 'log_bin', 'sync_binlog', 'binlog_format', 'idle_transaction_timeout',
	'max_allowed_packet', 'wsrep_on', 'sql_select_limit'`

// Check implements [dedupstore.Checker]. Errors: a [*dedupstore.SetupError] if the server, the table or the rights of
// the database user do not fit.
func (s *Store) Check(ctx context.Context) (dedupstore.Report, error) {
	set, err := s.readSettings(ctx)
	if err != nil {
		return dedupstore.Report{}, s.failed("check", err)
	}
	report := set.report(s.db.Stats().MaxOpenConnections)
	if err := set.problem(); err != nil {
		return report, err
	}
	if err := s.usable(ctx); err != nil {
		return report, err
	}
	if err := s.checkTable(ctx); err != nil {
		return report, err
	}
	report.Warnings = append(report.Warnings, s.checkScopes(ctx)...)
	return report, nil
}

// settings are the values of the server's variables, by their names.
type settings map[string]string

func (s *Store) readSettings(ctx context.Context) (settings, error) {
	set := settings{}
	query := "SHOW VARIABLES WHERE Variable_name IN (" + variables + ")"
	err := sqlstore.EachRow(ctx, s.db, query, func(rows *sql.Rows) error {
		var name, value string
		err := rows.Scan(&name, &value)
		set[name] = value
		return err
	})
	return set, err
}

func (set settings) on(name string) bool { return set[name] == "ON" || set[name] == "1" }

// number is the value of a variable; -1 where the server has none of that name.
func (set settings) number(name string) int {
	n, err := strconv.Atoi(set[name])
	if err != nil {
		return -1
	}
	return n
}

// known reports whether the store works with the server's version.
func (set settings) known() bool {
	var major, minor int
	if _, err := fmt.Sscanf(set["version"], "%d.%d", &major, &minor); err != nil {
		return false
	}
	if strings.Contains(set["version"], "MariaDB") {
		return major > 10 || major == 10 && minor >= 6
	}
	return major >= 8
}

// unlimited is the default of sql_select_limit. A low limit hides even itself among the variables.
const unlimited = "18446744073709551615"

// problem is a setting with which the store does not work.
func (set settings) problem() error {
	switch {
	case set["sql_select_limit"] != unlimited:
		return unfit("sql_select_limit", "is set: reads would miss records; leave it out of the DSN", nil)
	case !set.known():
		return unfit("version", fmt.Sprintf("is %q: use MySQL 8.0 or later, or MariaDB 10.6 or later", set["version"]),
			nil)
	case set.on("read_only"), set.on("super_read_only"), set.on("innodb_read_only"):
		return unfit("read_only", "is ON: connect to the primary", nil)
	case set.on("log_bin") && set["binlog_format"] == "STATEMENT":
		return unfit("binlog_format", "is STATEMENT: set it to ROW, which READ COMMITTED needs", nil)
	}
	return nil
}

func (set settings) report(connections int) dedupstore.Report {
	r := dedupstore.Report{Store: "mysql", Version: set["version"]}
	if strings.Contains(r.Version, "MariaDB") {
		r.Store = "mariadb"
	}
	flush := set["innodb_flush_log_at_trx_commit"]
	r.Durability = fmt.Sprintf("what is committed survives a crash of the server; a failover forgets what its "+
		"replica had not received (innodb_flush_log_at_trx_commit is %s)", flush)
	warn := func(when, loses bool, text string) {
		if when {
			r.Warnings = append(r.Warnings, text)
		}
		if when && loses {
			r.Losses = append(r.Losses, text)
		}
	}
	warn(flush == "0", true, "innodb_flush_log_at_trx_commit is 0: a crash of the server loses what was committed in "+
		"the last second, and what was done runs again; set it to 1")
	warn(flush == "2", true, "innodb_flush_log_at_trx_commit is 2: a crash of the operating system loses what was "+
		"committed in the last second, and what was done runs again; set it to 1")
	warn(set["innodb_doublewrite"] == "OFF", true,
		"innodb_doublewrite is OFF: a crash of the operating system may destroy pages; set it to ON")
	warn(set.on("log_bin") && set["sync_binlog"] != "1", true,
		fmt.Sprintf("sync_binlog is %s: a crash of the operating system may lose the end of the binary log, and "+
			"replicas what is in it; set it to 1", set["sync_binlog"]))
	warn(set.on("wsrep_on"), false, "wsrep_on is ON: let all programs that use the store write to one and the same "+
		"node of the cluster; another node may answer with what was true a moment ago")
	limit := set.number("idle_transaction_timeout")
	warn(limit > 0 && limit < 10, false, fmt.Sprintf("idle_transaction_timeout is %v: a handler of an inbox that "+
		"waits for longer loses its transaction", time.Duration(limit)*time.Second))
	packet := set.number("max_allowed_packet")
	warn(packet >= 0 && packet < 1<<20, false, fmt.Sprintf("max_allowed_packet is %d: larger outcomes have no room; "+
		"set it to 16M or more", packet))
	warn(connections == 0, false, "The pool has no limit: when many handlers run, the server refuses connections "+
		"(max_connections), heartbeats among them, and leases end; give SetMaxOpenConns a number")
	warn(connections == 1, false, "The pool has one connection: claims and heartbeats wait for the handler of an "+
		"inbox that uses it, and its lease ends meanwhile; give SetMaxOpenConns more")
	return r
}

// checkTable looks whether the table is one that keeps transactions, and makes a record that it rolls back.
func (s *Store) checkTable(ctx context.Context) error {
	var engine string
	err := s.db.QueryRowContext(ctx, "SELECT coalesce(max(engine), '') FROM information_schema.tables WHERE "+
		"table_schema = DATABASE() AND table_name = '"+s.config.Table+"'").Scan(&engine)
	switch {
	case err != nil:
		return s.failed("check", err)
	case engine != "InnoDB":
		return s.setup(nil, "has the engine %q: ALTER TABLE … ENGINE=InnoDB, the one with transactions", engine)
	}
	probe := &sqlstore.Row{ID: sqlstore.IDOf("oncemill check")}
	probe.State, probe.Fence = dedupstore.Running, 1
	query := fmt.Appendf(nil, "UPDATE `%s` SET fence = fence + 1 WHERE id = ", s.config.Table)
	err = sqlstore.InMySQLTx(ctx, s.db, longestSilence, func(tx sqlstore.Querier) error {
		if err := s.save(ctx, tx, []*sqlstore.Row{probe}); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, string(sqlstore.AppendRow(query, probe.ID))); err != nil {
			return err
		}
		return errProbe
	})
	if !errors.Is(err, errProbe) {
		return s.failed("check", err)
	}
	return nil
}

// errProbe has the probe rolled back.
var errProbe = errors.New("all is well")

// Check implements [dedupstore.Checker].
func (s inbox) Check(ctx context.Context) (dedupstore.Report, error) {
	report, err := s.Store.Check(ctx)
	if err == nil {
		err = s.ready(ctx)
	}
	return report, err
}

// ready looks at the table and the driver, once.
func (s inbox) ready(ctx context.Context) error {
	if s.heard.Load() {
		return nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, sqlstore.EndTimeout, errSilent)
	defer cancel()
	err := s.usable(bounded)
	if err == nil {
		err = s.hears(bounded)
	}
	if err != nil && bounded.Err() != nil {
		return s.failed("look at the table", context.Cause(bounded))
	}
	s.heard.Store(err == nil)
	return err
}

// hears makes sure that the server's refusal to write in a session that only reads is heard: it tells of the end of a
// transaction.
func (s inbox) hears(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.failed("look at the table", err)
	}
	defer conn.Close()
	defer conn.Raw(func(any) error { return driver.ErrBadConn }) // its session stays in a transaction
	if _, err = conn.ExecContext(ctx, "START TRANSACTION READ ONLY"); err != nil {
		return s.failed("look at the table", err)
	}
	_, err = conn.ExecContext(ctx, "DELETE FROM `"+s.config.Table+"` WHERE id = x''") // no record
	switch number(err) {
	case errReadOnlyTx, errOptionPrevents, errReadOnlyMode:
		return nil
	}
	switch {
	case err == nil:
		return unfit("transaction", "that is READ ONLY could write: without the server's refusal an inbox cannot hear "+
			"that its transaction has ended; connect to MySQL or MariaDB itself", nil)
	case errors.Is(err, driver.ErrBadConn):
		return unfit("rejectReadOnly", "is set, or the connection was lost: with it the driver closes the connection "+
			"on which an inbox has to hear that its transaction has ended; leave it out of the DSN", err)
	}
	return s.failed("look at the table", err)
}

var errSilent = fmt.Errorf("the database has not answered within %v", sqlstore.EndTimeout)
