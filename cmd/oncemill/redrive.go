package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/producer"
)

// A redriving is a redrive of a topic.
type redriving struct {
	dlq
	consent
	groups bool
	topic  string
	store  dedupstore.Inspector
	source deadLetters
	on     func(sent, left, refused int, w *watch) // is told the progress; may be nil
}

// lookAt is how many records are looked at together.
const lookAt = 200

func (a *app) redrive() *cobra.Command {
	r := &redriving{consent: consent{verb: "redrive"}}
	cmd := &cobra.Command{
		Use:     "redrive TOPIC",
		GroupID: "mend",
		Short:   "Run the messages of dead letters again, when the cause is mended",
		Long: `redrive publishes the messages of dead letters to where they came from, so that
their handlers run again under the same IDs. It first predicts from the records
what would happen, and asks. It sends only messages that will run; with --all
also the others that can be rerun. It leaves what came after the prediction, and
what would not do any more what was predicted: say the same again. Outside of an
inbox, and where the outcome is unknown, an effect may happen twice.

A letter is acknowledged only after its message is published. Progress is kept
in the acks of a durable consumer (NATS), which removes letters from a work
queue, or in a topic of markers (Kafka). A redrive that was cut off goes on.

It begins with 20 messages, and stops if more than a quarter of what it sent
fails again. Every group of the source topic gets what is sent.`,
		Example: "  oncemill dlq redrive dead.billing --reason \"card service\" --dry-run\n" +
			"  oncemill dlq redrive dead.billing --group billing --rate 50 --why \"mended\"\n" +
			"  oncemill dlq redrive dead.billing --id order-17 --id order-23",
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := r.dlq.read(time.Now()); err != nil {
				return err
			}
			if err := r.check("dlq redrive", true); err != nil {
				return err
			}
			if r.group == "" && cmd.Flags().Changed("tenant") {
				return usagef("--tenant is set without --group")
			}
			if r.store, err = a.inspector(cmd.Context()); err != nil {
				return err
			}
			r.topic = args[0]
			if r.source, err = a.open(cmd, &r.dlq, r.topic); err != nil {
				return err
			}
			return a.redrives(cmd.Context(), r)
		},
	}
	flags := cmd.Flags()
	r.dlq.flags(flags)
	r.dlq.filter(flags)
	flags.StringVar(&r.group, "group", "", "only letters of this consumer group")
	flags.StringVar(&r.tenant, "tenant", "default", "the tenant, with --group")
	flags.StringVar(&r.name, "name", "", "the durable consumer (NATS) or the topic (Kafka) that keeps the\n"+
		"progress (default oncemill-redrive-TOPIC, or TOPIC.redriven)")
	flags.BoolVar(&r.groups, "groups", false, "look through all records for who else gets the messages")
	r.consent.flags(flags, "letters")
	flags.Lookup("all").Usage = "also those that will not run, or would run as a first run"
	return cmd
}

func (a *app) redrives(ctx context.Context, r *redriving) (err error) {
	p, err := a.predict(ctx, r)
	if err != nil {
		return err
	}
	if len(p.missing) > 0 {
		return fmt.Errorf("nothing was changed: %s has no letter to redrive with the ID %q, and none of a message "+
			"with it: leave out what was redriven before", safe(r.topic, 100), safe(p.missing[0], 100))
	}
	if err := a.showPrediction(p); err != nil {
		return err
	}
	if r.groups {
		if err := a.others(ctx, r, p); err != nil {
			return err
		}
	}
	counts := map[string]int{}
	for of, n := range p.fates {
		if r.sends(of.fate) {
			counts["to "+safe(of.topic, 100)+": "+string(of.fate)] = n
		}
	}
	if agreed, err := a.agreed(ctx, &r.consent, "letter", counts); err != nil || !agreed {
		return err
	}
	pub, err := r.source.publisher()
	if err != nil {
		return err
	}
	audit, done, err := a.auditor(&r.consent)
	if err != nil {
		return err
	}
	defer r.source.leave()
	return errors.Join(a.send(ctx, r, p.shown, pub, audit), done())
}

// sends reports whether letters of a fate are sent.
func (r *redriving) sends(f fate) bool { return f.runs() || r.every && f != fateCannot }

const (
	trial      = 20              // messages are sent first
	trialTime  = 5 * time.Second // at most, until they have run
	watchEvery = 2 * time.Second
	mostTaken  = 100 // letters in a batch
)

