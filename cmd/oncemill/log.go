package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/internal/operate"
)

func (a *app) auditLogs() *cobra.Command {
	var who, action, what string
	var t times
	var limit int
	cmd := &cobra.Command{
		Use:     "log FILE...",
		GroupID: "look",
		Short:   "Tell who changed what, when and why, from audit logs",
		Long: `log reads audit logs, which the command and the console write to --audit-log,
and tells the last changes, the latest at the end.`,
		Example: "  oncemill log audit.jsonl --since 12h\n  oncemill log audit.jsonl --what order-17 -o json",
		Args:    arguments(cobra.MinimumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			from, to, err := t.read(time.Now())
			if err != nil {
				return err
			}
			if limit < 1 {
				return usagef("--limit is %d, want at least 1", limit)
			}
			var all []operate.Entry
			others := 0
			for _, path := range args {
				f, err := os.Open(path)
				if err != nil {
					return fmt.Errorf("audit log: %w", err)
				}
				n, err := operate.ReadLog(f, func(e operate.Entry) {
					if strings.Contains(e.Who, who) && (action == "" || string(e.Action) == action) &&
						strings.Contains(e.What, what) && !e.Time.Before(from) && (to.IsZero() || e.Time.Before(to)) {
						all = append(all, e)
					}
				})
				f.Close()
				if others += n; err != nil {
					return fmt.Errorf("audit log %s: %w", path, err)
				}
			}
			slices.SortStableFunc(all, func(a, b operate.Entry) int { return a.Time.Compare(b.Time) })
			if others > 0 {
				fmt.Fprintf(a.log, "%s left out: not about a change.\n", plural(others, "line"))
			}
			if all = all[max(0, len(all)-limit):]; !a.forPeople() {
				return items(a, all)
			}
			t := table{{"TIME", "WHO", "ACTION", "IN", "WHAT", "RESULT", "OUTCOME", "WHY", "ERROR"}}
			for _, e := range all {
				t = append(t, []string{
					moment(e.Time), safe(e.Who, 40), safe(string(e.Action), 20), safe(e.Where, 40), safe(e.What, 80),
					safe(e.Result, 20), safe(e.Outcome, 60), safe(e.Why, 60), safe(e.Error, 80),
				})
			}
			a.table(t)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&who, "who", "", "only changes by somebody whose name contains this")
	flags.StringVar(&action, "action", "", "only this action, such as forget")
	flags.StringVar(&what, "what", "", "only changes of what contains this, such as a message ID")
	t.flags(flags, "changes")
	flags.IntVar(&limit, "limit", 100, "tell so many at most")
	return cmd
}
