package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/internal/testserver"
)

// Services that were guarded otherwise become guarded by Oncemill in the steps of docs/from, while orders and copies of
// earlier ones keep coming. No order is charged twice, and none is lost. Without the step that reads the old marks,
// some are charged twice.
func TestSwitch_ChargesEachOrderOnce(t *testing.T) {
	t.Parallel()
	keyIsThere := func(ctx context.Context, s *service, id string) (bool, error) {
		n, err := s.redis.Exists(ctx, processedKey(id)).Result()
		return n > 0, err
	}
	rowIsThere := func(ctx context.Context, _ *service, id string) (bool, error) {
		first, err := insertProcessed(ctx, pgstore.Tx(ctx), id)
		return !first, err
	}
	withMarks := ways["deduplicator"]
	withMarks.guard = marking
	for name, tc := range map[string]struct {
		from    way
		to      string
		before  func(ctx context.Context, s *service, id string) (bool, error)
		rolling bool // the new service starts before the old one stops
		repeats bool // some orders are charged twice
	}{
		"SET NX":                     {from: ways["setnx"], to: "redis", before: keyIsThere},
		"SET NX, keys not read":      {from: ways["setnx"], to: "redis", repeats: true},
		"Deduplicator":               {from: withMarks, to: "redis", before: keyIsThere},
		"Deduplicator without marks": {from: ways["deduplicator"], to: "redis", repeats: true},
		"table, rolling":             {from: ways["table"], to: "inbox", before: rowIsThere, rolling: true},
		"table, without its INSERT":  {from: ways["table"], to: "inbox", repeats: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const orders = 60
			stream := "switch-" + strings.NewReplacer(" ", "-", ",", "").Replace(name)
			s, err := theWorld(t).openShop(t.Context(), stream, false)
			if err != nil {
				t.Fatal(err)
			}
			stopOld := s.run(t, "old", tc.from, nil)
			if err := s.placeWithCopies(0, orders/2); err != nil {
				t.Fatal(err)
			}
			s.await(t, "old", orders/4)
			var stopNew func()
			if tc.rolling {
				stopNew = s.run(t, "new", ways[tc.to], tc.before)
			}
			placed := make(chan error, 1)
			go func() { placed <- s.placeWithCopies(orders/2, orders*3/4) }()
			stopOld()
			if !tc.rolling {
				stopNew = s.run(t, "new", ways[tc.to], tc.before)
			}
			err = errors.Join(<-placed, s.placeWithCopies(orders*3/4, orders), s.placeAll(orders))
			if err := errors.Join(err, s.settled(t.Context())); err != nil {
				t.Fatal(err)
			}
			total, once := s.count(t, "%")
			byOld, byNew := s.charged(t, "old"), s.charged(t, "new")
			if once != orders || byOld == 0 || byNew == 0 || (total > once) != tc.repeats {
				t.Errorf("%d charges of %d orders, %d by the old service, %d by the new; want %d, some twice: %t",
					total, once, byOld, byNew, orders, tc.repeats)
			}
			stopNew()

			// All that may come again has come again: now nobody needs the old marks.
			stop := s.run(t, "newer", ways[tc.to], nil)
			if err := errors.Join(s.placeAll(orders), s.settled(t.Context())); err != nil {
				t.Fatal(err)
			}
			stop()
			if n := s.charged(t, "newer"); n != 0 {
				t.Errorf("%d orders were charged once more without the old marks", n)
			}
		})
	}
}

// marking is the Deduplicator with a mark in Redis for each success, as docs/from/deduplicator.md has it.
func marking(s *service) (message.HandlerMiddleware, func(context.Context) error, error) {
	dedup, end, err := deduplicator(s)
	mark := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			outputs, err := next(msg)
			if err == nil { // a mark that fails only lets a copy run again
				s.redis.Set(context.WithoutCancel(msg.Context()), processedKey(msg.UUID), 1, window)
			}
			return outputs, err
		}
	}
	return func(next message.HandlerFunc) message.HandlerFunc { return dedup(mark(next)) }, end, err
}

// run starts a service in this process, under a name for the books.
func (s *shop) run(
	t *testing.T, name string, w way, before func(context.Context, *service, string) (bool, error),
) (stop func()) {
	t.Helper()
	end, err := (&service{address: s.at(name), before: before}).start(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}

// placeWithCopies places orders, each followed by a copy of an earlier one.
func (s *shop) placeWithCopies(from, to int) error {
	const behind = 15
	for i := from; i < to; i++ {
		err := s.place(strconv.Itoa(i), "", "12")
		if err == nil && i >= behind {
			err = s.place(strconv.Itoa(i-behind), "", "12")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *shop) placeAll(orders int) (err error) {
	for i := range orders {
		err = errors.Join(err, s.place(strconv.Itoa(i), "", "12"))
	}
	return err
}

// count is how many charges services made whose names are like a pattern, and of how many orders.
func (s *shop) count(t *testing.T, services string) (charges, orders int) {
	t.Helper()
	const query = `SELECT count(*), count(DISTINCT id) FROM charges WHERE shop = $1 AND way LIKE $2`
	if err := s.postgres.Admin.QueryRow(t.Context(), query, s.name, services).Scan(&charges, &orders); err != nil {
		t.Fatal(err)
	}
	return charges, orders
}

func (s *shop) charged(t *testing.T, service string) int {
	t.Helper()
	charges, _ := s.count(t, service)
	return charges
}

// await waits until a service has made so many charges.
func (s *shop) await(t *testing.T, service string, charges int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseLimit)
	defer cancel()
	err := testserver.Until(ctx, func() error {
		if n := s.charged(t, service); n < charges {
			return fmt.Errorf("the %s service has made %d of %d charges", service, n, charges)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
