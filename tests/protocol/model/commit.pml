/* The commit protocol of docs/protocol.md, for spin: one coordinator, two ranks, exhaustively.
 *
 * It is one process, whose every step is atomic: the interleaving of parties, network and clock is
 * the choice among its options. Messages to ranks are never taken away once sent: each may arrive
 * now, later, again, or never. Reports to the store are a mailbox that is read as often as the
 * store likes, and overwritten: they come late, doubled, or not at all. A lease ends when it likes;
 * the store knows that it has ended some time after (lease.pml shows that its count is right). A
 * replica is two units, exchanged one after the other.
 *
 * Options are read from the environment, so that one program serves for all checks:
 *   WSTORE_VARIANT       all | one (both ranks are one instance) | each (one, policy each) | async
 *   WSTORE_WITHOUT_RULE  1 to 10: the protocol without this rule, which must fail; 11: rule 6 for
 *                        grants only; 12: rule 8 without its last part
 *   WSTORE_CRASHES       how often ranks may die; WSTORE_RESTARTS: the store (default 1 each)
 *   WSTORE_TRANSACTIONS  how many are begun (default 2)
 *   WSTORE_RESTART_UNTIL the store dies only while no more than so many were begun
 *   WSTORE_CALM          1: from every state, faults stop, and all must come to serve head
 * tests/protocol/model/check builds and runs it. */

#define MAXTX 2  /* numbers 1 and 2; number 0 is the base */

c_decl {
  \#include <stdlib.h>
  \#include <string.h>
  static int without_rule, one_instance, each_policy, async_commits;
  static int max_crashes = 1, max_restarts = 1, max_transactions = 2, restart_until = 9, calm;
  __attribute__((constructor)) static void wstore_options(void) {
    const char* variant = getenv("WSTORE_VARIANT");
    const char* value;
    if (variant == NULL) variant = "all";
    one_instance = !strcmp(variant, "one") || !strcmp(variant, "each");
    each_policy = !strcmp(variant, "each");
    async_commits = !strcmp(variant, "async");
    if ((value = getenv("WSTORE_WITHOUT_RULE")) != NULL) without_rule = atoi(value);
    if ((value = getenv("WSTORE_CRASHES")) != NULL) max_crashes = atoi(value);
    if ((value = getenv("WSTORE_RESTARTS")) != NULL) max_restarts = atoi(value);
    if ((value = getenv("WSTORE_RESTART_UNTIL")) != NULL) restart_until = atoi(value);
    if ((value = getenv("WSTORE_CALM")) != NULL) calm = atoi(value);
    if ((value = getenv("WSTORE_TRANSACTIONS")) != NULL) max_transactions = atoi(value);
  }
}
#define RULE(n) (c_expr { without_rule != n })
#define ONE (c_expr { one_instance })
#define EACH (c_expr { each_policy })
#define ASYNC (c_expr { async_commits })
#define MORE_CRASHES (c_expr { now.crashes < max_crashes })
#define MORE_RESTARTS (c_expr { now.restarts < max_restarts && now.begun <= restart_until })
#define MORE_TRANSACTIONS (c_expr { now.begun < max_transactions })

/* What a rank does with its weights. */
#define OUT 0
#define RESUMING 1
#define SERVING 2
#define PAUSED 3
/* How far it is with an update: the numbers say how many units are exchanged. */
#define NONE 0
#define STAGED 1
#define APPLYING0 2
#define APPLYING1 3
#define APPLIED 4
#define UNDOING1 5  /* one unit is taken back */
#define FAILING1 6  /* the second write failed: the first is taken back */
/* What the store does. */
#define DOWN 0
#define RECOVERING 1
#define IDLE 2
#define STAGING 3
#define WINDOW 4     /* the apply order is out */
#define RECORDING 5  /* the record's write has begun */
#define WRITTEN 6    /* it is on disk, and nobody knows */

