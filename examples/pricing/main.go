// The pricing example takes orders from a JetStream stream and puts their prices into it, several messages an order.
// Workers are killed (SIGKILL) between two messages of an order, and orders come twice. At the end it closes the books:
// each order has the prices of one run, all of them, in one piece.
//
//	go run ./examples/pricing
//
// It needs nothing but Go, and no database: see docs/nats-exactly-once.md. You would write pricing.go yourself. It
// takes half a minute, because the orders of a killed worker wait for the end of their leases. Exit status: 0 if the
// books balance, 1 if they do not or something broke, 2 for wrong flags.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func main() {
	if url, is := os.LookupEnv(childEnv); is {
		shop.Say(os.Stderr, "%v\n", child(context.Background(), url))
		os.Exit(1)
	}
	flags := flag.NewFlagSet("pricing", flag.ContinueOnError)
	count := flags.Int("orders", 60, "how many orders to place")
	play := func(ctx context.Context, dir string) (bool, error) {
		b, err := play(ctx, dir, *count, "")
		if err == nil {
			fmt.Printf("%+v\nEach order has the prices of one run, in one piece: %v.\n", b, b.balance())
		}
		return b.balance(), err
	}
	os.Exit(shop.Main(context.Background(), flags, os.Args[1:], os.Stderr, play))
}

// books are what came of the orders.
type books struct {
	Orders, Deaths, Messages      int
	Unpriced, Partly, Mixed, Torn int // orders
}

func (b books) balance() bool { return b.Unpriced+b.Partly+b.Mixed+b.Torn == 0 }

// play places orders, half of them twice, keeps two workers running until all are priced, and closes the books.
func play(ctx context.Context, dir string, count int, wrong string) (b books, err error) {
	js, closing, err := shop.OpenNATS("", dir)
	if err != nil {
		return b, err
	}
	defer closing()
	if _, err := js.CreateStream(ctx, natskv.Stream(stream, 1, "orders.>")); err != nil {
		return b, err
	}
	for i := range 2 * count {
		if order := i % count; i == order || order%2 == 0 {
			if err := shop.PublishCopy(ctx, js, orders, fmt.Sprint("order-", order), fmt.Append(nil, order)); err != nil {
				return b, err
			}
		}
	}
	alive, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- shop.Poll(alive, 50*time.Millisecond, func() (bool, error) {
			rest, _, err := shop.AtRest(alive, js, stream, "pricing")
			return rest && err == nil, nil
		})
		stop()
	}()
	deaths := make([]int, 2)
	err = shop.Each(ctx, len(deaths), len(deaths), func(ctx context.Context, i int) (err error) {
		deaths[i], err = keep(alive, js.Conn().ConnectedUrl(), wrong)
		return err
	})
	if err := errors.Join(err, <-done); err != nil {
		return b, err
	}
	b = books{Orders: count, Deaths: deaths[0] + deaths[1]}
	return b, b.read(ctx, js)
}

// childEnv holds the server of a worker that is a process of its own, and how it works.
const childEnv = "ONCEMILL_PRICING"

// keep runs workers, one after the other, until ctx ends, and counts how many died.
func keep(ctx context.Context, url, wrong string) (deaths int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	for {
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), childEnv+"="+url+" "+wrong)
		said, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return deaths, nil //nolint:nilerr // it was killed
		}
		if exit, is := errors.AsType[*exec.ExitError](err); !is || exit.Exited() { // by no signal
			return deaths, fmt.Errorf("a worker ended: %w\n%s", err, said)
		}
		deaths++
	}
}

// child is a worker, which SIGKILL ends between the first and the second price of some orders.
func child(ctx context.Context, how string) error {
	url, wrong, _ := strings.Cut(how, " ")
	js, closing, err := shop.OpenNATS(url, "")
	if err != nil {
		return err
	}
	defer closing()
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	dies := func(order int) {
		if order%10 != 7 {
			return
		}
		_ = js.Conn().Flush()    // what has been sent is there
		for self.Kill() == nil { // until the signal is there
		}
	}
	if wrong == "" {
		return work(ctx, js, dies)
	}
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{}) // prices on their own, as without an inbox
	if err != nil {
		return err
	}
	store, err := natskv.New(js, natskv.Config{Stream: stream, Subject: records})
	if err != nil {
		return err
	}
	return workOver(ctx, js, pub, store, dies)
}

// read closes the books: it reads all prices, in their order.
func (b *books) read(ctx context.Context, js jetstream.JetStream) error {
	messages, err := shop.Messages(ctx, js, stream, prices+"*")
	if err != nil {
		return err
	}
	type found struct {
		lines []bool
		first uint64 // sequence
		torn  bool
	}
	of := map[int]*found{}
	for _, m := range messages {
		var p price
		meta, err := m.Metadata()
		if err := errors.Join(err, json.Unmarshal(m.Data(), &p)); err != nil {
			return err
		}
		b.Messages++
		f := of[p.Order]
		if f == nil {
			f = &found{lines: make([]bool, p.Of), first: meta.Sequence.Stream - uint64(p.Line)}
			of[p.Order] = f
		}
		switch {
		case f.lines[p.Line]:
			b.Mixed++
		case meta.Sequence.Stream != f.first+uint64(p.Line) && !f.torn:
			f.torn = true
			b.Torn++
		}
		f.lines[p.Line] = true
	}
	for order := range b.Orders {
		f := of[order]
		if f == nil {
			b.Unpriced++
			continue
		}
		for _, there := range f.lines {
			if !there {
				b.Partly++
				break
			}
		}
	}
	return nil
}
