package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/internal/sqlstore"
)

func TestAppendRow_WritesWhatNoSessionReadsOtherwise(t *testing.T) {
	t.Parallel()
	row := sqlstore.AppendRow([]byte("VALUES "), `a'\b`, []byte{0, 255}, []byte(nil), []byte{}, -1, int64(2),
		uint64(1<<63),
		true, false, sqlstore.Expr("NOW(6)"))
	const want = `VALUES (x'61275c62',x'00ff',NULL,x'',-1,2,9223372036854775808,1,0,NOW(6))`
	if string(row) != want {
		t.Errorf("the row is %s, want %s", row, want)
	}
}

func TestMySQLDSN(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"mysql://root@db/shop":                            "root@tcp(db:3306)/shop",
		"mysql://u:p%40%2Fw@127.0.0.1:3307/shop?tls=true": "u:p@/w@tcp(127.0.0.1:3307)/shop?tls=true",
		"mysql://root@[::1]:3306/":                        "root@tcp([::1]:3306)/",
	} {
		at, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := sqlstore.MySQLDSN(at); got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
}

func TestEachRow_LeavesNothingOpen(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		server server
		stop   map[int64]error // what the function returns for a row
		read   []int64
		want   error
	}{
		"all":                     {server{rows: []int64{1, 2, 3}}, nil, []int64{1, 2, 3}, nil},
		"enough":                  {server{rows: []int64{1, 2, 3}}, map[int64]error{2: io.EOF}, []int64{1, 2}, nil},
		"an error":                {server{rows: []int64{1, 2, 3}}, map[int64]error{1: errServer}, []int64{1}, errServer},
		"a query that is refused": {server{fails: map[string]error{"SELECT": errServer}}, nil, nil, errServer},
		"rows that break off":     {server{rows: []int64{1}, unread: errServer}, nil, []int64{1}, errServer},
	} {
		t.Run(name, func(t *testing.T) {
			var read []int64
			err := sqlstore.EachRow(t.Context(), tc.server.pool(t), "SELECT n", func(rows *sql.Rows) error {
				var n int64
				err := rows.Scan(&n)
				read = append(read, n)
				return errors.Join(err, tc.stop[n])
			})
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil || !slices.Equal(read, tc.read) {
				t.Errorf("read %v, %v, want %v, %v", read, err, tc.read, tc.want)
			}
		})
	}
}

func TestChange_CountsRows(t *testing.T) {
	t.Parallel()
	change := func(t *testing.T, s *server, large bool) (int, error) {
		if large {
			return sqlstore.ChangeLarge(t.Context(), s.pool(t), "UPDATE", []byte("value"))
		}
		return sqlstore.Change(t.Context(), s.pool(t), "UPDATE")
	}
	for _, large := range []bool{false, true} {
		for _, part := range []string{"", "prepare", "UPDATE", "with", "rows affected"} {
			if !large && (part == "prepare" || part == "with") {
				continue
			}
			t.Run(part, func(t *testing.T) {
				s := &server{fails: map[string]error{}}
				if part != "" {
					s.fails[part] = errServer
				}
				n, err := change(t, s, large)
				if refused := part != ""; errors.Is(err, errServer) != refused || !refused && (n != 3 || err != nil) {
					t.Errorf("%d rows, %v", n, err)
				}
				if last := s.got[len(s.got)-1]; large && part == "" && last != "UPDATE with value" {
					t.Errorf("the server got %q", last)
				}
			})
		}
	}
}

func TestAgain_RepeatsWhatIsRefusedBecauseOfOthers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		results []error // of the tries; the last for all others
		cancels bool    // during the first
		tries   int
		want    error
	}{
		"at once":                    {[]error{nil}, false, 1, nil},
		"at the third try":           {[]error{errConflict, errConflict, nil}, false, 3, nil},
		"never":                      {[]error{errConflict}, false, sqlstore.Tries, errConflict},
		"refused for itself":         {[]error{errConflict, errServer}, false, 2, errServer},
		"done when its time ends":    {[]error{nil}, true, 1, nil},
		"refused, and its time ends": {[]error{errConflict}, true, 1, context.Canceled},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began, tries := time.Now(), 0
			refused := func(err error) bool { return errors.Is(err, errConflict) }
			err := sqlstore.Again(ctx, refused, func() error {
				if tries++; tc.cancels {
					cancel()
				}
				return tc.results[min(tries, len(tc.results))-1]
			})
			if tries != tc.tries || !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("%s: %v after %d tries, want %v after %d", name, err, tries, tc.want, tc.tries)
			}
			if took := time.Since(began); took > time.Second || tries > 2 && took < time.Millisecond {
				t.Errorf("%s: %d tries took %v", name, tries, took)
			}
		})
	}
}

