/* group_call.h: gpu_group, what the kernel of a collective knows of its group; shared by host code and kernels.
 *
 * Each member has one in its device memory, and an inbox there, which the others write (peer access). Collectives are numbered from
 * 1 on, the same for all members: a call's number is its place among the plan's collectives, from 1 on, plus counts[GROUP_COUNT] of the
 * device's step block, where the host writes how many there were before the step. Behind a collective's own arguments, gpu_call.arg
 * has the address of the gpu_group and that place. What is pushed carries its number, so nothing is ever reset. An inbox has two
 * slots, by the number's parity, with a place for each other member. Two are enough: a member pushes number n + 2 only after it has
 * heard every other at n + 1, who thus has read n. For this a kernel hears every member, even where a step has no rows.
 *
 * A place has words of 16 bytes, each of two halves: 4 bytes of data and the number.
 *
 * Long sums go by parts: bfloat16 alone, and a flag for each part, which is the number. They have an inbox of their own, because what
 * lies in a flag's stead must never have been data. Its places begin with the flags. Collectives of sequence parallelism go by parts
 * too, of bfloat16 or of float32.
 */
#ifndef SATCHEL_GROUP_CALL_H
#define SATCHEL_GROUP_CALL_H

#include <stdint.h>

enum { GROUP_MEMBERS = 16, GROUP_SLOTS = 2, GROUP_COUNT = 7, GROUP_THREADS = 256, GROUP_WORD = 16 };
enum { GROUP_TILE_GROUPS = 4 /* groups on a multiprocessor, of sums of tiles: all are there at once */ };
enum { GROUP_PART_EACH = 4, GROUP_PART = 8 * GROUP_THREADS * GROUP_PART_EACH /* numbers of a part */ };

typedef struct {
    uint32_t rank, members;
    uint64_t timeout_ns;               /* the longest wait for a member */
    uint64_t inbox[GROUP_MEMBERS];     /* device addresses */
    uint64_t place;                    /* bytes of a place */
    uint64_t parts[GROUP_MEMBERS];     /* inboxes of parts */
    uint64_t parts_place, parts_flags; /* bytes of a place there, and of its flags */
    /* Bytes of a message of float32: from which it is bfloat16 on the wire, and from which it goes in two shots; from which it goes
     * by parts, and from which these go in two shots. */
    uint64_t bf16_least, two_least, parts_least, parts_two_least;
    uint64_t broken; /* host memory that all members see: a uint32, not 0 once the group is broken */
    uint64_t fault;  /* host memory: the gpu_group_fault of this member */
    uint64_t counts; /* device memory: the gpu_group_counts of this member */
    /* Of sums by a vendor's library. Device memory, where this member's part is rounded to bfloat16 and the sum comes; and host
     * memory, the gpu_group_progress of this member. */
    uint64_t rounded, progress;
} gpu_group;

typedef struct {
    uint64_t waited_ns; /* that this member waited for others */
    uint64_t number;    /* of the collective to which it came last */
    uint64_t began_ns;  /* a library's sum */
} gpu_group_counts;

/* How far a member is in sums by a vendor's library, which has no deadline of its own: `ended` is not `began` while one is under
 * way. */
typedef struct {
    uint32_t began, step; /* the collective's number, and 1 + its step */
    uint32_t ended;
} gpu_group_progress;

#ifdef __CUDACC__
#define GROUP_FN static __device__ __forceinline__
#else
#define GROUP_FN static inline
#endif

/* Device address of the place in a member's inbox that a source writes: a member has none of its own. */
GROUP_FN uint64_t group_place(const gpu_group *g, uint32_t member, uint32_t source, uint32_t number) {
    return g->inbox[member] + g->place * ((number & 1) * (g->members - 1) + (source < member ? source : source - 1));
}

/* Likewise of parts. */
GROUP_FN uint64_t group_parts(const gpu_group *g, uint32_t member, uint32_t source, uint32_t number) {
    return g->parts[member] +
           g->parts_place * ((number & 1) * (g->members - 1) + (source < member ? source : source - 1));
}

/* Words by which a member proves that it can write another's memory. */
enum { GROUP_PROVED = 1024 };
#define GROUP_PROOF(from, to, i) (((from) * GROUP_MEMBERS + (to) + 1) * 0x9E3779B9u + (i))

enum { GROUP_ARG = 2, GROUP_ARG_PLACE = 3 }; /* indices of gpu_call.arg */
enum { GROUP_REDUCE, GROUP_GATHER, GROUP_SCATTER, GROUP_ALL_GATHER };
enum { GROUP_SOMEONE = 0xFF };

/* Written whole by a kernel that gave up. */
typedef struct {
    uint32_t step;        /* 1 + the plan's step; 0: none */
    uint32_t number;      /* of the collective */
    uint32_t missing, op; /* missing: a member, or GROUP_SOMEONE: the one that came to the least number */
} gpu_group_fault;

#endif
