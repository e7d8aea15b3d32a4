package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// Three messages wait for a consumer of either broker.
func TestLag_SaysHowFarBehind(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	kafka := cluster.ListenAddrs()[0]
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafka))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	var committed kadm.Offsets
	committed.AddOffset("orders", 0, 0, -1)
	if err := kadm.NewClient(cl).CommitAllOffsets(t.Context(), "billing", committed); err != nil {
		t.Fatal(err)
	}
	server := natstest.Start(t)
	js := server.JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{"orders"}, Storage: jetstream.MemoryStorage,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "billing"}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "orders", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	onNATS := " --stream ORDERS --nats " + server.URL()
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"billing --kafka " + kafka, 0, `{"topic":"orders","waiting":3,`},
		{"billing --most 2 --kafka " + kafka, exitFound, `"waiting":3`},
		{"billing --most 3 --kafka " + kafka, 0, `"waiting":3`},
		{"bilingual --kafka " + kafka, exitError, ""},
		{"billing --stream ORDERS --kafka " + kafka, exitUsage, ""},
		{"billing" + onNATS, 0, `{"topic":"ORDERS","waiting":3,`},
		{"billing --most 2" + onNATS, exitFound, `"waiting":3`},
		{"bilingual" + onNATS, exitError, ""},
		{"billing --nats " + server.URL(), exitUsage, ""},
	} {
		var out, log bytes.Buffer
		args := append([]string{"lag", "-o", "jsonl"}, strings.Fields(c.args)...)
		status := run(t.Context(), args, nil, &out, &log)
		if status != c.status || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: status %d, %s%s", c.args, status, &out, &log)
		}
	}
}
