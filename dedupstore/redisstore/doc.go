// Package redisstore keeps dedup records in Redis 6.2 or later, or in Valkey: a single server, Sentinel or Cluster.
// TLS, timeouts and retries are your go-redis client's:
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
//	store, err := redisstore.New(rdb, redisstore.Config{})
//
// # Guarantees
//
//   - Every operation is atomic and touches one key, so Cluster needs no hash tags.
//   - Every operation is idempotent for its owner token. go-redis may repeat a command whose reply was lost.
//   - The server's clock decides about leases. Where the client sets an end, it may be up to 60 ms late, never early.
//   - Fences grow, also after the loss of a record over 60 ms old, unless that clock jumps back by more than its age.
//   - A batch travels in pipelines of at most 256 operations. An operation over 64 KiB travels alone.
//   - Every key has a time to live: the lease, or the time until a retry is due, plus the retention.
//   - A key that holds something else, or a record of a newer version, is never changed. The error is a
//     *dedupstore.RecordError.
//   - At maxmemory new keys are refused with dedupstore.ErrFull. Known keys can still be extended, settled or taken
//     over.
//   - Before the first claim the store looks at the masters: see [Store.Check]. It does not see later changes or
//     replicas.
//
// # What Redis can lose
//
// If Redis loses a record, its message can run again. Redis loses records that it has confirmed
//
//   - in a failover, because replication is asynchronous. Config.Replicas makes that rarer;
//   - in a crash: everything without persistence, the time since the last snapshot with RDB, and about two seconds with
//     appendfsync everysec;
//   - by eviction, under any maxmemory-policy but noeviction, without an error;
//   - by FLUSHALL, by DEL, by an operator.
//
// A jump of the server's clock forward ends leases early; a jump back prolongs them. A failover to a server with
// another clock is such a jump. [docs/redis.md] says which settings to use.
//
// # Records
//
// A record is one string with a time to live; record.lua documents its layout. The command "oncemill explain" reads it.
// Beside the records, each group has a string with its handlers, which is renewed for 400 days while they are used.
//
// An ACL user needs the key pattern of the prefix and +@connection +evalsha +eval +time +get +set +psetex +pexpire
// +pttl +type +info. A ClusterClient needs +cluster|slots too, and Config.Replicas +wait. Looking at records and
// counting duplicates need +hmget +hset +hincrby. Listing and changing records need +hget +scan +getrange +dbsize +del.
// Without +config|get Check cannot tell what survives a crash.
//
// [docs/redis.md]: https://github.com/oncemill/oncemill/blob/main/docs/redis.md
package redisstore
