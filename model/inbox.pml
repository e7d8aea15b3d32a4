/*
 * The claim protocol for one key in tier 2: an inbox. claim.pml has the protocol that both tiers share; this has what it leaves out of
 * tier 2: the database, which may crash, the handler's transaction, and what becomes of it. README.md says what is modelled.
 *
 * Read it in this order: the database, its statements (one inline each), the delivery (what a worker does), the world (what may go
 * wrong). Names that start with g_ are ghosts: they exist for the assertions only. mutant(X) is false in the correct model.
 */

#ifndef N
#define N 2             /* deliveries that may meet faults; fault-free ones follow until the message is acked, and one after that */
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#ifndef CRASHES
#define CRASHES 1       /* how often the database may crash, and forget what no commit has waited for */
#endif
#ifndef LATE
#define LATE 1          /* what can be under way after its client gave up, one at once: 1: a commit, 2: a claim, too, 3: any; 0: nothing */
#endif
#ifndef PARK
#define PARK 0          /* 1: at most once: a started run is never retaken, and what it does elsewhere is not repeated */
#endif
#ifndef OUTPUTS
#define OUTPUTS 0       /* 1: a success produces messages that its outcome holds, beside its outbox row */
#endif
#ifndef FIRST
#define FIRST 0         /* so many deliveries, counted as first ones, may make their record in the handler's transaction */
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef WITNESS
#define WITNESS 0
#endif
#define mutant(x) (MUTANT == x)
#define witness(x) assert(WITNESS != x)

/* Mutants: each breaks one rule, and some assertion must notice. */
#define SETTLE_WITHOUT_OWNER        1  /* the settlement in the transaction compares neither owner nor fence */
#define SETTLE_BEFORE_COMMIT        2  /* the outcome is stored by a statement of its own, then the effect is committed */
#define SETTLE_AFTER_COMMIT         3  /* the effect is committed, then the outcome is stored by a statement of its own */
#define ROW_BESIDE                  4  /* the outbox row is written by a transaction of its own */
#define FAILURE_IN_TX               5  /* a failure is settled in the handler's transaction, which is rolled back */
#define RELEASE_IN_TX               6  /* a release is committed together with the effect */
#define ACK_BEFORE_COMMIT           7  /* the message is acked when the handler has returned */
#define ACK_ON_LOST                 8  /* a zombie acks although its transaction was rolled back */
#define UNKNOWN_IS_ACKED            9  /* a commit without an answer counts as committed */
#define UNKNOWN_IS_FAILED          10  /* a commit without an answer counts as not committed */
#define UNKNOWN_IS_REPEATED        11  /* after a commit without an answer the handler is called again, and nobody looks */
#define RESOLVED_WITHOUT_BAR       12  /* a commit without an answer is looked up, and not barred */
#define REPEATED_SETTLE_COMMITS    13  /* as 11, and a transaction that finds its own run settled commits */
#define OTHER_KIND_IS_REPEATED     14  /* as 10, and a failure after an own success is told that it is stored */
#define SETTLE_NOT_DURABLE         15  /* the handler's commit does not wait for the disk */
#define FAILURE_NOT_DURABLE        16  /* the commit of a stored failure does not wait for the disk */
#define END_NOT_DURABLE            17  /* a claim that writes an outcome (exhausted, parked) does not wait for the disk */
#define DEAD_LETTER_FIRST          18  /* a dead letter is published before it is stored */
#define PARK_WITHOUT_BEAT          19  /* park: the handler starts on the claim alone */
#define PARK_BEAT_NOT_DURABLE      20  /* park: the first heartbeat does not wait for the disk */
#define PARK_REPEATS               21  /* park: the handler is called again when the database refuses its transaction */
#define PARK_RELEASES              22  /* park: an error is released */
#define NEITHER_OWNER_NOR_STATE    23  /* as 1, and the settlement does not compare the state */
#define NEITHER_BAR_NOR_STATE      24  /* as 12, and the settlement does not compare the state */
#define FIRST_CLAIM_HEEDS_NO_LOCK  25  /* a claim is granted beside a transaction that makes the record */
#define FIRST_LOSES_LOCK_ALONE     26  /* the lock can be lost, and its transaction goes on */
#define FIRST_FAILS_WITHOUT_CLAIM  27  /* a failure is stored without a claim of the key */
#define FIRST_NOT_DURABLE          28  /* the commit of such a transaction does not wait for the disk */
#define FIRST_IS_NEVER_CUT_OFF     29  /* a holder that stands still keeps the lock */
#define PARK_FIRST                 30  /* park: the handler runs without a mark that it was started */