typedef Rank {
  byte unit0;  /* content of memory */
  byte unit1;
  byte pos;    /* the last decided move */
  byte from;   /* async: where it was before, while pos is not durable */
  bit undurable;
  byte standing;
  byte stage;
  byte tx;      /* the update's number */
  byte patch;   /* old XOR new */
  bit decided;  /* a catch-up, or under `each`: commits when applied */
  bit taking_back;
  bit lease;        /* it has one that has not ended */
  bit old;          /* ... from a run of the store that is over */
  bit renewed;      /* a renewal of it by this run is under way */
  byte epoch;
  /* The mailbox: its latest report, as the store has it. */
  byte m_standing;
  byte m_stage;
  byte m_tx;
  byte m_pos;
  bit m_current;  /* no later request for a grant was made since */
  /* The store's side. */
  bit until;      /* a lease that it gave can be good */
  bit granted;    /* it has granted the request in the mailbox */
  /* The grant under way. */
  bit g_sent;
  bit g_live;      /* its lease has not ended */
  bit g_mine;      /* it answers the rank's latest request */
  byte g_pos;
  byte g_epoch;
};
Rank rank[2];

byte phase = DOWN;
byte epoch;
byte tx;        /* the active one, or the latest number used */
byte begun;     /* transactions begun */
byte head;      /* the latest move in the log */
byte part[2];    /* was given the apply order */
byte appended;   /* async: the head's record is not synced */
byte crashes, restarts;

/* By transaction number. */
byte log[3];         /* its record is in the journal */
byte told[3];        /* ... and the store said so to somebody */
byte lost[3];        /* async: it was there */
byte parent[3];
byte content[3];    /* of the version that it leads to */
byte prepared[3];   /* the epoch in which it was sent; 0: never */
byte ordered[3];
byte aborted[3];
byte back_sent[3];   /* async: "this move was lost, go back" */
byte next_content = 1;

#define INWINDOW (!EACH && (phase == WINDOW || phase == RECORDING || phase == WRITTEN))
#define SERVES(r) (rank[r].standing == SERVING && rank[r].lease)
#define MATE(r) (1 - r)
#define HOLDS(r, c) (rank[r].unit0 == (c) && rank[r].unit1 == (c))

inline do_check_rank(r) {
  if
  :: SERVES(r) ->
    /* What it serves is whole, is what it says, and is decided. */
    assert(HOLDS(r, content[rank[r].pos]));
    assert(log[rank[r].pos] || (lost[rank[r].pos] && rank[r].undurable));
    assert(rank[r].stage != APPLYING1 && rank[r].stage != APPLIED);
    /* Once a version is in the log, nothing else is served, unless under `each`. */
    assert(EACH || rank[r].pos == head || (lost[rank[r].pos] && rank[r].pos > head));
  :: else
  fi
}
inline do_check() {
  do_check_rank(0);
  do_check_rank(1);
  if
  :: SERVES(0) && SERVES(1) && (!EACH || ONE) -> assert(rank[0].pos == rank[1].pos)
  :: else
  fi
}

/* ---- ranks ---- */

/* From here on it asks anew: what was granted before does not count. */
inline do_ask_anew(r) {
  rank[r].m_current = 0;
  if
  :: RULE(11) -> rank[r].renewed = 0
  :: else
  fi;
  rank[r].g_mine = 0;
  if
  :: RULE(6) -> rank[r].g_sent = 0; rank[r].g_live = 0; rank[r].g_pos = 0; rank[r].g_epoch = 0
  :: else
  fi
}

inline do_go_out(r) {
  rank[r].standing = OUT;
  rank[r].lease = 0;
  rank[r].old = 0;
  do_ask_anew(r);
}

/* It may go on: at once, or when its mate stands at the same place. */
inline do_resume(r) {
  rank[r].standing = SERVING;
  if
  :: ONE -> rank[r].standing = RESUMING
  :: else
  fi
}

