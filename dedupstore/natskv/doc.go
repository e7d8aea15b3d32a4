// Package natskv keeps records in NATS JetStream, in the NATS that is already there: in a key-value bucket, or in a
// stream beside what handlers publish. A bucket needs nats-server 2.11 or later.
//
//	_, err := js.CreateStream(ctx, natskv.Bucket("oncemill", 3)) // once
//	store, err := natskv.New(js, natskv.Config{})
//
// A claim creates a key, and every other write names the revision that it replaces, so the server refuses it if anybody
// wrote meanwhile. Then the store reads the record again and decides anew. A usual claim is one request, and so is its
// settlement. Operations of a batch are in flight together. Each write gives its key a TTL.
//
// # The inbox
//
// A stream that allows atomic batches keeps records and what handlers publish. A run's messages and its outcome are one
// batch: for each input the stream has the outputs of one run, in one piece, or none. It needs nats-server 2.14.3 or
// later, or 2.12.12 or later of 2.12. See [Store.Inbox] and docs/nats-exactly-once.md.
//
//	_, err := js.CreateStream(ctx, natskv.Stream("ORDERS", 3, "orders.>")) // once
//	store, err := natskv.New(js, natskv.Config{Stream: "ORDERS", Subject: "orders.once"})
//	once, err := consumer.New(store.Inbox(), consumer.Config{Group: "pricing"})
//	// and in the handler
//	err = store.Publish(ctx, producer.Message{ID: id, Topic: "orders.out.priced", Payload: priced})
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
// The store refuses a larger record with [dedupstore.ErrTooLarge]. A full bucket refuses what it has no room for, and
// that may be an outcome. A finished record takes some 370 bytes on disk, and as much of the server's memory.
//
// # Rights
//
// A user needs to publish to $KV.BUCKET.>, $JS.API.STREAM.INFO.KV_BUCKET and $JS.API.STREAM.MSG.GET.KV_BUCKET, and to
// subscribe to its inbox. To list records also $JS.API.DIRECT.GET.KV_BUCKET. The handlers of a group are remembered
// under $KV.BUCKET.scopes.TENANT.GROUP, for 400 days after their last use. For a stream these are SUBJECT.> and the
// subjects of the outputs, and the name of the stream instead of KV_BUCKET. If the account maps such a subject to
// another, allow that one, too: what is refused there is sent again and again, and no error names the right.
package natskv
