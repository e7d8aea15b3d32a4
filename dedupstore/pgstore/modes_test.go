package pgstore

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// TestStore_WorksInEachModeOfPgx goes through all operations: poolers ask for some of the modes.
func TestStore_WorksInEachModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			s := newStore(t, pool, Config{})
			awkward(t, s)
			for id, inbox := range map[string]dedupstore.Transactor{"pgx": s.Inbox(), "sql": s.InboxSQL()} {
				c := runOf(t, inbox, id)
				for range 2 {
					if err := dedupstore.InTxOne(t.Context(), inbox, c,
						func(ctx context.Context) (dedupstore.Settlement, error) {
							if id == "sql" {
								_, err := SQLTx(ctx).ExecContext(ctx, insertEffect, id)
								return success, err
							}
							return success, effect(ctx, c)
						}); err != nil {
						t.Errorf("%s: %v", id, err)
					}
				}
				wantEffects(t, pool, id, 1)
				zombie := c
				zombie.Fence--
				if err := dedupstore.InTxOne(t.Context(), inbox, zombie, paying(c)); !errors.Is(err, dedupstore.ErrClaimLost) {
					t.Errorf("%s: a zombie's run returned %v", id, err)
				}
			}
			if _, err := s.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := s.Clean(t.Context(), 1); err != nil {
				t.Error(err)
			}
		})
	}
}

// awkward stores and reads what is hard to write down.
func awkward(t *testing.T, s *Store) {
	t.Helper()
	r := request(`"\{},' NULL ☃`)
	r.Fingerprint, r.Trace = dedupstore.Fingerprint{Scheme: "a.b", Sum: "c"}, `"tr\ace'`
	c := claim(t, s, r, dedupstore.AcquiredRun).Claim
	if err := beat(t.Context(), s, c, long); err != nil {
		t.Error(err)
	}
	o := dedupstore.Outcome{
		Kind: dedupstore.Failed, Reason: "zero \x00 \\0 \\\\ {\"NULL\"} '", Result: []byte{0, 1, 0xff, '\'', '\\'},
		Truncated: true,
		Produced: []dedupstore.Produced{{ID: "a", Topic: "\xff\x00", Key: "\x00",
			Header: map[string]string{"\x00\xfe": "\xfd"}, Payload: []byte{0}}},
	}
	if err := dedupstore.SettleOne(t.Context(), s, c, dedupstore.Finish{Outcome: o, Retention: long}); err != nil {
		t.Fatal(err)
	}
	if a := claim(t, s, r, dedupstore.AcquiredPublish); !reflect.DeepEqual(a.Outcome, o) {
		t.Errorf("the outcome is %+v, want %+v", a.Outcome, o)
	}
	if err := dedupstore.SettleOne(t.Context(), s, c, dedupstore.Published{Retention: long}); err != nil {
		t.Fatal(err)
	}
	o.Produced = dedupstore.Stubs(o.Produced)
	if a := claim(t, s, r, dedupstore.Done); !reflect.DeepEqual(a.Outcome, o) || a.Trace != r.Trace {
		t.Errorf("the outcome is %+v with trace %q, want %+v", a.Outcome, a.Trace, o)
	}
	r.Fingerprint.Sum = "d"
	claim(t, s, r, dedupstore.Mismatch)
}

func TestStore_RecordsThatCannotBeReadAreLeftAlone(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	for id, spoil := range map[string]string{
		"foreign": `key = 'another'`, "kind": `kind = 'odd'`, "stubs": `stubs = '\x02'`,
		"stubs-cut": `stubs = '\x010501'`,
		"state":     `state = 'odd', lease_until = NULL`,
		"contents":  `state = 'publishing', lease_until = now(), contents = '\x02'`,
	} {
		if err := dedupstore.SettleOne(t.Context(), s, runOf(t, s, id), success); err != nil {
			t.Fatal(err)
		}
		mustExec(t, pool, `UPDATE oncemill_dedup SET `+spoil+` WHERE id = $1`, idOf(request(id).Key.String()))
		before := fenceOf(t, s, id)
		for range 2 {
			_, err := dedupstore.ClaimOne(t.Context(), s, request(id))
			if record, ok := errors.AsType[*dedupstore.RecordError](err); !ok ||
				record.Key != request(id).Key.String() {
				t.Errorf("%s: a claim returned %v, want a RecordError", id, err)
			}
		}
		if after := fenceOf(t, s, id); after != before {
			t.Errorf("%s: the record was touched: fence %d after %d", id, after, before)
		}
	}
	runOf(t, s, "good")
	page, err := s.List(t.Context(), dedupstore.Filter{}, "")
	bad, ok := dedupstore.Unreadable(err)
	if good := slices.ContainsFunc(page.Records, func(r dedupstore.Record) bool {
		return r.Key.ID == "good"
	}); !ok || !good || len(bad) != 5 { // a list reads no contents
		t.Errorf("a list has the record that can be read: %v; and the error %v, want 5 that cannot", good, err)
	}
}

func fenceOf(t *testing.T, s *Store, id string) (fence int64) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), `SELECT fence FROM oncemill_dedup WHERE id = $1`,
		idOf(request(id).Key.String())).Scan(&fence); err != nil {
		t.Fatal(err)
	}
	return fence
}

func TestInbox_RowsLeftOpenAreAnErrorAndNoLeak(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	c := runOf(t, s.Inbox(), "1")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := dedupstore.InTxOne(ctx, s.Inbox(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		if err := effect(ctx, c); err != nil {
			return nil, err
		}
		_, err := Tx(ctx).Query(ctx, `SELECT generate_series(1, 1000000)`)
		return success, err
	})
	if err == nil {
		t.Error("the run returned nil")
	}
	wantEffects(t, pool, "1", 0)
	until(t, "the connection", func() bool { return pool.Stat().AcquiredConns() == 0 })
	if err := dedupstore.InTxOne(ctx, s.Inbox(), c, paying(c)); err != nil {
		t.Error(err)
	}
}

// FuzzProduced decodes anything without a panic, and what was encoded as it was.
func FuzzProduced(f *testing.F) {
	f.Add("id", "topic", "key", "name", "value", []byte("payload"),
		sqlstore.EncodeStubs([]dedupstore.Produced{{ID: "a"}}),
		sqlstore.EncodeContents([]dedupstore.Produced{{ID: "a"}}))
	f.Add("", "\x00", "\xff", "", "", []byte{}, []byte{1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1},
		[]byte{1, 1, 0, 200})
	f.Fuzz(func(t *testing.T, id, topic, key, name, value string, payload, stubs, contents []byte) {
		if got, err := sqlstore.DecodeProduced(stubs, contents); err == nil && len(got) > 0 && contents != nil {
			again, err := sqlstore.DecodeProduced(sqlstore.EncodeStubs(got), sqlstore.EncodeContents(got))
			if err != nil || !reflect.DeepEqual(got, again) {
				t.Errorf("%+v became %+v, %v", got, again, err)
			}
		}
		if len(payload) == 0 {
			payload = nil
		}
		want := []dedupstore.Produced{{ID: id, Topic: topic, Key: key, Header: map[string]string{name: value},
			Payload: payload}, {ID: "2"}}
		got, err := sqlstore.DecodeProduced(sqlstore.EncodeStubs(want), sqlstore.EncodeContents(want))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
		if text := id + topic; decodeText(encodeText(text)) != text {
			t.Errorf("%q became %q", text, decodeText(encodeText(text)))
		}
	})
}
