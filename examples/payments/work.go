package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"

	"github.com/oncemill/oncemill/producer"
)

// work does what the roles of this process are, until ctx ends or one of them breaks.
func (p program) work(ctx context.Context, o options, stdout io.Writer) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if o.child {
		go func() { // ends with the process
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop() // who started this process wants it to drain, or has died
		}()
	}
	if slices.Equal(o.roles, []string{roleAPI}) {
		return serveAPI(ctx, o, stdout)
	}
	db, err := openDatabase(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(context.WithoutCancel(ctx), false)) }()
	if p.tamper != nil {
		db = p.tamper(db)
	}
	b, err := connect(ctx, o)
	if err != nil {
		return err
	}
	defer b.close()
	pub, err := b.publisher(o)
	if err != nil {
		return err
	}
	var listener net.Listener
	if slices.Contains(o.roles, roleService) {
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", o.listen); err != nil {
			return fmt.Errorf("-listen: %w", err)
		}
	}
	ready(stdout, listener)
	return together(ctx, o.parts(b, db, pub, listener))
}

// A part is what one role does until its context ends.
type part func(context.Context) error

func (o options) parts(b *broker, db database, pub producer.Publisher, l net.Listener) (all []part) {
	for _, role := range o.roles {
		switch role {
		case roleService:
			all = append(all, func(ctx context.Context) error { return serve(ctx, l, takePayments(db, b.payments())) })
		case roleRelay:
			all = append(all, func(ctx context.Context) error { return relay(ctx, db.outbox(), pub) })
		case roleCharge:
			all = append(all,
				func(ctx context.Context) error { return charge(ctx, o, b, db, pub) },
				db.clean)
		case roleNotify:
			all = append(all, func(ctx context.Context) (err error) {
				store, done, err := o.outcomes(db)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, done()) }()
				return notify(ctx, o, b, store, pub)
			})
		case roleAPI:
			all = append(all, func(ctx context.Context) error { return serveAPI(ctx, o, io.Discard) })
		}
	}
	return all
}

// together runs all parts until ctx ends, or until one of them does.
func together(ctx context.Context, parts []part) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, run := range parts {
		all.Go(func() {
			defer stop()
			errs[i] = run(ctx)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func serveAPI(ctx context.Context, o options, stdout io.Writer) (err error) {
	a, err := openAPI(o.journal, o.lose)
	if err != nil {
		return fmt.Errorf("-journal: %w", err)
	}
	defer func() { err = errors.Join(err, a.close()) }()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	ready(stdout, l)
	return serve(ctx, l, http.Handler(a))
}

// ready tells who started this process that it works, and where it listens.
func ready(stdout io.Writer, l net.Listener) {
	where := "-"
	if l != nil {
		where = l.Addr().String()
	}
	say(stdout, "ready %s\n", where)
}
