package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// A ledgerJob is what a process is to do that keeps a tally.
type ledgerJob struct {
	Redis     string // address
	Messages  int
	Process   int    // its number of all Processes
	Processes int    // 0: it claims what dead holders have to hold, and waits for its end
	File      string // what it writes when it has done that, or all
}

// A ledgerReport is what a process writes when it has stopped cleanly.
type ledgerReport struct {
	Known   ledger.Tally
	Counted ledger.Tally // of each metric, by the values of its attribute
}

// ledgerMetrics are the metrics that are compared, with the attribute by which they are.
var ledgerMetrics = map[string]string{
	claimsMetric:    "oncemill.outcome",
	runsMetric:      "error.type",
	storeMetric:     "oncemill.store.operation",
	takeoversMetric: "",
	lossesMetric:    "",
	failuresMetric:  "oncemill.result",
	delayMetric:     "oncemill.outcome",
}

// TestTelemetry_LedgerProcess is no test, but what another one runs in processes of its own, which get a job as their
// argument.
func TestTelemetry_LedgerProcess(t *testing.T) {
	j := taskOf[ledgerJob](t)
	rdb := redis.NewClient(&redis.Options{Addr: j.Redis})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if j.Processes == 0 {
		j.keep(t, store)
	} else {
		j.work(t, store)
	}
}

func (j ledgerJob) processor(t *testing.T, store dedupstore.Store, telemetry oncemill.Telemetry, change func(*consumer.Config)) *consumer.Processor {
	c := consumer.Config{Group: "billing", MaxWait: consumer.NoWait, Policy: oncemill.Policy{
		Lease: 300 * time.Millisecond, Telemetry: telemetry, Logger: slog.New(slog.DiscardHandler),
		Backoff: oncemill.Backoff{Min: 10 * time.Millisecond, Max: 30 * time.Millisecond},
	}}
	change(&c)
	p, err := consumer.New(store, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// hold holds the claims of holders that die, until it is killed.
func (j ledgerJob) keep(t *testing.T, store dedupstore.Store) {
	p := j.processor(t, store, oncemill.Telemetry{}, func(*consumer.Config) {})
	var taken atomic.Int64
	want, know := int64(0), &tally{Ledger: ledger.New(store)}
	for i := range j.Messages {
		if id := messageOf(i); kindOf(id) == "dead holder" {
			want++
			go func() {
				for { // on a machine that is slow, claims fail
					know.once(t, p, id, "content", i, func(context.Context) error {
						taken.Add(1)
						select {}
					})
				}
			}()
		}
	}
	until(t, "claims of holders that die", func() bool { return taken.Load() == want })
	j.write(t, nil)
	select {}
}

// work delivers its share of the messages, stops cleanly, and reports.
func (j ledgerJob) work(t *testing.T, store dedupstore.Store) {
	report := ledgerReport{Counted: ledger.Tally{}}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(&lastExport{into: report.Counted}, sdkmetric.WithInterval(time.Hour))))
	know := &tally{Ledger: ledger.Keep(t, store, j.File+".journal")}
	newProcessor := func(s dedupstore.Store, change func(*consumer.Config)) *consumer.Processor {
		return j.processor(t, s, oncemill.Telemetry{MeterProvider: meters}, change)
	}
	deadLetters := &moody{Publisher: know, failed: map[string]bool{}}
	p := newProcessor(&faulty{know, know, 25}, func(c *consumer.Config) {
		c.DeadLetters, c.DeadLetterTopic = deadLetters, "dead"
	})
	var workers sync.WaitGroup
	work := make(chan int)
	for range 4 {
		workers.Go(func() {
			for i := range work {
				know.deliver(t, p, messageOf(i), i)
			}
		})
	}
	for i := range j.Messages {
		for n := range 1 + i%3 { // copies, at once, of different processes
			if (i+n)%j.Processes == j.Process {
				work <- i
			}
		}
	}
	close(work)
	workers.Wait()
	if j.Process == 0 {
		know.others(t, know, newProcessor)
	}
	if err := meters.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	report.Known = know.Tally()
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	j.write(t, text)
}

// write writes the file at once.
func (j ledgerJob) write(t *testing.T, text []byte) {
	if err := os.WriteFile(j.File+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(j.File+".new", j.File); err != nil {
		t.Fatal(err)
	}
}

// A lastExport keeps of each export, which are sums from the beginning, what is compared.
type lastExport struct {
	into ledger.Tally
}

func (*lastExport) Temporality(sdkmetric.InstrumentKind) metricdata.Temporality {
	return metricdata.CumulativeTemporality
}

func (*lastExport) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}

