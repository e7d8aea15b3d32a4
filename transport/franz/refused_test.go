package franz_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

// A road is how a client reaches its brokers. While it is closed, they refuse connections.
type road struct {
	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

func (r *road) dial(ctx context.Context, network, host string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, host)
	if err == nil {
		r.conns = append(r.conns, conn)
	}
	return conn, err
}

func (r *road) set(closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed = closed; closed {
		for _, conn := range r.conns {
			conn.Close()
		}
		r.conns = nil
	}
}

// With kgo 1.22.2 a member of the old kind gives its membership up at once when its heartbeat finds no broker. A member
// whose partitions the broker assigns tries on. Where this fails with a later kgo, docs/brokers.md has a row to change.
func TestWorker_BrokersThatRefuseConnectionsCostThePartitions(t *testing.T) {
	t.Parallel()
	for name, serverSide := range map[string]bool{"member of the old kind": false, "member that the broker assigns to": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1, kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0", "group.consumer.heartbeat.interval.ms": "50"}))
			b.produce(0, 1, 1, 0)
			var way road
			opts := []kgo.Opt{kgo.Dialer(way.dial)}
			if serverSide {
				opts = append(opts, kgo.ServerSideBalancer())
			}
			back := make(chan struct{})
			m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(ctx context.Context, _ string, _ int) error {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-back:
					return nil
				}
			}), franz.Config{}, opts...)
			until(t, "the record", func() bool { return b.started() == 1 })
			way.set(true)
			lost := func() bool { return strings.Contains(b.log.String(), "partition was lost") }
			if serverSide {
				lasts(2 * time.Second) // several heartbeats
			} else {
				until(t, "the loss", lost)
			}
			way.set(false)
			close(back)
			until(t, "its end", func() bool { return b.finished() == 1 })
			m.leave()
			if lost() == serverSide {
				t.Errorf("lost its partition: %v", lost())
			}
			b.wantOnce(t, 1)
		})
	}
}
