/* The arithmetic of leases, for spin: one rank, the store, and two clocks.
 *
 * The store counts LEASE + SKEW ticks of its clock from when it answered; the rank counts LEASE
 * ticks of its own from when it asked. Within a lease the rank's clock may miss SKEW ticks. Two
 * requests can be under way; answers come late, doubled, out of order, or never.
 *
 * Claim, which commit.pml builds on: when the store's count has ended, no lease is good and none
 * that is under way will be.
 *
 * WSTORE_WITHOUT_RULE=1: the lease counts from receipt; =2: the store adds no skew. Both fail. */

#define LEASE 3
#define SKEW 1
#define REQUESTS 2

c_decl {
  \#include <stdlib.h>
  static int without_rule;
  __attribute__((constructor)) static void wstore_options(void) {
    const char* value = getenv("WSTORE_WITHOUT_RULE");
    if (value != NULL) without_rule = atoi(value);
  }
}
#define RULE(n) (c_expr { without_rule != n })

byte lease;        /* ticks left on the rank's clock; 0: it serves nothing */
byte lease_slack;  /* ticks that its clock may still miss in it */
byte until;        /* ticks left on the store's clock */
byte left[REQUESTS];   /* what a lease that answers this request would have left; 0: no request */
byte slack[REQUESTS];
bit arrived[REQUESTS];   /* the store may read it, again and again */
bit answered[REQUESTS];  /* the rank may read the answer, likewise */
byte i;

#define CLOCK_MAY_MISS \
  ((lease == 0 || lease_slack > 0) && (left[0] == 0 || slack[0] > 0) \
   && (left[1] == 0 || slack[1] > 0))

inline missed() {
  if :: lease_slack > 0 -> lease_slack-- :: else fi;
  if :: slack[0] > 0 -> slack[0]-- :: else fi;
  if :: slack[1] > 0 -> slack[1]-- :: else fi
}
inline counted() {
  if :: lease > 0 -> lease-- :: else fi;
  if :: left[0] > 0 -> left[0]-- :: else fi;
  if :: left[1] > 0 -> left[1]-- :: else fi
}

#define OPTIONS(r) \
  :: atomic { left[r] < LEASE -> left[r] = LEASE; slack[r] = SKEW; arrived[r] = 1; answered[r] = 0 } \
  :: atomic { arrived[r] -> answered[r] = 1; \
              until = LEASE + (RULE(2) -> SKEW : 0) } \
  :: atomic { answered[r] && RULE(1) && left[r] > lease -> \
              lease = left[r]; lease_slack = slack[r] } \
  :: atomic { answered[r] && !RULE(1) -> lease = LEASE; lease_slack = SKEW }

active proctype party() {
  do
  OPTIONS(0)
  OPTIONS(1)
  :: atomic { lease > 0 || left[0] > 0 || left[1] > 0 || until > 0 ->
       if
       :: CLOCK_MAY_MISS -> missed()
       :: lease > 0 || left[0] > 0 || left[1] > 0 || until > 0 -> counted()
       fi;
       if :: until > 0 -> until-- :: else fi;
       assert(until > 0 || lease == 0)
     }
  od
}
