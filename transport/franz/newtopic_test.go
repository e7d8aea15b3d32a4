package franz_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

// A broker may hear of a new topic a moment late. A client that does not consume it then remembers for 5 s that there
// was none.
func TestSource_CheckWaitsForATopicThatWasJustCreated(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	source, err := franz.NewSource(b.processor(consumer.Config{}), franz.SourceConfig{
		Config: franz.Config{Logger: b.logger},
		Opts:   []kgo.Opt{kgo.SeedBrokers(b.addrs...), kgo.ConsumerGroup(group)},
	})
	if err != nil {
		t.Fatal(err)
	}
	created := b.createWhenLookedFor("new")
	if err := source.Check(t.Context(), "new"); err != nil {
		t.Error(err)
	}
	if err := <-created; err != nil {
		t.Error(err)
	}
}

// Who has just made it would look for what is wrong.
func TestWorker_DeadLetterTopicThatWasJustCreatedIsNoAlarm(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	created := b.createWhenLookedFor("dead")
	b.produce(0, 1, 1, 0)
	m := b.start(b.processor(consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "dead"}), b.handler(byPartition, nil), franz.Config{})
	until(t, "the record", func() bool { return b.finished() == 1 })
	m.leave()
	if err := <-created; err != nil {
		t.Error(err)
	}
	if strings.Contains(b.log.String(), "DeadLetterTopic is not there") {
		t.Errorf("a false alarm:\n%s", b.log.String())
	}
}

// createWhenLookedFor creates a topic a moment after somebody has looked for it.
func (b *bench) createWhenLookedFor(topic string) <-chan error {
	looked := make(chan struct{})
	var once sync.Once
	b.cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		if r, ok := req.(*kmsg.MetadataRequest); ok && len(r.Topics) == 1 && r.Topics[0].Topic != nil && *r.Topics[0].Topic == topic {
			once.Do(func() { close(looked) })
		}
		return nil, nil, false
	})
	created := make(chan error, 1)
	go func() {
		<-looked
		<-time.After(200 * time.Millisecond)
		_, err := b.admin.CreateTopic(context.WithoutCancel(b.t.Context()), 1, 1, nil, topic)
		created <- err
	}()
	return created
}