/* Witnesses: situations that the correct model must reach, or its assertions would be empty. */
#define SAW_TAKEOVER                1
#define SAW_ZOMBIE_ROLLED_BACK      2
#define SAW_REPEATED                3  /* a transaction was refused because of others, and its repetition committed */
#define SAW_CLAIM_FORGOTTEN         4
#define SAW_FORGOTTEN_ROLLED_BACK   5  /* the commit of a run whose claim was forgotten, in a transaction after the crash */
#define SAW_OLD_HOLDER_COMMIT       6  /* the takeover was forgotten, and the holder before it commits */
#define SAW_RESOLVED_COMMITTED      7
#define SAW_RESOLVED_OPEN           8
#define SAW_BARRED                  9  /* statements that came late met the bar */
#define SAW_COMMIT_AFTER_GIVING_UP 10  /* … and met none, because nobody could read: they committed */
#define SAW_EXHAUSTED_BY_CLAIM     11
#define SAW_END_KEPT               12  /* an end that a claim wrote was kept by a crash */
#define SAW_PARKED                 13
#define SAW_FIRST_COMMITTED        14
#define SAW_FIRST_CUT_OFF          15  /* … a transaction whose holder stood still, and then committed in vain */
#define SAW_FIRST_TWIN_BUSY        16  /* a copy met the lock */
#define SAW_FIRST_FAILED_TOO_LATE  17  /* an error of the handler, and its twin has decided meanwhile */
#define SAW_FIRST_COMMIT_FOUND     18  /* an answer was lost, and a claim has found the outcome */

/* ---------------------------------------------------------------- the database */

mtype:state   = { ABSENT, RUNNING, RETRYABLE, PUBLISHING, DONE };
mtype:outcome = { NONE, SUCCEEDED, FAILED, UNKNOWN };
mtype:answer  = { SILENCE, ACQUIRED_RUN, ACQUIRED_PUBLISH, BUSY, IS_DONE, OK, CLAIM_LOST, OPEN };
mtype:request = { CLAIM, EXTEND, FINISH_SUCCEEDED, FINISH_FAILED, FINISH_UNKNOWN, RELEASE, RELEASE_UNCOUNTED,
                  PUBLISHED, COMMIT, COMMIT_FIRST, DECIDE };

typedef Database {
	mtype:state st = ABSENT;
	mtype:outcome outcome = NONE;
	byte owner;     /* token; 0: nobody */
	byte fence;
	byte attempts;
	byte decided;   /* the fence under which the outcome was decided */
	byte settled;   /* the owners that settled a run of this record, as a set */
	byte barred;    /* the transaction that must not settle any more */
	bit  started;   /* there was a heartbeat in this run */
	byte effects;   /* the handler's rows … */
	byte rows       /* … and the outbox's */
};
Database db;            /* what everybody sees */
Database disk;          /* what a crash leaves: the state after the last commit that waited for it, or a later one */
bit lease;              /* not expired */
byte locked;            /* the delivery whose open transaction makes the record, and has the lock of its key; 0: none */
byte crashes;           /* a transaction lives until the next one */
bit acked, calm;        /* calm: from here on nothing fails */
byte begun, live;
chan net = [1] of { mtype:request, byte, byte, byte };  /* statements whose clients no longer wait for them */