// send publishes and acknowledges what was shown, batch after batch. A message that fails again makes a letter that was
// not: else there would be no end.
func (a *app) send(
	ctx context.Context, r *redriving, plan *shown, pub producer.Publisher, audit *slog.Logger,
) (err error) {
	r.newest = plan.newest
	w := &watch{store: r.store}
	sent, left, refused := 0, 0, 0
	tell := func() {
		if r.on != nil {
			r.on(sent, left, refused, w)
		}
	}
	defer func() {
		tell()
		fmt.Fprintf(a.log, "%s redriven, %d left, %d refused; of those sent %d succeeded, %d failed again, %d have no "+
			"outcome yet\n", plural(sent, "letter"), left, refused, w.succeeded, w.failed, len(w.open))
		if err != nil && sent > 0 {
			fmt.Fprintln(a.log, "To go on, say the same again.")
		}
	}()
	for {
		began := time.Now()
		size := min(r.rate, mostTaken)
		if sent < trial {
			size = min(size, trial)
		}
		taken, err := r.source.take(ctx, size)
		if err != nil {
			return err
		}
		if len(taken) == 0 {
			return w.wait(ctx, trialTime)
		}
		chosen, matching, err := r.choose(ctx, taken, plan)
		if err != nil {
			return err
		}
		left += matching - len(chosen)
		went, broken := publish(ctx, pub, chosen, func(f producer.Failure) {
			what := "unknown" // whether it was sent
			if !f.Unknown {
				refused++
				what = "refused"
			}
			audit.Warn(what, "topic", r.topic, "id", f.ID, "error", f.Err.Error())
		})
		if len(went) > 0 {
			broken = errors.Join(broken, r.source.done(ctx, lettersOf(went)))
			audit.Info("sent", "topic", r.topic, "ids", idsOf(went))
			w.add(went)
		}
		sent += len(went)
		tell()
		if broken != nil {
			audit.Error("failed", "error", broken.Error())
			return broken
		}
		if before := sent - len(went); before < trial && sent >= trial {
			err = w.wait(ctx, trialTime)
		} else if time.Since(w.looked) >= watchEvery {
			err = w.look(ctx)
		}
		if err != nil {
			return err
		}
		pace.Sleep(ctx, time.Until(began.Add(time.Second*time.Duration(len(went))/time.Duration(r.rate))))
	}
}

// choose returns what is sent of the letters that were taken, and how many are meant. What has become another case since
// it was shown is left.
func (r *redriving) choose(
	ctx context.Context, taken []letter, plan *shown,
) (chosen []rerunCase, matching int, err error) {
	taken = slices.DeleteFunc(slices.Clone(taken), func(l letter) bool { return !r.matches(&l) })
	cases, err := r.cases(ctx, r.store, taken)
	for i := range cases {
		if plan.has(&cases[i]) {
			chosen = append(chosen, cases[i])
		}
	}
	return chosen, len(taken), err
}

// publish returns what was published. A message that the broker refuses for good is no error: it is left.
func publish(
	ctx context.Context, pub producer.Publisher, chosen []rerunCase, each func(producer.Failure),
) (went []rerunCase, err error) {
	messages := make([]producer.Message, len(chosen))
	for i := range chosen {
		messages[i] = chosen[i].again
	}
	err = pub.Publish(ctx, messages...)
	partly, ok := errors.AsType[*producer.PublishError](err)
	if err != nil && !ok {
		return nil, err
	}
	failed := map[int]bool{}
	var unknown error
	if ok {
		for _, f := range partly.Failures {
			failed[f.Index] = true
			each(f)
			if f.Unknown && unknown == nil {
				unknown = fmt.Errorf("publish message %q: %w", f.ID, f.Err)
			}
		}
	}
	for i, c := range chosen {
		if !failed[i] {
			went = append(went, c)
		}
	}
	return went, unknown
}

func lettersOf(cases []rerunCase) (all []letter) {
	for i := range cases {
		all = append(all, cases[i].letter)
	}
	return all
}

func idsOf(cases []rerunCase) (ids []string) {
	for i := range cases {
		ids = append(ids, cases[i].again.ID)
	}
	return ids
}

// A watch looks at what becomes of messages that were sent.
type watch struct {
	store             dedupstore.Inspector
	open              []watched // no outcome yet
	succeeded, failed int
	reason            string // of the last failure
	looked            time.Time
}

type watched struct {
	key   dedupstore.Key
	fence uint64
}

// add adds what was sent and may run.
func (w *watch) add(sent []rerunCase) {
	for i := range sent {
		if c := &sent[i]; c.fate.runs() || c.fate == fateAbsent {
			w.open = append(w.open, watched{c.key, c.fence})
		}
	}
}

// look reads the records, and returns an error if too many have failed again.
func (w *watch) look(ctx context.Context) error {
	var open []watched
	for some := range slices.Chunk(w.open, lookAt) {
		keys := make([]dedupstore.Key, len(some))
		for i := range some {
			keys[i] = some[i].key
		}
		records, err := w.store.Look(ctx, keys)
		if err != nil {
			return err
		}
		for i := range records {
			r := &records[i]
			switch fateOf(r, some[i].fence) {
			case fateSucceeded:
				w.succeeded++
			case fateFailed:
				w.failed++
				w.reason = r.Outcome.Reason
			default:
				open = append(open, some[i])
			}
		}
	}
	w.open, w.looked = open, time.Now()
	if w.failed*4 > max(trial, w.failed+w.succeeded) {
		return fmt.Errorf("stopped: %d of %d messages that have run failed again, the last: %s", w.failed,
			w.failed+w.succeeded, safe(w.reason, 300))
	}
	return nil
}

// wait looks until everything that was sent has an outcome, for a while.
func (w *watch) wait(ctx context.Context, most time.Duration) error {
	for end := time.Now().Add(most); ; pace.Sleep(ctx, 200*time.Millisecond) {
		if err := w.look(ctx); err != nil || len(w.open) == 0 || time.Now().After(end) {
			return err
		}
	}
}
