package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/oncemill/oncemill/console"
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
			if slices.ContainsFunc(all, func(l console.Lag) bool { return most >= 0 && l.Waiting > most }) {
				return errFound
			}
			return err
		},
	}
	cmd.Flags().Int64Var(&most, "most", -1, "exit with status 3 if more than so many wait for it")
	return cmd
}

func lagTable(all []console.Lag) table {
	t := table{{"CONSUMER", "TOPIC", "WAITING", "IN FLIGHT", "REDELIVERED", "MEMBERS"}}
	for _, l := range all {
		t = append(t, []string{safe(l.Consumer, 80), safe(l.Topic, 80), fmt.Sprint(l.Waiting), fmt.Sprint(l.InFlight),
			fmt.Sprint(l.Redelivered), fmt.Sprint(l.Members)})
	}
	return t
}

// lagOf connects to the broker, and returns what looks how far consumers are behind. The flags say on which broker.
func (a *app) lagOf(
	flags *pflag.FlagSet, names []string, options ...nats.Option,
) (func(context.Context) ([]console.Lag, error), error) {
	kafka, err := a.onKafka(flags)
	if err != nil {
		return nil, err
	}
	if kafka {
		client, err := a.kafka()
		return func(ctx context.Context) ([]console.Lag, error) {
			return kafkaLag(ctx, kadm.NewClient(client), names)
		}, err
	}
	for _, name := range names {
		if stream, consumer, _ := strings.Cut(name, "/"); stream == "" || consumer == "" {
			return nil, usagef("consumer %q: want STREAM/CONSUMER", name)
		}
	}
	js, err := a.jetStream(append(options, nats.MaxReconnects(-1))...)
	return func(ctx context.Context) ([]console.Lag, error) { return natsLag(ctx, js, names) }, err
}

func natsLag(ctx context.Context, js jetstream.JetStream, names []string) (all []console.Lag, err error) {
	for _, name := range names {
		stream, consumer, _ := strings.Cut(name, "/")
		c, err := js.Consumer(ctx, stream, consumer)
		if err != nil {
			return nil, fmt.Errorf("consumer %s of stream %s: %w", safe(consumer, 80), safe(stream, 80), err)
		}
		info := c.CachedInfo()
		all = append(all, console.Lag{
			Consumer: consumer, Topic: stream, Waiting: int64(info.NumPending), InFlight: info.NumAckPending,
			Redelivered: info.NumRedelivered,
		})
	}
	return all, nil
}

func kafkaLag(ctx context.Context, admin *kadm.Client, groups []string) (all []console.Lag, err error) {
	lags, err := admin.Lag(ctx, groups...)
	for _, group := range groups {
		of := lags[group]
		if err = cmp.Or(err, of.Error()); err != nil {
			return nil, fmt.Errorf("group %s: %w", safe(group, 80), err)
		}
		topics := of.Lag.TotalByTopic()
		if len(topics) == 0 {
			return nil, fmt.Errorf("group %s has joined no topic, and committed no offset: is it spelled so?",
				safe(group, 80))
		}
		for _, topic := range slices.Sorted(maps.Keys(topics)) {
			all = append(all, console.Lag{
				Consumer: group, Topic: topic, Waiting: topics[topic].Lag, Members: len(of.Members),
			})
		}
	}
	return all, nil
}