#define CAN_SERVE(r) (rank[r].standing == RESUMING && rank[r].lease \
  && (rank[r].stage == NONE || rank[r].stage == STAGED) \
  && (!ONE || !RULE(10) || ((rank[MATE(r)].standing == RESUMING \
                             || rank[MATE(r)].standing == SERVING) \
                            && rank[MATE(r)].pos == rank[r].pos \
                            && rank[MATE(r)].epoch == rank[r].epoch)))

#define SAID_STAGE(r) (rank[r].stage == NONE || rank[r].stage == STAGED \
  || rank[r].stage == APPLIED -> rank[r].stage : APPLYING0)
#define CAN_REPORT(r) (rank[r].m_standing != rank[r].standing \
  || rank[r].m_stage != SAID_STAGE(r) || rank[r].m_tx != rank[r].tx \
  || rank[r].m_pos != rank[r].pos || !rank[r].m_current)
inline do_report(r) {
  rank[r].m_standing = rank[r].standing;
  rank[r].m_stage = SAID_STAGE(r);
  rank[r].m_tx = rank[r].tx;
  rank[r].m_pos = rank[r].pos;
  if
  :: !rank[r].m_current -> rank[r].granted = 0
  :: else
  fi
  rank[r].m_current = 1;
}

/* Rule 3: its own last decided move is the parent move. Without: the version is enough. */
#define MATCHES(r, t) ((RULE(3) && rank[r].pos == parent[t]) \
                       || (!RULE(3) && content[rank[r].pos] == content[parent[t]]))
/* Rule 5: ranks that are out neither stage nor apply. */
#define MAY_TAKE_PART(r) (rank[r].standing != OUT || !RULE(5))
/* Of the epoch that it has heard of last. */
#define NOT_OLD(r, e) (e != 0 && e == rank[r].epoch)

#define CAN_STAGE(r, t) (NOT_OLD(r, prepared[t]) && rank[r].stage == NONE && !rank[r].taking_back \
  && !rank[r].undurable && MATCHES(r, t) && rank[r].pos != t && MAY_TAKE_PART(r))
inline do_stage(r, t) {
  rank[r].stage = STAGED;
  rank[r].tx = t;
  rank[r].patch = content[t] ^ content[parent[t]];
  rank[r].decided = 0;
}

#define CAN_APPLY(r, t) (NOT_OLD(r, ordered[t]) && rank[r].stage == STAGED && rank[r].tx == t \
  && !rank[r].decided && MATCHES(r, t) && MAY_TAKE_PART(r))
inline do_apply(r, t) {
  rank[r].stage = APPLYING0;
  if
  :: rank[r].standing != OUT -> rank[r].standing = PAUSED
  :: else
  fi
}

/* A catch-up to a logged move; under `each`, of a rank that serves, too. */
#define CAN_FOLLOW(r, t) (log[t] && told[t] && t > rank[r].pos && !rank[r].undurable \
  && !rank[r].taking_back && (t != head || !appended) \
  && (rank[r].standing == OUT || EACH) \
  && (rank[r].stage == NONE || (rank[r].stage == STAGED && rank[r].tx == t)))
inline do_follow(r, t) {
  rank[r].patch = content[t] ^ content[rank[r].pos];
  rank[r].tx = t;
  rank[r].decided = 1;
  rank[r].stage = APPLYING0;
  if
  :: rank[r].standing != OUT -> rank[r].standing = PAUSED
  :: else
  fi
}

/* Rule 4: a decision only lets a rank go on that was serving when it paused and whose lease has not
 * ended since. */
inline do_go_on(r) {
  if
  :: rank[r].standing == PAUSED -> do_resume(r)
  :: rank[r].standing == OUT && !RULE(4) ->
    rank[r].lease = 1;
    do_resume(r)
  :: else
  fi
}

inline do_commit_update(r, not_durable) {
  if
  :: not_durable -> rank[r].from = rank[r].pos; rank[r].undurable = 1
  :: else
  fi
  rank[r].pos = rank[r].tx;
  rank[r].stage = NONE;
  rank[r].tx = 0;
  rank[r].patch = 0;
  rank[r].decided = 0;
  do_ask_anew(r);
  do_go_on(r);
}

