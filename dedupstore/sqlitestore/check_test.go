package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/oncemill/oncemill/dedupstore"
)

func TestCheck_NamesTheSettingToChange(t *testing.T) {
	t.Parallel()
	for says, settings := range map[string][]string{
		`journal_mode is "delete"`: {"_journal_mode", "DELETE"},
		`synchronous is "OFF"`:     {"_synchronous", "OFF"},
		`locking_mode is "excl`:    {"_pragma", "locking_mode(EXCLUSIVE)"},
		`read_uncommitted is "1"`:  {"cache", "shared", "_pragma", "read_uncommitted(1)"},
	} {
		s, _ := newStore(t, settings...)
		_, err := s.Check(t.Context())
		if e, is := errors.AsType[*dedupstore.SetupError](err); !is || !strings.Contains(e.Error(), says) {
			t.Errorf("%v, want it to say %q", err, says)
		}
	}
	memory, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	memory.SetMaxOpenConns(1)
	if _, err := storeIn(t, memory).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "open a file") {
		t.Errorf("in memory: %v", err)
	}
}

func TestCheck_WarnsOfWhatWorksButShouldBeChanged(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	report, err := s.Check(t.Context())
	if err != nil || len(report.Warnings) != 0 || report.Version == "" || !strings.Contains(report.Durability, "FULL") {
		t.Errorf("%+v, %v, want no warnings", report, err)
	}
	s, db := newStore(t, "_busy_timeout", "", "_synchronous", "NORMAL")
	db.SetMaxOpenConns(1)
	mustExec(t, db, `ATTACH ':memory:' AS ledgers`)
	report, err = s.Check(t.Context())
	if err != nil || len(report.Warnings) != 4 || !strings.HasPrefix(report.Warnings[3], "Attached: ledgers.") ||
		len(report.Losses) != 1 || !strings.HasPrefix(report.Losses[0], "synchronous is NORMAL") {
		t.Errorf("%+v, %v, want four warnings, and one of a loss", report, err)
	}
	s, db = newStore(t, "_pragma", "locking_mode(EXCLUSIVE)")
	db.SetMaxOpenConns(1) // that locks out none of the pool
	if _, err := s.Check(t.Context()); err != nil {
		t.Errorf("one connection with the file for itself: %v", err)
	}
}

func TestStore_OtherSchemasAreRefusedAndNotTouched(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		prepare, says string
	}{
		{`DROP TABLE oncemill_dedup`, `table "oncemill_dedup" is missing`},
		{`UPDATE oncemill_dedup_version SET version = 0`, "call Migrate"},
		{`UPDATE oncemill_dedup_version SET version = 7`, "update the program"},
	} {
		s, db := newStore(t)
		mustExec(t, db, tc.prepare)
		_, claimErr := dedupstore.ClaimOne(t.Context(), s, request("1"))
		_, checkErr := s.Check(t.Context())
		for what, err := range map[string]error{"claim": claimErr, "check": checkErr} {
			if e, is := errors.AsType[*dedupstore.SetupError](err); !is || !strings.Contains(e.Error(), tc.says) {
				t.Errorf("%s: %s: %v, want a SetupError that says %q", tc.prepare, what, err, tc.says)
			}
		}
		err := s.Migrate(t.Context())
		if newer := strings.Contains(tc.prepare, "7"); newer != (err != nil) {
			t.Errorf("%s: Migrate returned %v", tc.prepare, err)
		} else if !newer {
			claim(t, s, request("1"), dedupstore.AcquiredRun)
		}
	}
}

func TestStore_ReadOnlyFileIsSaid(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	file := fileOf(t, db)
	readOnly, err := New(openAt(t, file, "_journal_mode", "", "mode", "ro"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, claimErr := dedupstore.ClaimOne(t.Context(), readOnly, request("2"))
	_, checkErr := readOnly.Check(t.Context())
	for what, err := range map[string]error{"claim": claimErr, "check": checkErr} {
		if e, is := errors.AsType[*sqlite.Error](err); !is || e.Code()&0xff != codes.SQLITE_READONLY {
			t.Errorf("%s: %v, want SQLITE_READONLY", what, err)
		}
	}
	claim(t, readOnly, request("1"), dedupstore.Busy) // what can be told without writing is
}

// Such as by a shell in which somebody has left a transaction open.
func TestStore_AWriteLockThatSomebodyKeepsIsSaid(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	r := request("1")
	taken := claim(t, s, r, dedupstore.AcquiredRun).Claim
	tx, err := openAt(t, fileOf(t, db), "_txlock", "immediate").BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for what, operate := range map[string]func(context.Context) error{
		"claim":  func(ctx context.Context) error { _, err := dedupstore.ClaimOne(ctx, s, request("2")); return err },
		"settle": func(ctx context.Context) error { return dedupstore.SettleOne(ctx, s, taken, succeeded) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := operate(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "write lock") {
			t.Errorf("%s: %v, want the deadline's end, and what was waited for", what, err)
		}
	}
}

func TestStore_FullDatabaseTakesNoNewKeysAndForgetsNothing(t *testing.T) {
	t.Parallel()
	roomy, db := newStore(t)
	claim(t, roomy, request("known"), dedupstore.AcquiredRun)
	pages := count(t, db, "PRAGMA page_count")
	s, err := New(openAt(t, fileOf(t, db), "_pragma", "max_page_count("+itoa(pages+1)+")"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := request("large")
	c := claim(t, s, r, dedupstore.AcquiredRun).Claim
	large := succeeded
	large.Outcome.Result = make([]byte, 1<<20)
	if err := dedupstore.SettleOne(t.Context(), s, c, large); !isFull(err) || !errors.Is(err, dedupstore.ErrFull) {
		t.Errorf("a settlement that does not fit returned %v, want ErrFull for SQLITE_FULL", err)
	}
	err = dedupstore.InTxOne(t.Context(), s.Inbox(), c, settlesWith(large))
	if !isFull(err) || !errors.Is(err, dedupstore.ErrFull) {
		t.Errorf("an inbox returned %v, want ErrFull for SQLITE_FULL", err)
	}
	full := false
	for i := 0; i < 200 && !full; i++ {
		_, err := dedupstore.ClaimOne(t.Context(), s, request("more-"+itoa(i)))
		full = errors.Is(err, dedupstore.ErrFull) && isFull(err)
		if err != nil && !full {
			t.Fatal(err)
		}
	}
	if !full {
		t.Error("claims never returned ErrFull")
	}
	claim(t, s, request("known"), dedupstore.Busy)
	if err := dedupstore.SettleOne(t.Context(), roomy, c, large); err != nil {
		t.Errorf("the settlement, when there was room again: %v", err)
	}
}

func TestNew_MistakesAreNamed(t *testing.T) {
	t.Parallel()
	db := openAt(t, filepath.Join(t.TempDir(), "test.db"))
	for field, make := range map[string]func() (*Store, error){
		"db":           func() (*Store, error) { return New(nil, Config{}) },
		"Config.Table": func() (*Store, error) { return New(db, Config{Table: `a"b`}) },
	} {
		_, err := make()
		if e, is := errors.AsType[*dedupstore.InvalidError](err); !is || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func isFull(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == codes.SQLITE_FULL
}
