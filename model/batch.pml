/*
 * The inbox of natskv: a run's outputs and its record are one conditional batch of a stream. claim.pml has the protocol around it.
 *
 * Read it in this order: the stream, the batch, the delivery (what a worker does), the world (what may go wrong). Names that begin
 * with g_ are ghosts: they exist for the assertions only. mutant(X) is false in the correct model.
 */

#ifndef N
#define N 2             /* deliveries that may meet faults, each an owner; one without follows */
#endif
#ifndef LATE
#define LATE 2          /* batches under way at once after their senders gave up */
#endif
#ifndef TRIES
#define TRIES 2         /* how often a run sends its batch */
#endif
#ifndef BEATS
#define BEATS 1         /* heartbeats in all */
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
#define NO_CONDITION                1  /* a batch is stored whatever the record's last revision is */
#define OUTPUTS_APART               2  /* the outputs are stored by themselves, without the condition */
#define RECORD_FIRST                3  /* the record is stored by itself, and then the outputs */
#define UNDER_ANOTHER_CONDITION     4  /* a batch without an answer is sent again under the last revision, and nobody decides anew */
#define UNKNOWN_IS_FAILED           5  /* a batch without an answer counts as not stored */
#define NO_ROLLUP                   6  /* an older revision stays below the record */

/* Witnesses: situations that the correct model must reach, or its assertions would be empty. */
#define SAW_TAKEOVER                1
#define SAW_ZOMBIE_REFUSED          2
#define SAW_LATE_STORED             3  /* a batch arrived after its sender gave up, and was stored */
#define SAW_LATE_REFUSED            4
#define SAW_FOUND_BY_READING        5  /* an answer was lost, and the record has told */
#define SAW_SENT_AGAIN              6  /* … and the second try was stored */
#define SAW_UNDECIDED               7
#define SAW_HEARTBEAT_IN_BETWEEN    8  /* a heartbeat changed the record while a batch was under way */

/* ---------------------------------------------------------------- the stream */

#define NOBODY 0
mtype = { ABSENT, RUNNING, DONE };

mtype st = ABSENT;
mtype below = ABSENT;   /* what the stream would show if the record went */
byte rev;               /* of the record */
byte owner;
bit live;               /* the lease of the owner */
byte outputs;           /* runs whose outputs are there */
byte by;                /* whose they are */
bit window = 1;         /* the dedup window is not over */

byte beats;

byte late_owner[LATE], late_cond[LATE];

bit g_told[N + 2];      /* by owner: its batch is not stored, it was told */
byte g_acks;

inline write(state) {
	if
	:: mutant(NO_ROLLUP) && st != ABSENT -> below = st
	:: else -> below = ABSENT
	fi;
	st = state; rev++
}

inline consistent() {
	assert(!window || outputs <= 1);
	assert(!window || (st == DONE) == (outputs == 1) || mutant(OUTPUTS_APART) || mutant(RECORD_FIRST));
	assert(!(outputs > 0 && g_told[by]))
}

/* ---------------------------------------------------------------- the batch */

/* arrive: a batch reaches the leader, which stores it as a whole or not at all */
inline arrive(who, cond, stored) {
	stored = (rev == cond);
	if
	:: mutant(NO_CONDITION) -> stored = 1
	:: else
	fi;
	if
	:: mutant(OUTPUTS_APART) -> outputs++; by = who; if :: stored -> write(DONE) :: else fi
	:: !mutant(OUTPUTS_APART) && stored -> write(DONE); outputs++; by = who
	:: else
	fi;
	consistent()
}

/* ---------------------------------------------------------------- the delivery */

inline look(me) {                                  /* reads the record, and decides */
	if
	:: st == DONE && by == me -> told = 1
	:: st == RUNNING && owner == me -> seen = rev
	:: else -> told = 2
	fi
}

