// Package natsjs connects Oncemill with NATS JetStream through the client nats.go, in both directions.
//
// A [Worker] guards the messages of a pull consumer to a handler, many at once:
//
//	w, err := natsjs.NewWorker(once, js, cons, charge, natsjs.Config{Handler: "charge"})
//	err = w.Run(ctx)
//
// A handler of batches gets many messages in one call, and returns an error for each: [NewBatchWorker].
//
// A [Source] does the same for Watermill, as oncewatermill.NewSubscriber(source) in a Router that has the guard's
// middleware. A [Publisher] sends messages to subjects that streams listen on, many at once, and reports on each:
//
//	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
//	err = pub.Publish(ctx, messages...)
//
// # Guarantees of Worker and Source
//
//   - A message is acknowledged only when the guard says so: see package consumer. A handler cannot settle it.
//   - At most Config.MaxInFlight messages are in flight: what is asked for, waits for others of its order key, waits
//     for a retry or is with the handler. None waits where nobody sees it. As long as the process lives, the server is
//     told in time that each of them is in progress, so that slow handlers and long queues cause no redelivery.
//   - With a MaxInFlight of 1, or with one order key (Config.Order), messages run one after the other in the order of
//     the consumer, also when one fails and is tried again: what is behind it waits.
//   - A message that is to come again comes not before its delay. It waits in the process where a nak would do harm: if
//     it has an order key, when delayed naks take up half of MaxAckPending, or when the consumer has a MaxDeliver, of
//     which the last Policy.MaxAttempts deliveries are for crashes, shutdowns and lost claims alone. So busy keys and
//     failed attempts never use up a MaxDeliver.
//   - The end of Run's context begins the drain. Nothing new is asked for; handlers go on, also those of messages that
//     are being claimed, with contexts that do not end before Config.Grace, and their acks reach the server; what is
//     not started is given back when nothing asked for is outstanding any more, after about a second at most, so that
//     it does not come back to the same process. A message on its last delivery is run instead. No goroutine is left.
//   - Run ends with an error that names what is wrong when the consumer is deleted or changed, the connection is
//     closed, a right is missing, also to acknowledge after a reconnect, or acks reach nobody. Everything else is
//     logged, once, and tried again: reconnects, a new leader, restarts of the server.
//   - A handler does not run for its own dead letters, if its consumer delivers them: they are acknowledged, with an
//     error in the log. Check says so at the start, and refuses it for a work-queue stream, which would delete them. It
//     refuses a dead-letter topic of a Publisher of this package on which no stream listens, and says when one that
//     keeps only what a consumer of it wants (retention interest) has none for that but the one that makes them, as far
//     as it may look.
//   - Check, with which Run begins, refuses a consumer that breaks these guarantees, and says what to set.
//
// # What they do not guarantee
//
// Messages that are rejected, without consumer.Config.DeadLetters: those that failed for good or are unknown, have no
// usable ID, or other content under a known ID, are terminated. A stream with limits keeps them, and nobody gets them;
// a work-queue stream deletes them. There is a warning at the start.
//
// Messages that the stream deletes before they are handled, by MaxAge, MaxMsgs, MaxBytes, a TTL or a purge, also while
// they wait at the server for a retry. What is in flight already runs all the same: stop the workers before a purge
// of what must not be handled. Check says which are gone at the beginning of the stream, where it can be sure that they
// were this consumer's.
//
// A second run of what was cut off, under a policy that parks (oncemill.Irreversible): a run that Grace ends, and any
// error without oncemill.NoEffect, oncemill.RetryAfter included, make the outcome unknown, and the message is not tried
// again.
//
// Order, where there are several at once: two workers, or two subscriptions, of one consumer each keep the order of
// what they get, and nothing keeps it between them. After a crash, a broken connection, a lost claim or an ended grace
// the messages that were in flight, or on their way, come again, after AckWait, behind those that were delivered since.
// A drain gives back the rest of an order key in its order, but not before what another worker has already. A consumer
// with MaxAckPending 1 has a strict order over all workers, at one message at a time.
//
// One delivery of each message: the server delivers again when it loses an ack, as while it restarts, and nobody waits
// for its receipt. The record of the message then has the outcome, and the handler does not run. A nak that gets lost,
// as with a connection that breaks right after it, takes its delay with it: the message comes after AckWait, perhaps
// too early.
//
// Safe deletion of a stream that is made again under its name while workers are at it. A worker that notices, from the
// answers to its requests or within 30 s where it has no room for more, settles nothing of the old one any more: the
// new one counts from one again, and takes an ack for a message of its own. Stop the workers first. So it is with a
// stream that a cluster has lost, in memory or with one replica, which is there again, empty: it is noticed as long as
// its consumer has counted fewer deliveries than were seen.
//
// Little memory: the messages in flight are in it, MaxInFlight times their size. At most 4 MiB, or one message, are on
// the way at a time, but where messages are suddenly much larger than those before, MaxInFlight of them may be.
//
// A MaxDeliver, while the leader of a replicated consumer has lost its majority and has not noticed, which takes it up
// to 20 s: it counts deliveries that it does not make. A worker that gets no answer does not ask such a leader again,
// but each has asked once or twice by then. With many workers and an AckWait of a second or two, a message can be given
// up that nobody was sent. A MaxDeliver of -1 avoids it.
//
// Room for others, where messages have to wait here: as many as MaxInFlight, with order keys or with a MaxDeliver that
// is nearly used up, stop the worker until the first of them is due. A MaxDeliver of -1, which is JetStream's default,
// avoids the latter.
//
// The share of MaxAckPending is that of each worker: several together can have all of it waiting for retries. Without a
// limit of the consumer a worker has about 1,000 waiting at the server. A consumer with BackOff gets no naks: the
// server would deliver later than their delay says.
//
// An end of the drain: a handler that ignores its context is waited for (not in a Router, which does that by itself).
// While the server is away, acks are tried for 10 s more. A connection that is there, and from which nothing
// comes any more, holds the drain up for half a minute, unless its pings (nats.PingInterval) find that out before. A
// delivery that holds for a busy key is waited for, too, for up to consumer.Config.MaxWait.
//
// # What they need
//
// The right to publish to $JS.API.CONSUMER.INFO, $JS.API.CONSUMER.MSG.NEXT and $JS.ACK, each of the stream and
// consumer, and to subscribe to the connection's inboxes. On a server with the feature flag js_ack_fc_v2 (2.14 and
// later; off by default) acks go to $JS.ACK.*.*, with the domain and the account before the stream. An account that
// imports the JetStream of another one imports $JS.ACK.> beside its API. Where $JS.API.STREAM.INFO is not allowed,
// there is a warning. Without the right to subscribe to $JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES, MaxDeliveries stays
// zero. Without $JS.API.STREAM.NAMES nobody looks for the stream of dead letters, and without STREAM.INFO and
// CONSUMER.LIST of it nobody sees whether it keeps them. TermWithReason needs nats-server 2.10.4.
//
// # What a message is
//
// The handler of the record is Config.Handler, the origin is the stream. Headers of the server ("Nats-…") are among a
// delivery's: outputs and dead letters do not have them, and what
// a handler publishes by itself should not. Header names keep their case. Several values of one header are joined by ",
// " in their order (RFC 9110, section 5.3). The position, for producer.ExtractPosition, is the stream's sequence and
// time. A Nats-Msg-Id is taken for unique within its stream: in one that has several sources, among all of them.
// Clusters, domains or accounts with streams of one name need a Group each, where they share a store: IDs that are
// unique within a stream would be taken for each other's. The header _watermill_message_uuid, of Watermill's own NATS
// marshaler, becomes the delivery's UUID.
//
// # Guarantees of Publisher
//
//   - Publish returns nil only when a stream has acknowledged every message. Otherwise a *producer.PublishError says
//     which messages are not acknowledged, and whether they may be in the stream all the same.
//   - Within a stream's duplicate window, a message that is published again is stored once: the header Nats-Msg-Id is a
//     hash of message ID, subject, purpose and generation. Dead letters and deliberate replays of a message have
//     another one, so the broker does not swallow them.
//   - Payload and headers arrive as they were given: what NATS cannot carry as it is, is refused with an error that
//     names the header or field, and the other messages of the call are published. One exception: in oncemill-reason,
//     the text for people in a dead letter, control characters become spaces, and white space around it is cut off.
//     Headers of this project and trace context are added, and oncemill-name is left out, as producer.Outgoing does.
//   - A message gives no orders to the stream: every header whose name begins with "Nats-", in any case, is refused.
//     Copied from a message that came in, Nats-Expected-Stream would block it, and Nats-Rollup would purge the stream.
//   - A header oncemill-key that differs from the message's Key is refused, not overwritten.
//
// # What Publisher does not guarantee
//
// Order: a message that is published again can land behind later ones. One copy in the stream: a repeat after the
// duplicate window (two minutes unless the stream says otherwise) is stored again, with the same oncemill-id. That a
// stream keeps what it acknowledges: one with retention interest deletes at once what none of its consumers wants,
// nats-server has its files synced every two minutes alone, unless its sync_interval says otherwise (always), so that a
// machine that loses power loses what came since, and one with persist_mode async is written to after it has
// acknowledged; Replay of an outbox publishes again. Another connection: nats.go closes one for good after 60 attempts
// to reconnect, about two minutes, without nats.MaxReconnects(-1), and when a server refuses its credentials twice,
// without nats.IgnoreAuthErrorAbort. All that is published after that is unknown.
package natsjs
