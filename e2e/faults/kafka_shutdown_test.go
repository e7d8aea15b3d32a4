package faults_test

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/transport/franz"
)

// inFlight is how many handlers are at work when a member is told to go.
const inFlight = 100

// Under PerPartition a hundred handlers need as many partitions.
var shutdownPartitions = map[franz.Order]int{franz.PerPartition: inFlight, franz.PerKey: 4}

// eachShutdown runs a test under each order; reduced, under one.
func eachShutdown(t *testing.T, one franz.Order, test func(t *testing.T, k kafka, order franz.Order)) {
	for order := range shutdownPartitions {
		if !proof && order != one {
			continue
		}
		t.Run(string(order), func(t *testing.T) {
			eachKafka(t, func(t *testing.T, k kafka) { test(t, k, order) })
		})
	}
}

func shutdownRig(t *testing.T, k kafka, order franz.Order, work func(context.Context, oncemill.Run)) *kafkaRig {
	r := newKafkaRig(t, k, kafkaSetup{
		partitions: shutdownPartitions[order],
		config:     franz.Config{Order: order, MaxInFlight: inFlight},
		work:       work,
	})
	var batch []*kgo.Record
	for i := range 3 * inFlight { // without copies: each key has one record, so that a window of them is at work at once
		record := r.record(i, i)
		record.Key = []byte(orderID(i))
		batch = append(batch, record)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(t.Context(), batch...)
	return r
}

// A member in this process is told to go by its context, with 100 handlers at work.
func TestKafka_ShutdownByContextCommitsWhatIsFinishedAndRunsItNeverAgain(t *testing.T) {
	t.Parallel()
	eachShutdown(t, franz.PerKey, func(t *testing.T, k kafka, order franz.Order) {
		going := make(chan struct{})
		r := shutdownRig(t, k, order, func(context.Context, oncemill.Run) {
			<-going
			lasts(100 * time.Millisecond)
		})
		open := sync.OnceFunc(func() { close(going) })
		t.Cleanup(open)
		m := r.join(patient())
		until(t, "handlers at work", func() bool { return r.Done() >= inFlight })
		began := time.Now()
		m.stop()
		open()
		<-m.done
		if took := time.Since(began); m.err != nil || took > kafkaGrace {
			t.Errorf("Run ended with %v after %v, want nil within %v", m.err, took, kafkaGrace)
		}
		m.end()
		afterShutdown(t, r)
	})
}

// A process is told to go by SIGTERM, with 100 handlers at work. Its exit status says that no goroutine was left.
func TestKafka_ShutdownBySIGTERMCommitsWhatIsFinishedAndRunsItNeverAgain(t *testing.T) {
	t.Parallel()
	eachShutdown(t, franz.PerPartition, func(t *testing.T, k kafka, order franz.Order) {
		r := shutdownRig(t, k, order, nil)
		p := r.spawn(r.serve(), kafkaChild{
			Order: order, Window: inFlight, Linger: true, Work: 100 * time.Millisecond,
			Session: patientSession,
		})
		until(t, "handlers at work", func() bool { return r.Done() >= inFlight })
		began := time.Now()
		if err := syscall.Kill(p.Pid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-p.Ended()
		if took := time.Since(began); p.ExitCode() != 0 || took > kafkaGrace {
			t.Errorf("the process ended with %d after %v, want 0 within %v", p.ExitCode(), took, kafkaGrace)
		}
		afterShutdown(t, r)
	})
}

// afterShutdown checks that finished records are committed, up to the first unfinished one of each partition. It also
// checks that a new member gets only the rest, and that nothing finished runs again.
func afterShutdown(t *testing.T, r *kafkaRig) {
	t.Helper()
	committed, settled, behind := r.audit(t.Context()), map[string]int{}, 0
	for p, ids := range r.records {
		prefix := 0
		for prefix < len(ids) && r.Message(ids[prefix]).Finished() {
			settled[ids[prefix]] = r.Message(ids[prefix]).Owners
			prefix++
		}
		for _, id := range ids[prefix:] {
			if r.Message(id).Finished() {
				behind++
			}
		}
		if max(committed[p], 0) != int64(prefix) {
			t.Errorf("partition %d: %d records are finished, the committed offset is %d", p, prefix, committed[p])
		}
	}
	t.Logf("%d messages are finished; of them %d behind one of their partition that was not begun", len(settled)+behind, behind)
	if n := len(settled) + behind; n < inFlight {
		t.Errorf("%d messages are finished, want at least %d", n, inFlight)
	}
	r.join()
	b := r.finish()
	b.MustExplain(t) // nothing runs again
	for id, asked := range settled {
		if r.Message(id).Owners != asked {
			t.Errorf("%s was committed, and delivered again", id)
		}
	}
}
