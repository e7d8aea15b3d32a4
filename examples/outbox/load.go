package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

const (
	clients  = 8                     // how many order at once
	pace     = 4 * time.Millisecond  // the time between two orders
	recall   = 30 * time.Millisecond // how long clients wait before they ask again
	attempts = 100                   // how often a client asks before it gives up
	answerIn = 10 * time.Second      // how long an answer may take
	tick     = 5 * time.Millisecond  // how often conditions are looked at
)

// A load is clients who order, each order until it has an answer that is one.
type load struct {
	url    string
	client *http.Client
	orders []planned
	gate   <-chan struct{} // half of the orders wait until it is closed; nil: none does
	out    io.Writer       // for people

	done     atomic.Int64 // orders with an answer
	requests atomic.Int64
	repeated atomic.Int64

	mu        sync.Mutex
	confirmed map[string]bool // by order: whether it was taken or refused
}

func newLoad(url string, orders []planned, gate <-chan struct{}, out io.Writer) *load {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * clients}, Timeout: answerIn}
	return &load{url: url, client: client, orders: orders, gate: gate, out: out, confirmed: map[string]bool{}}
}

// run places all orders.
func (l *load) run(ctx context.Context) error {
	defer l.client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan planned)
	errs := make([]error, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for p := range queue {
				if errs[i] = l.order(ctx, p); errs[i] != nil {
					cancel()
					return
				}
				l.done.Add(1)
			}
		})
	}
	l.feed(ctx, queue)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return ctx.Err()
}

// feed hands out orders at their pace.
func (l *load) feed(ctx context.Context, queue chan<- planned) {
	defer close(queue)
	next := time.NewTicker(pace)
	defer next.Stop()
	said := time.Now()
	for i, p := range l.orders {
		if i == len(l.orders)/2 && l.gate != nil {
			select {
			case <-l.gate:
			case <-ctx.Done():
			}
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		select {
		case queue <- p:
		case <-ctx.Done():
			return
		}
		if time.Since(said) > time.Second {
			said = time.Now()
			say(l.out, "%d of %d orders have an answer\n", l.done.Load(), len(l.orders))
		}
	}
}

// order is one client's order, with its luck.
func (l *load) order(ctx context.Context, p planned) error {
	switch p.luck {
	case doubled:
		l.repeated.Add(1)
		second := make(chan error, 1)
		go func() { second <- l.insist(ctx, p.Order) }()
		return errors.Join(l.insist(ctx, p.Order), <-second)
	case hungUp:
		l.repeated.Add(1)
		brief, cancel := context.WithTimeout(ctx, p.patience)
		defer cancel()
		_, _ = l.post(brief, p.Order) // whatever came of it, it asks again
	case missed:
		l.repeated.Add(1)
		if err := l.insist(ctx, p.Order); err != nil || !pause(ctx, recall) {
			return err
		}
	}
	return l.insist(ctx, p.Order)
}

// insist asks until there is an answer, and remembers it.
func (l *load) insist(ctx context.Context, o shop.Order) error {
	var last error
	for n := range attempts {
		if n > 0 {
			l.repeated.Add(1)
		}
		status, err := l.post(ctx, o)
		switch {
		case err != nil:
			last = err
		case status == http.StatusCreated, status == http.StatusOK:
			return l.confirm(o.ID, true)
		case status == http.StatusUnprocessableEntity:
			return l.confirm(o.ID, false)
		case status < http.StatusInternalServerError:
			return fmt.Errorf("order %s: the service answers %d", o.ID, status)
		default:
			last = fmt.Errorf("the service answers %d", status)
		}
		if !pause(ctx, recall) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("order %s: no answer after %d attempts: %w", o.ID, attempts, last)
}

func (l *load) confirm(id string, taken bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, answered := l.confirmed[id]; answered && before != taken {
		return fmt.Errorf("order %s: the service says that it is placed, and that it is not", id)
	}
	l.confirmed[id] = taken
	return nil
}

func (l *load) post(ctx context.Context, o shop.Order) (status int, err error) {
	l.requests.Add(1)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, bytes.NewReader(o.JSON()))
	if err != nil {
		return 0, err
	}
	response, err := l.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// pause waits, and reports false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
