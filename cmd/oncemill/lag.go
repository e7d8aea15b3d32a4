package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

// A behind is how far a consumer is behind a topic.
type behind struct {
	Topic    string `json:"topic"`
	Waiting  int64  `json:"waiting"`           // messages that it has not got
	InFlight int    `json:"in_flight"`         // that it has got and not acknowledged; JetStream
	Again    int    `json:"redelivered"`       // of those, that came more than once; JetStream
	Members  int    `json:"members,omitempty"` // of the group; Kafka
}

func (a *app) lag() *cobra.Command {
	var stream string
	var most int64
	cmd := &cobra.Command{
		Use:     "lag CONSUMER",
		GroupID: "look",
		Short:   "Tell how far a consumer or a group is behind",
		Long: `lag tells how many messages wait for a consumer of a JetStream stream, or for a
consumer group of Kafka.`,
		Example: "  oncemill lag billing --stream ORDERS --nats nats://127.0.0.1\n" +
			"  oncemill lag billing --kafka 127.0.0.1:9092 --most 1000",
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			kafka, err := a.onKafka(cmd.Flags())
			switch {
			case err != nil:
				return err
			case kafka == (stream != ""):
				return usagef("--stream goes with --nats: it is the stream of the consumer")
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout())
			defer cancel()
			look := a.natsLag
			if kafka {
				look = a.kafkaLag
			}
			all, err := look(ctx, stream, args[0])
			if err != nil {
				return err
			}
			if !a.forPeople() {
				err = items(a, all)
			} else {
				t := table{{"TOPIC", "WAITING", "IN FLIGHT", "REDELIVERED", "MEMBERS"}}
				for _, b := range all {
					t = append(t, []string{safe(b.Topic, 80), fmt.Sprint(b.Waiting), fmt.Sprint(b.InFlight),
						fmt.Sprint(b.Again), fmt.Sprint(b.Members)})
				}
				a.table(t)
			}
			if slices.ContainsFunc(all, func(b behind) bool { return most >= 0 && b.Waiting > most }) {
				return errFound
			}
			return err
		},
	}
	cmd.Flags().StringVar(&stream, "stream", "", "the stream of the consumer (NATS)")
	cmd.Flags().Int64Var(&most, "most", -1, "exit with status 3 if more than so many wait for it")
	return cmd
}

func (a *app) natsLag(ctx context.Context, stream, consumer string) ([]behind, error) {
	js, err := a.jetStream()
	if err != nil {
		return nil, err
	}
	c, err := js.Consumer(ctx, stream, consumer)
	if err != nil {
		return nil, fmt.Errorf("consumer %s of stream %s: %w", safe(consumer, 80), safe(stream, 80), err)
	}
	info := c.CachedInfo()
	return []behind{{stream, int64(info.NumPending), info.NumAckPending, info.NumRedelivered, 0}}, nil
}

func (a *app) kafkaLag(ctx context.Context, _, group string) (all []behind, err error) {
	client, err := a.kafka()
	if err != nil {
		return nil, err
	}
	lags, err := kadm.NewClient(client).Lag(ctx, group)
	of := lags[group]
	if err == nil {
		err = of.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", safe(group, 80), err)
	}
	for topic, lag := range of.Lag.TotalByTopic() {
		all = append(all, behind{Topic: topic, Waiting: lag.Lag, Members: len(of.Members)})
	}
	slices.SortFunc(all, func(x, y behind) int { return strings.Compare(x.Topic, y.Topic) })
	if len(all) == 0 {
		return nil, fmt.Errorf("group %s has joined no topic, and committed no offset: is it spelled so?",
			safe(group, 80))
	}
	return all, nil
}