mtype:outcome g_told = NONE;    /* what an ack, a dead letter or a duplicate has been told */
byte g_fence;                   /* the greatest that there was */
byte g_calls;                   /* of the handler */
byte g_denied;                  /* the deliveries that were told: your transaction is not committed */
byte g_committed;               /* … whose transaction is */
byte g_forgotten;               /* … whose claim a crash has forgotten */

#define bit_of(w)  (1 << (w))
#define in(set, w) ((set) & bit_of(w))
#define holds(w,f) (db.owner == w && db.fence == f)
#define spent      (db.attempts >= MAX_ATTEMPTS)
#define held_by(w) (db.st == RUNNING && db.owner == w)

inline copy(to, from) {
	to.st = from.st; to.outcome = from.outcome; to.owner = from.owner; to.fence = from.fence; to.attempts = from.attempts;
	to.decided = from.decided; to.settled = from.settled; to.barred = from.barred; to.started = from.started;
	to.effects = from.effects; to.rows = from.rows
}

inline flush() { copy(disk, db) }                               /* a commit waits for the disk, and so for all before it */
#define crash_follows (!calm && crashes < CRASHES)              /* else what is on disk does not matter, and is kept equal */

inline sound() {
	assert(db.effects <= 1);                                /* one effect */
	assert(db.rows == db.effects);                          /* an outbox row with it, and none without */
	assert((db.outcome == SUCCEEDED) == (db.effects == 1)); /* effect and outcome together; a failure has no effect */
	assert(g_told == NONE || g_told == db.outcome)          /* what was told stays true, and is stored */
}

inline tell(what) {
	assert(what != NONE && what == db.outcome);             /* nothing is told that is not stored … */
	assert(g_told == NONE || g_told == what);               /* … and to all the same */
	g_told = what
}

/* ---------------------------------------------------------------- its statements: each is a transaction */
/* Guards are tried from top to bottom (that is what d_step does). Only a claim's commit does not wait for the disk. */

inline grant_run(w) {
	assert(g_told == NONE);                                 /* no run after an outcome was told */
	if :: db.st == RUNNING -> witness(SAW_TAKEOVER) :: else fi;
	assert(!spent);
	g_fence++; db.fence = g_fence; db.attempts++;           /* the fence is the clock, or the last one + 1 */
	db.st = RUNNING; db.owner = w; db.barred = 0; db.started = 0; lease = 1
}

inline end_ownerless(w, why) {
	g_fence++; db.fence = g_fence; db.decided = g_fence;
	db.st = PUBLISHING; db.outcome = why; db.owner = w; db.barred = 0; lease = 1;
	if :: mutant(END_NOT_DURABLE) :: else -> flush() fi
}

inline claim(w, ans) {
	if
	:: db.st == DONE -> ans = IS_DONE
	:: locked && !mutant(FIRST_CLAIM_HEEDS_NO_LOCK) -> ans = BUSY; witness(SAW_FIRST_TWIN_BUSY)
	:: db.st == RUNNING && db.owner == w -> ans = ACQUIRED_RUN
	:: db.st == PUBLISHING && db.owner == w -> ans = ACQUIRED_PUBLISH
	:: in(db.settled, w) || lease -> ans = BUSY
	:: db.st == PUBLISHING -> db.owner = w; lease = 1; ans = ACQUIRED_PUBLISH
	:: db.st == RUNNING && PARK && db.started -> end_ownerless(w, UNKNOWN); ans = ACQUIRED_PUBLISH; witness(SAW_PARKED)
	:: spent -> end_ownerless(w, FAILED); ans = ACQUIRED_PUBLISH; witness(SAW_EXHAUSTED_BY_CLAIM)
	:: else -> grant_run(w); ans = ACQUIRED_RUN
	fi;
	assert(ans != BUSY || lease || locked || in(db.settled, w)) /* Busy has something to wait for: no key is wedged */
}

inline make_first(w, f, ans) {                                  /* begins a transaction that makes the record, or finds one */
	if
	:: locked -> ans = BUSY; witness(SAW_FIRST_TWIN_BUSY)
	:: db.st != ABSENT -> ans = OPEN
	:: else -> locked = w; g_fence++; f = g_fence; ans = OK
	fi
}

