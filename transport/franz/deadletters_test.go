package franz_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/transport/franz"
)

func newDeadLetters(t *testing.T, topic string, addrs ...string) *franz.DeadLetters {
	t.Helper()
	d, err := franz.NewDeadLetters(topic, franz.DeadLettersConfig{}, kgo.SeedBrokers(addrs...),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// A partition that gives nothing is not taken for one that is read to its end. Each of two has three letters; one gives
// none until something happens.
func TestDeadLetters_AreReadToTheEndOrNotSaidToBe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before    func(t *testing.T, b *bench)
		meanwhile func(t *testing.T, b *bench)
		stays     bool // away
		want      int
		wrong     string
	}{
		"its leader is away": {
			stays: true, want: 3, wrong: `"orders": partition 1 gave no record for 10s before offset 3, its end`,
		},
		"its letters expire": {stays: true, want: 3, meanwhile: func(t *testing.T, b *bench) {
			all := kadm.Offsets{}
			all.AddOffset("orders", 1, 3, -1)
			if _, err := b.admin.DeleteRecords(t.Context(), all); err != nil {
				t.Error(err)
			}
		}},
		"its letters are compacted away": {want: 3, meanwhile: func(_ *testing.T, b *bench) {
			b.produce(0, 6, 2, 6) // has the keys of all letters before
			b.produce(0, 6, 2, 6) // the newest batch counts for no compaction
			b.cluster.Compact()
		}},
		"it ends with a transaction that was aborted": {want: 6, before: func(t *testing.T, b *bench) {
			cl := b.newClient(kgo.TransactionalID("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			dropped := order(7)
			dropped.Partition, dropped.Key = 1, []byte("k7")
			if err := cl.ProduceSync(t.Context(), dropped).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if err := cl.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2)
			compact := kadm.AlterConfig{Name: "cleanup.policy", Value: kadm.StringPtr("compact")}
			if _, err := b.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{compact}, "orders"); err != nil {
				t.Fatal(err)
			}
			b.produce(0, 6, 2, 6)
			if c.before != nil {
				c.before(t, b)
			}
			away := b.cluster.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Partitions: []int32{1},
				Err: kerr.NotLeaderForPartition, Count: -1,
			})
			var found []string
			err := newDeadLetters(t, "orders", b.addrs...).Each(t.Context(), deadletters.Reading{},
				func(l deadletters.Letter) bool {
					if found = append(found, l.ID); len(found) > 1 {
						return true
					}
					if c.meanwhile != nil {
						c.meanwhile(t, b)
					}
					if !c.stays {
						away.Remove()
					}
					return true
				})
			if len(found) != c.want {
				t.Errorf("found %v, want %d", found, c.want)
			}
			if text := fmt.Sprint(err); err != nil && c.wrong == "" || !strings.Contains(text, c.wrong) {
				t.Errorf("error %v, want %q", err, c.wrong)
			}
		})
	}
}

// A partition of markers that does not answer holds nobody up for longer than the caller wants.
func TestDeadLetters_MarkingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 1, 1, 1)
	source := newDeadLetters(t, "orders", b.addrs...)
	l, err := source.Show(t.Context(), "0/0")
	if err != nil {
		t.Fatal(err)
	}
	b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.redriven", Err: kerr.RequestTimedOut, Count: -1,
	})
	bounded, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := source.Discard(bounded, []deadletters.Letter{l}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}
}

// Somebody may have made the topic of markers, with several partitions.
func TestDeadLetters_MarkersMayBeInSeveralPartitions(t *testing.T) {
	t.Parallel()
	topic := fmt.Sprintf("spread-%d", topics.Add(1)) // of the shared broker
	server := kafkatest.Shared(t)
	server.CreateTopic(topic, 1)
	server.CreateTopic(topic+".redriven", 3)
	cl := server.Client()
	const n = 12
	for i := range n {
		record := order(i)
		record.Topic = topic
		if err := cl.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	source := newDeadLetters(t, topic, server.Addr)
	discarded := func(d *franz.DeadLetters) (done int) {
		for i := range n {
			l, err := d.Show(t.Context(), fmt.Sprint("0/", i))
			if err != nil {
				t.Fatal(err)
			}
			if l.Done {
				done++
			}
		}
		return done
	}
	for i := range n {
		l, err := source.Show(t.Context(), fmt.Sprint("0/", i))
		if err == nil {
			err = source.Discard(t.Context(), []deadletters.Letter{l})
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := discarded(source); got != i+1 {
			t.Errorf("%d letters are put aside, want %d", got, i+1)
		}
	}
	if got := discarded(newDeadLetters(t, topic, server.Addr)); got != n {
		t.Errorf("another process knows of %d letters that are put aside, want %d", got, n)
	}
}

// Kafka keeps letters that were redriven or discarded. All who look at them are told, and no redrive takes them.
func TestDeadLetters_TellWhatIsDone(t *testing.T) {
	t.Parallel()
	topic := fmt.Sprintf("done-%d", topics.Add(1)) // of the shared broker
	server := kafkatest.Shared(t)
	server.CreateTopic(topic, 1)
	cl := server.Client()
	var positions []string
	for i := range 3 {
		record := order(i)
		record.Topic = topic
		if err := cl.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
		positions = append(positions, fmt.Sprint("0/", i))
	}
	source := newDeadLetters(t, topic, server.Addr)
	show := func(d *franz.DeadLetters) (done []bool, all []deadletters.Letter) {
		t.Helper()
		for _, position := range positions {
			l, err := d.Show(t.Context(), position)
			if err != nil {
				t.Fatal(err)
			}
			done, all = append(done, l.Done), append(all, l)
		}
		return done, all
	}
	take := func(positions ...string) (deadletters.Redrive, []deadletters.Letter) {
		t.Helper()
		r, err := source.Redrive(t.Context(), deadletters.Taking{Positions: positions})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		taken, err := r.Take(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		return r, taken
	}

	done, all := show(source)
	if slices.Contains(done, true) {
		t.Errorf("done %v, before anything was", done)
	}
	r, taken := take(positions[0])
	if err := r.Done(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	if err := source.Discard(t.Context(), all[1:2]); err != nil {
		t.Fatal(err)
	}
	want := []bool{true, true, false}
	for name, d := range map[string]*franz.DeadLetters{
		"the same process": source, "another process": newDeadLetters(t, topic, server.Addr),
	} {
		if done, _ := show(d); !slices.Equal(done, want) {
			t.Errorf("%s: Show says %v, want %v", name, done, want)
		}
		done = nil
		err := d.Each(t.Context(), deadletters.Reading{Done: true}, func(l deadletters.Letter) bool {
			done = append(done, l.Done)
			return true
		})
		if err != nil || !slices.Equal(done, want) {
			t.Errorf("%s: Each says %v, %v; want %v", name, done, err, want)
		}
	}
	if _, taken := take(positions...); len(taken) != 1 || taken[0].Position != positions[2] {
		t.Errorf("took %+v, want the last letter", taken)
	}
}