func (e *lastExport) Export(_ context.Context, data *metricdata.ResourceMetrics) error {
	for metric, by := range ledgerMetrics {
		counted, err := counts(data, metric, by)
		if err != nil {
			return err
		}
		e.into[metric] = counted
	}
	return nil
}

func (*lastExport) ForceFlush(context.Context) error { return nil }
func (*lastExport) Shutdown(context.Context) error   { return nil }

// start starts a process that does the job.
func (j ledgerJob) start(t *testing.T, dir string) *testserver.Process {
	t.Helper()
	p, err := testserver.StartProgram(dir, executable(t), taskArguments(t, "TestTelemetry_LedgerProcess", j)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

// After a run with faults of every kind, over processes that share Redis and stop cleanly, what they exported until their
// end is together what they know themselves. Before them, a process is killed that holds claims.
func TestTelemetry_CountersAreWhatHappened(t *testing.T) {
	t.Parallel()
	const processes = 3
	dir := t.TempDir()
	task := ledgerJob{Redis: redistest.Start(t).Addr, Messages: full(4000, 320), File: filepath.Join(dir, "held")}
	holder := task.start(t, dir)
	until(t, "a process to hold claims", func() bool { return exists(task.File) || hasEnded(holder) })
	if err := holder.Kill(); err != nil {
		t.Fatal(err)
	}
	task.Processes = processes
	var running []*testserver.Process
	for i := range processes {
		task.Process, task.File = i, filepath.Join(dir, fmt.Sprint("report ", i))
		running = append(running, task.start(t, dir))
	}
	know, counted := ledger.New(nil), ledger.Tally{}
	known := ledger.Tally{}
	for i, p := range running {
		if code := p.ExitCode(); code != 0 {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("process %d ended with status %d:\n%s", i, code, log)
		}
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("report ", i)))
		if err != nil {
			t.Fatal(err)
		}
		var report ledgerReport
		if err := json.Unmarshal(text, &report); err != nil {
			t.Fatal(err)
		}
		if len(report.Counted["oncemill.claims"]) == 0 {
			t.Errorf("process %d exported no claims", i)
		}
		known.AddAll(report.Known)
		counted.AddAll(report.Counted)
	}
	checkTally(t, known, counted)
	if err := know.Read(dir); err != nil {
		t.Fatal(err)
	}
	for i := range task.Messages {
		know.Ask(messageOf(i))
		know.Over(messageOf(i)) // all were delivered until their acknowledgement
	}
	know.Ask(unsaid)
	know.Over(unsaid)
	deliveries := 0
	for _, n := range known[claimsMetric] {
		deliveries += n
	}
	know.Balance(deliveries).MustExplain(t, ledger.LostLease, ledger.LostOutcome)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func hasEnded(p *testserver.Process) bool {
	select {
	case <-p.Ended():
		return true
	default:
		return false
	}
}

// checkTally compares what processes know with what they counted.
func checkTally(t *testing.T, known, counted ledger.Tally) {
	t.Helper()
	want := ledger.Tally{}
	want.AddAll(known)
	for _, name := range []string{"duplicate_completed", "duplicate_failed", "duplicate_unknown", "duplicate_in_progress"} {
		want.Add(delayMetric, name, known[claimsMetric][name])
	}
	if diff := cmp.Diff(want, counted); diff != "" {
		t.Errorf("metrics (-known +exported):\n%s", diff)
	}
	failures, storeErrors := known[failuresMetric], known[storeMetric]
	takeovers, losses := known[takeoversMetric][""], known[lossesMetric][""]
	t.Logf("known: %v", known)
	all := maps.Clone(known[claimsMetric])
	for _, name := range []string{
		"claimed", "reclaimed", "publish_only", "duplicate_completed", "duplicate_failed", "duplicate_unknown", "duplicate_in_progress",
		"not_due", "fingerprint_mismatch", "rejected", "store_error", "bypassed",
	} {
		if all[name] == 0 {
			t.Errorf("no delivery was %s: the test shows nothing about it", name)
		}
		delete(all, name)
	}
	each := full(4000, 320) / len(kinds) // messages of a kind
	if n := failures["permanent"]; n == 0 || n > each || failures["exhausted"] == 0 || failures["unknown"] == 0 {
		t.Errorf("failures that were stored: %v; want some of each kind, and no more than %d permanent ones, as so many messages are", failures, each)
	}
	if len(all) > 0 || takeovers < each || losses == 0 || storeErrors["claim"] == 0 || storeErrors["settle"] == 0 {
		t.Errorf("beside them: %v; %d takeovers after %d deaths, %d losses, store errors %v", all, takeovers, each, losses, storeErrors)
	}
}
