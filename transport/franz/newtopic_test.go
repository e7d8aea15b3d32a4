package franz_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/transport/franz"
)

// A broker may hear of a topic a moment after who created it, and a client that does not consume it remembers for 5 s that there was
// none.
func TestSource_CheckWaitsForATopicThatWasJustCreated(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	source, err := franz.NewSource(franz.SourceConfig{
		Config: franz.Config{Logger: b.logger},
		Opts:   []kgo.Opt{kgo.SeedBrokers(b.addrs...), kgo.ConsumerGroup(group)},
	})
	if err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() {
		<-time.After(500 * time.Millisecond)
		_, err := b.admin.CreateTopic(context.WithoutCancel(t.Context()), 1, 1, nil, "new")
		created <- err
	}()
	if err := source.Check(t.Context(), "new"); err != nil {
		t.Error(err)
	}
	if err := <-created; err != nil {
		t.Error(err)
	}
}
