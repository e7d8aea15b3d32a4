package faults_test

import (
	"testing"
	"time"

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
	r.look(func() {
		for _, run := range r.of(orderID(poisoned)).runs {
			if !run.effect.IsZero() {
				starts++
			}
		}
	})
	b := r.finish()
	b.mustExplain(t, lostLease)
	if starts != attempts || b.deadLetters != 1 {
		t.Errorf("%d starts and %d dead letters, want %d and 1", starts, b.deadLetters, attempts)
	}
}
