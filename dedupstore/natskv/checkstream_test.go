package natskv

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// unfitStreams are streams that cannot serve an inbox, and what is said of each. The page on NATS to NATS has them,
// too.
var unfitStreams = map[string]struct {
	change func(*jetstream.StreamConfig)
	want   string
}{
	"no batches": {func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false }, "set AllowAtomicPublish"},
	"no TTL":     {func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }, "set AllowMsgTTL"},
	"no rollup":  {func(c *jetstream.StreamConfig) { c.AllowRollup = false }, "set AllowRollup"},
	"no purge":   {func(c *jetstream.StreamConfig) { c.DenyPurge = true }, "unset DenyPurge"},
	"interest":   {func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }, "retention interest"},
	"markers": {func(c *jetstream.StreamConfig) {
		c.SubjectDeleteMarkerTTL = time.Minute
	}, "SubjectDeleteMarkerTTL"},
	"no acks": {func(c *jetstream.StreamConfig) { c.NoAck = true }, "unset NoAck"},
	"other subject": {func(c *jetstream.StreamConfig) {
		c.Subjects = []string{"orders.out.>"}
	}, `"orders.once.>" for the`},
	"one revision": {func(c *jetstream.StreamConfig) {
		c.MaxMsgsPerSubject, c.DiscardNewPerSubject = 1, true
	}, "unset DiscardNewPerSubject"},
	"transform": {func(c *jetstream.StreamConfig) {
		c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "orders.>", Destination: "changed.>"}
	}, "changes subjects of records"},
	"transform into": {func(c *jetstream.StreamConfig) {
		c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "orders.in.>", Destination: "orders.once.>"}
	}, "makes records of other messages"},
	"one message": {func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }, "unset MaxMsgsPerSubject"},
	"source that splits": {func(c *jetstream.StreamConfig) {
		c.Sources = []*jetstream.StreamSource{{Name: "IN", SubjectTransforms: []jetstream.SubjectTransformConfig{
			{Source: "in.*", Destination: "orders.{{split(1,-)}}"}}}}
	}, `messages of stream "IN" into`},
	"source": {func(c *jetstream.StreamConfig) {
		c.Sources = []*jetstream.StreamSource{{Name: "IN"}}
	}, `messages of stream "IN" into`},
	"source that changes": {func(c *jetstream.StreamConfig) {
		c.Sources = []*jetstream.StreamSource{{Name: "IN", SubjectTransforms: []jetstream.SubjectTransformConfig{
			{Source: "in.*", Destination: "orders.{{wildcard(1)}}.a.b.c.d"}}}}
	}, `messages of stream "IN" into`},
}

func TestCheck_RefusesStreamsThatDoNotFit(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	for name, c := range unfitStreams {
		stream := strings.ReplaceAll(name, " ", "-")
		config := Stream(stream, 1, "orders.>")
		c.change(&config)
		s, err := New(js, Config{Stream: stream, Subject: "orders.once"})
		if err != nil {
			t.Fatal(err)
		}
		if said := s.unfitShared(config, "2.15.2"); !strings.Contains(said, c.want) {
			t.Errorf("%s: %q, want %q", name, said, c.want)
		}
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Logf("%s: the server makes no such stream: %v", name, err)
			continue
		}
		for what, do := range map[string]func() error{
			"Check":   func() error { _, err := s.Check(t.Context()); return err },
			"Claim":   func() error { _, err := dedupstore.ClaimOne(t.Context(), s.Inbox(), request("1")); return err },
			"Publish": func() error { return s.Publish(t.Context(), message("1", "orders.out.a")) },
		} {
			var setup *dedupstore.SetupError
			if err := do(); !errors.As(err, &setup) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s of %s: %v, want %q", what, name, err, c.want)
			}
		}
		if err := js.DeleteStream(t.Context(), stream); err != nil { // the next one has the same subjects, and another name
			t.Fatal(err)
		}
	}
}

