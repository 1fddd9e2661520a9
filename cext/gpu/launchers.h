/* launchers.h: a thread for each member of a group but the first, which starts the member's run: the driver may block a thread
 * that starts work on one device until another's goes on.
 *
 * launch_all() gives each thread its turn, does the first itself, and returns when all have ended theirs. A thread waits for its next
 * turn by looking for it for a while, then it sleeps: an idle group takes no processor.
 */
#ifndef SATCHEL_GPU_LAUNCHERS_H
#define SATCHEL_GPU_LAUNCHERS_H

#include <stdint.h>

typedef struct launchers launchers;
typedef void (*launcher_turn)(void *of, uint32_t member);

launchers *launchers_new(uint32_t members, launcher_turn, void *of); /* NULL: no memory, or no thread */
void launchers_free(launchers *);                                    /* NULL is allowed */
void launch_all(launchers *);                                        /* by one caller at a time */

#endif