inline commit_first(w, f, ans) {
	if
	:: locked == w || mutant(FIRST_LOSES_LOCK_ALONE) ->
		assert(db.st == ABSENT);                                /* the lock has kept all others out */
		write(); g_committed = g_committed | bit_of(w); witness(SAW_FIRST_COMMITTED);
		db.owner = w; db.fence = f; db.decided = f; db.attempts = 1; db.outcome = SUCCEEDED; db.settled = bit_of(w);
		db.st = (OUTPUTS -> PUBLISHING : DONE); lease = OUTPUTS; locked = 0; ans = OK;
		if :: mutant(FIRST_NOT_DURABLE) :: else -> flush() fi
	:: else -> witness(SAW_FIRST_CUT_OFF)                   /* its session has ended */
	fi
}

inline extend(w, f, ans) {
	if
	:: holds(w, f) && (db.st == RUNNING || db.st == PUBLISHING) ->
		lease = 1; ans = OK;
		if :: db.st == RUNNING -> db.started = PARK :: else fi;
		if :: mutant(PARK_BEAT_NOT_DURABLE) :: else -> flush() fi
	:: else -> ans = CLAIM_LOST
	fi
}

inline finish(w, f, result, ans) {
	if
	:: holds(w, f) && db.st == RUNNING ->
		db.outcome = result; db.decided = f; db.settled = db.settled | bit_of(w); db.st = PUBLISHING; lease = 1; ans = OK;
		if :: mutant(FAILURE_NOT_DURABLE) :: else -> flush() fi
	:: holds(w, f) && in(db.settled, w) && (db.outcome == result || mutant(OTHER_KIND_IS_REPEATED)) -> ans = OK /* repeated */
	:: else -> ans = CLAIM_LOST
	fi
}

inline release(w, f, counted, ans) {
	if
	:: holds(w, f) && db.st == RUNNING ->
		db.st = RETRYABLE; db.owner = 0; db.started = 0; db.settled = db.settled | bit_of(w); lease = 0; ans = OK;
		if :: !counted -> db.attempts-- :: else fi;
		flush()
	:: db.st == RETRYABLE && in(db.settled, w) -> ans = OK      /* repeated */
	:: else -> ans = CLAIM_LOST
	fi
}

inline published(w, f, ans) {
	if
	:: holds(w, f) && db.st == PUBLISHING -> db.st = DONE; lease = 0; ans = OK; flush()
	:: holds(w, f) && db.st == DONE -> ans = OK                 /* repeated */
	:: else -> ans = CLAIM_LOST
	fi
}

inline write() {                                                /* the handler's effect and its outbox row */
	db.effects++;
	if :: mutant(ROW_BESIDE) :: else -> db.rows++ fi
}

#define any_owner (mutant(SETTLE_WITHOUT_OWNER) || mutant(NEITHER_OWNER_NOR_STATE))
#define any_state (mutant(NEITHER_BAR_NOR_STATE) || mutant(NEITHER_OWNER_NOR_STATE))
#define may_settle(w,f) ((db.st == RUNNING || any_state && db.st != ABSENT) && (holds(w, f) || any_owner))

/* The settlement and the commit of the handler's transaction. Between them the record is locked, so that nothing else happens to
   it: the two are one step. */
