/*
 * The transactional outbox: writers, relays and a broker. README.md says what is modelled, what is not, and what was found.
 *
 * Read it in this order: the table, the store (one inline an operation), the broker, the batch (what a relay does with one
 * lease), the world (what may go wrong). A relay that goes on after its batch is, to all others, a new batch. Names that
 * start with a lower-case g_ are ghosts: nobody in the protocol can read them. mutant(X) is false in the correct model.
 *
 * Rows are numbered in the order in which their numbers and places are drawn. Rows 1 and 2 share a key, row 3 has another.
 * Row 1 is the one that may be refused.
 */

#ifndef N
#define N 2             /* batches that may meet faults, all beside each other; fault-free ones follow */
#endif
#ifndef ROWS
#define ROWS 2          /* 3: also one with another key */
#endif
#ifndef ORDERED
#define ORDERED 1       /* 0: rows without keys */
#endif
#ifndef SKIP_DEAD
#define SKIP_DEAD 0     /* 1: a dead row does not hold up its key */
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#ifndef POISON
#define POISON 0        /* 1: the broker never takes row 1 */
#endif
#ifndef LATE
#define LATE 0          /* 1: a statement, and copies of messages, may be under way after their relay stopped waiting */
#endif
#ifndef LOSSES
#define LOSSES 0        /* leases that a crash of the server may undo: their commits do not wait for the disk */
#endif
#ifndef OPERATIONS
#define OPERATIONS 0    /* how often an operator may requeue, discard or replay while faults last */
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef WITNESS
#define WITNESS 0
#endif
#ifndef STRICT
#define STRICT 0
#endif
#define mutant(x) (MUTANT == x)
#define strict(x) (STRICT == x)
#define witness(x) assert(WITNESS != x)

/* Mutants: each breaks one rule, and some assertion must notice. */
#define CURSOR                  1  /* rows are found by a number greater than the last one seen */
#define READS_UNCOMMITTED       2  /* rows are found before their transaction ends */
#define GONE_WHEN_LEASED        3  /* a row is removed as it is handed out */
#define LEASED_TWICE            4  /* a lease takes rows that another one holds */
#define LEASE_NEVER_ENDS        5  /* nobody takes over the rows of a dead relay */
#define TAKES_OVER_LIVE         6  /* a lease is taken over before it ended */
#define RECORDED_BEFORE_ACK     7  /* a row is recorded as published, and then published */
#define UNKNOWN_IS_PUBLISHED    8  /* no answer is recorded as an acknowledgement */
#define UNKNOWN_IS_REFUSED      9  /* no answer counts to the attempts after which a row is dead */
#define LEFT_OUT_IS_PUBLISHED  10  /* a row without a result is recorded as published, not given back */
#define SETTLE_WITHOUT_TOKEN   11  /* results are recorded although the lease was taken over */
#define SETTLE_IN_TWO_STEPS    12  /* rows are given back, and then results are recorded */
#define DEAD_IS_REMOVED        13  /* a row that was refused for the last time goes */
#define DEAD_BLOCKS_ALL        14  /* a dead row holds up other keys */
#define PLACE_WITHOUT_LOCK     15  /* a writer draws the place while another of the key has not ended */
#define KEYS_NOT_HELD          16  /* a lease holds its rows, not their keys */
#define PASSES_DELAYED         17  /* rows are handed out while an earlier one of the key waits after a refusal */
#define PASSES_SUSPECT         18  /* … while an earlier one had an attempt without an answer */
#define PASSES_DEAD            19  /* … while an earlier one is dead */
#define SUSPECT_NOT_FIRST      20  /* a suspect is handed out while an earlier one of its key is to be published */
#define SENT_PAST_REFUSED      21  /* the relay sends the next row of a key after a refusal */
#define SENT_PAST_UNKNOWN      22  /* … after an attempt without an answer */
#define KEY_SENT_AT_ONCE       23  /* the relay sends the rows of a key without waiting for answers between them */
#define COMMIT_NOT_ON_DISK     24  /* a writer's commit is seen before it would survive a crash of the server */

/* Statements that are stronger than the protocol: each has a counterexample. */
#define EXACTLY_ONE_COPY            1 /* no row arrives twice */
#define COPIES_IN_ORDER             2 /* also a later copy never comes behind a later row of its key */
#define HOLDER_SENDS_FIRST_COPIES   3 /* a first copy comes from a relay whose lease nobody took over */
#define DEAD_MEANS_NOT_PUBLISHED    4 /* a row that is recorded as dead did not arrive */
#define DISCARDED_NEVER_COMES       5 /* a row that was discarded does not arrive later */
#define SKIPPED_NEVER_COMES_LATE    6 /* a dead row that was passed does not arrive behind those that passed it */

