// Package cassandrastore keeps records in a table of Apache Cassandra 4.1 or later, a row for each key.
//
//	store, err := cassandrastore.New(session, cassandrastore.Config{})
//	err = store.Migrate(ctx) // once: makes the table
//
// Every write is a lightweight transaction. A claim writes a row that is not there, and every other write names the
// revision that it replaces, so Cassandra refuses it if anybody wrote meanwhile. The refusal brings the row back, and
// the store decides anew. So a first claim, a duplicate and a settlement are one round trip each, of four between the
// nodes. Operations of a batch are in flight together, at most 128 of them.
//
// # The keyspace
//
// It is its owner's. Use three replicas in each datacenter, as [Store.Check] advises:
//
//	CREATE KEYSPACE oncemill WITH replication = {'class': 'NetworkTopologyStrategy', 'eu-1': 3};
//
// Never write to the table without a condition: Cassandra does not put such writes in order with transactions.
//
// # Datacenters
//
// By default the replicas of all datacenters decide, at SERIAL, and commit at QUORUM. Then each claim waits for other
// datacenters, and any of them may claim. With Config.Local the session's datacenter decides, at LOCAL_SERIAL and
// LOCAL_QUORUM. Then claim each key in one datacenter only, and give the session a HostFilter of
// gocql.DataCenterHostFilter: a node elsewhere would let its own decide. Never mix both kinds of stores on a table.
//
// # Outcomes that are not known
//
// A transaction that timed out may have been done, or be done later by the one after it. If Cassandra says so, the
// store reads the row at the serial consistency, which settles it, and makes the transaction again if it was not done.
// If others wrote meanwhile, or the answer got lost, the caller gets an error. It asks again as the same owner, and
// finds its own claim. No attempt is counted, unless the caller gives up first: the claim ends with its lease then.
//
// Claims of one key in one store take turns, because transactions that race take long.
//
// # Whose clock decides
//
// The clocks of the hosts. Cassandra gives each write the time of the node that coordinates it, but its conditions
// cannot compare that with a row. Config.MaxSkew bounds how far the hosts' clocks may be off. Each lease lives twice
// the bound longer than asked for, and so never ends early; after a crash its key is free that much later. A retry
// without delay does not wait for that. A store that claims compares its host's clock once a second with
// currentTimestamp() of the node that answers, each time another one. If they are further apart than MaxSkew and the
// round trip, no claim is granted until they are set right. Until that is seen, within a second, a clock that is ahead
// takes over claims that are still held, and one that is behind keeps crashed ones for longer. Extensions are not
// refused: a host whose clock falls behind while a handler runs ends its own lease early. A run whose claim was taken
// over loses it as always: it hears of it with its next extension, and cannot settle. Its effect may happen twice.
//
// # Records whose time has come
//
// Each write gives the row a TTL. What ends later than in ten years gets none, because Cassandra cannot count so far;
// it stays until somebody deletes it. Rows that are dead, and what later writes replaced, take room until they are
// compacted after gc_grace_seconds, which Migrate sets to a day. Repair the table within that time, as every other one.
//
// # Limits
//
// A record has at most 8 MiB, with its result and the messages that its run produced; a larger one is refused with
// [dedupstore.ErrTooLarge]. Cassandra's own limit is half a segment of its commit log, by default 16 MiB. It works best
// below 100 KB.
//
// # Names
//
// The handlers of a group are remembered in a row of the table, scopes:tenant:group, for 400 days after their last use.
// A process reads it when it starts, and writes it once an hour.
//
// # Rights
//
// A role needs SELECT and MODIFY on the table, and CREATE on the keyspace to migrate. Check asks for SELECT on
// system_views.
package cassandrastore
