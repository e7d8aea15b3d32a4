// Package redisstore keeps dedup records in Redis 6.2 or later, or Valkey: a single server, Sentinel, or Cluster. TLS,
// ACL users, timeouts and retries are those of the go-redis client that it is given.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
//	store, err := redisstore.New(rdb, redisstore.Config{})
//
// # Guarantees
//
//   - Every operation is atomic, and works on Cluster without hash tags: one script on one key, SET NX GET for a claim
//     of a key that is not known yet, or, where the server has it, SET IFEQ for the outcome of a first run.
//   - Every operation is idempotent per owner token. go-redis repeats commands whose reply was lost, and may.
//   - The server's clock decides about leases; where the client sets the end of one, it knows that clock to within 60
//     ms, and makes it later rather than sooner. Fences grow, even when the record was lost, if it was made more than
//     that before, and that clock does not go back by more than the record was old.
//   - A batch travels in one pipeline, of at most 256 operations. An operation over 64 KiB travels alone.
//   - Every key has a time to live that ends after the lease, or the time when a retry is due, plus the retention. Of a
//     first claim that had to wait before it was written, the end of the lease may eat a tenth of that wait off it.
//   - A key that holds something else, or a record of a newer version, is never touched: *dedupstore.RecordError.
//   - At maxmemory new keys are refused with dedupstore.ErrFull; known ones can still be extended, settled and taken
//     over.
//   - Before its first claim the store looks at the masters, once, see [Store.Check]. It refuses those that may evict
//     records. What is changed later it does not see, nor the settings of a replica, which count when a failover makes
//     it the master: configure replicas like masters, and call Check again to look again.
//
// # What Redis can lose
//
// A record that Redis loses lets its message run again. Redis loses records, although it has confirmed them,
//
//   - in a failover: replication is asynchronous, and the new master may lack the last writes. WAIT and
//     min-replicas-to-write make that rarer, they do not exclude it;
//   - in a crash, beyond what is on disk: everything without persistence, the time since the last snapshot with RDB
//     alone, and about two seconds with appendfsync everysec, of which a killed process can lose a part as well;
//   - by eviction, with any maxmemory-policy but noeviction, without an error;
//   - by FLUSHALL, by DEL, by an operator.
//
// A jump of the server's clock forward ends leases early; a jump back prolongs them. A failover to a server with
// another clock is such a jump.
//
// Recommended: appendonly yes, appendfsync always, maxmemory-policy noeviction, repl-diskless-sync-delay 0, with
// replicas min-replicas-to-write 1 and Config.Replicas, and for the client ContextTimeoutEnabled, so that contexts
// interrupt what waits for the network. docs/redis.md of the repository has the reasons.
//
// # Records
//
// A record is one string with a time to live; record.lua documents its layout, and
//
//	redis-cli --eval show.lua oncemill:tenant:group:handler:ID
//
// prints one, with the show.lua of this package. Duplicates are counted in a hash beside it, whose name has "?" at its
// end.
//
// An ACL user needs the key pattern of the prefix and +@connection +evalsha +eval +time +get +set +psetex +pexpire
// +pttl +type +info, with Config.Replicas +wait, to look at records, list and change them, and count duplicates
// +hmget +hget +hset +hincrby +scan +getrange +dbsize +del, and better also +config|get, without which the durability is
// unknown.
package redisstore
