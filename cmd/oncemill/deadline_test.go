package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
)

// A mute is a server that answers once, and then no more.
type mute struct{ asked int }

func (m *mute) answer(ctx context.Context) error {
	if m.asked++; m.asked == 1 {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

type muteStore struct {
	store
	mute
}

func (m *muteStore) Look(ctx context.Context, _ []dedupstore.Key) ([]dedupstore.Record, error) {
	return nil, m.answer(ctx)
}

func (m *muteStore) List(ctx context.Context, _ dedupstore.Filter, _ string) (dedupstore.Page, error) {
	return dedupstore.Page{Next: "2"}, m.answer(ctx)
}

func (m *muteStore) Count(ctx context.Context, _ dedupstore.Filter, _ string) (dedupstore.Count, error) {
	return dedupstore.Count{Next: "2"}, m.answer(ctx)
}

func (m *muteStore) Change(ctx context.Context, _ dedupstore.Record, _ dedupstore.Change) error {
	return m.answer(ctx)
}

func (m *muteStore) Scopes(ctx context.Context, _, _ string) ([]dedupstore.ScopeUse, error) {
	return nil, m.answer(ctx)
}

func (m *muteStore) Check(ctx context.Context) (dedupstore.Report, error) {
	return dedupstore.Report{}, m.answer(ctx)
}

type muteBox struct {
	box
	mute
}

func (m *muteBox) List(ctx context.Context, _ outbox.Filter, _ string) (outbox.Page, error) {
	return outbox.Page{Next: "2"}, m.answer(ctx)
}

func (m *muteBox) Count(ctx context.Context, _ outbox.Filter, _ string) (outbox.Count, error) {
	return outbox.Count{Next: "2"}, m.answer(ctx)
}

func (m *muteBox) Requeue(ctx context.Context, _ ...outbox.RowInfo) (int, error) {
	return 0, m.answer(ctx)
}

func (m *muteBox) Discard(ctx context.Context, _ ...outbox.RowInfo) (int, error) {
	return 0, m.answer(ctx)
}

func (m *muteBox) Plan(ctx context.Context) (dedupstore.Migration, error) {
	return dedupstore.Migration{}, m.answer(ctx)
}

// twice asks a server two questions.
func twice(ctx context.Context, question func(context.Context) error) error {
	return errors.Join(question(ctx), question(ctx))
}

// A server that vanishes while a command runs is given up after --timeout, by name.
func TestCommand_GivesUpOnServersThatVanish(t *testing.T) {
	t.Parallel()
	a := &app{log: io.Discard, settings: settings{timeout: 7 * time.Second}}
	changes := func(ctx context.Context, s store) error {
		return operate.Change(ctx, make([]operate.Item, 3), 1_000_000, a.timeout(),
			func(ctx context.Context, item *operate.Item) error { return s.Change(ctx, item.Record, item.Change) },
			func(*operate.Item, error) {})
	}
	for name, command := range map[string]func(context.Context, store, box) error{
		"ls": func(ctx context.Context, s store, _ box) error {
			_, err := a.each(ctx, s, dedupstore.Filter{}, func(*dedupstore.Record) bool { return true })
			return err
		},
		"stats": func(ctx context.Context, s store, _ box) error {
			_, err := a.count(ctx, s, dedupstore.Filter{})
			return err
		},
		"rerun": func(ctx context.Context, s store, _ box) error { return changes(ctx, s) },
		"explain": func(ctx context.Context, s store, _ box) error {
			return twice(ctx, func(ctx context.Context) error {
				_, err := s.Look(ctx, nil)
				return err
			})
		},
		"the scopes of explain": func(ctx context.Context, s store, _ box) error {
			return twice(ctx, func(ctx context.Context) error {
				_, err := s.Scopes(ctx, "", "")
				return err
			})
		},
		"doctor": func(ctx context.Context, s store, _ box) error {
			return twice(ctx, func(ctx context.Context) error {
				_, _, err := operate.CheckStore(ctx, "store", s)
				return err
			})
		},
		"outbox ls": func(ctx context.Context, _ store, b box) error {
			return a.eachRow(ctx, b, outbox.Filter{}, func(*outbox.RowInfo) bool { return true })
		},
		"outbox stats": func(ctx context.Context, _ store, b box) error {
			_, err := operate.CountRows(ctx, b, outbox.Filter{}, func(int) {})
			return err
		},
		"outbox requeue": func(ctx context.Context, _ store, b box) error { return mends(ctx, b, operate.Requeue) },
		"outbox discard": func(ctx context.Context, _ store, b box) error { return mends(ctx, b, operate.Discard) },
		"the outbox of doctor": func(ctx context.Context, _ store, b box) error {
			return twice(ctx, func(ctx context.Context) error {
				_, err := operate.CheckOutbox(ctx, "outbox", b)
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := timedStore{&muteStore{}, a.server("server", "postgres://app:secret@db/shop")}
				b := timedBox{&muteBox{}, s.server}
				began := time.Now()
				err := command(t.Context(), s, b)
				const want = "server postgres://app:xxxxx@db/shop has not answered within --timeout (7s)"
				if err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v, want %s", err, want)
				}
				if took := time.Since(began).Round(time.Second); took != 7*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// mends changes two rows, one after the other.
func mends(ctx context.Context, b box, verb operate.Action) error {
	change := &operate.RowChange{
		Box: b, Verb: verb, Rows: []outbox.RowInfo{{ID: "order-1"}, {ID: "order-2"}}, Rate: 1,
		Tell: func([]string, int, error) {},
	}
	return change.Do(ctx)
}

// An interrupt is no missing answer.
func TestAsk_Interrupted(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := ask(ctx, server{"server", time.Hour}, func(ctx context.Context) (int, error) { return 0, ctx.Err() })
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "--timeout") {
		t.Error(err)
	}
}

// Commands have deadlines. A relay and a migration wait as long as they must.
func TestOpen_GivesCommandsDeadlines(t *testing.T) {
	t.Parallel()
	path := "sqlite:" + newRecords(t)
	a := &app{settings: settings{servers: servers{Store: path, Outbox: path}}}
	defer a.close()
	asked, err := a.inspector(t.Context())
	reached, failed := a.reachStore(t.Context())
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	_, timed := asked.(timedStore)
	_, untimed := reached.(migrator)
	rows, err := a.box(t.Context())
	relayed, failed := a.reachBox(t.Context(), false)
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	_, timedToo := rows.(timedBox)
	_, untimedToo := relayed.(outbox.Store)
	if !timed || !untimed || !timedToo || !untimedToo {
		t.Errorf("%T, %T, %T, %T", asked, reached, rows, relayed)
	}
}
