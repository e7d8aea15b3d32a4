package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/internal/operate"
)

// A redriving is a redrive of a topic, or letters that are discarded.
type redriving struct {
	dlq
	consent
	topic string
	does  operate.Redrive
}

func (a *app) redrive() *cobra.Command {
	r := &redriving{consent: consent{verb: "redrive"}}
	cmd := &cobra.Command{
		Use:   "redrive TOPIC",
		Short: "Run the messages of dead letters again, when the cause is mended",
		Long: `redrive publishes the messages of dead letters to where they came from, so that
their handlers run again under the same IDs. It first predicts from the records
what would happen, and asks. It sends only messages that will run; with --all
also the others that can be rerun. It leaves what came after the prediction, and
what would not do any more what was predicted. If a letter that was to be sent
was not, and still needs it, the exit status is 1: say the same again. Outside
of an inbox, and where the outcome is unknown, an effect may happen twice.

A letter is acknowledged only after its message is published. Progress is kept
in the acks of a durable consumer (NATS), which removes letters from a work
queue, or in a topic of markers (Kafka). A redrive that was cut off goes on.

It begins with 20 messages, and stops if more than a quarter of what it sent
fails again. Every group of the source topic gets what is sent: "oncemill
explain" of a message tells which those are.`,
		Example: "  oncemill dlq redrive dead.billing --reason \"card service\" --dry-run\n" +
			"  oncemill dlq redrive dead.billing --group billing --rate 50 --why \"mended\"\n" +
			"  oncemill dlq redrive dead.billing --id order-17 --id order-23",
	}
	flags := a.letterChange(cmd, r)
	flags.Lookup("all").Usage = "also those that will not run, or would run as a first run"
	return cmd
}

func (a *app) deadDiscard() *cobra.Command {
	r := &redriving{consent: consent{verb: operate.Discard}}
	cmd := &cobra.Command{
		Use:   "discard TOPIC",
		Short: "Put dead letters aside for good, such as those of no use",
		Long: `discard puts dead letters aside: no redrive sends them. JetStream removes them
from the stream. Kafka cannot remove single records: they are marked, and stay
until the topic's retention ends. Records are not changed.`,
		Example: "  oncemill dlq discard dead.billing --outcome rejected --before 168h",
	}
	a.letterChange(cmd, r)
	return cmd
}

// letterChange makes a command that changes letters.
func (a *app) letterChange(cmd *cobra.Command, r *redriving) *pflag.FlagSet {
	r.does.Discards = r.verb == operate.Discard
	cmd.GroupID, cmd.Args = "mend", arguments(cobra.ExactArgs(1))
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if err := r.read(time.Now()); err != nil {
			return err
		}
		named := r.verb == "redrive" || cmd.Flags().Changed("since") || cmd.Flags().Changed("before") ||
			r.Reason+r.Key+r.Handler+r.Group != "" || len(r.IDs)+len(r.Outcomes) > 0
		if err := r.check("dlq "+string(r.verb), named); err != nil {
			return err
		}
		if r.Group == "" && cmd.Flags().Changed("tenant") {
			return usagef("--tenant is set without --group")
		}
		if !r.does.Discards {
			if r.does.Store, err = a.inspector(cmd.Context()); err != nil {
				return err
			}
		}
		r.topic = args[0]
		if r.does.Source, err = a.open(cmd.Flags(), &r.dlq, r.topic); err != nil {
			return err
		}
		return a.redrives(cmd.Context(), r)
	}
	flags := cmd.Flags()
	r.dlq.flags(flags)
	r.dlq.filter(flags)
	flags.StringVar(&r.Group, "group", "", "only letters of this consumer group")
	flags.StringVar(&r.Tenant, "tenant", "default", "the tenant, with --group")
	flags.StringVar(&r.dlq.name, "name", "", "the durable consumer (NATS) or the topic (Kafka) that keeps the\n"+
		"progress (default oncemill-redrive-TOPIC, or TOPIC.redriven)")
	r.consent.flags(flags, "letters")
	return flags
}

