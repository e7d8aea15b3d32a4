package oncewatermill_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A Router tells the name of a handler with its first message.
func TestRouter_WarnsOfANewNameInAnOldGroup(t *testing.T) {
	for name, deliver := range map[string]func(t *testing.T, once *consumer.Processor){
		"over a source": func(t *testing.T, once *consumer.Processor) {
			s := newSource(once, delivery("1"), delivery("2"))
			stop := over(t, s, func(*message.Message) error { return nil }, oncewatermill.Middleware(once))
			synctest.Wait()
			stop()
		},
		"over a source, without the middleware": func(t *testing.T, once *consumer.Processor) {
			stop := over(t, newSource(once, delivery("1"), delivery("2")), func(*message.Message) error { return nil })
			synctest.Wait()
			stop()
		},
		"over any subscriber": func(t *testing.T, once *consumer.Processor) {
			handle := oncewatermill.Middleware(once)(new(handler).handle)
			for _, id := range []string{"1", "2"} {
				if _, err := handle(order(id)); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var log bytes.Buffer
				store := newStore(t)
				consumertest.Renamed(t, store)
				once := newProcessor(t, store, consumer.Config{Policy: oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
				began := time.Now()
				deliver(t, once)
				if err := once.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(log.String(), consumertest.RenamedLine); n != 1 {
					t.Errorf("%d warnings of a new name, want 1: %s", n, log.String())
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