#define CAN_WRITE(r) (rank[r].stage == APPLYING0 || rank[r].stage == APPLYING1)
inline do_write(r) {
  if
  :: rank[r].stage == APPLYING0 ->
    rank[r].unit0 = rank[r].unit0 ^ rank[r].patch;
    rank[r].stage = APPLYING1
  :: else ->
    rank[r].unit1 = rank[r].unit1 ^ rank[r].patch;
    rank[r].stage = APPLIED;
    if
    :: rank[r].decided -> do_commit_update(r, 0)
    :: else
    fi
  fi
}

/* The second unit's write fails: the first is taken back, and the rank goes on as before. */
#define CAN_FAIL(r) (rank[r].stage == APPLYING1 && !rank[r].decided)
inline do_fail(r) {
  rank[r].unit0 = rank[r].unit0 ^ rank[r].patch;
  rank[r].stage = NONE;
  rank[r].tx = 0;
  rank[r].patch = 0;
  if
  :: rank[r].standing == PAUSED -> do_resume(r)
  :: else
  fi
}

/* The mark "not durable" travels with the decision; an old epoch is obeyed only without it. */
#define UNDURABLE(t) ((t == head && appended) || lost[t])
#define CAN_COMMIT(r, t) (told[t] && rank[r].stage == APPLIED && rank[r].tx == t \
  && (!lost[t] || phase == DOWN || rank[r].epoch < epoch))
#define CAN_KNOW_DURABLE(r, t) (log[t] && told[t] && rank[r].pos == t && rank[r].undurable \
  && !(t == head && appended) && !rank[r].taking_back)

#define CAN_ABORT(r, t) (NOT_OLD(r, aborted[t]) && rank[r].tx == t && !rank[r].decided \
  && (rank[r].stage == STAGED || rank[r].stage == APPLIED))
inline do_abort_update(r) {
  if
  :: rank[r].stage == STAGED -> rank[r].stage = NONE; rank[r].tx = 0; rank[r].patch = 0
  :: else ->
    rank[r].unit0 = rank[r].unit0 ^ rank[r].patch;
    rank[r].stage = UNDOING1
  fi
}

#define CAN_UNDO(r) (rank[r].stage == UNDOING1)
inline do_undo(r) {
  rank[r].unit1 = rank[r].unit1 ^ rank[r].patch;
  rank[r].stage = NONE;
  rank[r].tx = 0;
  rank[r].patch = 0;
  do_go_on(r);
}

#define CAN_TAKE_BACK(r, t) (back_sent[t] && rank[r].pos == t && rank[r].undurable)
inline do_take_back(r) {
  if
  :: !rank[r].taking_back ->
    if
    :: rank[r].standing != OUT -> do_go_out(r)
    :: else
    fi
    rank[r].stage = NONE;
    rank[r].tx = 0;
    rank[r].patch = content[rank[r].pos] ^ content[rank[r].from];
    rank[r].unit0 = rank[r].unit0 ^ rank[r].patch;
    rank[r].taking_back = 1
  :: else ->
    rank[r].unit1 = rank[r].unit1 ^ rank[r].patch;
    rank[r].pos = rank[r].from;
    rank[r].from = 0;
    rank[r].patch = 0;
    rank[r].undurable = 0;
    rank[r].taking_back = 0;
    do_ask_anew(r)
  fi
}

/* Rule 6: a grant answers one request of one incarnation, and names the move. */
#define GRANT_IS_MINE(r) (!RULE(6) || (rank[r].g_mine \
  && rank[r].g_pos == rank[r].pos && rank[r].g_live))