func (a *app) redrives(ctx context.Context, r *redriving) (err error) {
	progress := a.progress("letters")
	defer progress.end()
	o := &r.does
	o.Letters, o.Every, o.Rate = r.Letters, r.every, r.rate
	o.Looked = func() { progress.add(1, 0) }
	o.Wait = func(text string) { fmt.Fprintln(a.log, text) }
	p, err := o.Predict(ctx)
	if progress.end(); err != nil {
		return err
	}
	if len(p.Missing) > 0 {
		return fmt.Errorf("nothing was changed: %s has no letter to %s with the ID %q, and none of a message "+
			"with it: leave out what was redriven before", safe(r.topic, 100), r.verb, safe(p.Missing[0], 100))
	}
	if err := a.showPrediction(p, o.Discards); err != nil {
		return err
	}
	counts := map[string]int{}
	for of, n := range p.Sent {
		if o.Discards {
			counts["of "+safe(r.topic, 100)] += n
		} else {
			counts["to "+safe(of.Topic, 300)+": "+string(of.Fate)] += n
		}
	}
	if agreed, err := a.agreed(ctx, &r.consent, "letter", counts); err != nil || !agreed {
		return err
	}
	audit, closed, err := a.auditor(&r.consent)
	if err != nil {
		return err
	}
	audit = audit.With("action", r.verb, "topic", r.topic)
	o.Tell = func(result string, ids []string, err error, _ operate.Redriven) {
		if line := audit.With("ids", ids); err == nil {
			line.Info(result)
		} else {
			line.Warn(result, "error", err.Error())
		}
	}
	done, err := o.Do(ctx, p)
	if o.Discards {
		fmt.Fprintf(a.log, "%s discarded\n", plural(done.Sent, "letter"))
	} else {
		fmt.Fprintf(a.log, "%s redriven, %d left, %d refused; of those sent %d succeeded, %d failed again, %d have no "+
			"outcome yet\n", plural(done.Sent, "letter"), done.Left, done.Refused, done.Succeeded, done.Failed,
			done.Open)
	}
	if err != nil && done.Sent > 0 {
		fmt.Fprintln(a.log, "To go on, say the same again.")
	}
	if err == nil {
		err = unsent(p, done)
	}
	return errors.Join(err, closed())
}

// unsent says what was to be redriven and still has to be. What has run meanwhile has not.
func unsent(p *operate.Prediction, done operate.Redriven) error {
	if done.Missing == 0 {
		return nil
	}
	return fmt.Errorf("%d of %s not redriven: the broker refused %d, for what the audit log tells, and %d are gone or "+
		"would not do what was predicted; mend what was refused, and say the same again", done.Missing,
		plural(p.N(), "letter"), done.Refused, done.Missing-done.Refused)
}

func (a *app) showPrediction(p *operate.Prediction, discards bool) error {
	all := p.Reasons()
	if !a.forPeople() {
		return items(a, all)
	}
	t := table{{
		"LETTERS", "WILL RUN", "OF UNKNOWN OUTCOME", "SUCCEEDED SINCE", "RUNNING", "TO RUN AGAIN", "FAILED AGAIN",
		"DECIDED", "NO RECORD", "CANNOT RERUN", "REASON",
	}}
	if discards {
		t = table{{"LETTERS", "REASON"}}
	}
	for _, f := range all {
		line := []string{fmt.Sprint(f.DeadLetters)}
		if !discards {
			for _, n := range []int{
				f.Run + f.Unknown, f.Unknown, f.Succeeded, f.Running, f.Due, f.Failed, f.Decided, f.Absent, f.Cannot,
			} {
				line = append(line, fmt.Sprint(n))
			}
		}
		t = append(t, append(line, safe(f.Reason, 80)))
	}
	a.table(t)
	for _, why := range slices.Sorted(maps.Keys(p.Cannot)) {
		fmt.Fprintf(a.log, "%s cannot be rerun: %s\n", plural(p.Cannot[why], "letter"), safe(why, 300))
	}
	return nil
}
