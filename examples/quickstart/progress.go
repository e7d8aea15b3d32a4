package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// progress prints a line now and then while the demo runs.
type progress struct {
	placed atomic.Int64
	end    chan struct{}
	ended  sync.WaitGroup
}

func newProgress(ctx context.Context, w io.Writer, d *demo) *progress {
	p := &progress{end: make(chan struct{})}
	say(w, "%d orders, seed %d, through three stacks. Faults are on.\n", len(d.orders), d.options.seed)
	p.ended.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for start := time.Now(); ; {
			select {
			case <-tick.C:
				say(w, "%3.0f s  placed %d of %d, charges: %s\n", time.Since(start).Seconds(), p.placed.Load(), len(d.orders), d.chargesSoFar(ctx))
			case <-p.end:
				return
			}
		}
	})
	return p
}

// say prints progress. That it cannot be printed stops nothing.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func (p *progress) stop() {
	close(p.end)
	p.ended.Wait()
}

func (d *demo) chargesSoFar(ctx context.Context) string {
	var s string
	for _, st := range d.stacks {
		var n int
		if err := d.shop.db.QueryRowContext(ctx, `SELECT count(*) FROM ledger WHERE stack = ?`, st.name).Scan(&n); err != nil {
			return err.Error()
		}
		s += fmt.Sprintf(" %s %d", st.name, n)
	}
	return s
}
