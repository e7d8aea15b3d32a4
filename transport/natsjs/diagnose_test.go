package natsjs

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
)

// What else it finds, the tests of the command oncemill show.
func TestDiagnose_Replicas(t *testing.T) {
	t.Parallel()
	d := diagnosis{Setup: Setup{Policy: oncemill.Policy{Lease: time.Second}}}
	stream := &jetstream.StreamInfo{Cluster: &jetstream.ClusterInfo{Name: "C"}}
	stream.Config.Replicas = 1
	d.judgeStorage(stream)
	stream.Config.Replicas = 3
	d.judgeConsumer(&jetstream.ConsumerInfo{Config: jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute, Replicas: 1,
	}}, stream)
	if len(d.Found) != 2 || !strings.Contains(d.Found[0].Finding, "one replica in a cluster") ||
		!strings.Contains(d.Found[1].Finding, "it has one replica, and its stream has more") {
		t.Errorf("found %q, want the replicas of the stream and of the consumer", d.Found)
	}
}
