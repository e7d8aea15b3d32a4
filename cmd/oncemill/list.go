package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/operate"
)

func (a *app) list() *cobra.Command {
	var f filter
	var limit int
	var check, payload, last bool
	cmd := &cobra.Command{
		Use:     "ls",
		GroupID: "look",
		Short:   "List records by state, outcome, scope, reason and age",
		Example: "  oncemill ls --kind failed,unknown --since 24h\n" +
			"  oncemill ls --kind failed --last --limit 5\n" +
			"  oncemill ls --group billing --state running --before 10m --check",
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.read(time.Now()); err != nil {
				return err
			}
			if limit < 1 {
				return usagef("--limit is %d, want at least 1", limit)
			}
			return a.lists(cmd.Context(), f.Filter, limit, last, check, payload)
		},
	}
	f.all(cmd.Flags())
	cmd.Flags().IntVar(&limit, "limit", 100, "list so many at most")
	cmd.Flags().BoolVar(&last, "last", false, "the ones that were claimed last: looks through all records")
	cmd.Flags().BoolVar(&check, "check", false, "exit with status 3 if there is one")
	cmd.Flags().BoolVar(&payload, "show-payload", false, "show results, too (json and jsonl)")
	return cmd
}

func (a *app) lists(ctx context.Context, f dedupstore.Filter, limit int, last, check, payload bool) error {
	store, err := a.inspector(ctx)
	if err != nil {
		return err
	}
	found, more := map[dedupstore.Key]dedupstore.Record{}, false
	unreadable, err := a.each(ctx, store, f, func(r *dedupstore.Record) bool {
		if last {
			if found[r.Key] = *r; len(found) > 2*limit { // what is older is nobody's last
				more = true
				for _, old := range sorted(found)[limit:] {
					delete(found, old.Key)
				}
			}
			return true
		}
		if more = len(found) == limit; more {
			_, more = found[r.Key]
			more = !more
		}
		if !more {
			found[r.Key] = *r
		}
		return !more
	})
	if err != nil {
		return err
	}
	records := sorted(found)
	if last && len(records) > limit {
		records, more = records[:limit], true
	}
	for _, e := range unreadable {
		records = append(records, recordOf(e))
	}
	if a.forPeople() {
		a.table(tableOf(records, time.Now()))
		if more && !last {
			fmt.Fprintf(a.log, "There are more than %d, and these are not the last ones, which --last shows. --limit "+
				"shows more.\n", limit)
		}
	} else {
		var all []view
		for i := range records {
			all = append(all, viewOf(&records[i], payload))
		}
		if err := items(a, all); err != nil {
			return err
		}
	}
	if check && len(records) > 0 {
		return errFound
	}
	return nil
}

// recordOf is what a list shows of a record that cannot be read.
func recordOf(e *dedupstore.RecordError) dedupstore.Record {
	r := dedupstore.Record{State: "unreadable", Outcome: dedupstore.Outcome{Reason: e.Problem}}
	parts := strings.Split(e.Key, ":") // a store may have a prefix before
	var err error
	if r.Key, err = dedupstore.ParseKey(strings.Join(parts[max(0, len(parts)-4):], ":")); err != nil {
		r.Key = dedupstore.Key{ID: e.Key}
	}
	return r
}

func tableOf(records []dedupstore.Record, now time.Time) table {
	t := table{{"ID", "SCOPE", "STATE", "ATTEMPTS", "CLAIMED", "HOLDER", "DUPLICATES", "REASON"}}
	for i := range records {
		r, claimed := &records[i], ""
		if !r.Claimed.IsZero() {
			claimed = explain.Span(now.Sub(r.Claimed)) + " ago"
		}
		t = append(t, []string{
			safe(r.Key.ID, 60), safe(scopeOf(r.Key), 60), operate.StateOf(r), fmt.Sprint(r.Attempts),
			claimed, safe(r.Holder, 30), fmt.Sprint(r.Duplicates),
			safe(r.Outcome.Reason, 60),
		})
	}
	return t
}
