package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// What happens to orders in the service. What clients do is in package shop.
const (
	busy    shop.Luck = "the warehouse does not answer: the transaction is rolled back, and the client asks again"
	soldOut shop.Luck = "the warehouse has none left: the transaction is rolled back, for good"
)

// A planned order is an order and its luck.
type planned struct {
	shop.Order
	luck shop.Luck
}

// plan draws orders from the seed. The first ones meet every kind of luck, so that a short run does too.
func plan(o options, seed uint64) []planned {
	rng := rand.New(rand.NewPCG(seed, 0))
	kinds := []shop.Luck{shop.Missed, shop.Doubled, shop.HungUp, busy, soldOut}
	orders := make([]planned, o.orders)
	for i := range orders {
		luck := shop.Fine
		if n := rng.IntN(20); i < len(kinds) {
			luck = kinds[i]
		} else if n < 9 {
			luck = kinds[n/2] // one in 20 is sold out, two in 20 have each of the other kinds
		}
		orders[i] = planned{shop.Order{ID: fmt.Sprintf("order-%d-%05d", seed, i), Cents: 100 + rng.IntN(9900)}, luck}
	}
	return orders
}

// A game is the service under its load.
type game struct {
	out     io.Writer // for people
	orders  []planned
	stopped chan struct{} // closed when there is no relay

	done, rolledBack, waited atomic.Int64

	mu        sync.Mutex
	asked     map[string]bool // orders for which the warehouse was busy
	confirmed map[string]bool // by order: whether clients were told that it was taken or refused
}

func newGame(out io.Writer, orders []planned) *game {
	return &game{
		out: out, orders: orders, stopped: make(chan struct{}), asked: map[string]bool{}, confirmed: map[string]bool{},
	}
}

// reserve is the warehouse: it has what it is asked for, unless the plan says otherwise.
func (g *game) reserve(_ context.Context, o shop.Order) error {
	var i int
	if _, err := fmt.Sscanf(o.ID, "order-%d-%d", new(int), &i); err != nil || i >= len(g.orders) {
		return nil // somebody who uses the service with -listen
	}
	switch g.orders[i].luck {
	case soldOut:
		g.rolledBack.Add(1)
		return errSoldOut
	case busy:
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.asked[o.ID] {
			g.asked[o.ID] = true
			g.rolledBack.Add(1)
			return errors.New("the warehouse does not answer")
		}
	}
	return nil
}

// play runs the service, its relays and the load, and closes the books.
func (g *game) play(ctx context.Context, r *rig) (Books, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return Books{}, err
	}
	shop.Say(g.out, "%d orders by HTTP; the relay is stopped half way\n", len(g.orders))
	client := shop.NewClient(fmt.Sprintf("http://%s/orders", l.Addr()))
	defer client.Close()
	working, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		defer stop() // nobody waits for a service that broke
		served <- shop.Serve(working, l, handler(r.place), func(ctx context.Context) error { return g.relays(ctx, r) })
	}()
	if err = g.place(working, client); err == nil {
		err = shop.Poll(working, tick, func() (bool, error) {
			stats, err := r.db.box.Stats(working)
			if err == nil && stats.Dead > 0 {
				err = fmt.Errorf("the broker refuses %d events", stats.Dead)
			}
			return stats.Pending == 0, err
		})
	}
	stop()
	if broken := <-served; broken != nil {
		err = fmt.Errorf("the service broke: %w", broken)
	}
	if err != nil {
		return Books{}, fmt.Errorf("stopped after %d of %d orders: %w", g.done.Load(), len(g.orders), err)
	}

	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	orders, err := r.db.orders(ctx)
	if err != nil {
		return Books{}, fmt.Errorf("read the orders: %w", err)
	}
	messages, err := shop.Messages(ctx, r.js, r.stream, r.topic)
	if err != nil {
		return Books{}, fmt.Errorf("read the events: %w", err)
	}
	events := make([]received, len(messages))
	for i, msg := range messages {
		o, err := shop.ParseOrder(msg.Data())
		if err != nil {
			return Books{}, err
		}
		events[i] = received{msg.Headers().Get(producer.HeaderID), o}
	}
	b := closeBooks(orders, events, g.confirmed)
	b.Ordered, b.Requests, b.Repeated = len(g.orders), int(client.Requests.Load()), int(client.Repeated.Load())
	b.RolledBack, b.Waited = int(g.rolledBack.Load()), int(g.waited.Load())
	return b, nil
}

const (
	tick    = 5 * time.Millisecond
	clients = 8 // how many order at once
)

