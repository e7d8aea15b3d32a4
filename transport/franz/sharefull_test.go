package franz_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

// Who waits then sees records that nobody handles, and a member without an error. What is settled behind a record that waits is counted
// by the broker, too.
func TestShareWorker_SoManyRecordsThatWaitThatNoOthersComeAreSaid(t *testing.T) {
	t.Parallel()
	wait := oncemill.RetryAfter(time.Hour, errors.New("not before an hour"))
	for name, c := range map[string]struct {
		window, delivered int
		others            error // of all but the first, which waits
		want              string
	}{
		"as many as the broker locks of a partition": {window: 256, delivered: 100, others: wait, want: `partition=0 offset=0 delivered_to=99 distance=100`},
		"one, and others behind it are settled":      {window: 256, delivered: 100, want: `partition=0 offset=0 delivered_to=99 distance=100`},
		"as many as the member takes":                {window: 2, delivered: 20, others: wait, want: "so many records wait that this member gets no others"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShareBench(t, 1, "share.partition.max.record.locks=100")
			for i := range c.delivered + 1 { // in batches of their own: the broker locks whole ones
				b.put(i, 1, 1)
			}
			m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, id string, _ int) error {
				if id == "o0" {
					return wait
				}
				return c.others
			}), franz.ShareConfig{Window: c.window}, kgo.FetchMaxWait(50*time.Millisecond))
			until(t, "a line in the log", func() bool {
				return strings.Contains(b.log.String(), c.want)
			})
			m.leave()
			if runs := b.started(); runs != c.delivered {
				t.Errorf("%d runs, want %d: the broker does not deliver the last", runs, c.delivered)
			}
		})
	}
}
