// Package natskv keeps records in a key-value bucket of NATS JetStream, in the NATS that is already there. It needs
// nats-server 2.11 or later.
//
//	_, err := js.CreateStream(ctx, natskv.Bucket("oncemill", 3)) // once
//	store, err := natskv.New(js, natskv.Config{})
//
// A claim creates a key, and every other write names the revision that it replaces, so the server refuses it if anybody
// wrote meanwhile. Then the store reads the record again and decides anew. A usual claim is one request, and so is its
// settlement. Operations of a batch are in flight together. Each write gives its key a TTL.
//
// # Whose clock decides
//
// The clock of the server that leads the bucket's stream. A store asks it for the time five times a second while it
// works, and so knows it within the round trip and 40 ms: a lease may live that much longer, never shorter. Clients'
// clocks only measure how long ago that was. When another server begins to lead, its clock counts. If it is ahead by d,
// leases end d earlier, so keep the servers' clocks together (NTP), and leases much longer than they differ.
//
// A leader that is cut off from the others grants and settles nothing. Until it notices, some seconds later, it may
// answer what an old record says, such as Busy.
//
// # What it can lose
//
// A bucket with one replica loses its records with the server's disk, and one in memory with the server's process; with
// three replicas that takes two servers. nats-server answers before the data is on disk, and flushes every two minutes.
// So a power failure of the server, or of most replicas at once, loses what was written since: set sync_interval to
// always if that can happen. A bucket's MaxAge forgets records whatever their window is. [Store.Check] tells all but
// sync_interval, which clients do not see. What was lost runs again.
//
// # Limits
//
// A record is a message, and must fit max_payload (by default 1 MB), together with the messages that a run produced.
// The store refuses a larger record with [dedupstore.ErrFull]. A full bucket refuses what it has no room for, and that
// may be an outcome. A finished record takes some 370 bytes on disk, and as much of the server's memory.
//
// # Rights
//
// A user needs to publish to $KV.BUCKET.>, $JS.API.STREAM.INFO.KV_BUCKET and $JS.API.STREAM.MSG.GET.KV_BUCKET, and to
// subscribe to its inbox. To list records also $JS.API.DIRECT.GET.KV_BUCKET. The handlers of a group are remembered
// under $KV.BUCKET.scopes.TENANT.GROUP, for 400 days after their last use.
package natskv