/* Witnesses: situations that the correct model must reach, or its assertions would be empty. */
#define SAW_TAKEOVER                1
#define SAW_STALE_SETTLE_REFUSED    2
#define SAW_ENDED_LEASE_SETTLES     3
#define SAW_LATE_FIRST_COPY         4  /* the first copy arrives after its sender stopped waiting */
#define SAW_ZOMBIE_CHAIN            5  /* a relay whose lease was taken over sends both rows of the key, first copies */
#define SAW_COMMIT_OUT_OF_TURN      6  /* a row commits when one with a higher number is published */
#define SAW_DEAD                    7
#define SAW_REQUEUED_PUBLISHED      8
#define SAW_HELD_UP                 9  /* a row waits for an earlier one of its key while other keys go on */
#define SAW_ROLLED_BACK            10
#define SAW_SUSPECTS_ONE_BY_ONE    11  /* the second row of a key is handed out as a suspect after the first */
#define SAW_LATE_LEASE             12  /* a lease is made for a relay that is gone */

/* ---------------------------------------------------------------- the table */

#define row(r) (1 << (r))
#define PAIR   (ORDERED * (row(1) | row(2)))                    /* the rows whose key somebody else has, too */
#define in(set, r) ((set) & row(r))

mtype:request = { LEASE_HEALTHY, LEASE_SUSPECTS, SETTLE };

/* Rows by what they are: each of these is a set. */
byte open, pending, published, dead, suspect, delayed;
byte begun, failures, cursor;                                   /* failures: of row 1 */
byte held[N + 2];                                               /* leases by token: the rows they hold; 0: no lease */
byte ended;                                                     /* the tokens whose leases have ended */
byte live, started; bit calm;                                            /* calm: from here on nothing fails */
chan net = [LATE] of { mtype:request, byte, byte, byte, byte }; /* statements whose callers are gone or have sent them again */

byte arrived, late;             /* the broker: rows of which it has a copy; rows of which one is under way, unattended */

byte g_committed, g_rolled, g_discarded;
byte g_before[ROWS + 1];        /* the rows of the key that committed before this one */
byte g_refused;                 /* definite refusals of row 1, since it was requeued */
byte g_passed;                  /* rows that were dead and held nobody up */
byte g_cause;                   /* rows of which a copy is excused */
byte g_zombies, g_gone;         /* batches whose lease was taken over; that ended */
byte g_operations, g_losses; bit g_requeued;

#define zombie(w) g_zombies = g_zombies | (STRICT || WITNESS -> row(w) : 0)
#define all_held (held[1] | held[2] | held[3] | (N > 2 -> held[N + 1] : 0))

/* ---------------------------------------------------------------- the store: every operation is atomic */

/* What holds up later rows of its key, and those that are held up. */
#define waits    ((mutant(PASSES_DELAYED) -> 0 : pending & delayed) | (mutant(PASSES_SUSPECT) -> 0 : pending & suspect) | blocking)
#define blocking (SKIP_DEAD || mutant(PASSES_DEAD) -> 0 : dead)
#define first_is_in(set)  (ORDERED && in(set, 1))
#define pair_held(set)    (ORDERED && ((set) & PAIR) && !mutant(KEYS_NOT_HELD))

inline take_over() {
	for (u : 1 .. N + 1) {
		if
		:: held[u] && ((row(u) & ended && !mutant(LEASE_NEVER_ENDS)) || mutant(TAKES_OVER_LIVE)) ->
			suspect = suspect | held[u];
			if :: row(u) & ended -> g_cause = g_cause | held[u]; witness(SAW_TAKEOVER) :: else fi;
			held[u] = 0; ended = ended & ~row(u); zombie(u)
		:: else
		fi
	}
	u = 0
}

