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
)

const (
	clients  = 8                      // how many pay at once
	recall   = 50 * time.Millisecond  // how long clients wait before they ask again
	lateness = 400 * time.Millisecond // how long after a payment its message is published again: longer than the stream looks
	insists  = 2 * time.Minute        // how long a client asks before it gives up
	answerIn = 10 * time.Second       // how long an answer may take
)

// A load is clients who pay, each payment until it has an answer that is one.
type load struct {
	url    string
	client *http.Client
	all    []planned
	gate   func(ctx context.Context, i int) bool // waits until a payment may be sent; false: ctx has ended
	repeat func(ctx context.Context, p payment) error

	done     atomic.Int64 // payments with an answer
	requests atomic.Int64
	again    atomic.Int64 // requests beyond the first of a payment
	repeats  atomic.Int64 // messages that were published again
}

func newLoad(url string, all []planned) *load {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * clients}, Timeout: answerIn}
	return &load{url: url, client: client, all: all}
}

// run sends all payments, and returns when all have an answer.
func (l *load) run(ctx context.Context) error {
	defer l.client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Int64
	errs := make([]error, clients)
	var workers, afterwards sync.WaitGroup
	for n := range clients {
		workers.Go(func() {
			for errs[n] == nil {
				i := int(next.Add(1)) - 1
				if i >= len(l.all) || !l.gate(ctx, i) {
					return
				}
				p := l.all[i]
				errs[n] = l.pay(ctx, p)
				l.done.Add(1)
				if p.luck == late {
					afterwards.Go(func() { l.publishLate(ctx, p.payment) })
				}
			}
			cancel()
		})
	}
	workers.Wait()
	afterwards.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return ctx.Err()
}

// pay is one client's payment, with its luck.
func (l *load) pay(ctx context.Context, p planned) error {
	switch p.luck {
	case doubled:
		l.again.Add(1)
		second := make(chan error, 1)
		go func() { second <- l.insist(ctx, p.payment) }()
		return errors.Join(l.insist(ctx, p.payment), <-second)
	case hungUp:
		l.again.Add(1)
		brief, cancel := context.WithTimeout(ctx, p.patience)
		_, _ = l.post(brief, p.payment) // whatever came of it, it asks again
		cancel()
	case missed:
		l.again.Add(1)
		if err := l.insist(ctx, p.payment); err != nil {
			return err
		}
	case repeated:
		if err := l.insist(ctx, p.payment); err != nil {
			return err
		}
		l.repeats.Add(1)
		return l.repeat(ctx, p.payment)
	}
	return l.insist(ctx, p.payment)
}

// publishLate plays a relay that comes back after an outage.
func (l *load) publishLate(ctx context.Context, p payment) {
	if pause(ctx, lateness) && l.repeat(ctx, p) == nil {
		l.repeats.Add(1)
	}
}

// insist asks until there is an answer.
func (l *load) insist(ctx context.Context, p payment) error {
	var last error
	for begun, n := time.Now(), 0; time.Since(begun) < insists; n++ {
		if n > 0 {
			l.again.Add(1)
		}
		status, err := l.post(ctx, p)
		switch {
		case err != nil:
			last = err
		case status == http.StatusCreated, status == http.StatusOK:
			return nil
		case status < http.StatusInternalServerError:
			return fmt.Errorf("payment %s: the service answers %d", p.ID, status)
		default:
			last = fmt.Errorf("the service answers %d", status)
		}
		if !pause(ctx, recall) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("payment %s: no answer for %v: %w", p.ID, insists, last)
}

func (l *load) post(ctx context.Context, p payment) (status int, err error) {
	l.requests.Add(1)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, bytes.NewReader(p.JSON()))
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
