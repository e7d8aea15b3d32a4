package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/census"
	"github.com/oncemill/oncemill/internal/operate"
)

func (a *app) stats() *cobra.Command {
	var f filter
	var w watching
	var consumers []string
	var reasons bool
	cmd := &cobra.Command{
		Use:     "stats",
		GroupID: "look",
		Short:   "Count records by scope and state, or failures by reason",
		Example: "  oncemill stats\n  oncemill stats --reasons --watch\n" +
			"  oncemill stats --consumer ORDERS/billing --nats nats://127.0.0.1",
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := w.check(); err != nil {
				return err
			}
			store, err := a.inspector(cmd.Context())
			if err != nil {
				return err
			}
			if reasons {
				return w.again(cmd.Context(), func() error {
					groups, err := a.failures(cmd.Context(), store, f.Filter)
					if err != nil {
						return err
					}
					return show(a, w, groups, reasonTable)
				})
			}
			lag := func(context.Context) ([]health.Lag, error) { return nil, nil }
			if len(consumers) > 0 {
				if lag, err = a.lagOf(cmd.Flags(), consumers); err != nil {
					return err
				}
			}
			return w.again(cmd.Context(), func() error {
				scopes, err := a.count(cmd.Context(), store, f.Filter)
				if err != nil {
					return err
				}
				behind, err := lag(cmd.Context())
				if !a.forPeople() {
					return errors.Join(err, items(a, statistics(scopes, behind)))
				}
				err = errors.Join(err, show(a, w, scopes, statsTable))
				if len(behind) > 0 {
					fmt.Fprintln(a.out)
					a.table(lagTable(behind))
				}
				return err
			})
		},
	}
	f.scope(cmd.Flags())
	cmd.Flags().BoolVar(&reasons, "reasons", false, "count failed and unknown records by reason, also of the last day")
	cmd.Flags().StringSliceVar(&consumers, "consumer", nil,
		"tell also how far these are behind: STREAM/CONSUMER (NATS) or\nGROUP (Kafka)")
	w.flags(cmd.Flags())
	return cmd
}

// A statistic is what stats counts, for programs: a scope, or a consumer.
type statistic struct {
	What string `json:"what"` // scope or consumer
	*census.Scope
	*health.Lag
}

func statistics(scopes []census.Scope, behind []health.Lag) (all []statistic) {
	for i := range scopes {
		all = append(all, statistic{What: "scope", Scope: &scopes[i]})
	}
	for i := range behind {
		all = append(all, statistic{What: "consumer", Lag: &behind[i]})
	}
	return all
}

// failures counts failures by reason.
func (a *app) failures(ctx context.Context, store dedupstore.Inspector, f dedupstore.Filter) ([]operate.Group, error) {
	f.Kinds = []dedupstore.Kind{dedupstore.Failed, dedupstore.Unknown}
	found := operate.NewFailures(time.Now())
	unreadable, err := a.each(ctx, store, f, func(r *dedupstore.Record) bool {
		found.Add(r)
		return true
	})
	a.leftOut(unreadable)
	return found.Sorted(), err
}

func reasonTable(groups []operate.Group) table {
	t := table{{"LAST HOUR", "LAST DAY", "FAILURES", "UNKNOWN", "FIRST", "LAST", "GROUP / HANDLER", "REASON"}}
	for _, g := range groups {
		t = append(t, []string{
			fmt.Sprint(g.Hour()), fmt.Sprint(g.Day()), fmt.Sprint(g.N), fmt.Sprint(g.Unknown), moment(g.First),
			moment(g.Last), safe(strings.Join(g.Scopes, ", "), 60), safe(g.Pattern, 100),
		})
	}
	return t
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