func TestCheck_TakesStreamsThatFit(t *testing.T) {
	t.Parallel()
	s := inboxOf(t, natstest.Start(t).JetStream(), "ORDERS")
	for name, change := range map[string]func(*jetstream.StreamConfig){
		"usual":      func(*jetstream.StreamConfig) {},
		"work queue": func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"listed":     func(c *jetstream.StreamConfig) { c.Subjects = []string{"orders.out.*", "orders.once.>"} },
		"wildcard":   func(c *jetstream.StreamConfig) { c.Subjects = []string{"*.once.>"} },
		"transform": func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{
				Source: "orders.in.*", Destination: "orders.out.{{wildcard(1)}}",
			}
		},
		"source": func(c *jetstream.StreamConfig) {
			c.Sources = []*jetstream.StreamSource{{Name: "IN", FilterSubject: "in.>"}}
		},
	} {
		config := Stream("ORDERS", 3, "orders.>")
		change(&config)
		if said := s.unfitShared(config, "2.15.2"); said != "" {
			t.Errorf("%s: %s", name, said)
		}
	}
}

func TestCheck_RefusesServersWhoseBatchesHaveFaults(t *testing.T) {
	t.Parallel()
	s := inboxOf(t, natstest.Start(t).JetStream(), "ORDERS")
	for version, old := range map[string]bool{
		"2.11.17": true, "2.12.0": true, "2.12.11": true, "2.12.12": false, "2.12.15": false, "2.13.9": true, "2.14.0": true,
		"2.14.2": true, "2.14.3": false, "2.14.10": false, "2.15.0": false, "3.0.0": false, "dev": false,
	} {
		if said := s.unfitShared(Stream("ORDERS", 3, "orders.>"), version); (said != "") != old {
			t.Errorf("%s: %q", version, said)
		}
	}
}

func TestCheck_WarnsOfWhatAStreamCanLose(t *testing.T) {
	t.Parallel()
	s := inboxOf(t, natstest.Start(t).JetStream(), "ORDERS")
	for want, c := range map[string]struct {
		replicas int
		change   func(*jetstream.StreamConfig)
	}{
		"":                       {3, func(*jetstream.StreamConfig) {}},
		"one replica in files":   {1, func(*jetstream.StreamConfig) {}},
		"MaxAge (TTL) of 1h0m0s": {3, func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		"drops its oldest": {3, func(c *jetstream.StreamConfig) {
			c.MaxMsgs, c.Discard = 100, jetstream.DiscardOld
		}},
		"is a work queue": {3, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }},
	} {
		config := Stream("ORDERS", c.replicas, "orders.>")
		c.change(&config)
		said := strings.Join(append(s.losses(config), s.warnings(&jetstream.StreamInfo{Config: config})...), "\n")
		if (want == "") != (said == "") || !strings.Contains(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
		if strings.Contains(said, "bucket") {
			t.Errorf("calls the stream a bucket: %s", said)
		}
	}
}

// nats-server brings back what a deleted stream of the same name had, if the new one is made at once.
func TestCheck_NoticesMessagesOlderThanTheirStream(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	created := time.Now()
	for _, s := range []*Store{inboxOf(t, js, "ORDERS").Store, storeOf(t, js, "oncemill")} {
		for age, old := range map[time.Duration]bool{-time.Hour: false, 500 * time.Millisecond: false, time.Minute: true} {
			info := &jetstream.StreamInfo{Config: Stream("ORDERS", 3, "orders.>"), Created: created,
				State: jetstream.StreamState{Msgs: 1, FirstTime: created.Add(-age)}}
			said := strings.Join(s.warnings(info), "\n")
			if strings.Contains(said, "purge it") != old {
				t.Errorf("%v: a first message %v older: %q", s, age, said)
			}
			info.State.Msgs = 0
			if said := s.warnings(info); len(said) > 0 {
				t.Errorf("%v: without a message: %q", s, said)
			}
		}
	}
}

func TestNew_RefusesStreamsThatCannotBe(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	for _, c := range []Config{
		{Subject: "orders.once"}, {Stream: "ORDERS"}, {Stream: "ORDERS", Subject: "orders.*"},
		{Stream: "ORDERS", Subject: "orders..once"}, {Stream: "ORDERS", Subject: "orders.once."},
		{Stream: "OR.DERS", Subject: "orders.once"}, {Stream: "ORDERS", Subject: "orders.once", Bucket: "b"},
	} {
		var invalid *dedupstore.InvalidError
		if _, err := New(js, c); !errors.As(err, &invalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