inline deliver(me, faults) {
	told = 0; tries = 0; unknown = 0;
	atomic {
		if
		:: st == DONE -> g_acks++; assert(!window || outputs == 1); goto over
		:: st == RUNNING && live -> goto over      /* busy: it comes again */
		:: else ->
			if :: st == RUNNING -> witness(SAW_TAKEOVER) :: else fi;
			write(RUNNING); owner = me; live = 1; seen = rev
		fi
	};
	do
	:: atomic { told == 0 && tries < TRIES ->      /* sends the batch */
		tries++;
		if
		:: mutant(UNDER_ANOTHER_CONDITION) && tries > 1 -> seen = rev
		:: else
		fi;
		if
		:: arrive(me, seen, ok);
			if
			:: ok -> told = 1; if :: tries > 1 && unknown -> witness(SAW_SENT_AGAIN) :: else fi
			:: else -> if :: owner != me -> witness(SAW_ZOMBIE_REFUSED) :: else fi; look(me)
			fi
		:: faults -> arrive(me, seen, ok); unknown = 1            /* the answer is lost */
		:: faults && late_owner[0] == NOBODY -> late_owner[0] = me; late_cond[0] = seen; unknown = 1
		:: faults && late_owner[0] != NOBODY && late_owner[LATE - 1] == NOBODY ->
			late_owner[LATE - 1] = me; late_cond[LATE - 1] = seen; unknown = 1
		fi }
	:: atomic { told == 0 && unknown ->
		if
		:: mutant(UNKNOWN_IS_FAILED) -> told = 2
		:: mutant(UNDER_ANOTHER_CONDITION) -> skip
		:: !mutant(UNKNOWN_IS_FAILED) && !mutant(UNDER_ANOTHER_CONDITION) ->
			look(me); if :: told == 1 -> witness(SAW_FOUND_BY_READING) :: else fi
		fi }
	:: atomic { told == 0 && st == RUNNING && owner == me && beats < BEATS && faults ->   /* a heartbeat */
		beats++;
		if :: late_owner[0] == me -> witness(SAW_HEARTBEAT_IN_BETWEEN) :: else fi;
		write(RUNNING); live = 1; if :: !unknown -> seen = rev :: else fi }
	:: atomic { told == 0 && tries == TRIES && unknown -> witness(SAW_UNDECIDED); break }
	:: atomic { told == 1 -> g_acks++; assert(!window || (outputs == 1 && by == me)); break }
	:: atomic { told == 2 -> g_told[me] = 1; consistent(); break }
	:: faults -> break                              /* the worker is killed */
	od;
over:
	skip
}

byte ended;

proctype Delivery(byte me) {
	byte seen, told, tries;
	bit ok, unknown;
	deliver(me, 1);
	ended++
}

/* ---------------------------------------------------------------- the world */

active proctype World() {
	byte seen, told, tries, i;
	bit ok, unknown;
	atomic { for (i : 1 .. N) { run Delivery(i) } }
	do
	:: atomic { live && ended < N -> live = 0 }             /* a lease ends at any moment */
	:: atomic { late_owner[0] != NOBODY ->
		arrive(late_owner[0], late_cond[0], ok);
		if :: ok -> witness(SAW_LATE_STORED) :: else -> witness(SAW_LATE_REFUSED) fi;
		late_owner[0] = late_owner[LATE - 1]; late_cond[0] = late_cond[LATE - 1]; late_owner[LATE - 1] = NOBODY }
	:: atomic { mutant(RECORD_FIRST) && st == RUNNING -> write(DONE); goto last }   /* and dies before the outputs */
	:: atomic { ended == N && late_owner[0] == NOBODY -> break }
	od;
last:
	ended = N; live = 0;
	deliver(N + 1, 0);
	atomic {
		assert(g_acks > 0 && outputs == 1 && st == DONE);
		window = 0; st = below; below = ABSENT;         /* the record's time has come */
		assert(st == ABSENT)
	}
}
