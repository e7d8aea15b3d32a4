package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/internal/operate"
)

const loses, unwise = operate.Loses, operate.Unwise

type finding = operate.Finding

// A rule is a finding if it is broken.
type rule struct {
	broken   bool
	severity string
	finding  string
}

func judge(subject string, rules ...rule) (found []finding) {
	for _, r := range rules {
		if r.broken {
			found = append(found, operate.Found(r.severity, subject, r.finding))
		}
	}
	return found
}

// A policy is what servers must fit, as flags. The defaults are those of oncemill.Policy.
type policy struct {
	lease, window time.Duration
	attempts      int
}

func (p policy) check() error {
	switch {
	case p.lease < 100*time.Millisecond:
		return usagef("--lease is %v, want at least 100ms", p.lease)
	case p.window < p.lease:
		return usagef("--window is %v, want at least --lease (%v)", p.window, p.lease)
	case p.attempts < 1:
		return usagef("--attempts is %d, want at least 1", p.attempts)
	}
	return nil
}

// retries is how long the attempts of a message take at most, with the default backoff.
func (p policy) retries() (total time.Duration) {
	for attempt, wait := 1, time.Second; attempt < p.attempts; attempt++ {
		total += wait
		wait = min(2*wait, 5*time.Minute)
	}
	return total
}

// A doctor looks at servers.
type doctor struct {
	*app
	policy
	stream, consumer string
	topic, group     string
	dead             string // topic of dead letters

	looked []string // what it looked at, for people
	found  []finding
}

func (a *app) doctor() *cobra.Command {
	d := &doctor{app: a}
	cmd := &cobra.Command{
		Use:     "doctor",
		GroupID: "look",
		Short:   "Find settings of servers that lose messages or records",
		Long: `doctor looks at the servers that are named, and tells which settings do not fit.
It changes nothing. Connect as the programs do: rights are its user's.

The store and the outbox are looked at always, NATS with --stream, Kafka with
--topic. --lease, --attempts and --window are those of the policy.

  error    can lose messages or make effects twice, or programs refuse to work
  warning  works, and should be changed

Exit status 3: there is an error among the findings.`,
		Example: "  oncemill doctor\n  oncemill doctor --stream ORDERS --consumer billing --dead-letters " +
			"dead.orders\n  oncemill doctor --topic orders --group billing -o json",
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&d.stream, "stream", "", "the JetStream stream of the messages")
	flags.StringVar(&d.consumer, "consumer", "", "the consumer of the stream")
	flags.StringVar(&d.topic, "topic", "", "the Kafka topic of the messages")
	flags.StringVar(&d.group, "group", "", "the Kafka consumer group")
	flags.StringVar(&d.dead, "dead-letters", "", "the subject or topic of dead letters")
	flags.DurationVar(&d.lease, "lease", 30*time.Second, "Policy.Lease")
	flags.IntVar(&d.attempts, "attempts", 10, "Policy.MaxAttempts")
	flags.DurationVar(&d.window, "window", 24*time.Hour, "Policy.Window")
	return cmd
}

// lookTimeout bounds the look at one server.
const lookTimeout = 15 * time.Second

func (d *doctor) run(ctx context.Context) error {
	if err := d.check(); err != nil {
		return err
	}
	failed := d.look(ctx)
	if err := d.tell(); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if slices.ContainsFunc(d.found, func(f finding) bool { return f.Severity == loses }) {
		return errFound
	}
	return nil
}

// look looks at all servers that are named. It puts the worst first.
func (d *doctor) look(ctx context.Context) error {
	d.asIs = true
	var errs []error
	for _, look := range []struct {
		wanted bool
		at     func(context.Context) error
	}{
		{d.settings.Store != "", d.lookAtStore},
		{d.settings.Outbox != "", d.lookAtOutbox},
		{d.stream != "", d.lookAtNATS},
		{d.topic != "", d.lookAtKafka},
	} {
		if !look.wanted || ctx.Err() != nil {
			continue
		}
		within, cancel := context.WithTimeout(ctx, lookTimeout)
		errs = append(errs, look.at(within)) // the others may be there
		cancel()
	}
	slices.SortStableFunc(d.found, func(a, b finding) int { return cmp.Compare(a.Severity, b.Severity) })
	d.found = slices.Compact(d.found)
	return errors.Join(errs...)
}

// check refuses flags that name nothing, or half of something.
func (d *doctor) check() error {
	for _, half := range []struct {
		wrong bool
		what  string
	}{
		{d.settings.Store == "" && d.settings.Outbox == "" && d.stream == "" && d.topic == "",
			"nothing is named: set --store, --outbox, --stream or --topic, or see oncemill doctor --help"},
		{d.stream != "" && d.settings.Nats == "", "--stream needs --nats"},
		{d.consumer != "" && d.stream == "", "--consumer needs --stream"},
		{d.topic != "" && d.settings.Kafka == "", "--topic needs --kafka"},
		{d.group != "" && d.topic == "", "--group needs --topic"},
		{d.dead != "" && d.stream == "" && d.topic == "", "--dead-letters needs --stream or --topic"},
	} {
		if half.wrong {
			return usagef("%s", half.what)
		}
	}
	return d.policy.check()
}

// tell writes what was found.
func (d *doctor) tell() error {
	if !d.forPeople() {
		return items(d.app, d.found)
	}
	if len(d.looked) > 0 {
		fmt.Fprintln(d.log, safe("Looked at "+strings.Join(d.looked, "; ")+".", 2000))
	}
	if len(d.found) == 0 {
		return nil
	}
	t := table{{"SEVERITY", "SUBJECT", "FINDING"}}
	for _, f := range d.found {
		t = append(t, []string{f.Severity, safe(f.Subject, 100), safe(f.Finding, 1000)})
	}
	d.table(t)
	return nil
}

// clock compares the clock of a server, which was asked between two times.
func clock(what string, theirs, before, after time.Time) []finding {
	const most = 2 * time.Second
	apart := ""
	switch {
	case theirs.Sub(after) > most:
		apart = theirs.Sub(after).Round(time.Second).String() + " ahead of"
	case before.Sub(theirs) > most:
		apart = before.Sub(theirs).Round(time.Second).String() + " behind"
	}
	return judge(what, rule{apart != "", unwise, "its clock is " + apart + " this machine's: a failover to a server " +
		"with another clock ends leases early, and runs overlap, or late; keep all clocks together with NTP"})
}