#define NOT_IN_DOUBT(r) (rank[r].stage == NONE || rank[r].stage == STAGED || !RULE(5))
#define CAN_START(r) (rank[r].g_sent && rank[r].g_epoch == rank[r].epoch \
  && rank[r].standing == OUT && !rank[r].taking_back && GRANT_IS_MINE(r) && NOT_IN_DOUBT(r))
inline do_start(r) {
  rank[r].lease = 1;
  rank[r].old = (rank[r].g_epoch < epoch || phase == DOWN);
  rank[r].standing = SERVING;
  if
  :: ONE -> rank[r].standing = RESUMING
  :: else
  fi
}

#define CAN_HEAR(r) (phase != DOWN && rank[r].epoch < epoch)
inline do_hear(r) {
  rank[r].epoch = epoch;
  do_ask_anew(r);
}

/* A renewal answers for the place where the rank stood when it asked. */
#define CAN_RENEW(r) (rank[r].renewed && rank[r].lease && (rank[r].epoch == epoch || !RULE(11)))
inline do_renew(r) {
  rank[r].renewed = 0;
  rank[r].old = 0;
}

inline do_crash_rank(r) {
  rank[r].unit0 = 0;
  rank[r].unit1 = 0;
  rank[r].pos = 0;
  rank[r].from = 0;
  rank[r].undurable = 0;
  rank[r].standing = OUT;
  rank[r].stage = NONE;
  rank[r].tx = 0;
  rank[r].patch = 0;
  rank[r].patch = 0;
  rank[r].decided = 0;
  rank[r].taking_back = 0;
  rank[r].lease = 0;
  rank[r].old = 0;
  do_ask_anew(r);
  rank[r].epoch = 0;
}

/* ---- the store ---- */

#define IN_PHASE_TO_TALK (phase != DOWN)

/* An instance has voted, or reported, or cannot be serving: of one rank, or of both. */
#define VOTED1(r) (rank[r].m_stage == STAGED && rank[r].m_tx == tx)
#define VOTED(r) (VOTED1(r) && (!ONE || VOTED1(MATE(r))))
#define REPORTED1(r) (part[r] && rank[r].m_stage == APPLIED && rank[r].m_tx == tx)
#define REPORTED(r) (REPORTED1(r) && (!ONE || REPORTED1(MATE(r))))
/* Rule 1: a laggard is fenced when the leases of all its ranks have ended. */
#define NO_LEASE(r) (!rank[r].until && (!ONE || !rank[MATE(r)].until))
#define SETTLED(r) (REPORTED(r) || NO_LEASE(r) || !RULE(1))

#define CAN_BEGIN (phase == IDLE && MORE_TRANSACTIONS && tx < MAXTX && !appended)
inline do_begin(to_base) {
  tx++;
  begun++;
  assert(prepared[tx] == 0 && !log[tx] && !lost[tx]);  /* a number is used once */
  parent[tx] = head;
  if
  :: to_base -> content[tx] = 0
  :: else -> content[tx] = next_content; next_content++
  fi
  prepared[tx] = epoch;
  part[0] = 0;
  part[1] = 0;
  phase = STAGING;
}

/* All that can be serving have voted; or the vote deadline has come, and the others are laggards. */
#define CAN_ORDER (phase == STAGING && !EACH && (VOTED(0) || VOTED(1) || (NO_LEASE(0) && NO_LEASE(1))))
inline do_order() {
  part[0] = VOTED(0) && !NO_LEASE(0);
  part[1] = VOTED(1) && !NO_LEASE(1);
  ordered[tx] = epoch;
  phase = WINDOW;
}

#define CAN_RECORD ((phase == STAGING && EACH) || (phase == WINDOW \
  && SETTLED(0) && SETTLED(1) && (REPORTED(0) || REPORTED(1) || (!part[0] && !part[1]))))

inline do_decide_commit() {
  told[tx] = 1;
  phase = IDLE;
}

/* Rule 9: no abort once the record's write has begun. */
#define CAN_GIVE_UP (phase == STAGING || phase == WINDOW)

