package main

import (
	"bytes"
	crand "crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
)

// A planted message is one of a topic with known duplicates.
type planted struct {
	header map[string]string
	at     time.Time
}

// plant makes n messages, a millisecond apart, with three kinds of IDs in turn. The last thousand repeat the IDs of the
// first thousand, and the seven before them all repeat the first.
func plant(n int) []planted {
	all := make([]planted, n)
	began := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range all {
		id := i
		switch {
		case i >= n-1000:
			id = i - (n - 1000)
		case i >= n-1007:
			id = 0
		}
		header := map[string]string{"Idempotency-Key": strconv.Itoa(id)}
		switch id % 3 {
		case 0:
			header = map[string]string{producer.HeaderID: strconv.Itoa(id)}
		case 1:
			header = map[string]string{"ce_id": strconv.Itoa(id), "ce_source": "/shop"}
		}
		all[i] = planted{header: header, at: began.Add(time.Duration(i) * time.Millisecond)}
	}
	return all
}

// onKafka fills a topic with three partitions.
func onKafka(t testing.TB, all []planted) (args []string) {
	t.Helper()
	server := kafkatest.Shared(t)
	topic := "topic-" + crand.Text()
	server.CreateTopic(topic, 3)
	cl := server.Client(kgo.DefaultProduceTopic(topic))
	for i, m := range all {
		r := &kgo.Record{Timestamp: m.at, Value: []byte(strconv.Itoa(i))}
		for name, value := range m.header {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
		cl.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return []string{"duplicates", topic, "--kafka", server.Addr}
}

// onJetStream fills a stream of two subjects.
func onJetStream(t testing.TB, all []planted) (args []string) {
	t.Helper()
	server := natstest.Start(t)
	js := server.JetStream()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "orders", Subjects: []string{"orders.*"}, Storage: jetstream.MemoryStorage,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range all {
		msg := nats.NewMsg("orders." + []string{"new", "paid"}[i%2])
		msg.Data = []byte(strconv.Itoa(i))
		for name, value := range m.header {
			msg.Header[name] = []string{value}
		}
		if _, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-t.Context().Done():
		t.Fatal("not all is published")
	}
	return []string{"duplicates", "orders", "--nats", server.URL()}
}

// counted runs a count, and returns its report and status.
func counted(t testing.TB, args ...string) (topicReport, int) {
	t.Helper()
	var out, log bytes.Buffer
	status := run(t.Context(), append(args, "-o", "json"), strings.NewReader(""), &out, &log)
	var reports []topicReport
	if err := json.Unmarshal(out.Bytes(), &reports); err != nil || len(reports) != 1 {
		t.Fatalf("status %d, %v: %s%s", status, err, out.String(), log.String())
	}
	return reports[0], status
}

func TestDuplicates_CountsPlantedDuplicates(t *testing.T) {
	t.Parallel()
	n := 20_000
	if proof {
		n = 1_000_000
	}
	all := plant(n)
	for name, fill := range map[string]func(testing.TB, []planted) []string{"kafka": onKafka, "nats": onJetStream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append(fill(t, all), "--check")
			r, status := counted(t, args...)
			if status != exitFound || r.Messages != n || r.IDs != n-1007 || r.Duplicates != 1007 || r.Without != 0 {
				t.Errorf("status %d, %d messages, %d IDs, %d duplicates, %d without; want %d, %d, %d, 1007, 0",
					status, r.Messages, r.IDs, r.Duplicates, r.Without, exitFound, n, n-1007)
			}
			var kinds []string
			for _, k := range r.Kinds {
				kinds = append(kinds, fmt.Sprint(k.Kind, " ", k.Duplicates))
			}
			if want := []string{"message_id 341", "ce_id 333", "idempotency_key 333"}; !slices.Equal(kinds, want) {
				t.Errorf("kinds are %q, want %q", kinds, want)
			}
			if top := r.Repeated[0]; len(r.Repeated) != 10 || top.ID != "0" || top.Copies != 9 ||
				r.Repeated[1].Copies != 2 {
				t.Errorf("most repeated are %d, first %+v", len(r.Repeated), top)
			}
			apart := float64(n-1000) / 1000
			window := r.Windows[len(r.Windows)-1].Seconds
			if name == "kafka" && (r.Max != apart || r.P50 < apart*0.98 || r.P50 > apart || window < apart ||
				window > 2*apart+60) {
				t.Errorf("p50 %v s, max %v s, windows %+v; want about %v s", r.P50, r.Max, r.Windows, apart)
			}
			args = slices.Clip(args)
			if r, _ := counted(t, append(args, "--id", "payload")...); r.Duplicates != 0 || r.IDs != n {
				t.Errorf("%d duplicates among %d payloads, want none among %d", r.Duplicates, r.IDs, n)
			}
			if r, _ := counted(t, append(args, "--id", "header:ce_id")...); r.Duplicates != 333 || r.Without == 0 {
				t.Errorf("%d duplicates of one header, %d without; want 333, and some", r.Duplicates, r.Without)
			}
		})
	}
}

