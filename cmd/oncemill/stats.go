package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/census"
)

func (a *app) stats() *cobra.Command {
	var f filter
	var w watching
	cmd := &cobra.Command{
		Use:     "stats",
		GroupID: "look",
		Short:   "Count records by scope and state",
		Example: "  oncemill stats\n  oncemill stats --group billing --watch",
		Args:    arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := w.check(); err != nil {
				return err
			}
			return a.counts(cmd.Context(), f.Filter, w)
		},
	}
	f.scope(cmd.Flags())
	w.flags(cmd.Flags())
	return cmd
}

func (a *app) counts(ctx context.Context, f dedupstore.Filter, w watching) error {
	store, err := a.inspector(ctx)
	if err != nil {
		return err
	}
	return w.again(ctx, func() error {
		scopes, err := a.count(ctx, store, f)
		if err != nil {
			return err
		}
		return show(a, w, scopes, statsTable)
	})
}

// A watching is how often something is counted, as flags.
type watching struct {
	on    bool
	every time.Duration
}

func (w *watching) flags(flags *pflag.FlagSet) {
	flags.BoolVarP(&w.on, "watch", "w", false, "count again and again, until interrupted")
	flags.DurationVar(&w.every, "every", 5*time.Second, "how often, with --watch")
}

func (w *watching) check() error {
	if w.every < time.Second {
		return usagef("--every is %v, want at least 1s", w.every)
	}
	return nil
}

// again does something once, or until it is interrupted.
func (w *watching) again(ctx context.Context, do func() error) error {
	for {
		if err := do(); !w.on || err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // that is how watching ends
		case <-time.After(w.every):
		}
	}
}

// show writes statistics, over those before if somebody watches.
func show[T any](a *app, w watching, all []T, tableOf func([]T) table) error {
	if !a.forPeople() {
		return items(a, all)
	}
	if w.on && terminal(a.out) {
		fmt.Fprint(a.out, "\x1b[H\x1b[2J")
	}
	a.table(tableOf(all))
	return nil
}

// count counts all pages.
func (a *app) count(ctx context.Context, store dedupstore.Inspector, f dedupstore.Filter) ([]census.Scope, error) {
	scopes := census.Scopes{}
	var unreadable []*dedupstore.RecordError
	err := a.paged("records", func(after string, progress *progress) (next string, err error) {
		c, err := store.Count(ctx, f, after)
		bad, ok := dedupstore.Unreadable(err)
		if !ok {
			return "", err
		}
		unreadable = append(unreadable, bad...)
		progress.add(c.Looked, c.Total)
		for _, t := range c.Tallies {
			scopes.Add(t)
		}
		return c.Next, nil
	})
	a.leftOut(unreadable)
	return scopes.Sorted(), err
}

func statsTable(scopes []census.Scope) table {
	t := table{{
		"SCOPE", "RUNNING", "RETRYABLE", "PUBLISHING", "SUCCEEDED", "FAILED", "UNKNOWN", "DUPLICATES",
	}}
	for _, s := range scopes {
		line := []string{safe(s.Tenant+":"+s.Group+":"+s.Handler, 80)}
		for _, n := range []int{
			s.Running, s.Retryable, s.Publishing, s.Succeeded, s.Failed, s.Unknown, s.Duplicates,
		} {
			line = append(line, fmt.Sprint(n))
		}
		t = append(t, line)
	}
	return t
}