inline lease(t, kind, got) {
	take_over();
	got = pending & ~delayed;
	if :: !mutant(LEASED_TWICE) -> got = got & ~all_held :: else fi;
	if :: pair_held(all_held) && !mutant(LEASED_TWICE) -> got = got & ~PAIR :: else fi;
	if
	:: kind == LEASE_HEALTHY ->
		got = got & ~suspect;
		if :: first_is_in(waits) -> got = got & ~row(2) :: else fi;
		if :: in(dead, 1) && mutant(DEAD_BLOCKS_ALL) -> got = 0 :: else fi;
		if
		:: mutant(CURSOR) -> for (u : 1 .. ROWS) { if :: in(got, u) && u <= cursor -> got = got & ~row(u) :: in(got, u) && u > cursor -> cursor = u :: else fi }; u = 0
		:: else
		fi
	:: else ->
		got = got & suspect;
		if
		:: mutant(SUSPECT_NOT_FIRST) -> if :: first_is_in(got) -> got = got & ~row(2) :: else fi
		:: first_is_in(pending | blocking) -> got = got & ~row(2)
		:: else
		fi;
		if :: ORDERED && in(got, 2) && in(published, 1) -> witness(SAW_SUSPECTS_ONE_BY_ONE) :: else fi
	fi;
	if :: ORDERED && in(pending & ~delayed & ~suspect & ~all_held, 2) && in(got, 3) && !in(got, 2) && !pair_held(all_held) -> witness(SAW_HELD_UP) :: else fi;
	held[t] = got;
	if :: got && (g_gone & row(t)) -> witness(SAW_LATE_LEASE) :: else fi;
	if :: mutant(GONE_WHEN_LEASED) -> pending = pending & ~got :: else fi
}

/* sent, no, none: the rows that were acknowledged, refused, and got no answer. The others are given back. */
inline record(rows, sent, no, none) {
	assert(!(rows & (published | dead)));                   /* what is settled stays as it is */
	assert(!(rows & sent & ~arrived));                      /* recorded as published: the broker has it */
	if :: in(rows & sent, 1) && g_requeued -> witness(SAW_REQUEUED_PUBLISHED) :: else fi;
	published = published | (rows & sent); pending = pending & ~(rows & sent);
	if
	:: in(rows & no, 1) || (in(rows & none, 1) && mutant(UNKNOWN_IS_REFUSED)) -> failures++;
		if
		:: failures >= MAX_ATTEMPTS ->
			assert(g_refused >= MAX_ATTEMPTS);              /* no answer never makes a row dead */
			assert(!in(arrived, 1) || !strict(DEAD_MEANS_NOT_PUBLISHED)); witness(SAW_DEAD);
			pending = pending & ~row(1); suspect = suspect & ~row(1);
			dead = (mutant(DEAD_IS_REMOVED) -> dead : dead | row(1));
			g_passed = g_passed | (SKIP_DEAD * row(1))
		:: else -> delayed = delayed | row(1)
		fi
	:: else
	fi;
	suspect = suspect | (rows & none & pending); delayed = delayed | (rows & none & pending)
}

inline settle(t, sent, no, none) {
	if
	:: held[t] || mutant(SETTLE_WITHOUT_TOKEN) ->
		if :: row(t) & ended -> witness(SAW_ENDED_LEASE_SETTLES) :: else fi;
		if
		:: mutant(SETTLE_WITHOUT_TOKEN) -> record((sent | no | none), sent, no, none)
		:: mutant(LEFT_OUT_IS_PUBLISHED) -> record(held[t], (held[t] & ~(no | none)), no, none)
		:: else -> record(held[t], sent, no, none)
		fi;
		held[t] = 0; ended = ended & ~row(t)
	:: else -> if :: sent -> witness(SAW_STALE_SETTLE_REFUSED) :: else fi
	fi
}

/* ---------------------------------------------------------------- the broker */

inline arrive(r) {
	assert(in(g_committed, r));                             /* what is rolled back, or not committed yet, is never published */
	if
	:: in(arrived, r) ->
		assert(in(g_cause, r)); assert(!strict(EXACTLY_ONE_COPY)); /* no copy without a cause */
		assert(!strict(COPIES_IN_ORDER) || !ORDERED || r != 1 || !in(arrived, 2))
	:: else ->
		assert(!ORDERED || !(g_before[r] & ~(arrived | g_passed | g_discarded)));   /* first copies: in the order of commits */
		assert(!strict(DISCARDED_NEVER_COMES) || !in(g_discarded, r));
		assert(!strict(SKIPPED_NEVER_COMES_LATE) || r != 1 || !in(g_before[2], 1) || !in(arrived, 2))
	fi;
	arrived = arrived | row(r)
}

/* ---------------------------------------------------------------- the batch: a lease, its publishing, its settling */
/* A frozen relay is one that takes no step for long. Going to `gone` is a crash, or a relay that gives up for ever. */