func TestRunScript_LeavesOthersTablesAlone(t *testing.T) {
	t.Parallel()
	const script = "CREATE a;\nCREATE b (\n);\nCREATE c;\n"
	for name, tc := range map[string]struct {
		server server
		ours   bool
		ran    string
		want   error
	}{
		"all":             {server{rows: []int64{0}}, true, "CREATE a|CREATE b (\n)|CREATE c;", nil},
		"somebody else's": {server{rows: []int64{1}}, false, "", nil},
		"without a look":  {server{fails: map[string]error{"SELECT": errServer}}, false, "", errServer},
		"until one is wrong": {
			server{rows: []int64{0}, fails: map[string]error{" b": errServer}}, true, "CREATE a|CREATE b (\n)", errServer,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ours, err := sqlstore.RunScript(t.Context(), tc.server.pool(t), script, "records", "record_key")
			if ours != tc.ours || !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("ours: %v, %v, want %v, %v", ours, err, tc.ours, tc.want)
			}
			if ran := strings.Join(tc.server.got[2:], "|"); ran != tc.ran { // after the connection and the look
				t.Errorf("%q ran, want %q", ran, tc.ran)
			}
		})
	}
}

// However a transaction ends, the next user of the connection has the session as it was, or another connection.
func TestInMySQLTx_GivesTheSessionBack(t *testing.T) {
	t.Parallel()
	no := func(part string) map[string]error { return map[string]error{part: errServer} }
	for name, tc := range map[string]struct {
		fails  map[string]error
		work   error
		got    string
		closed int
		want   error
	}{
		"done":                   {nil, nil, "connect begin work end", 0, nil},
		"without a connection":   {no("connect"), nil, "connect", 0, errServer},
		"a work that fails":      {nil, errConflict, "connect begin work ROLLBACK end", 0, errConflict},
		"a beginning that fails": {no("autocommit = 0"), nil, "connect begin ROLLBACK end", 0, errServer},
		"a commit that fails":    {no("autocommit = 1"), nil, "connect begin work end ROLLBACK end", 1, errServer},
		"a rollback that fails":  {no("ROLLBACK"), errConflict, "connect begin work ROLLBACK", 1, errConflict},
		"a session that stays":   {no("autocommit = 1"), errConflict, "connect begin work ROLLBACK end", 1, errConflict},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{fails: tc.fails}
			err := sqlstore.InMySQLTx(t.Context(), s.pool(t), time.Hour, func(q sqlstore.Querier) error {
				_, _ = sqlstore.Change(t.Context(), q, "work")
				return tc.work
			})
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("the error is %v, want %v", err, tc.want)
			}
			if got := kinds(s.got); got != tc.got || s.closed != tc.closed {
				t.Errorf("%s, %d closed, want %s, %d", got, s.closed, tc.got, tc.closed)
			}
		})
	}
	t.Run("panic", func(t *testing.T) {
		s := &server{}
		defer func() {
			if got := kinds(s.got); recover() == nil || got != "connect begin ROLLBACK end" {
				t.Errorf("after a panic: %s", got)
			}
		}()
		_ = sqlstore.InMySQLTx(t.Context(), s.pool(t), time.Hour, func(sqlstore.Querier) error { panic("work") })
	})
}

// kinds names statements.
func kinds(statements []string) string {
	var all []string
	for _, s := range statements {
		switch {
		case strings.Contains(s, "autocommit = 0"):
			s = "begin"
		case strings.Contains(s, "autocommit = 1"):
			s = "end"
		}
		all = append(all, s)
	}
	return strings.Join(all, " ")
}

func TestInMySQLTx_TheServerEndsWhatIsSilent(t *testing.T) {
	t.Parallel()
	for silence, want := range map[time.Duration]string{time.Millisecond: " = 1,", 90 * time.Second: " = 90,"} {
		s := &server{}
		_ = sqlstore.InMySQLTx(t.Context(), s.pool(t), silence, func(sqlstore.Querier) error { return nil })
		if begin := strings.Join(s.got, "\n"); !strings.Contains(begin, "wait_timeout"+want) {
			t.Errorf("%v: the transaction began with %s", silence, begin)
		}
	}
}
