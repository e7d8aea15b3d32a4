package faults_test

import (
	"context"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/transport/franz"
)

// Full: 8 kills. Leases are renewed while the broker is away, and outcomes recorded: nothing runs twice.
func TestKafka_BrokerThatIsKilledAndComesBackLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Start(t)
	r := newKafkaRig(t, kafka{addr: broker.Addr}, kafkaSetup{
		rate: 200, lease: 3 * time.Second, fails: flaky, config: franz.Config{Order: franz.PerKey, MaxInFlight: 32, CommitEvery: 100 * time.Millisecond},
		work: func(context.Context, oncemill.Run) { lasts(2 * time.Millisecond) },
	})
	members := []*kafkaMember{r.join(), r.join()}
	for range full(8, 1) {
		r.progress(100)
		broker.Kill()
		broker.Restart()
	}
	r.progress(100)
	for _, m := range members {
		select {
		case <-m.done:
			t.Errorf("a member gave up: %v", m.err)
		default:
		}
	}
	r.finish().MustExplain(t)
}