#define M_OUT(r) (rank[r].m_standing == OUT)
#define CAN_ANSWER(r) (IN_PHASE_TO_TALK && (!rank[r].until || (rank[r].old && !rank[r].renewed)) \
  && !M_OUT(r) \
  && ((rank[r].m_pos == head) || (EACH && log[rank[r].m_pos])) \
  && (!INWINDOW || REPORTED(r)))
/* A renewal changes nothing but how long the lease can go on. */
inline do_answer(r) {
  rank[r].renewed = rank[r].old && rank[r].m_current;
  rank[r].until = 1;
}

/* Rule 2: nobody starts between the apply order and the decision. Rule 8: nor after a start. */
#define IS_READY (phase == IDLE || phase == STAGING || INWINDOW || (EACH && phase > RECOVERING))
#define M_AT_HEAD(r) (rank[r].m_pos == head)
#define CAN_GRANT(r) (IS_READY && M_OUT(r) && M_AT_HEAD(r) && (!ONE || M_AT_HEAD(MATE(r))) \
  && (!INWINDOW || !RULE(2)) \
  && (rank[r].m_stage == NONE || rank[r].m_stage == STAGED || !RULE(5)) \
  && !(rank[r].granted && rank[r].until))
/* Where the rank has asked anew since, it will refuse. */
inline do_grant(r) {
  if
  :: rank[r].m_current || !RULE(6) ->
    rank[r].g_sent = 1;
    rank[r].g_live = 1;
    rank[r].g_mine = rank[r].m_current;
    rank[r].g_pos = rank[r].m_pos;
    rank[r].g_epoch = epoch
  :: else
  fi;
  rank[r].granted = 1;
  rank[r].until = 1;
}

#define CAN_SURRENDER(r) (IN_PHASE_TO_TALK && M_OUT(r) && rank[r].until \
  && !rank[r].granted)

inline do_crash_store() {
  phase = DOWN;
  rank[0].until = 0;
  rank[1].until = 0;
  rank[0].old = rank[0].lease;
  rank[1].old = rank[1].lease;
  rank[0].renewed = 0;
  rank[1].renewed = 0;
  rank[0].granted = 0;
  rank[1].granted = 0;
  part[0] = 0;
  part[1] = 0;
}

/* The tail that was not synced is lost. */
inline do_lose_tail() {
  log[head] = 0;
  lost[head] = 1;
  head = parent[head];
  appended = 0;
}

inline do_abort_old(t) {
  if
  :: t <= tx && !log[t] && !lost[t] && prepared[t] != 0 -> aborted[t] = epoch
  :: t <= tx && lost[t] -> aborted[t] = epoch; back_sent[t] = 1
  :: else
  fi
}
/* What the run before gave has ended. */
inline do_forget_lease(r) {
  if
  :: rank[r].g_epoch < epoch && RULE(8) -> rank[r].g_live = 0
  :: else
  fi
}
/* Leases that this run did not give have ended. */
#define HAS_RECOVERED (phase == RECOVERING && !rank[0].old && !rank[1].old)
inline do_recovered() {
  phase = IDLE;
  do_forget_lease(0);
  do_forget_lease(1);
  do_abort_old(1);
  do_abort_old(2);
}
/* Rule 7: a new epoch, and numbers that were never used. */
inline do_start_store() {
  appended = 0;
  if
  :: RULE(7) -> epoch++
  :: else ->
    if
    :: epoch == 0 -> epoch = 1
    :: else
    fi
    tx = head;  /* it goes on from the log, and forgets what it had begun */
    if
    :: tx < MAXTX -> prepared[tx + 1] = 0; lost[tx + 1] = 0
    :: else
    fi
  fi
  told[1] = told[1] || log[1];
  told[2] = told[2] || log[2];
  phase = RECOVERING;
  if
  :: !RULE(12) -> do_abort_old(1); do_abort_old(2)
  :: else
  fi;
  if
  :: !RULE(8) -> do_recovered()
  :: else
  fi
}

