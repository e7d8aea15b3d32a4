package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func TestNewRelay_ErrorNamesTheField(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		field string
		cfg   outbox.Config
	}{
		{"Config.BatchSize", outbox.Config{BatchSize: -1}},
		{"Config.BatchSize", outbox.Config{BatchSize: 10_001}},
		{"Config.PollInterval", outbox.Config{PollInterval: -time.Second}},
		{"Config.PublishTimeout", outbox.Config{PublishTimeout: time.Microsecond}},
		{"Config.Lease", outbox.Config{Lease: 49 * time.Second}}, // 30 s to publish, 10 s each to lease and to settle
		{"Config.Lease", outbox.Config{Lease: -1}},
		{"Config.MaxAttempts", outbox.Config{MaxAttempts: -1}},
		{"Config.Backoff.Min", outbox.Config{Backoff: oncemill.Backoff{Min: -1}}},
		{"Config.Backoff.Max", outbox.Config{Backoff: oncemill.Backoff{Min: time.Second, Max: time.Millisecond}}},
		{"Config.Retention", outbox.Config{Retention: -2}},
		{"Config.Retention", outbox.Config{Retention: time.Microsecond}},
	} {
		_, err := outbox.NewRelay(new(fakeStore), &broker{}, tc.cfg)
		if e, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || e.Field != tc.field {
			t.Errorf("%+v: error %v, want one that names %s", tc.cfg, err, tc.field)
		}
	}
	for name, err := range map[string]error{
		"store":     second(outbox.NewRelay(nil, &broker{}, outbox.Config{})),
		"publisher": second(outbox.NewRelay(new(fakeStore), (*broker)(nil), outbox.Config{})),
	} {
		if e, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || e.Field != name {
			t.Errorf("nil %s: error %v", name, err)
		}
	}
}

func TestNewRelay_LongTimeoutsMakeTheDefaultLeaseLonger(t *testing.T) {
	t.Parallel()
	for _, cfg := range []outbox.Config{{PublishTimeout: time.Hour}, {Backoff: oncemill.Backoff{Min: time.Hour}}} {
		if _, err := outbox.NewRelay(new(fakeStore), &broker{}, cfg); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestNewRelay_RefusesAnOutboxAsThePublisher(t *testing.T) {
	t.Parallel()
	both := struct {
		outbox.Store
		producer.Publisher
	}{}
	_, err := outbox.NewRelay(both, both, outbox.Config{})
	if err == nil || !strings.Contains(err.Error(), "publisher is an outbox") {
		t.Errorf("the error is %v", err)
	}
}
