package dashboard

// advice says of panels what is normal and what to do. Panels that are not here have a section in the docs.
var advice = map[string]string{
	"Duplicate ratio": "Normal: below 1 %, with bursts after rebalances and relay restarts. 0 for days: " +
		"check that two copies have one ID.",
	"Duplicates suppressed": "No value is bad.",
	"Handler time saved":    "An estimate.",
	"Unguarded runs":        "Normal: 0.",

	"Duplicate ratio by consumer group": "One group: look at its consumer (ack deadline, crashes, rebalances). All " +
		"groups of a topic: look at its producer.",
	"Destinations with most duplicates": "Begin at the top.",
	"Duplicate delay": "A band at seconds is the ack deadline, at minutes a retry policy, at " +
		"hours a replay.",
	"Duplicate delay and the window": "Near it: lengthen it first.",
	"Consumer groups":                "In progress elsewhere, above a few a second: copies are delivered side by side.",
	"Recent duplicates":              "Empty: none was sampled, or Traces at the top names no Tempo.",

	"Handler duration": "Above a third of the lease heartbeats begin. " +
		"Above the ack deadline every such message comes twice with a stock adapter; Oncemill's transports extend it.",
	"Handler errors": "permanent never runs again; retry_after and _OTHER do; canceled is mostly a shutdown. " +
		"nested: the middleware is there twice. claim_lost: see Leases lost. Spans have the texts.",
	"Handlers running": "Flat at the limit: add processes or raise it, unless the store is slow. " +
		"0 with messages waiting: claims wait.",
	"Outcomes of the group":        "The docs have each value, at Deliveries by outcome.",
	"Claim latency of the service": "See Claim latency by store.",
	"Lease renewals": "error: the store does not answer; runs go on until their lease ends. lost: " +
		"see Leases lost.",
	"Messages failed": "Normal: what handlers refuse. More: see the alerts OncemillMessagesFailed and " +
		"OncemillOutcomeUnknown. Processes that die first count nothing, but leave the dead letter.",
	"Failures replayed":      "To run one, run its dead letter again.",
	"Rejected or unguarded":  "Normal: none.",
	"Late duplicates":        "Above 1 %: lengthen the window. For another window edit the alert.",
	"Attribute sets dropped": "Above 0: name handlers by job; consume by stream.",

	"Rows pending": "Normal: a second's writes, and delayed rows.",
	"Oldest pending row": "Normal: below a second, or PollInterval without Wake. Above a minute: slow " +
		"relays, or no acks. No data: no relay reports.",
	"Relay lag p99": "Normal: tens of milliseconds with Wake, else below PollInterval. Replays do not count.",
	"Rows by state": "The highest of what relays report.",
	"Age of the oldest row": "Teeth of a second: polling. A ramp: nothing is published, or one row or key is " +
		"stuck, or relays are too few.",
	"Relay lag":                "Two bands: woken and polled rows, or two brokers.",
	"Relay lag by destination": "The slowest: a partition without leader, a lagging replica.",
	"Messages sent": "refused counts towards MaxAttempts; unknown got no answer, is sent again, and never dies. " +
		"In bursts: broker restarts.",
	"Send duration": "Normal: a round trip plus replication.",
	"Batch size":    "At BatchSize for long: the relay is behind.",
	"Copies that the broker recognised": "repeated is intended; unexpected: see the alert " +
		"OncemillBrokerSwallowedMessage.",
	"Rows that died": "Normal: none. See Rows dead.",

	"Claims":             "More than deliveries when copies wait.",
	"Claim p99":          "Normal: milliseconds. Above 100 ms: store or network is overloaded.",
	"Claims that failed": "Normal: 0, seconds at a failover.",
	"Fail open active":   "Duplicates ran too, under StoreDown: FailOpen.",
	"Claim latency by store": "p99 rises with load, the median does not: claims queue; use more clients or a " +
		"faster server.",
	"Claim duration": "Two bands: two zones, or a server that forks for snapshots.",
	"Claims by store and answer": "Busy is duplicate_in_progress or not_due; store_error is no answer. " +
		"First deliveries of a PostgreSQL inbox claim nothing.",
	"Redis connections":                     "used at the pool's size: raise PoolSize.",
	"Redis command latency":                 "Slower claims than this: they wait in the process.",
	"Waits for a connection that timed out": "Growing: small pool or hanging connections.",
}
