package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// play runs the service, lets clients place orders, stops the relay half way, and starts another one at the end.
func play(ctx context.Context, s *service, l net.Listener, orders int, out io.Writer) (b Books, err error) {
	shop.Say(out, "%d orders by HTTP; the relay is stopped half way\n", orders)
	s.publisher = shop.ForgetTenth(s.publisher)
	ctx, stop := context.WithCancelCause(ctx)
	first, stopFirst := context.WithCancel(ctx)
	defer stopFirst()
	stopped, next := make(chan struct{}), make(chan struct{})
	served := make(chan error, 1)
	go func() {
		err := shop.Serve(ctx, l, handler(s.place), func(ctx context.Context) error {
			if err := s.relay(first); err != nil {
				return err
			}
			close(stopped)
			select {
			case <-next:
				return s.relay(ctx)
			case <-ctx.Done():
				return nil
			}
		})
		stop(fmt.Errorf("the service broke: %w", err)) // nobody waits for it
		served <- err
	}()
	client := shop.NewClient(fmt.Sprintf("http://%s/orders", l.Addr()))
	defer client.Close()
	defer func() {
		stop(nil)
		if err = errors.Join(err, <-served); err != nil {
			err = fmt.Errorf("stopped after %d of %d orders: %w", b.Orders, orders, err)
		}
		b.Requests, b.RolledBack = int(client.Requests.Load()), int(s.db.warehouse.rolledBack.Load())
	}()

	var mu sync.Mutex
	b.taken = map[string]string{}
	place := func(from, to int) error {
		return shop.Each(ctx, to-from, 8, func(ctx context.Context, n int) error {
			o := shop.Order{ID: fmt.Sprintf("order-%05d", from+n), Cents: 1200 + from + n}
			taken, err := order(ctx, client, o, from+n)
			if err != nil {
				return fmt.Errorf("order %s: %w", o.ID, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if b.Orders++; taken {
				e := event("", o)
				b.taken[e.ID] = string(e.Payload)
			}
			if b.Orders == orders*2/5 {
				stopFirst() // amid the orders
			}
			return nil
		})
	}
	if err := place(0, orders/2); err != nil {
		return b, err
	}
	select {
	case <-stopped:
	case <-ctx.Done():
		return b, context.Cause(ctx)
	}
	shop.Say(out, "the relay has drained and stopped; orders come all the same\n")
	if err := place(orders/2, orders); err != nil {
		return b, err
	}
	stats, err := s.db.Box.Stats(ctx)
	if err != nil {
		return b, fmt.Errorf("look into the outbox: %w", err)
	}
	b.Waited = stats.Pending
	shop.Say(out, "the next relay starts; %d events wait for it\n", b.Waited)
	close(next)
	return b, shop.Poll(ctx, 5*time.Millisecond, func() (bool, error) {
		stats, err := s.db.Box.Stats(ctx)
		return stats.Pending == 0, err
	})
}

// order is one client. Some clients hang up before the answer and ask again, others miss it and ask again.
func order(ctx context.Context, client *shop.Client, o shop.Order, i int) (taken bool, err error) {
	if i%6 == 1 {
		brief, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
		_, _ = client.Post(brief, o.JSON()) // whatever came of it, it asks again
		cancel()
	}
	status, err := client.Insist(ctx, o.JSON())
	if i%6 == 2 && err == nil {
		status, err = client.Insist(ctx, o.JSON())
	}
	taken = status == http.StatusCreated || status == http.StatusOK
	if err == nil && !taken && status != http.StatusUnprocessableEntity {
		err = fmt.Errorf("the service answers %d", status)
	}
	return taken, err
}

// Books are what came of a run.
type Books struct {
	Orders     int
	Requests   int
	RolledBack int // transactions that had written both an order and its event
	Waited     int // events that were in the outbox when the second relay began
	Events     int // at the broker, with different IDs
	Copies     int // beyond that
	Lost       int // orders that clients were told are taken, and that have no event
	Phantoms   int // events that are not exactly those of an order that was taken

	taken map[string]string // the events that there should be: payloads by ID
}

// close compares what clients were told with what is at the broker.
func (b *Books) close(events []jetstream.Msg) {
	seen := map[string]bool{}
	for _, e := range events {
		id := e.Headers().Get(producer.HeaderID)
		switch {
		case b.taken[id] != string(e.Data()):
			b.Phantoms++
		case seen[id]:
			b.Copies++
		default:
			seen[id] = true
		}
	}
	b.Events, b.Lost = len(seen), len(b.taken)-len(seen)
}

// Balance reports whether every order that was taken has its event, and nothing else has one.
func (b Books) Balance() bool { return b.Lost == 0 && b.Phantoms == 0 }

func (b Books) print(w io.Writer) error {
	verdict := "The books balance: every order that was taken has its event, and no other order has one."
	if !b.Balance() {
		verdict = "THE BOOKS DO NOT BALANCE."
	}
	return shop.Table(w, verdict,
		"orders", b.Orders, "  taken", len(b.taken), "  sold out", b.Orders-len(b.taken),
		"requests", b.Requests, "transactions rolled back", b.RolledBack,
		"events published", b.Events, "  waited for the second relay", b.Waited, "  copies beyond that", b.Copies,
		"LOST EVENTS", b.Lost, "EVENTS OF ROLLED-BACK ORDERS", b.Phantoms)
}
