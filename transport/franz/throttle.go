package franz

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A throttle says that a broker slows a client down, once a minute. kgo (1.22.2) holds back all requests to that broker then, not only
// those that the quota is for, and says so at level info alone.
type throttle struct {
	log  *slog.Logger
	said atomic.Int64 // when, in Unix nanoseconds
}

// throttleTold is how long a pause is at least that somebody is told of: quotas that work make many short ones.
const throttleTold = time.Second

// OnBrokerThrottle hears of each answer that asks for a pause.
func (t *throttle) OnBrokerThrottle(broker kgo.BrokerMetadata, wait time.Duration, _ bool) {
	last, now := t.said.Load(), time.Now().UnixNano()
	if wait >= throttleTold && now-last >= int64(sayEvery) && t.said.CompareAndSwap(last, now) {
		t.log.Warn("franz: a broker slows this client down, by a quota of its user or client ID: until then nothing more is asked of it, heartbeats and commits neither", "broker", broker.NodeID, "wait", wait)
	}
}

var _ kgo.HookBrokerThrottle = (*throttle)(nil)
