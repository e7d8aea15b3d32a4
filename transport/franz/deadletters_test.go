package franz_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/transport/franz"
)

func newDeadLetters(t *testing.T, topic string, addrs ...string) *franz.DeadLetters {
	t.Helper()
	d, err := franz.NewDeadLetters(topic, franz.DeadLettersConfig{}, kgo.SeedBrokers(addrs...),
		kgo.MetadataMinAge(50*time.Millisecond))
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
