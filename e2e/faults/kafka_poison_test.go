package faults_test

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/transport/franz"
)

// The handler of one record ends the process each time it starts. After Policy.MaxAttempts starts the record is a dead
// letter, and the records behind it in its partition go on. Full: both ways of ending on both brokers.
func TestKafka_RecordThatKillsItsProcessIsDeadLetteredAfterMaxAttemptsStarts(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(t *testing.T, k kafka) {
		if proof || k.fake == nil {
			t.Run("SIGKILL", func(t *testing.T) { poison(t, k, false) })
		}
		if proof || k.fake != nil {
			t.Run("os.Exit", func(t *testing.T) { poison(t, k, true) })
		}
	})
}

func poison(t *testing.T, k kafka, exit bool) {
	const attempts, poisoned = 3, 42
	r := newKafkaRig(t, k, kafkaSetup{lease: 500 * time.Millisecond, attempts: attempts})
	r.produce(t.Context(), 200)
	home := r.serve()
	child := kafkaChild{Order: franz.PerPartition, Poison: orderID(poisoned), Exit: exit}
	for n := 1; ; n++ {
		p := r.spawn(home, child)
		if n > attempts {
			break // this one lives
		}
		<-p.Ended()
		if code, want := p.ExitCode(), map[bool]int{false: -1, true: 3}[exit]; code != want {
			t.Fatalf("process %d ended with %d, want %d", n, code, want)
		}
	}
	r.drain()
	starts := 0
	for _, run := range r.Message(orderID(poisoned)).Runs {
		if run.Did() {
			starts++
		}
	}
	b := r.finish()
	b.MustExplain(t, ledger.LostLease)
	if starts != attempts || b.DeadLetters != 1 {
		t.Errorf("%d starts and %d dead letters, want %d and 1", starts, b.DeadLetters, attempts)
	}
}

// A record that ends its process takes nothing along: those that ran beside it lose two attempts at most, and are
// handled.
func TestKafka_NeighboursOfARecordThatKillsItsProcess(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"worker": 0, "batch worker": 64} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const attempts, records, poisoned = 4, 60, 42
			r := newKafkaRig(t, fakeKafka(t), kafkaSetup{lease: full(time.Second, 3*time.Second), attempts: attempts})
			r.produce(t.Context(), records)
			home := r.serve()
			child := kafkaChild{Order: franz.PerKey, Poison: orderID(poisoned), Hasty: true, Batch: batch}
			if batch == 0 {
				child.Work = full(time.Second, 100*time.Millisecond)
			}
			for range attempts {
				p := r.spawn(home, child)
				<-p.Ended()
				if code := p.ExitCode(); code != -1 {
					t.Fatalf("a process ended with %d, want it killed", code)
				}
			}
			r.spawn(home, child)
			r.drain()
			for i := range records {
				a, most, starts := r.Message(orderID(i)), 0, 0
				for _, run := range a.Runs {
					most = max(most, run.Attempt)
					if run.Did() {
						starts++
					}
				}
				switch {
				case i == poisoned && (starts != attempts || a.DeadLetters != 1):
					t.Errorf("the record that kills started %d times, and has %d dead letters, want %d and one",
						starts, a.DeadLetters, attempts)
				case i != poisoned && (starts == 0 || most > 3 || a.DeadLetters > 0):
					t.Errorf("%s: want it handled, with two attempts lost at most: %s", orderID(i), a)
				}
			}
			b := r.finish()
			b.MustExplain(t, ledger.LostLease)
		})
	}
}
