package kafkatest

import (
	"os"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

// shared is the broker of this process.
var shared struct {
	testserver.Shared
	broker kafkaBroker
}

// patient keeps a broker that stands still for a while in its cluster. Nobody kills it.
var patient = []string{"broker.session.timeout.ms=30000"}

// Shared returns the broker that the tests of this process share, and starts it for the first of them. Topics and
// groups are named by the test. Nobody stops or pauses it; it ends with the process, however that ends.
func Shared(t testing.TB) *Server {
	t.Helper()
	testserver.Wanted(t)
	shared.Start(t, func() (alive *os.File, err error) {
		shared.broker = newKafkaBroker(t, "", patient)
		err = testserver.OnFreePort(func(port int) (err error) {
			alive, err = shared.broker.share(port)
			return err
		})
		return alive, err
	})
	testserver.Record(t, kafkaRecord)
	return &Server{
		Owned: testserver.Own(t, "Kafka", "", nil), t: t, Addr: shared.broker.addr(), broker: shared.broker,
	}
}

// share starts the broker in a new folder. It ends with this process.
func (b *kafkaBroker) share(port int) (alive *os.File, err error) {
	if b.dir, err = os.MkdirTemp("", "oncemill-kafka-"); err != nil {
		return nil, err
	}
	if err := b.takePorts(port); err != nil {
		return nil, err
	}
	properties, err := b.prepare()
	if err != nil {
		return nil, err
	}
	return testserver.StartWatched(b.dir, b.command("kafka.Kafka", properties), kafkaPatience, b.look)
}
