package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/dedupstore"
)

// A migrator is a store or an outbox that has a schema.
type migrator interface {
	Plan(ctx context.Context) (dedupstore.Migration, error)
	Migrate(ctx context.Context) error
}

// A dropper is a store whose older versions have made what this one does not need.
type dropper interface {
	DropOld(ctx context.Context) (dropped []string, err error)
}

// A migration is what was found and done, for programs.
type migration struct {
	What   string `json:"what"`
	At     string `json:"at"`
	Found  int    `json:"found"`
	Wanted int    `json:"wanted"`
	Done   bool   `json:"done"`

	Dropped []string `json:"dropped,omitempty"` // by --drop-old

	SQL string `json:"sql,omitempty"`
}

func (a *app) migrate() *cobra.Command {
	var dryRun, show, ordered, dropOld bool
	cmd := &cobra.Command{
		Use:     "migrate",
		GroupID: "mend",
		Short:   "Make or update the tables of the store and the outbox",
		Long: `migrate makes the tables of the store and the outbox that are named, or brings
them to the version of this program. It only adds, and may be repeated.
Migrate first, then update the programs.

--drop-old also drops the functions that older versions made in PostgreSQL, and
that their processes call. Use it when none of them runs any more.`,
		Example: "  oncemill migrate --dry-run\n  oncemill migrate --show-sql > oncemill.sql",
		Args:    arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.migrations(cmd.Context(), dryRun || show, show, ordered)
			if err == nil && dropOld && a.settings.Store != "" {
				all[0].Dropped, err = a.dropOld(cmd.Context())
			}
			if err != nil {
				return err
			}
			if !a.forPeople() {
				return items(a, all)
			}
			for _, m := range all {
				m.tell(a, show)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and change nothing")
	cmd.Flags().BoolVar(&show, "show-sql", false, "print the statements, and change nothing")
	cmd.Flags().BoolVar(&ordered, "ordered", false, "an outbox that is new keeps the order of keys; not in SQLite")
	cmd.Flags().BoolVar(&dropOld, "drop-old", false, "drop what only older versions of the programs need")
	cmd.MarkFlagsMutuallyExclusive("drop-old", "dry-run")
	cmd.MarkFlagsMutuallyExclusive("drop-old", "show-sql")
	return cmd
}

// migrations plans, and migrates unless this is dry.
func (a *app) migrations(ctx context.Context, dry, show, ordered bool) (all []migration, err error) {
	if a.settings.Store == "" && a.settings.Outbox == "" {
		return nil, usagef("nothing is named: set --store, --outbox, their variables or a context of the config file")
	}
	for _, named := range []struct {
		what, address string
		open          func() (any, error)
	}{
		{"store", a.settings.Store, func() (any, error) { return a.reachStore(ctx) }},
		{"outbox", a.settings.Outbox, func() (any, error) { return a.reachBox(ctx, ordered) }},
	} {
		if named.address == "" {
			continue
		}
		opened, err := named.open()
		if err != nil {
			return nil, err
		}
		at, _, err := split(named.address)
		if err != nil {
			return nil, err
		}
		m := migration{What: named.what, At: redacted(at)}
		if target, ok := opened.(migrator); ok {
			plan, err := ask(ctx, a.server(named.what, named.address), target.Plan)
			if err != nil {
				return nil, err
			}
			m.Found, m.Wanted = plan.Found, plan.Wanted
			if show {
				m.SQL = plan.SQL
			}
			if !dry {
				if err := target.Migrate(ctx); err != nil { // also where nothing is wanted: it makes what was dropped
					return nil, err
				}
				m.Done = true
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// dropOld drops what only older versions of the store need.
func (a *app) dropOld(ctx context.Context) ([]string, error) {
	opened, err := a.reachStore(ctx)
	if target, ok := opened.(dropper); ok && err == nil {
		return target.DropOld(ctx)
	}
	return nil, err
}

// tell says a migration to people. What is no statement is a comment.
func (m migration) tell(a *app, show bool) {
	line := fmt.Sprintf("%s %s: version %d is there", m.What, m.At, m.Found)
	if m.Found == 0 {
		line = fmt.Sprintf("%s %s: there is no table", m.What, m.At)
	}
	switch {
	case m.Wanted == 0:
		line = fmt.Sprintf("%s %s: it needs no schema", m.What, m.At)
	case m.Found >= m.Wanted:
		line += ", nothing to do"
	case m.Done:
		line += fmt.Sprintf(", migrated to version %d", m.Wanted)
	default:
		line += fmt.Sprintf(", to be migrated to version %d", m.Wanted)
	}
	if len(m.Dropped) > 0 {
		line += "; dropped " + strings.Join(m.Dropped, ", ")
	}
	if show {
		line = "-- " + line
	}
	fmt.Fprintln(a.out, safe(line, 1000))
	if m.SQL != "" {
		fmt.Fprintln(a.out, m.SQL)
	}
}