inline send(r) {                                                /* the relay sends one row, and hears or does not hear of it */
	todo = todo & ~row(r);
	if
	:: !(POISON && r == 1) ->                                       /* it arrives … */
		if :: (g_zombies & row(me)) && !in(arrived, r) ->
			assert(!strict(HOLDER_SENDS_FIRST_COPIES));
			if :: ORDERED && r == 2 && in(sent, 1) -> witness(SAW_ZOMBIE_CHAIN) :: else fi
		:: else fi;
		arrive(r);
		if
		:: sent = sent | row(r)                                     /* … and that is heard, or not */
		:: faulty -> none = none | row(r); g_cause = g_cause | row(r)
		fi
	:: faulty && LATE && !(POISON && r == 1) ->                     /* it arrives later */
		late = late | row(r); none = none | row(r); g_cause = g_cause | row(r)
	:: faulty -> none = none | row(r)                               /* it is lost */
	:: r == 1 && (faulty || POISON) -> no = no | row(r);            /* it is refused */
		g_refused = (g_refused < MAX_ATTEMPTS -> g_refused + 1 : g_refused)
	fi;
	if                                                              /* a failure stops its key */
	:: in(no, r) && mutant(SENT_PAST_REFUSED) || in(none, r) && mutant(SENT_PAST_UNKNOWN) || in(sent, r)
	:: else -> if :: r == 1 -> todo = todo & ~PAIR :: else fi
	fi
}

proctype batch(byte me; bit faulty; mtype:request kind) {
	byte todo, sent, no, none, u, r;

	atomic {
		started == me - 1 || !faulty -> started = (faulty -> me : N);   /* batches are numbered as they begin */
		if                                                              /* healthy rows, or suspects */
		:: faulty -> kind = LEASE_SUSPECTS
		:: true
		fi;
		if
		:: d_step { lease(me, kind, todo) };
			if :: true :: faulty -> todo = 0; goto settling fi      /* no answer: what may be leased is given back */
		:: faulty && LATE && nfull(net) -> net!kind,me,0,0,0; goto settling
		fi;
		if :: todo == 0 -> goto gone :: mutant(RECORDED_BEFORE_ACK) && todo -> sent = todo; goto settling :: else fi
	};

	do
	:: atomic { todo ->
		if
		:: in(todo, 1) -> r = 1
		:: in(todo, 2) && (!first_is_in(todo) || mutant(KEY_SENT_AT_ONCE)) -> r = 2
		:: in(todo, 3) -> r = 3
		fi;
		send(r); r = 0 }
	:: faulty && todo -> todo = 0                                   /* the time is over: the rest is given back */
	:: todo == 0 -> break
	od;
	if
	:: faulty && none -> none = 0                                   /* a stop cut it short: given back, with nothing counted */
	:: mutant(UNKNOWN_IS_PUBLISHED) -> sent = sent | none; none = 0
	:: true
	fi;

settling:
	if
	:: mutant(SETTLE_IN_TWO_STEPS) -> todo = held[me]; held[me] = 0;
		d_step { todo = todo & pending & ~all_held; record(todo, sent, no, none) }; goto gone
	:: else
	fi;
	do
	:: atomic { settle(me, sent, no, none);
		if :: break :: faulty fi }                                  /* or the answer is lost: sent again */
	:: faulty && LATE && nfull(net) -> net!SETTLE,me,sent,no,none   /* delayed: sent again; this one comes some time */
	:: faulty -> goto gone
	od;
gone:
	atomic { live--; g_gone = g_gone | (WITNESS -> row(me) : 0); todo = 0; sent = 0; no = 0; none = 0 }
}

/* ---------------------------------------------------------------- the world: what may happen at any time */

