package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
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
	records := newRecords(t)
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
	onNATS := " --nats " + server.URL()
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"lag billing --kafka " + kafka, 0, `{"consumer":"billing","topic":"orders","waiting":3,`},
		{"lag billing --most 2 --kafka " + kafka, exitFound, `"waiting":3`},
		{"lag billing --most 3 --kafka " + kafka, 0, `"waiting":3`},
		{"lag bilingual --kafka " + kafka, exitError, ""},
		{"lag ORDERS/billing" + onNATS, 0, `{"consumer":"billing","topic":"ORDERS","waiting":3,`},
		{"lag ORDERS/billing ORDERS/billing --most 2" + onNATS, exitFound, `"waiting":3`},
		{"lag ORDERS/bilingual" + onNATS, exitError, ""},
		{"lag billing" + onNATS, exitUsage, ""},
		{"stats --consumer ORDERS/billing --store sqlite:" + records + onNATS, 0, `"waiting":3`},
		{"stats --consumer billing --store sqlite:" + records + onNATS, exitUsage, ""},
	} {
		var out, log bytes.Buffer
		args := append(strings.Fields(c.args), "-o", "jsonl")
		status := run(t.Context(), args, nil, &out, &log)
		if status != c.status || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: status %d, %s%s", c.args, status, &out, &log)
		}
	}
	isOneDocument(t, records, kafka)
}

// isOneDocument looks whether scopes and consumers are one document of JSON.
func isOneDocument(t *testing.T, records, kafka string) {
	t.Helper()
	store, done, err := open("sqlite:" + records)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if _, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "order-17"},
		Owner: rand.Text(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 1,
	}); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	args := "stats --consumer billing -o json --store sqlite:" + records + " --kafka " + kafka
	status := run(t.Context(), strings.Fields(args), nil, &out, &log)
	var all []struct {
		What, Handler, Consumer string
		Running, Waiting        int
	}
	err = json.Unmarshal(out.Bytes(), &all)
	if got := fmt.Sprint(all); status != 0 || err != nil || got != "[{scope charge  1 0} {consumer  billing 0 3}]" {
		t.Errorf("status %d, %s, %v\n%s%s", status, got, err, &out, &log)
	}
}

// newRecords makes a store in a file.
func newRecords(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "records.db")
	db, err := sqliteoutbox.Open(t.Context(), path)
	if err == nil {
		err = errors.Join(db.Close(), migrate("sqlite:"+path))
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
