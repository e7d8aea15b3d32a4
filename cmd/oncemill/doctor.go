package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A doctor looks at servers.
type doctor struct {
	*app
	health.Report
	policy           oncemill.Policy // that servers must fit
	stream, consumer string
	topic, group     string
	dead             string // topic of dead letters
	deeper           bool   // stores and outboxes have been asked already
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
	flags.DurationVar(&d.policy.Lease, "lease", 30*time.Second, "Policy.Lease")
	flags.IntVar(&d.policy.MaxAttempts, "attempts", 10, "Policy.MaxAttempts")
	flags.DurationVar(&d.policy.Window, "window", 24*time.Hour, "Policy.Window")
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
	if slices.ContainsFunc(d.Found, func(f health.Finding) bool { return f.Severity == health.Loses }) {
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
	slices.SortStableFunc(d.Found, func(a, b health.Finding) int { return cmp.Compare(a.Severity, b.Severity) })
	d.Found = slices.Compact(d.Found)
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
	switch p := d.policy; {
	case p.Lease < 100*time.Millisecond:
		return usagef("--lease is %v, want at least 100ms", p.Lease)
	case p.Window < p.Lease:
		return usagef("--window is %v, want at least --lease (%v)", p.Window, p.Lease)
	case p.MaxAttempts < 1:
		return usagef("--attempts is %d, want at least 1", p.MaxAttempts)
	}
	return nil
}

// lookAtNATS looks at a stream, a consumer and where dead letters go.
func (d *doctor) lookAtNATS(ctx context.Context) error {
	js, err := d.jetStream(nats.Timeout(5 * time.Second))
	if err != nil {
		return err
	}
	return d.add(natsjs.Diagnose(ctx, js, natsjs.Setup{
		Stream: d.stream, Consumer: d.consumer, DeadLetters: d.dead, Policy: d.policy,
	}))
}

// lookAtKafka looks at a topic, a group and the topic of dead letters.
func (d *doctor) lookAtKafka(ctx context.Context) error {
	cl, err := d.kafka(kgo.RetryTimeout(5 * time.Second))
	if err != nil {
		return err
	}
	return d.add(franz.Diagnose(ctx, cl, franz.Setup{
		Topic: d.topic, Group: d.group, DeadLetters: d.dead, Policy: d.policy,
	}))
}

func (d *doctor) add(r health.Report, err error) error {
	d.Looked, d.Found = append(d.Looked, r.Looked...), append(d.Found, r.Found...)
	return err
}

// tell writes what was found.
func (d *doctor) tell() error {
	if !d.forPeople() {
		return items(d.app, d.Found)
	}
	if len(d.Looked) > 0 {
		fmt.Fprintln(d.log, safe("Looked at "+strings.Join(d.Looked, "; ")+".", 2000))
	}
	if len(d.Found) == 0 {
		return nil
	}
	t := table{{"SEVERITY", "SUBJECT", "FINDING"}}
	for _, f := range d.Found {
		t = append(t, []string{f.Severity, safe(f.Subject, 100), safe(f.Finding, 1000)})
	}
	d.table(t)
	return nil
}

// clock compares the clock of a server, which was asked between two times.
func (d *doctor) clock(what string, theirs, before, after time.Time) {
	const most = 2 * time.Second
	apart := ""
	switch {
	case theirs.Sub(after) > most:
		apart = theirs.Sub(after).Round(time.Second).String() + " ahead of"
	case before.Sub(theirs) > most:
		apart = before.Sub(theirs).Round(time.Second).String() + " behind"
	}
	d.Judge(what, health.UnwiseIf(apart != "", "its clock is "+apart+" this machine's: a failover to a server "+
		"with another clock ends leases early, and runs overlap, or late; keep all clocks together with NTP"))
}