active proctype world() {
	mtype:request kind; byte t, s, f, n, u, r;
end:	do
	/* Writers. Whoever writes a key has its lock until the transaction has ended. */
	:: d_step { begun < ROWS && (!(open & PAIR) || begun != 1 || mutant(PLACE_WITHOUT_LOCK)) ->
		begun++; open = open | row(begun);
		if :: mutant(READS_UNCOMMITTED) -> pending = pending | row(begun) :: else fi }
	:: open -> atomic {
		if :: in(open, 1) -> r = 1 :: in(open, 2) -> r = 2 :: in(open, 3) -> r = 3 fi;
		if
		:: d_step { g_before[r] = g_committed & (in(PAIR, r) -> PAIR : 0); g_committed = g_committed | row(r);
			if :: in(published, 3) && r < 3 -> witness(SAW_COMMIT_OUT_OF_TURN) :: else fi;
			if :: !mutant(READS_UNCOMMITTED) -> pending = pending | row(r) :: else fi }
		:: d_step { g_rolled = g_rolled | row(r); pending = pending & ~row(r); witness(SAW_ROLLED_BACK) }
		fi;
		d_step { open = open & ~row(r); r = 0 } }

	/* Time. */
	:: d_step { held[1] && !(ended & row(1)) -> ended = ended | row(1) }
	:: d_step { held[2] && !(ended & row(2)) -> ended = ended | row(2) }
	:: d_step { N > 2 && held[N] && !(ended & row(N)) -> ended = ended | row(N) }
	:: d_step { in(delayed, 1) -> delayed = delayed & ~row(1) }
	:: d_step { in(delayed, 2) -> delayed = delayed & ~row(2) }
	:: d_step { in(delayed, 3) -> delayed = delayed & ~row(3) }

	/* What comes late, or not at all. */
	:: late -> atomic {
		if :: in(late, 1) -> r = 1 :: in(late, 2) -> r = 2 :: in(late, 3) -> r = 3 fi;
		if
		:: d_step { if :: !in(arrived, r) -> witness(SAW_LATE_FIRST_COPY) :: else fi; arrive(r) }
		:: true
		fi;
		d_step { late = late & ~row(r); r = 0 } }
	:: d_step { net?kind,t,s,f,n ->
		if :: kind == SETTLE -> settle(t, s, f, n) :: else -> lease(t, kind, s) fi;
		kind = SETTLE; t = 0; s = 0; f = 0; n = 0 }
	:: d_step { net?kind,t,s,f,n -> kind = SETTLE; t = 0; s = 0; f = 0; n = 0 }

	/* The server crashes: a lease that was not on disk yet is gone. What else it forgets nobody was told of. */
	:: d_step { !calm && g_losses < LOSSES && held[1] -> g_losses++; g_cause = g_cause | held[1]; held[1] = 0; ended = ended & ~row(1); zombie(1) }

	:: d_step { mutant(COMMIT_NOT_ON_DISK) && !calm && in(pending, 1) && !in(g_before[2], 1) ->
		pending = pending & ~row(1); g_committed = g_committed & ~row(1); g_rolled = g_rolled | row(1);
		for (u : 1 .. N) { held[u] = held[u] & ~row(1) } u = 0 }

	/* Operators. */
	:: d_step { !calm && g_operations < OPERATIONS && dead -> g_operations++;   /* Requeue */
		pending = pending | dead; dead = 0; failures = 0; g_refused = 0; g_requeued = (WITNESS -> 1 : 0) }
	:: d_step { !calm && g_operations < OPERATIONS && dead -> g_operations++;   /* Discard */
		g_discarded = dead; dead = 0 }
	:: d_step { !calm && g_operations < OPERATIONS && in(published, 1) -> g_operations++; /* Replay */
		pending = pending | row(1); published = published & ~row(1); suspect = suspect & ~row(1); failures = 0; g_refused = 0;
		g_cause = g_cause | row(1) }
	od
}

#define held_up (SKIP_DEAD || !ORDERED -> 0 : (in(dead, 1) -> row(2) : 0))

inline drain() {                                                /* faults have stopped: it must end, and soon */
	do
	:: !(pending & ~held_up) -> break
	:: else -> assert(rounds < ROWS + MAX_ATTEMPTS + 2); rounds++;
		d_step { delayed = 0; ended = (held[1] -> row(1) : 0) | (held[2] -> row(2) : 0) | (N > 2 && held[N] -> row(N) : 0) };
		live = 1; run batch(N + 1, 0, LEASE_HEALTHY); live == 0;
		live = 1; run batch(N + 1, 0, LEASE_SUSPECTS); live == 0
	od
}

init {
	byte n, rounds;
	atomic { live = N; n = 1; do :: n <= N -> run batch(n, 1, LEASE_HEALTHY); n++ :: else -> break od };
	live == 0 && begun == ROWS && !open;
	calm = 1;
	drain();
	atomic { g_discarded = g_discarded | (SKIP_DEAD -> 0 : dead); dead = (SKIP_DEAD -> dead : 0) };   /* Discard lets the key go on */
	drain();
	assert(g_committed == (published | dead | g_discarded));        /* no loss: published, or parked and seen by somebody */
	assert(!(published & ~arrived) && !(arrived & g_rolled))
}
