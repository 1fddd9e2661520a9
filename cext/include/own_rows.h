/* own_rows.h: which of a step's rows are a member's own where its group divides them (HAL_COUNT_OWN): one stretch for each member,
 * in their order, whose lengths differ by one at most. Host code and CUDA's kernels share it.
 */
#ifndef SATCHEL_OWN_ROWS_H
#define SATCHEL_OWN_ROWS_H

#include <stdint.h>

#ifdef __CUDACC__
#define OWN_ROWS_FN static __device__ __forceinline__
#else
#define OWN_ROWS_FN static inline
#endif

/* The first of a member's own rows of `rows`; that of the member behind the last is `rows`. */
OWN_ROWS_FN int32_t own_rows_first(int32_t rows, uint32_t rank, uint32_t members) {
    return (int32_t)((int64_t)rows * rank / members);
}

OWN_ROWS_FN int32_t own_rows_count(int32_t rows, uint32_t rank, uint32_t members) {
    return own_rows_first(rows, rank + 1, members) - own_rows_first(rows, rank, members);
}

#endif