inline commit(w, f, tx, ans) {
	if
	:: may_settle(w, f) && db.barred != tx ->
		assert(holds(w, f) || mutant(NEITHER_OWNER_NOR_STATE));     /* a zombie rolls back */
		assert(!in(g_denied, w) || mutant(NEITHER_BAR_NOR_STATE));  /* not after "it is not committed" was said */
		if :: g_fence > f -> witness(SAW_OLD_HOLDER_COMMIT) :: else fi;
		write(); g_committed = g_committed | bit_of(w);
		db.outcome = SUCCEEDED; db.decided = f; db.settled = db.settled | bit_of(w); db.st = (OUTPUTS -> PUBLISHING : DONE);
		lease = OUTPUTS; ans = OK;
		if :: mutant(SETTLE_NOT_DURABLE) :: else -> flush() fi
	:: db.decided == f && in(db.settled, w) && db.outcome == SUCCEEDED -> /* settled before: rolled back, and well */
		ans = OK;
		if :: mutant(REPEATED_SETTLE_COMMITS) -> write() :: else fi
	:: else -> ans = CLAIM_LOST;                            /* rolled back */
		if
		:: held_by(w) -> witness(SAW_BARRED)
		:: in(g_forgotten, w) -> witness(SAW_FORGOTTEN_ROLLED_BACK)
		:: else -> witness(SAW_ZOMBIE_ROLLED_BACK)
		fi
	fi
}

inline decide(w, f, tx, ans) {                                  /* what became of a commit that got no answer */
	if
	:: holds(w, f) && db.st == RUNNING -> ans = OPEN; witness(SAW_RESOLVED_OPEN);
		if :: mutant(RESOLVED_WITHOUT_BAR) || mutant(NEITHER_BAR_NOR_STATE) :: else -> db.barred = tx fi
	:: db.decided == f && in(db.settled, w) -> ans = OK; witness(SAW_RESOLVED_COMMITTED)
	:: else -> ans = CLAIM_LOST
	fi
}

inline apply(req, w, f, tx, ans) {
	if
	:: req == CLAIM             -> claim(w, ans)
	:: req == EXTEND            -> extend(w, f, ans)
	:: req == FINISH_SUCCEEDED  -> finish(w, f, SUCCEEDED, ans)  /* mutants only: a success is settled by COMMIT */
	:: req == FINISH_FAILED     -> finish(w, f, FAILED, ans)
	:: req == FINISH_UNKNOWN    -> finish(w, f, UNKNOWN, ans)
	:: req == RELEASE           -> release(w, f, 1, ans)
	:: req == RELEASE_UNCOUNTED -> release(w, f, 0, ans)
	:: req == PUBLISHED         -> published(w, f, ans)
	:: req == COMMIT            -> commit(w, f, tx, ans)
	:: req == COMMIT_FIRST      -> commit_first(w, f, ans)
	:: req == DECIDE            -> decide(w, f, tx, ans)
	fi;
	if :: crash_follows :: else -> flush() fi;
	sound()
}

/* ---------------------------------------------------------------- the delivery: what a worker does with one copy */
/* Going to `gone` without an ack is a crash of the worker, a nak, a pause for ever or a lost ack: to the others all look alike. */

#define late(req) (LATE == 3 || LATE == 2 && req == CLAIM)
#define TX (2 * me + again)                                             /* the token of a transaction */

inline send(req) {                                                      /* a statement that may be repeated */
	do
	:: d_step { apply(req, me, fence, TX, ans);                     /* the reply is heard */
		if
		:: ans == ACQUIRED_RUN -> fence = db.fence; last = spent
		:: ans == ACQUIRED_PUBLISH -> fence = db.fence; held = db.outcome
		:: ans == IS_DONE -> held = db.outcome
		:: else
		fi } -> break
	:: faulty -> d_step { apply(req, me, fence, TX, ans); ans = SILENCE } /* the reply is lost: sent again */
	:: faulty && late(req) && nfull(net) -> net!req,me,fence,TX     /* delayed: sent again; this copy arrives some time */
	:: faulty -> goto gone                                           /* stops waiting */
	od
}

