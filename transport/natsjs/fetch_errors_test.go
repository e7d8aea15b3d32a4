package natsjs

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestAlone(t *testing.T) {
	t.Parallel()
	if alone(nil) {
		t.Error("a server without a cluster is alone")
	}
	const well, silent = 1900 * time.Millisecond, 2100 * time.Millisecond
	for _, c := range []struct {
		replicas []time.Duration // since when the leader has heard nothing of them
		alone    bool
	}{
		{nil, false},
		{[]time.Duration{well}, false},
		{[]time.Duration{silent}, true},
		{[]time.Duration{0, 0}, false},
		{[]time.Duration{well, silent}, false},
		{[]time.Duration{silent, silent}, true},
		{[]time.Duration{well, silent, silent}, true},
		{[]time.Duration{well, well, silent, silent}, false},
		{[]time.Duration{well, silent, silent, silent}, true},
	} {
		info := &jetstream.ClusterInfo{Leader: "a"}
		for _, active := range c.replicas {
			info.Replicas = append(info.Replicas, &jetstream.PeerInfo{Active: active})
		}
		if got := alone(info); got != c.alone {
			t.Errorf("with replicas silent for %v: alone is %v", c.replicas, got)
		}
	}
}
