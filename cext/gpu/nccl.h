/* nccl.h: NCCL's all-reduce and all-gather for a group of GPUs in one process. The library is opened at run time, so building
 * and loading a backend need neither its header nor the library.
 *
 * A group has one communicator a member. Each is made and used by the one thread that launches its member's steps, with the
 * member's context current; all members make the same calls with the same counts in the same order. Communicators do not block: a
 * call that NCCL goes on with in the background is waited for until the group's timeout. After a fault or a timeout every
 * communicator is aborted, which ends kernels that wait on a GPU, and every later call fails with HAL_E_LOST.
 *
 * Sums are the same bits on all members but not in the order of members, so a deterministic device does not use them. Nothing
 * here may be called while a stream is captured.
 */
#ifndef SATCHEL_GPU_NCCL_H
#define SATCHEL_GPU_NCCL_H

#include <stddef.h>
#include <stdint.h>

typedef struct nccl_group nccl_group;

enum { NCCL_F32 = 7, NCCL_BF16 = 9, NCCL_BYTES = 1 }; /* types of elements, by NCCL's numbers */

/* Opens the library and prepares a group. path: of hal_group_options; NULL or "": none was found. The variable SATCHEL_NCCL
 * goes before it, and the loader's libnccl.so.2 after it. HAL_E_UNSUPPORTED: there is none, or it is older than 2.14. The caller
 * ends the group with nccl_part(). */
int nccl_prepare(uint32_t members, uint32_t timeout_ms, const char *path, nccl_group **);
/* Makes a member's communicator, on the thread of that member. Gives 0 when all members have joined, HAL_E_LOST when one does not
 * come in time or fails. Once for each member. */
int nccl_join(nccl_group *, uint32_t rank);
/* "NCCL 2.27.5" */
const char *nccl_name(const nccl_group *);

/* out[i] = the sum of all members' in[i], on the member's stream (a gpu_stream); in and out are device addresses and may be the
 * same. `count` elements of a type. */
int nccl_all_reduce(nccl_group *, uint32_t rank, uint64_t in, uint64_t out, size_t count, int type, void *stream);
/* out = in of all members, in their order, `count` elements each. */
int nccl_all_gather(nccl_group *, uint32_t rank, uint64_t in, uint64_t out, size_t count, int type, void *stream);

/* Whether NCCL met a fault behind a launched call: 0, or HAL_E_LOST with its text in hal_last_error(); then all communicators
 * are aborted. For the poll of wait(). Any thread. */
int nccl_fault(nccl_group *);
/* Aborts all communicators, because of a member: kernels of the group that wait for others end. Any thread, any number of times. */
void nccl_abort(nccl_group *, const char *why);
/* Ends a member's communicator, on its thread; all members leave at once, and their streams are empty. */
void nccl_leave(nccl_group *, uint32_t rank);
/* Ends the communicators that are left, and the group. No other call is under way, and the streams are empty or the group is aborted. NULL: nothing. */
void nccl_part(nccl_group *);

#endif
