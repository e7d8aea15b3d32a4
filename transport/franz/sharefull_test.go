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

// Who waits then sees records that nobody handles, and a member without an error.
func TestShareWorker_SoManyRecordsThatWaitThatNoOthersComeAreSaid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		window, waiting int
		partition       string
	}{
		"as many as the broker locks of a partition": {window: 256, waiting: 100, partition: "/0"},
		"as many as the member takes":                {window: 2, waiting: 20, partition: "all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShareBench(t, 1, "share.partition.max.record.locks=100")
			for i := range c.waiting + 1 { // in batches of their own: the broker locks whole ones
				b.put(i, 1, 1)
			}
			m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, _ string, _ int) error {
				return oncemill.RetryAfter(time.Hour, errors.New("not before an hour"))
			}), franz.ShareConfig{Window: c.window}, kgo.FetchMaxWait(50*time.Millisecond))
			until(t, "a line in the log", func() bool {
				return strings.Contains(b.log.String(), "so many records wait that this member gets no others")
			})
			m.leave()
			if runs := b.started(); runs != c.waiting {
				t.Errorf("%d runs, want %d: the broker does not deliver the last", runs, c.waiting)
			}
			if !strings.Contains(b.log.String(), c.partition+" waiting=") {
				t.Errorf("the log does not say where:\n%s", b.log.String())
			}
		})
	}
}
