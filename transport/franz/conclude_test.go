package franz

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
)

// Nobody else would say why the record is held: it is not offered again, and the publisher returns no error.
func TestWorker_PublisherOfRetriesThatHangsIsSaidLoudly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		s := &session{alarm: newAlarm("billing", logger), config: Config{Retry: []RetryTopic{{Topic: "later"}}, RetryPublisher: silent{}}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		d := consumer.Delivery{Topic: "orders", Header: producer.Header{producer.HeaderID: "o1"}}
		if sent, err := s.postpone(ctx, d, &kgo.Record{Topic: "orders", Partition: 2, Offset: 7}, consumer.Decision{}); sent || err == nil {
			t.Fatalf("sent %v, %v, want the publisher's error", sent, err)
		}
		synctest.Wait() // the line is from another goroutine
		for _, want := range []string{"level=ERROR", "still being published to its retry topic", "id=o1", "retry_topic=later", "topic=orders partition=2 offset=7", "for=1m0s"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, &log)
			}
		}
	})
}

// silent is a publisher that gets no answer.
type silent struct{}

func (silent) Publish(ctx context.Context, _ ...producer.Message) error {
	<-ctx.Done()
	return context.Cause(ctx)
}
