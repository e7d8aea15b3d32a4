package kit

import (
	"errors"
	"fmt"
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
	p := &programTB{}
	defer func() {
		if gone, ok := recover().(programError); ok {
			err = errors.Join(gone.error, p.end())
		}
	}()
	server := kafkatest.Start(p)
	return &Kafka{Addr: server.Addr, stop: p.end}, nil
}

// Stop ends the broker and waits for its end.
func (k *Kafka) Stop() error { return k.stop() }

// A programTB stands for a test before package kafkatest, which gives brokers to tests alone.
type programTB struct {
	testing.TB
	cleanups []func() error
}

type programError struct{ error }

func (p *programTB) Helper() {}

func (p *programTB) Cleanup(do func()) {
	p.cleanups = append(p.cleanups, func() error { do(); return nil })
}

func (p *programTB) TempDir() string {
	dir, err := os.MkdirTemp("", "oncemill-bench-")
	if err != nil {
		panic(programError{err})
	}
	p.cleanups = append(p.cleanups, func() error { return os.RemoveAll(dir) })
	return dir
}

func (p *programTB) Fatalf(format string, args ...any) {
	panic(programError{fmt.Errorf(format, args...)})
}

func (p *programTB) Skip(args ...any) { panic(programError{errors.New(fmt.Sprint(args...))}) }

// end runs the cleanups, the last one first.
func (p *programTB) end() error {
	var failed error
	for i := len(p.cleanups) - 1; i >= 0; i-- {
		failed = errors.Join(failed, p.cleanups[i]())
	}
	p.cleanups = nil
	return failed
}
