/* sample_ranks.k.h: candidates of a set, whether a group of threads holds it (sample_set.k.h) or one thread
 * (cext/cpu/sampling/sample_set.h): their ids, distances and ranks. Both include this after their `set` and `set_index`, the type
 * of an index in it.
 */
#ifndef SATCHEL_SAMPLE_RANKS_K_H
#define SATCHEL_SAMPLE_RANKS_K_H

enum { WEIGHT_BITS = 40 };          /* weights are in units of 2^-WEIGHT_BITS */
#define MOST 3.4028234663852886e38f /* the largest float */

/* A candidate as it ranks: by key, then by index. */
typedef struct ranked {
    uint32_t key; /* bits of a float >= 0, which sort like the float */
    int32_t at;   /* index in the set */
} ranked;

FN int32_t id_of(THREAD const set *s, set_index at) {
    return s->ids ? s->ids[at] : (int32_t)at;
}

/* Distance of a candidate's logit below the largest, >= 0. */
FN float distance(THREAD const set *s, set_index at) {
    return s->all_lost ? 0 : s->best - s->x[at];
}

/* Index of a token in the set; -1 if it is not a candidate. */
FN set_index place_of(THREAD const set *s, int32_t id) {
    set_index low = 0, high = s->n - 1;
    if (!s->ids)
        return id;
    while (low < high) {
        set_index mid = (low + high) / 2;
        if (s->ids[mid] < id)
            low = mid + 1;
        else
            high = mid;
    }
    return s->ids[low] == id ? low : -1;
}

/* Whether a cumulative weight reaches the goal; beyond 1: exceeds it. */
FN int reached(int64_t sum, double goal, int beyond) {
    return beyond ? (double)sum > goal : (double)sum >= goal;
}

#endif