/* What was lost is taken back at once: it stops those that serve it. */
#define CAN_SEND_BACK(t) (phase == RECOVERING && lost[t] && !back_sent[t])

/* ---- time ---- */

/* The store has counted to the end: no lease is good, and none under way will be. */
inline do_lease_over(r) {
  rank[r].until = 0;
  rank[r].renewed = 0;
  rank[r].g_live = 0;
}

/* ---- faults stop: all must come to serve head ---- */

inline do_calm_rank(r) {
  if :: CAN_SURRENDER(r) -> rank[r].until = 0; rank[r].granted = 0 :: else fi;
  if :: CAN_HEAR(r) -> do_hear(r) :: else fi;
  if :: CAN_RENEW(r) -> do_renew(r) :: else fi;
  if :: CAN_TAKE_BACK(r, 1) -> do_take_back(r)
     :: CAN_TAKE_BACK(r, 2) -> do_take_back(r)
     :: else fi;
  if :: CAN_KNOW_DURABLE(r, rank[r].pos) -> rank[r].undurable = 0; rank[r].from = 0 :: else fi;
  if :: CAN_WRITE(r) -> do_write(r) :: else fi;
  if :: CAN_UNDO(r) -> do_undo(r) :: else fi;
  if :: rank[r].stage == APPLIED && CAN_COMMIT(r, rank[r].tx) ->
          do_commit_update(r, UNDURABLE(rank[r].tx))
     :: rank[r].tx != 0 && rank[r].tx != tx && rank[r].stage == STAGED && log[rank[r].tx] == 0 ->
          rank[r].stage = NONE; rank[r].tx = 0
     :: rank[r].tx != 0 && CAN_ABORT(r, rank[r].tx) -> do_abort_update(r)
     :: else fi;
  if :: CAN_FOLLOW(r, head) -> do_follow(r, head)
     :: rank[r].stage == STAGED && log[rank[r].tx] && rank[r].tx != head ->
          rank[r].stage = NONE; rank[r].tx = 0
     :: else fi;
  if :: CAN_START(r) -> do_start(r) :: else fi;
  if :: CAN_SERVE(r) -> rank[r].standing = SERVING :: else fi;
  do_report(r);
}
inline do_calm_store() {
  if
  :: phase == DOWN -> do_start_store()
  :: HAS_RECOVERED -> do_recovered()
  :: phase == RECORDING -> log[tx] = 1; head = tx; phase = WRITTEN
  :: phase == WRITTEN -> do_decide_commit()
  :: phase == STAGING || phase == WINDOW -> aborted[tx] = epoch; phase = IDLE
  :: phase == IDLE && appended -> appended = 0
  :: else
  fi;
  if :: CAN_SEND_BACK(1) -> back_sent[1] = 1 :: else fi;
  if :: CAN_SEND_BACK(2) -> back_sent[2] = 1 :: else fi;
  if :: CAN_ANSWER(0) -> do_answer(0) :: else fi;
  if :: CAN_ANSWER(1) -> do_answer(1) :: else fi;
  if :: CAN_GRANT(0) -> do_grant(0) :: else fi;
  if :: CAN_GRANT(1) -> do_grant(1) :: else fi;
}

#define ALL_SERVE_HEAD (SERVES(0) && SERVES(1) && rank[0].pos == head && rank[1].pos == head)

