package kit

import (
	"os"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
)

// kafkaAddr names the variable with the address of a broker, "host:port", to use instead of one of the program's own.
// So programs of two versions can measure against the same broker.
const kafkaAddr = "ONCEMILL_BENCH_KAFKA"

// A Kafka is a broker of this program's own, empty at first.
type Kafka struct {
	Addr string // host:port
	stop func() error
}

// StartKafka runs a broker on a free loopback port, from jars that Maven fetches once. The caller stops it.
func StartKafka() (k *Kafka, err error) {
	if addr := os.Getenv(kafkaAddr); addr != "" {
		return &Kafka{Addr: addr, stop: func() error { return nil }}, nil
	}
	k = &Kafka{}
	k.stop, err = Borrow(func(t testing.TB) { k.Addr = kafkatest.Start(t).Addr })
	return k, err
}

// Stop ends the broker and waits for its end.
func (k *Kafka) Stop() error { return k.stop() }