func TestDuplicates_JetStreamSubjectsAndRetention(t *testing.T) {
	t.Parallel()
	args := onJetStream(t, plant(4000))
	js := connectTo(t, args[3])
	r, status := counted(t, "duplicates", "orders.paid", "--nats", args[3])
	if status != 0 || r.Messages != 2000 || r.Duplicates != 503 {
		t.Errorf("status %d, %d messages, %d duplicates; want 0, 2000, 503", status, r.Messages, r.Duplicates)
	}
	stream, err := js.Stream(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Consumers; n > 1 { // the server may take a moment to remove one
		t.Errorf("%d consumers are left", n)
	}
	for _, retention := range []jetstream.RetentionPolicy{jetstream.WorkQueuePolicy, jetstream.InterestPolicy} {
		name := "no-" + retention.String()
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: name, Subjects: []string{name}, Retention: retention, Storage: jetstream.MemoryStorage,
		})
		if err != nil {
			t.Fatal(err)
		}
		var out, log bytes.Buffer
		status := run(t.Context(), []string{"duplicates", name, "--nats", args[3]}, strings.NewReader(""), &out, &log)
		if status != exitError || !strings.Contains(log.String(), "a consumer would change what it keeps") {
			t.Errorf("%s: status %d: %s", name, status, log.String())
		}
	}
}

func connectTo(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// Aborted transactions and their markers are no messages, and the end of a partition may be one of them.
func TestDuplicates_KafkaTransactions(t *testing.T) {
	t.Parallel()
	args := onKafka(t, plant(4000))
	cl, err := kgo.NewClient(kgo.SeedBrokers(args[3]), kgo.TransactionalID(args[1]), kgo.DefaultProduceTopic(args[1]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for p, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Partition: int32(p), Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte("0")}}}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
	}
	r, _ := counted(t, args...)
	if r.Messages != 4001 || r.Duplicates != 1008 {
		t.Errorf("%d messages, %d duplicates; want 4001, 1008", r.Messages, r.Duplicates)
	}
}

func TestTally_LeavesNothingBehind(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	random := rand.New(rand.NewPCG(1, 2))
	tally, err := newTally(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	copies := map[string]int{}
	for range 10_000 {
		id := producer.Identity{ID: strconv.Itoa(random.IntN(3000)), Source: producer.SourceNatsMsgID}
		copies[id.ID]++
		at := time.Unix(int64(random.IntN(1e6)), 0)
		if err := tally.add(t.Context(), id, at); err != nil {
			t.Fatal(err)
		}
	}
	var r topicReport
	if err := r.count(t.Context(), tally); err != nil {
		t.Fatal(err)
	}
	most := slices.Max(slices.Collect(maps.Values(copies)))
	if r.IDs != len(copies) || r.Duplicates != 10_000-len(copies) || r.Repeated[0].Copies != most {
		t.Errorf("%d IDs, %d duplicates, at most %d copies; want %d, %d, %d", r.IDs, r.Duplicates, r.Repeated[0].Copies,
			len(copies), 10_000-len(copies), most)
	}
	if err := tally.close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// BenchmarkDuplicates measures messages a second: go test -run - -bench Duplicates -benchtime 1x ./cmd/oncemill
func BenchmarkDuplicates(b *testing.B) {
	for name, fill := range map[string]func(testing.TB, []planted) []string{"kafka": onKafka, "nats": onJetStream} {
		b.Run(name, func(b *testing.B) {
			const n = 1_000_000
			args := fill(b, plant(n))
			for b.Loop() {
				if r, _ := counted(b, args...); r.Duplicates != 1007 {
					b.Fatal(r.Duplicates)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

func TestDuplicates_WindowsAreWholeMinutesOrHours(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		time.Second: "1 min", 9*time.Minute + 1: "10 min", 59 * time.Minute: "1 h", 90 * time.Minute: "91 min",
		19*time.Hour + 1: "20 h", 200 * time.Hour: "201 h",
	} {
		r := new(topicReport)
		if w := r.window(1, d); w.length() != want {
			t.Errorf("%v: %s, want %s", d, w.length(), want)
		}
	}
}

// IDs that a producer did not make for Oncemill count in their stream, as a guard counts them.
func TestDuplicates_AStreamsSubjectsShareIDs(t *testing.T) {
	t.Parallel()
	all := []planted{
		{header: map[string]string{"Idempotency-Key": "k"}}, {header: map[string]string{"Idempotency-Key": "k"}},
	}
	if report, _ := counted(t, onJetStream(t, all)...); report.IDs != 1 || report.Duplicates != 1 {
		t.Errorf("%d IDs and %d duplicates, want one of each", report.IDs, report.Duplicates)
	}
}