active proctype fleet() {
  byte r, t, round, c;
  d_step { log[0] = 1; told[0] = 1; do_start_store(); do_recovered() }
  do
  :: atomic {
       do_check();
       /* Which rank, and which transaction's messages. */
       if :: r = 0 :: r = 1 fi;
       if :: t = 1 :: t = 2 fi;
       if
       :: CAN_REPORT(r) -> do_report(r)
       :: CAN_HEAR(r) -> do_hear(r)
       :: CAN_HEAR(r) && rank[r].epoch == 0 && epoch == 2 -> rank[r].epoch = 1
       :: CAN_RENEW(r) -> do_renew(r)
       :: CAN_SERVE(r) -> rank[r].standing = SERVING
       :: CAN_WRITE(r) -> do_write(r)
       :: CAN_FAIL(r) -> do_fail(r)
       :: CAN_UNDO(r) -> do_undo(r)
       :: CAN_START(r) -> do_start(r)
       :: rank[r].lease && rank[r].standing != OUT -> do_go_out(r)
       :: MORE_CRASHES -> crashes++; do_crash_rank(r)
       :: rank[r].until && !rank[r].lease && IN_PHASE_TO_TALK -> do_lease_over(r)
       :: CAN_ANSWER(r) -> do_answer(r)
       :: CAN_GRANT(r) -> do_grant(r)
       :: CAN_SURRENDER(r) -> rank[r].until = 0; rank[r].granted = 0

       :: CAN_STAGE(r, t) -> do_stage(r, t)
       :: CAN_APPLY(r, t) -> do_apply(r, t)
       :: CAN_FOLLOW(r, t) -> do_follow(r, t)
       :: CAN_COMMIT(r, t) -> do_commit_update(r, UNDURABLE(t))
       :: CAN_KNOW_DURABLE(r, t) -> rank[r].undurable = 0; rank[r].from = 0
       :: CAN_ABORT(r, t) -> do_abort_update(r)
       :: CAN_TAKE_BACK(r, t) -> do_take_back(r)

       :: CAN_BEGIN -> do_begin(false)
       :: CAN_BEGIN && head != 0 && content[head] != 0 -> do_begin(true)
       :: CAN_ORDER -> do_order()
       :: CAN_RECORD -> phase = RECORDING
       :: phase == RECORDING -> log[tx] = 1; head = tx; appended = ASYNC; phase = WRITTEN
       :: phase == WRITTEN -> do_decide_commit()
       :: appended && phase == IDLE -> appended = 0
       :: CAN_GIVE_UP -> aborted[tx] = epoch; phase = IDLE
       /* It gives up, and the record is there all the same. */
       :: phase == RECORDING && !RULE(9) -> log[tx] = 1; head = tx; aborted[tx] = epoch; phase = IDLE
       :: phase != DOWN && MORE_RESTARTS -> restarts++; do_crash_store()
       :: phase == DOWN && appended -> do_lose_tail()
       :: phase == DOWN -> do_start_store()
       :: HAS_RECOVERED -> do_recovered()
       :: CAN_SEND_BACK(t) -> back_sent[t] = 1
       :: c_expr { calm } -> r = 0; t = 0; goto settle
       :: else
       fi;
       r = 0;
       t = 0
     }
  od;

  /* From every state the fleet comes to serve head, if messages arrive and nothing fails. */
settle:
  skip;
  d_step {
       round = 0;
       do
       :: ALL_SERVE_HEAD || round == 120 -> break
       :: else ->
         do_calm_store();
         do_calm_rank(c);
         do_check();
         c = 1 - c;
         round++
       od;
       assert(ALL_SERVE_HEAD);
       round = 0;
       c = 0;
       /* All good ends are one. */
       c_code {
         memset(&now.rank, 0, sizeof now.rank);
         memset(&now.log, 0, sizeof now.log);
         memset(&now.told, 0, sizeof now.told);
         memset(&now.lost, 0, sizeof now.lost);
         memset(&now.parent, 0, sizeof now.parent);
         memset(&now.content, 0, sizeof now.content);
         memset(&now.prepared, 0, sizeof now.prepared);
         memset(&now.ordered, 0, sizeof now.ordered);
         memset(&now.aborted, 0, sizeof now.aborted);
         memset(&now.back_sent, 0, sizeof now.back_sent);
         now.phase = now.epoch = now.tx = now.begun = now.head = 0;
         now.appended = now.crashes = now.restarts = now.next_content = 0;
         memset(&now.part, 0, sizeof now.part);
       }
  }
end:
  false
}