proctype delivery(byte me; bit faulty) {
	mtype:answer ans = SILENCE;
	mtype:request settle = CLAIM;
	mtype:outcome held = NONE;      /* what is to be published */
	byte fence;                     /* of the claim that was answered */
	bit last;                       /* … whose attempt is the last */
	byte at;                        /* crashes when the transaction began */
	bit again;                      /* the transaction is the second of the run */

	atomic { begun == me - 1 -> begun = me;                         /* deliveries are numbered as they begin */
		if :: acked && faulty -> goto gone :: else fi };
	if
	:: me <= FIRST && faulty && (!PARK || mutant(PARK_FIRST)) -> goto first /* counted as the first */
	:: skip
	fi;
ask:
	send(CLAIM);
	if                                                              /* what has failed is settled as this run */
	:: settle != CLAIM && ans != ACQUIRED_RUN && ans != BUSY -> witness(SAW_FIRST_FAILED_TOO_LATE)
	:: ans == IS_DONE && in(g_committed, me) -> witness(SAW_FIRST_COMMIT_FOUND)
	:: else
	fi;
	if
	:: ans == ACQUIRED_RUN && settle == RELEASE -> ans = SILENCE; goto erred
	:: ans == ACQUIRED_RUN && settle != CLAIM -> ans = SILENCE; goto failed
	:: ans == ACQUIRED_RUN -> ans = SILENCE
	:: ans == ACQUIRED_PUBLISH -> ans = SILENCE; goto publish
	:: ans == IS_DONE -> goto acknowledge
	:: ans == BUSY && faulty -> goto gone                            /* a delayed nak */
	:: ans == BUSY -> ans = SILENCE; !lease && !locked; goto ask
	fi;
	goto start;

first:
	at = crashes;
	d_step { make_first(me, fence, ans); at = crashes };
	if
	:: ans == BUSY -> goto gone
	:: ans == OPEN -> ans = SILENCE; goto ask                       /* there is a record: claimed as always */
	:: ans == OK -> ans = SILENCE; fence = 0; goto ask              /* the answer is lost, and the session still there */
	:: ans == OK -> ans = SILENCE
	fi;
	d_step { g_calls = g_calls + PARK; assert(g_calls <= 1) };      /* the handler is called */
	if                                                              /* how it returns: everything else rolls back */
	:: skip
	:: settle = FINISH_FAILED; goto undone
	:: settle = RELEASE; goto undone
	:: settle = RELEASE_UNCOUNTED; goto undone                      /* the database has refused it because of others */
	:: goto gone
	fi;
	if
	:: at == crashes -> d_step { commit_first(me, fence, ans); sound() }
	:: at == crashes -> d_step { commit_first(me, fence, ans); ans = SILENCE; sound() } /* the answer is lost … */
	:: at == crashes && LATE && nfull(net) -> net!COMMIT_FIRST,me,fence,0 /* … or the statements are late … */
	:: skip                                                         /* … or lost */
	fi;
	if
	:: ans == OK -> ans = SILENCE; held = SUCCEEDED; goto committed
	:: else -> fence = 0; goto ask                                  /* a claim finds out: it is busy until the session has ended */
	fi;
undone:
	fence = 0;
	d_step { if :: locked == me && at == crashes -> locked = 0 :: else fi }; /* rolled back */
	if
	:: mutant(FIRST_FAILS_WITHOUT_CLAIM) && settle == FINISH_FAILED -> d_step {
		g_fence++; db.fence = g_fence; fence = g_fence;
		db.outcome = FAILED; db.owner = me; db.settled = db.settled | bit_of(me); db.st = PUBLISHING; lease = 1; flush(); sound() };
		held = FAILED; goto publish
	:: else -> goto ask
	fi;

start:

	if                                                              /* at most once: a heartbeat marks the run as started */
	:: PARK && !mutant(PARK_WITHOUT_BEAT) -> send(EXTEND);
		if :: ans == CLAIM_LOST -> goto gone :: else -> ans = SILENCE fi
	:: else
	fi;
begin:
	if                                                              /* it cannot begin, or the worker shuts down: given back */
	:: faulty && !again -> settle = RELEASE_UNCOUNTED; goto failed
	:: skip
	fi;
	if                                                              /* the second transaction looks whether there is still a run */
	:: again && !mutant(UNKNOWN_IS_REPEATED) && !mutant(REPEATED_SETTLE_COMMITS) -> d_step {
		if :: held_by(me) && db.fence == fence :: else -> ans = CLAIM_LOST fi };
		if :: ans == CLAIM_LOST -> goto lost :: else fi
	:: else
	fi;
	d_step { at = crashes; g_calls = g_calls + PARK;                /* the handler is called */
		assert(g_calls <= 1);                          /* at most once, whatever it does elsewhere */
		assert(mutant(REPEATED_SETTLE_COMMITS) || !in(g_committed, me)); /* not after its transaction has committed */
		if :: mutant(ROW_BESIDE) -> db.rows++; flush() :: else fi };
	if                                                              /* a heartbeat beside it */
	:: faulty -> d_step { extend(me, fence, ans) }; if :: ans == CLAIM_LOST -> goto lost :: else -> ans = SILENCE fi
	:: skip
	fi;
	if :: mutant(ACK_BEFORE_COMMIT) -> held = SUCCEEDED; goto acknowledge :: else fi;
	if                                                              /* how it returns: everything else rolls back */
	:: skip
	:: settle = FINISH_FAILED; goto failed                          /* a permanent error */
	:: goto erred                                                   /* a retryable one, or the connection is lost */
	:: faulty -> goto gone
	fi;

	/* The settlement and the commit, sent together. A transaction from before a crash is gone, and its connection. */
	if
	:: mutant(SETTLE_BEFORE_COMMIT) -> send(FINISH_SUCCEEDED);
		if :: ans == OK && at == crashes -> d_step { write(); flush() } :: else -> goto gone fi
	:: mutant(SETTLE_AFTER_COMMIT) && at == crashes -> d_step { write(); flush() }; send(FINISH_SUCCEEDED)
	:: at == crashes -> d_step { commit(me, fence, TX, ans); sound() }
	:: at == crashes && faulty -> d_step { commit(me, fence, TX, ans); ans = SILENCE; sound() } /* the answer is lost … */
	:: at == crashes && faulty && LATE && nfull(net) -> net!COMMIT,me,fence,TX   /* … or the statements are late … */
	:: faulty                                                       /* … or lost, too, and the session has ended */
	:: at == crashes && faulty -> goto erred                        /* refused, as by a deferred constraint */
	:: at == crashes && faulty -> goto conflict                     /* refused because of others */
	:: at != crashes -> goto erred                                  /* known to be lost: nothing was sent */
	fi;
	if
	:: ans == OK -> ans = SILENCE; held = SUCCEEDED; if :: again -> witness(SAW_REPEATED) :: else fi; goto committed
	:: ans == CLAIM_LOST -> goto lost
	:: ans == SILENCE && mutant(UNKNOWN_IS_ACKED) -> held = SUCCEEDED; goto acknowledge
	:: ans == SILENCE && (mutant(UNKNOWN_IS_FAILED) || mutant(OTHER_KIND_IS_REPEATED)) -> ans = OPEN
	:: ans == SILENCE && !again && (mutant(UNKNOWN_IS_REPEATED) || mutant(REPEATED_SETTLE_COMMITS)) -> again = 1; goto begin
	:: else -> send(DECIDE)                                         /* giving up here: undecided, nobody is told anything */
	fi;
	if
	:: ans == OK -> ans = SILENCE; held = SUCCEEDED; goto committed
	:: ans == CLAIM_LOST -> g_denied = g_denied | bit_of(me); goto lost
	:: ans == OPEN -> assert(mutant(OTHER_KIND_IS_REPEATED) || !in(g_committed, me)); g_denied = g_denied | bit_of(me); goto erred
	fi;

conflict:
	if
	:: !again && (!PARK || mutant(PARK_REPEATS)) -> again = 1; goto begin
	:: else -> settle = (PARK -> FINISH_UNKNOWN : RELEASE_UNCOUNTED); goto failed
	fi;
lost:
	if :: mutant(ACK_ON_LOST) -> held = SUCCEEDED; goto acknowledge :: else -> goto gone fi;
erred:
	settle = ((PARK && !mutant(PARK_RELEASES)) -> FINISH_UNKNOWN : (last -> FINISH_FAILED : RELEASE));
failed:                                                                 /* it is settled by a statement of its own */
	if
	:: mutant(FAILURE_IN_TX) && settle != RELEASE -> held = FAILED; goto publish
	:: mutant(DEAD_LETTER_FIRST) && settle == FINISH_FAILED -> tell(FAILED)
	:: mutant(RELEASE_IN_TX) && settle == RELEASE -> d_step { write(); flush() }
	:: else
	fi;
	ans = SILENCE; send(settle);
	if
	:: ans == CLAIM_LOST || settle == RELEASE || settle == RELEASE_UNCOUNTED -> goto gone
	:: else -> held = (settle == FINISH_FAILED -> FAILED : UNKNOWN); ans = SILENCE; goto publish
	fi;

committed:
	if :: OUTPUTS -> skip :: else -> goto acknowledge fi;
publish:                                                                /* outputs, or the dead letter */
	if
	:: faulty -> goto gone
	:: d_step { tell(held) }
	fi;
	if
	:: send(PUBLISHED)
	:: faulty                                                       /* cannot be stored: acked all the same */
	fi;
acknowledge:
	atomic { ans = SILENCE; tell(held); acked = 1 };
gone:
	atomic { live--; ans = SILENCE; settle = CLAIM; held = NONE; fence = 0; last = 0; at = 0; again = 0;
		g_committed = g_committed & ~bit_of(me);
		if :: empty(net) -> g_denied = g_denied & ~bit_of(me) :: nempty(net) fi }
}

