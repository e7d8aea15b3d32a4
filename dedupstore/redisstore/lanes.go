package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// Lanes are the lanes to all nodes: one that is down or slow holds up its own operations only. With a barrier claims
// have lanes of their own, so that what waits for replicas holds up no heartbeat.
type lanes struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // nil: a single server
	barrier barrier
	deaf    bool // the client does not heed contexts
	flushes flushes
	loaded  atomic.Bool // the cluster's layout has been seen: looking at it asks nobody any more

	mu   sync.Mutex
	byID map[laneID]*lane
}

type laneID struct {
	addr   string // of the node; empty: of a single server, or of a node that is not known
	claims bool   // claims that wait for replicas
}

func newLanes(client redis.UniversalClient, b barrier) *lanes {
	l := &lanes{client: client, barrier: b, deaf: deaf(client), byID: map[laneID]*lane{}}
	l.cluster, _ = client.(*redis.ClusterClient)
	return l
}

// deaf tells whether a client may wait for the network although the context has ended.
func deaf(client redis.UniversalClient) bool {
	t, known := timeoutsOf(client)
	return !known || t.deaf()
}

// of returns the lane for operations on a record.
func (l *lanes) of(ctx context.Context, name string, claims bool) *lane {
	id, client := laneID{claims: claims && l.barrier.on()}, l.client
	if l.cluster != nil {
		if node, err := l.cluster.MasterForKey(ctx, name); err == nil { // else the client says what is wrong
			l.loaded.Store(true)
			id.addr = node.Options().Addr
			if id.claims { // WAIT has no key to find the node by; redirects are errors then
				client = node
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if found := l.byID[id]; found != nil && (!id.claims || found.client == client) {
		return found // of a node that has not been replaced
	}
	made := &lane{client: client, deaf: l.deaf, flushes: &l.flushes}
	if _, made.cluster = client.(*redis.ClusterClient); made.cluster || id.claims {
		made.failed = l.reload
	}
	if id.claims {
		made.barrier = l.barrier
	}
	l.byID[id] = made
	return made
}

// Shard implements [dedupstore.Sharded]: on Cluster, the address of the node that has the key, once a claim has seen
// the layout.
func (s *Store) Shard(ctx context.Context, key dedupstore.Key) string {
	if !s.lanes.loaded.Load() {
		return ""
	}
	node, err := s.lanes.cluster.MasterForKey(ctx, s.name(key))
	if err != nil {
		return ""
	}
	return node.Options().Addr
}

// reload makes a cluster client look where the slots are, after an error that may come from a failover: by itself it
// does so once a minute, and after redirects. It comes back at once, and the client does it once at a time.
func (l *lanes) reload(err error) {
	if l.cluster != nil && !errors.Is(err, context.Canceled) {
		l.cluster.ReloadState(context.Background())
	}
}
