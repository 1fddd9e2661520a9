/* meet.h: where the members of a group meet on the host: each brings an address, and goes on when all have come.
 *
 * Meetings are numbered from 1 on, the same for all members, who come to each once and in order. What a member brings to number n
 * must stay until it has come to n + 1: then all have read it. Every wait ends: when all have come, when the group is broken, or
 * after timeout_ms, which breaks it. A broken group stays broken. The caller of meet_new owns it and calls meet_free when no member
 * waits.
 */
#ifndef SATCHEL_MEET_H
#define SATCHEL_MEET_H

#include "backend.h"

typedef struct meet meet;

meet *meet_new(uint32_t members, uint32_t timeout_ms); /* NULL: no memory */
void meet_free(meet *);
/* Member `rank` comes to meeting `number`, called `what`, with `brought`. 0: brought of all members lie in all[]. HAL_E_LOST: the
 * group is broken, and meet_why() says why. */
int meet_come(meet *, uint32_t rank, uint64_t number, const char *what, const void *brought, const void **all);
/* Breaks the group because of a member, unless it is broken already. */
void meet_break(meet *, uint32_t rank, const char *why);
/* Whether the group is broken; copies the reason. */
int meet_why(meet *, char *why, size_t size);
void meet_info(meet *, hal_group_info *);

#endif
