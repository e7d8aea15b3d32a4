package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func (a *app) lag() *cobra.Command {
	var most int64
	cmd := &cobra.Command{
		Use:     "lag CONSUMER...",
		GroupID: "look",
		Short:   "Tell how far consumers or groups are behind",
		Long: `lag tells how many messages wait for consumers of JetStream streams, named
STREAM/CONSUMER, or for consumer groups of Kafka.`,
		Example: "  oncemill lag ORDERS/billing --nats nats://127.0.0.1\n" +
			"  oncemill lag billing --kafka 127.0.0.1:9092 --most 1000",
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			look, err := a.lagOf(cmd.Flags(), args)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout())
			defer cancel()
			all, err := look(ctx)
			if err != nil {
				return err
			}
			if !a.forPeople() {
				err = items(a, all)
			} else {
				a.table(lagTable(all))
			}
			if slices.ContainsFunc(all, func(l health.Lag) bool { return most >= 0 && l.Waiting > most }) {
				return errFound
			}
			return err
		},
	}
	cmd.Flags().Int64Var(&most, "most", -1, "exit with status 3 if more than so many wait for it")
	return cmd
}

func lagTable(all []health.Lag) table {
	t := table{{"CONSUMER", "TOPIC", "WAITING", "IN FLIGHT", "REDELIVERED", "MEMBERS"}}
	for _, l := range all {
		members := "–" // only Kafka tells
		if l.Members > 0 {
			members = fmt.Sprint(l.Members)
		}
		t = append(t, []string{safe(l.Consumer, 80), safe(l.Topic, 80), fmt.Sprint(l.Waiting), fmt.Sprint(l.InFlight),
			fmt.Sprint(l.Redelivered), members})
	}
	return t
}

// lagOf connects to the broker, and returns what looks how far consumers are behind. The flags say on which broker.
func (a *app) lagOf(
	flags *pflag.FlagSet, names []string, options ...nats.Option,
) (func(context.Context) ([]health.Lag, error), error) {
	kafka, err := a.onKafka(flags)
	if err != nil {
		return nil, err
	}
	if kafka {
		client, err := a.kafka()
		return func(ctx context.Context) ([]health.Lag, error) {
			return franz.Lag(ctx, client, names...)
		}, err
	}
	for _, name := range names {
		if stream, consumer, _ := strings.Cut(name, "/"); stream == "" || consumer == "" {
			return nil, usagef("consumer %q: want STREAM/CONSUMER", name)
		}
	}
	js, err := a.jetStream(append(options, nats.MaxReconnects(-1))...)
	return func(ctx context.Context) ([]health.Lag, error) { return natsjs.Lag(ctx, js, names...) }, err
}
