package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// sharedKafka is the broker of this process. It lives until the process ends.
var sharedKafka struct {
	mu     sync.Mutex
	broker kafkaBroker
	alive  *os.File // what the watcher of the broker reads; never closed, so that it ends with this process
	err    error
}

// SharedKafka returns the broker that the tests of this process share, and starts it for the first of them. Topics and
// groups are named by the test. Nobody stops or pauses it; it ends with the process, however that ends.
func SharedKafka(t testing.TB) *KafkaServer {
	t.Helper()
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
	record(t, kafkaRecord)
	return &KafkaServer{t: t, Addr: shared.broker.addr(), broker: shared.broker}
}

// watch runs a command until its standard input ends, which is when the process that has the other end does. Then it
// kills the command and removes what it leaves. There is no goroutine of the test's that would wait: it would look like a
// leak to every test that looks for one.
const watch = `dir=$1; shift; "$@" </dev/null & read -r _; kill -9 $!; wait $!; ` + remove

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
	alive, err = startWatched(b.dir, b.command("kafka.Kafka", properties))
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

// startWatched runs a command until the returned file is closed.
func startWatched(dir string, command []string) (*os.File, error) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	end, alive, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer end.Close()
	cmd := exec.Command("sh", append([]string{"-c", watch, "sh", dir}, command...)...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, end, log, log
	if err := cmd.Start(); err != nil {
		alive.Close()
		return nil, err
	}
	return alive, nil
}
