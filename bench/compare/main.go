// Program compare shows what ways to drop duplicates do in the cases that cost money. Each way guards the same handler,
// which charges a card by inserting a row into PostgreSQL. Messages come from JetStream through Watermill's own adapter
// and Router, in a process that is killed where a case wants that. docs/comparison.md has the table that it prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

func main() {
	kit.ServeIfAsked()
	serveIfAsked()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := compare(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func compare(ctx context.Context) (err error) {
	w, err := openWorld(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	table, err := w.table(ctx)
	if err == nil {
		_, err = fmt.Print(table)
	}
	return err
}
