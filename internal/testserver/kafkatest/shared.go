package kafkatest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

// sharedKafka is the broker of this process. It lives until the process ends.
var sharedKafka struct {
	mu     sync.Mutex
	broker kafkaBroker
	alive  *os.File // what the watcher of the broker reads; never closed, so that it ends with this process
	err    error
}

// Shared returns the broker that the tests of this process share, and starts it for the first of them. Topics and
// groups are named by the test. Nobody stops or pauses it; it ends with the process, however that ends.
func Shared(t testing.TB) *Server {
	t.Helper()
	testserver.Wanted(t)
	shared := &sharedKafka
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.alive == nil && shared.err == nil {
		shared.broker = newKafkaBroker(t, "", nil)
		for range 3 { // somebody may take a port
			if shared.alive, shared.err = startShared(&shared.broker); shared.err == nil {
				break
			}
		}
	}
	if shared.err != nil {
		t.Fatalf("testserver: the shared Kafka: %v", shared.err)
	}
	testserver.Record(t, kafkaRecord)
	return &Server{t: t, Addr: shared.broker.addr(), broker: shared.broker}
}

// startShared starts the broker in a new folder and waits until it answers.
func startShared(b *kafkaBroker) (alive *os.File, err error) {
	if b.dir, err = os.MkdirTemp("", "oncemill-kafka-"); err != nil {
		return nil, err
	}
	if err := b.takePorts(); err != nil {
		return nil, err
	}
	properties, err := b.prepare()
	if err != nil {
		return nil, err
	}
	alive, err = testserver.StartWatched(b.dir, b.command("kafka.Kafka", properties))
	if err != nil {
		return nil, err
	}
	if err := b.await(nil); err != nil {
		log, _ := os.ReadFile(filepath.Join(b.dir, "log"))
		alive.Close()
		return nil, fmt.Errorf("kafka on port %d: %w\n%s", b.port, err, log[max(0, len(log)-4096):])
	}
	return alive, nil
}
