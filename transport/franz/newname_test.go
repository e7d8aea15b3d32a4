package franz_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/transport/franz"
)

func TestWorker_WarnsOfANewNameInAnOldGroup(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(b *bench, once *consumer.Processor){
		"worker": func(b *bench, once *consumer.Processor) {
			b.start(once, func(context.Context, *kgo.Record) error { return nil }, franz.Config{})
		},
		"batch worker": func(b *bench, once *consumer.Processor) {
			b.startBatches(once, func(context.Context, []*kgo.Record) []error { return nil }, franz.BatchConfig{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			consumertest.Renamed(t, b.store)
			began := time.Now()
			start(b, b.processor(consumer.Config{Policy: oncemill.Policy{Logger: b.logger}}))
			until(t, "the warning", func() bool { return strings.Contains(b.log.String(), consumertest.RenamedLine) })
			if took := time.Since(began); took > waitLimit/4 {
				t.Errorf("the warning came after %v", took)
			}
		})
	}
}