// place lets clients order. Half of the orders wait until there is no relay.
func (g *game) place(ctx context.Context, client *shop.Client) error {
	return shop.Each(ctx, len(g.orders), clients, func(ctx context.Context, i int) error {
		if i >= len(g.orders)/2 {
			select {
			case <-g.stopped:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		o := g.orders[i]
		taken, err := client.Send(ctx, o.luck, o.JSON())
		if err != nil {
			return fmt.Errorf("order %s: %w", o.ID, err)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.confirmed[o.ID] = taken
		if n := g.done.Add(1); n%500 == 0 {
			shop.Say(g.out, "%d of %d orders have an answer\n", n, len(g.orders))
		}
		return nil
	})
}

// relays runs one relay, and after a while without any the next one. Orders come all the time.
func (g *game) relays(ctx context.Context, r *rig) error {
	pub := shop.ForgetTenth(r.publisher)
	reached := func(percent int) func() (bool, error) {
		return func() (bool, error) { return int(g.done.Load())*100 >= len(g.orders)*percent, nil }
	}
	first, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- relay(first, r.db.box, pub)
	}()
	_ = shop.Poll(first, tick, reached(40)) // or until the relay breaks
	stop()
	if err := <-ended; err != nil || ctx.Err() != nil {
		return err
	}
	close(g.stopped)
	shop.Say(g.out, "the relay has drained and stopped; orders come all the same\n")
	if shop.Poll(ctx, tick, reached(60)) != nil {
		return nil // it was told to stop
	}
	stats, err := r.db.box.Stats(ctx)
	if err != nil {
		return fmt.Errorf("look into the outbox: %w", err)
	}
	g.waited.Store(int64(stats.Pending))
	shop.Say(g.out, "the next relay starts; %d events wait for it\n", stats.Pending)
	return relay(ctx, r.db.box, pub)
}

// Books are what came of a run.
type Books struct {
	Requests   int
	Repeated   int // of them
	RolledBack int // transactions that had written both an order and its event
	Ordered    int // what clients wanted
	Committed  int // orders that are in the database
	Refused    int // orders that were never committed, as their clients were told
	Waited     int // events that were in the outbox when the second relay began
	Events     int // at the broker, with different IDs
	Copies     int // beyond that
	Lost       int // orders that are in the database and have no event
	Phantoms   int // events of orders that are not in the database
	Wrong      int // events with another content than their order, or another ID than is theirs
	Broken     int // answers to clients that the database contradicts
}

// A received event is one as consumers get it.
type received struct {
	id    string // of the message
	order shop.Order
}

// closeBooks compares what is in the database with what is at the broker, and with what clients were told.
func closeBooks(orders map[string]shop.Order, events []received, confirmed map[string]bool) Books {
	b := Books{Committed: len(orders)}
	seen, announced := map[string]bool{}, map[string]bool{}
	for _, e := range events {
		o, committed := orders[e.order.ID]
		switch {
		case seen[e.id]:
			b.Copies++
		case !committed:
			b.Phantoms++
		}
		if committed && (o != e.order || e.id != event("", o).ID) {
			b.Wrong++
		}
		seen[e.id], announced[e.order.ID] = true, true
	}
	b.Events = len(seen)
	for id := range orders {
		if !announced[id] {
			b.Lost++
		}
	}
	for id, taken := range confirmed {
		_, committed := orders[id]
		switch {
		case taken != committed:
			b.Broken++
		case !taken:
			b.Refused++
		}
	}
	return b
}

// Balance reports whether every committed order has its event, nothing else has one, and clients were told the truth.
func (b Books) Balance() bool {
	return b.Lost == 0 && b.Phantoms == 0 && b.Wrong == 0 && b.Broken == 0 &&
		b.Events == b.Committed && b.Committed+b.Refused == b.Ordered
}

func (b Books) print(w io.Writer) error {
	verdict := "The books balance: every committed order has its event, and no other order has one."
	if !b.Balance() {
		verdict = "THE BOOKS DO NOT BALANCE."
	}
	return shop.Table(w, verdict,
		"requests", b.Requests, "  of them repeated", b.Repeated, "transactions rolled back", b.RolledBack,
		"orders", b.Ordered, "  committed", b.Committed, "  refused", b.Refused,
		"events published", b.Events, "  waited for the second relay", b.Waited, "  copies beyond that", b.Copies,
		"LOST EVENTS", b.Lost, "EVENTS OF ROLLED-BACK ORDERS", b.Phantoms, "EVENTS WITH OTHER CONTENT", b.Wrong,
		"ANSWERS THAT ARE NOT TRUE", b.Broken)
}
