package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
)

// A filter is a dedupstore.Filter as flags.
type filter struct {
	dedupstore.Filter
	states, kinds []string
	times         times
}

// Times are when something happened, as flags.
type times struct{ since, before string }

func (t *times) flags(flags *pflag.FlagSet, happened string) {
	flags.StringVar(&t.since, "since", "", "only "+happened+" since then: 2h, or an RFC 3339 time")
	flags.StringVar(&t.before, "before", "", "only "+happened+" before then")
}

// read reads the flags. Now is what durations count from.
func (t *times) read(now time.Time) (since, before time.Time, err error) {
	if since, err = operate.When(t.since, now); err != nil {
		return since, before, usagef("--since %w", err)
	}
	if before, err = operate.When(t.before, now); err != nil {
		return since, before, usagef("--before %w", err)
	}
	return since, before, nil
}

// scope has the flags of a scope.
func (f *filter) scope(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&f.Tenant, "tenant", "", "only records of this tenant")
	flags.StringVar(&f.Group, "group", "", "only records of this consumer group")
	flags.StringVar(&f.Handler, "handler", "", "only records of this handler")
}

// all has the flags of a whole filter.
func (f *filter) all(flags *pflag.FlagSet) {
	f.scope(flags)
	flags.StringSliceVar(&f.states, "state", nil, "only these states: running, retryable, publishing, done")
	flags.StringSliceVar(&f.kinds, "kind", nil, "only these outcomes: succeeded, failed, unknown")
	flags.StringVar(&f.Reason, "reason", "", "only records whose last reason contains this text")
	f.times.flags(flags, "records last claimed")
}

// read reads the flags. Now is what durations count from.
func (f *filter) read(now time.Time) (err error) {
	states := []dedupstore.State{
		dedupstore.Running, dedupstore.Retryable, dedupstore.Publishing, dedupstore.Finished,
	}
	kinds := []dedupstore.Kind{dedupstore.Succeeded, dedupstore.Failed, dedupstore.Unknown}
	if f.States, err = oneOf("--state", f.states, states); err != nil {
		return err
	}
	if f.Kinds, err = oneOf("--kind", f.kinds, kinds); err != nil {
		return err
	}
	f.Since, f.Before, err = f.times.read(now)
	return err
}

// empty reports whether the filter lets everything through.
func (f *filter) empty() bool {
	return f.Tenant == "" && f.Group == "" && f.Handler == "" && f.ID == "" && f.Reason == "" &&
		len(f.States)+len(f.Kinds) == 0 && f.Since.IsZero() && f.Before.IsZero()
}

func oneOf[T ~string](name string, given []string, known []T) (chosen []T, err error) {
	for _, text := range given {
		if !slices.Contains(known, T(text)) {
			return nil, usagef("%s is %q, want one of %s", name, text, strings.Trim(fmt.Sprint(known), "[]"))
		}
		chosen = append(chosen, T(text))
	}
	return chosen, nil
}

// each calls do with the records that a filter lets through, until it returns false. A record may come twice. It
// returns the records that cannot be read.
func (a *app) each(
	ctx context.Context, store dedupstore.Inspector, f dedupstore.Filter, do func(*dedupstore.Record) bool,
) (unreadable []*dedupstore.RecordError, err error) {
	err = a.paged("records", func(after string, progress *progress) (next string, err error) {
		page, err := store.List(ctx, f, after)
		bad, ok := dedupstore.Unreadable(err)
		if !ok {
			return "", err
		}
		unreadable = append(unreadable, bad...)
		progress.add(page.Looked, page.Total)
		for i := range page.Records {
			if !do(&page.Records[i]) {
				return "", nil
			}
		}
		return page.Next, nil
	})
	return unreadable, err
}

// paged reads page after page, and shows how far it has come. Read says where the next page begins; empty: there is
// none.
func (a *app) paged(things string, read func(after string, progress *progress) (next string, err error)) error {
	progress := a.progress(things)
	defer progress.end()
	for after := ""; ; {
		var err error
		if after, err = read(after, progress); err != nil || after == "" {
			return err
		}
	}
}

// leftOut says that records were left out that cannot be read.
func (a *app) leftOut(unreadable []*dedupstore.RecordError) {
	if len(unreadable) > 0 {
		fmt.Fprintf(a.log, "%s left out that cannot be read, the first: %s\n", plural(len(unreadable), "record"),
			oneLine(unreadable[0]))
	}
}