/* ---------------------------------------------------------------- the world: what may happen at any time */

active proctype world() {
	mtype:request req; byte w, f, tx; mtype:answer ans;
end:	do
	:: d_step { lease && (!calm || db.owner <= N) -> lease = 0 }
	:: d_step { net?req,w,f,tx ->
		if :: req == COMMIT && db.st == RUNNING && holds(w, f) && db.barred != tx -> witness(SAW_COMMIT_AFTER_GIVING_UP) :: else fi;
		apply(req, w, f, tx, ans); req = CLAIM; w = 0; f = 0; tx = 0; ans = SILENCE }
	:: d_step { net?req,w,f,tx -> req = CLAIM; w = 0; f = 0; tx = 0 }
	:: d_step { locked && !mutant(FIRST_IS_NEVER_CUT_OFF) -> locked = 0 } /* its holder stands still, or is gone */
	:: d_step { crash_follows && (db.st != ABSENT || locked) ->    /* the database crashes, and with it all transactions */
		crashes++;
		if :: db.fence != disk.fence || db.st != disk.st -> g_forgotten = g_forgotten | (WITNESS -> bit_of(db.owner) : 0); witness(SAW_CLAIM_FORGOTTEN)
		:: else -> if :: db.st == PUBLISHING && db.outcome != SUCCEEDED && !in(db.settled, db.owner) -> witness(SAW_END_KEPT) :: else fi
		fi;
		copy(db, disk); lease = (db.st == RUNNING || db.st == PUBLISHING); locked = 0;
		if
		:: net?[COMMIT,w,f,tx] -> net?COMMIT,w,f,tx; w = 0; f = 0; tx = 0
		:: net?[COMMIT_FIRST,w,f,tx] -> net?COMMIT_FIRST,w,f,tx; w = 0; f = 0; tx = 0
		:: else
		fi;
		sound() }
	:: d_step { db.fence != disk.fence || db.owner != disk.owner || db.barred != disk.barred -> flush() } /* by itself, too */
	od
}

init {
	byte n;
	atomic { live = N; n = 1; do :: n <= N -> run delivery(n, 1); n++ :: else -> break od };
	d_step { live == 0 -> calm = 1; flush() };
	do                                                              /* faults have stopped: it must end, and soon */
	:: acked -> break
	:: !acked -> assert(n <= N + MAX_ATTEMPTS + 1); live = 1; run delivery(n, 0); n++; live == 0
	od;
	live = 1; run delivery(n, 0); live == 0;                        /* a duplicate is told the same, and nothing runs */
	assert(db.st == DONE)
}
