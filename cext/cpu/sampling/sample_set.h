/* sample_set.h: the candidate tokens of one row between the stages of its sampling chain: ranking, weights and cuts.
 *
 * A set is logits x[n] with token ids[n] in ascending order; at first x is the row of logits itself and ids is NULL (every
 * token). Candidates rank by distance from the largest logit, equal ones by index. Weights e^-distance are integers in units of
 * 2^-40, so sums are exact in any order, and a cut (top-p, say) is found without sorting candidates far from it.
 * runtime/sampling/chain.py has the plain form. The row's scratch belongs to the thread.
 */
#ifndef SATCHEL_SAMPLE_SET_H
#define SATCHEL_SAMPLE_SET_H

#include <math.h>
#include <string.h>

#include "cpu.h"
#include "exact.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

/* The language of the shared stages (cext/kernels/port.h), for a group of one thread. */
#define FN static inline __attribute__((always_inline))
#define DEVICE
#define LOCAL
#define THREAD
#define BARRIER(m) (void)(m)
typedef struct {
    int thread, threads;
} self;
#define ALONE ((self){0, 1})

typedef struct ranked ranked; /* sample_ranks.k.h */
typedef int64_t set_index;

typedef struct {
    const float *x;
    const int32_t *ids; /* NULL: id = index */
    int64_t n;
    float best;
    int all_lost; /* 1: every candidate is -inf, so all rank and weigh the same */
    float *own_x;
    int32_t *own_ids;
    float *keys;
    ranked *list, *other;
    int64_t *weights; /* weights of all candidates; valid if `weighed` */
    int weighed;
    uint64_t *sums;           /* BUCKETS */
    ranked *history, *sorted; /* for the penalties: as many entries as the ring has positions */
} set;

#include "../../kernels/sample_ranks.k.h"

enum { HEAP = 1024, DIGIT = 11, DIGITS = 1 << DIGIT, BUCKETS = 4096, CHUNK = 64, FEW = 512 };
static const float FAR = -40.0f, NEAR = 12.0f;

/* Bytes for a set of v logits, without its history: a multiple of 64. */
static inline uint64_t set_scratch(int64_t v) {
    return ((uint64_t)v * (2 * sizeof(float) + sizeof(int32_t) + 2 * sizeof(ranked) + sizeof(int64_t)) +
            BUCKETS * sizeof(uint64_t) + 63) &
           ~(uint64_t)63;
}

/* width: positions of the ring. */
static inline set set_of(const float *logits, int64_t n, int64_t width, uint8_t *scratch) {
    set s = {.x = logits, .n = n, .sums = (uint64_t *)(void *)scratch};
    s.weights = (int64_t *)(void *)(s.sums + BUCKETS);
    s.list = (ranked *)(void *)(s.weights + n);
    s.other = s.list + n;
    s.own_x = (float *)(void *)(s.other + n);
    s.keys = s.own_x + n;
    s.own_ids = (int32_t *)(void *)(s.keys + n);
    s.history = (ranked *)(void *)(scratch + set_scratch(n));
    s.sorted = s.history + width;
    return s;
}

/* Makes the first m of own_x and own_ids the candidates. */
static inline void took_own(set *s, int64_t m) {
    s->x = s->own_x;
    s->ids = s->own_ids;
    s->n = m;
    s->weighed = 0;
}

static inline float *writable(self m, set *s) {
    (void)m;
    if (s->x != s->own_x)
        memcpy(s->own_x, s->x, sizeof(float) * (size_t)s->n);
    s->x = s->own_x;
    s->weighed = 0;
    return s->own_x;
}

/* Whether a logit is NaN or +inf, which makes the row invalid. */
static inline int has_damaged(const set *s) {
    int odd = 0;
    for (int64_t i = 0; i < s->n; i++)
        odd |= !(s->x[i] <= MOST);
    return odd;
}

static inline void find_best(set *s) {
    float best[16];
    int64_t i = 0;
    for (int j = 0; j < 16; j++)
        best[j] = -INFINITY;
    for (; i + 16 <= s->n; i += 16)
        for (int j = 0; j < 16; j++)
            best[j] = s->x[i + j] > best[j] ? s->x[i + j] : best[j];
    for (; i < s->n; i++)
        best[0] = s->x[i] > best[0] ? s->x[i] : best[0];
    for (int j = 1; j < 16; j++)
        best[0] = best[j] > best[0] ? best[j] : best[0];
    s->best = best[0];
    s->all_lost = best[0] == -INFINITY;
}

static inline void changed(self m, set *s) {
    (void)m;
    find_best(s);
}

/* A buffer for new logits of all candidates; it may hold the present ones. Call took_all() afterwards. */
static inline float *room_for_all(self m, set *s) {
    (void)m;
    return s->own_x;
}

static inline void took_all(self m, set *s) {
    (void)m;
    s->x = s->own_x;
    s->weighed = 0;
}

/* Reductions over the group's threads. */
FN int64_t sum_of_all(self m, const set *s, int64_t x) {
    (void)m, (void)s;
    return x;
}
FN float most_of_all(self m, const set *s, float x) {
    (void)m, (void)s;
    return x;
}
FN int last_of_all(self m, const set *s, int at) {
    (void)m, (void)s;
    return at;
}

/* sum = the sum of `number` over i = 0 .. n - 1 in doubles: eight partial sums, i % 8, each in order, then their sum in order.
 * The definition fixes this order. */
#define LANES_SUM(m, s, number, sum)                                                                                   \
    do {                                                                                                               \
        double lane[8] = {0};                                                                                          \
        (void)(m);                                                                                                     \
        for (int64_t i = 0; i < (s)->n; i++)                                                                           \
            lane[i & 7] += (number);                                                                                   \
        (sum) = 0;                                                                                                     \
        for (int j = 0; j < 8; j++)                                                                                    \
            (sum) += lane[j];                                                                                          \
    } while (0)

/* Keeps the candidates i for which the condition holds, in order and in place: it may read candidates from i on. */
#define KEEP(m, s, condition)                                                                                          \
    do {                                                                                                               \
        int64_t kept = 0;                                                                                              \
        (void)(m);                                                                                                     \
        for (int64_t i = 0; i < (s)->n; i++)                                                                           \
            if (condition) {                                                                                           \
                (s)->own_ids[kept] = id_of(s, i);                                                                      \
                (s)->own_x[kept++] = (s)->x[i];                                                                        \
            }                                                                                                          \
        took_own(s, kept);                                                                                             \
    } while (0)

/* weights[i] = e^(x[i] - best) in units of 2^-40, as exact.py's weights(), for CHUNK logits; compilers vectorize each loop. */
static inline void weigh_chunk(const float *x, float best, int64_t *weights) {
    const float turn = 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer */
    float p[CHUNK], power[CHUNK];
    int32_t bits[CHUNK];
    double y[CHUNK];
    for (int j = 0; j < CHUNK; j++) {
        float d = x[j] - best, c = d < FAR ? FAR : d, n = (c * 1.44269504f + turn) - turn;
        float r = (c - n * 0.693359375f) - n * -2.12194440e-4f, q = (float)(1.0 / 5040);
        q = q * r + (float)(1.0 / 720);
        q = q * r + (float)(1.0 / 120);
        q = q * r + (float)(1.0 / 24);
        q = q * r + (float)(1.0 / 6);
        q = q * r + (float)(1.0 / 2);
        q = q * r + 1.0f;
        p[j] = q * r + 1.0f;
        bits[j] = ((int32_t)n + 127) << 23;
    }
    memcpy(power, bits, sizeof power);
    for (int j = 0; j < CHUNK; j++)
        y[j] = (double)(p[j] * power[j]) * 0x1p40 + 0x1p52;
    memcpy(weights, y, sizeof y);
    for (int j = 0; j < CHUNK; j++)
        weights[j] &= 0xFFFFFFFFFFFFF;
}

/* Fills s->weights. */
static inline void weigh(set *s) {
    int64_t i = 0;
    if (s->weighed)
        return;
    s->weighed = 1;
    if (s->all_lost) {
        for (; i < s->n; i++)
            s->weights[i] = (int64_t)1 << WEIGHT_BITS;
        return;
    }
    for (; i + CHUNK <= s->n; i += CHUNK)
        weigh_chunk(s->x + i, s->best, s->weights + i);
    if (i < s->n) {
        float rest[CHUNK];
        int64_t found[CHUNK];
        for (int64_t j = 0; j < CHUNK; j++)
            rest[j] = i + j < s->n ? s->x[i + j] : s->best;
        weigh_chunk(rest, s->best, found);
        memcpy(s->weights + i, found, sizeof(int64_t) * (size_t)(s->n - i));
    }
}

static inline double total_weight(self m, set *s) {
    int64_t sum = 0;
    (void)m;
    weigh(s);
    for (int64_t i = 0; i < s->n; i++)
        sum += s->weights[i];
    return (double)sum;
}

/* total_weight() has run since the candidates changed. */
static inline int64_t weight(const set *s, int64_t at) {
    return s->weights[at];
}

/* --- ranking */

static inline uint32_t f32_bits(float key) {
    uint32_t bits;
    memcpy(&bits, &key, sizeof bits);
    return bits;
}

/* Stable sort of m entries by key; the result is in `list` or `other`. */
static inline ranked *sort_ranked(ranked *list, ranked *other, int64_t m) {
    if (m <= 32) {
        for (int64_t i = 1; i < m; i++) {
            ranked r = list[i];
            int64_t j = i;
            for (; j > 0 && list[j - 1].key > r.key; j--)
                list[j] = list[j - 1];
            list[j] = r;
        }
        return list;
    }
    for (int shift = 0; shift < 32; shift += DIGIT) {
        uint32_t start[DIGITS] = {0}, sum = 0;
        ranked *swap = list;
        for (int64_t i = 0; i < m; i++)
            start[list[i].key >> shift & (DIGITS - 1)]++;
        for (int d = 0; d < DIGITS; d++) {
            uint32_t count = start[d];
            start[d] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < m; i++)
            other[start[list[i].key >> shift & (DIGITS - 1)]++] = list[i];
        list = other;
        other = swap;
    }
    return list;
}

static inline int after(ranked a, ranked b) {
    return a.key != b.key ? a.key > b.key : a.at > b.at;
}

/* Restores the heap order (a parent ranks after its children) from `at` down. */
static inline void sift_down(ranked *heap, int64_t n, int64_t at) {
    ranked x = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && after(heap[child + 1], heap[child]))
            child++;
        if (!after(heap[child], x))
            break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

/* Whether one of CHUNK distances is below `limit`: a quick test, since most chunks have none. */
static inline int any_below(const float *x, float best, float limit) {
    int any = 0;
    for (int j = 0; j < CHUNK; j++)
        any |= best - x[j] < limit;
    return any;
}

/* The k first-ranked, in order, in s->list[0 .. k - 1]; k <= n. */
static inline void select_first(const set *s, int64_t k) {
    ranked *heap = s->list;
    for (int64_t i = 0; i < k; i++)
        heap[i] = (ranked){f32_bits(distance(s, i)), (int32_t)i};
    for (int64_t i = k / 2; i-- > 0;)
        sift_down(heap, k, i);
    for (int64_t i = k; i < s->n; i++) {
        float limit;
        memcpy(&limit, &heap[0].key, sizeof limit);
        if (i + CHUNK <= s->n && !s->all_lost && !any_below(s->x + i, s->best, limit)) {
            i += CHUNK - 1;
            continue;
        }
        for (int64_t end = i + CHUNK < s->n ? i + CHUNK : s->n; i < end; i++) {
            uint32_t key = f32_bits(distance(s, i));
            if (key < heap[0].key) { /* indexes ascend, so an equal key ranks after */
                heap[0] = (ranked){key, (int32_t)i};
                sift_down(heap, k, 0);
            }
        }
        i--;
    }
    for (int64_t i = k; i-- > 1;) {
        ranked last = heap[0];
        heap[0] = heap[i];
        heap[i] = last;
        sift_down(heap, i, 0);
    }
}

/* Sort keys of candidates [at, at + n), n <= CHUNK, padded with INFINITY. keys: NULL for distances. */
static inline void load_keys(const set *s, const float *keys, int64_t at, int64_t n, float *out) {
    const float *x = (keys ? keys : s->x) + at;
    float best = s->best;
    if (n == CHUNK && !s->all_lost && !keys) {
        for (int j = 0; j < CHUNK; j++)
            out[j] = best - x[j];
        return;
    }
    for (int64_t j = 0; j < CHUNK; j++)
        out[j] = j >= n ? INFINITY : keys ? x[j] : s->all_lost ? 0 : best - x[j];
}

/* CHUNK bytes of 0 or 1 as bits. */
static inline uint64_t pack_flags(const uint8_t *flags) {
    uint64_t bits = 0;
    for (int i = 0; i < CHUNK; i += 8) {
        /* first flag in the lowest byte; the multiplication gathers bit 0 of each byte in the highest byte */
        uint64_t eight = 0;
        memcpy(&eight, flags + i, sizeof eight);
        bits |= (eight * 0x0102040810204080u >> 56) << i;
    }
    return bits;
}

#ifdef __AVX512F__
/* keep_first() without all_lost, 16 candidates at a time, in place: the write index never passes the read index. */
static inline void keep_lanes(set *s, const float *keys, ranked edge) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 best = _mm512_set1_ps(s->best), limit = _mm512_castsi512_ps(_mm512_set1_epi32((int32_t)edge.key));
    const __m512i last = _mm512_set1_epi32(edge.at);
    int64_t m = 0, n = s->n;
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 there = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xFFFF, stays, written;
        __m512 x = _mm512_maskz_loadu_ps(there, s->x + i);
        __m512 key = keys ? _mm512_maskz_loadu_ps(there, keys + i) : _mm512_sub_ps(best, x);
        __m512i at = _mm512_add_epi32(first, _mm512_set1_epi32((int32_t)i));
        __m512i ids = s->ids ? _mm512_maskz_loadu_epi32(there, s->ids + i) : at;
        stays = _mm512_mask_cmp_ps_mask(there, key, limit, _CMP_EQ_OQ) & _mm512_cmple_epi32_mask(at, last);
        stays |= _mm512_mask_cmp_ps_mask(there, key, limit, _CMP_LT_OQ);
        if (!stays)
            continue;
        written = (__mmask16)((1u << __builtin_popcount(stays)) - 1);
        _mm512_mask_storeu_ps(s->own_x + m, written, _mm512_maskz_compress_ps(stays, x));
        _mm512_mask_storeu_epi32(s->own_ids + m, written, _mm512_maskz_compress_epi32(stays, ids));
        m += __builtin_popcount(stays);
    }
    took_own(s, m);
}
#endif

/* Keeps the candidates that rank up to `edge`, inclusive. keys: NULL for distances. A chunk's comparisons
 * are collected as bits first, because a branch per candidate would be mispredicted. */
static inline void keep_first(self m, set *s, const float *keys, ranked edge) {
    (void)m;
#ifdef __AVX512F__
    if (!s->all_lost || keys) {
        keep_lanes(s, keys, edge);
        return;
    }
#endif
    int64_t kept = 0, n = s->n;
    const float *x = s->x;
    const int32_t *ids = s->ids;
    int32_t *own_ids = s->own_ids;
    float limit, least, key[CHUNK], *own_x = s->own_x;
    uint8_t flags[CHUNK];
    uint64_t stays;
    int last;
    memcpy(&limit, &edge.key, sizeof limit);
    least = nextafterf(limit, INFINITY);
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t count = n - i < CHUNK ? n - i : CHUNK;
        if (!keys && !s->all_lost && count == CHUNK && limit < INFINITY && !any_below(x + i, s->best, least))
            continue;
        load_keys(s, keys, i, count, key);
        last = edge.at - i < -1 ? -1 : edge.at - i < count ? (int)(edge.at - i) : (int)count - 1;
        for (int j = 0; j < CHUNK; j++)
            flags[j] = (key[j] < limit) | ((key[j] == limit) & (j <= last));
        stays = pack_flags(flags);
        for (; stays; stays &= stays - 1) {
            int64_t at = i + __builtin_ctzll(stays);
            own_ids[kept] = ids ? ids[at] : (int32_t)at;
            own_x[kept++] = x[at];
        }
    }
    took_own(s, kept);
}

static inline int64_t share_of(const set *s, int64_t at, int unit) {
    return unit ? 1 : weight(s, at);
}

/* Bucket of each key: buckets have equal width, the last is unbounded, and their order is that of the keys. */
static inline void find_buckets(const float *key, int32_t *bucket) {
    const float scale = BUCKETS / 48.0f, last = BUCKETS - 1;
    for (int j = 0; j < CHUNK; j++) {
        float b = key[j] * scale;
        bucket[j] = (int32_t)(b < last ? b : last);
    }
}

/* Adds the weights of candidates to the buckets: of chunks with a candidate nearer than NEAR (near 1), or of the others. */
static inline void fill_buckets(set *s, const float *keys, int unit, int near) {
    float key[CHUNK];
    int32_t bucket[CHUNK];
    uint64_t *restrict sums = s->sums;
    const int64_t *restrict weights = s->weights;
    for (int64_t i = 0; i < s->n; i += CHUNK) {
        int64_t count = s->n - i < CHUNK ? s->n - i : CHUNK;
        int skips = !keys && !s->all_lost && count == CHUNK;
        if ((!skips || any_below(s->x + i, s->best, NEAR)) != near)
            continue;
        load_keys(s, keys, i, count, key);
        find_buckets(key, bucket);
        for (int64_t j = 0; j < count; j++)
            sums[bucket[j]] += unit ? 1 : (uint64_t)weights[i + j];
    }
}

/* The bucket in which the cumulative weight reaches the goal, BUCKETS if none; *before: the weight of the buckets before it.
 * Chunks far from the largest logit are added only if the near ones do not reach the goal. */
static inline int find_bucket(set *s, const float *keys, double goal, int beyond, int unit, int64_t *before) {
    int bucket = 0, near = (int)(NEAR * (BUCKETS / 48.0f)) - 1; /* far candidates fall into none of these */
    *before = 0;
    memset(s->sums, 0, BUCKETS * sizeof *s->sums);
    fill_buckets(s, keys, unit, 1);
    for (; bucket < near && !reached(*before + (int64_t)s->sums[bucket], goal, beyond); bucket++)
        *before += (int64_t)s->sums[bucket];
    if (bucket < near)
        return bucket;
    fill_buckets(s, keys, unit, 0);
    for (; bucket < BUCKETS && !reached(*before + (int64_t)s->sums[bucket], goal, beyond); bucket++)
        *before += (int64_t)s->sums[bucket];
    return bucket;
}

/* Lists the candidates of a bucket (BUCKETS: of all) in s->list, in order of index; gives their number. */
static inline int64_t gather(set *s, const float *keys, int bucket) {
    int64_t m = 0;
    float key[CHUNK];
    int32_t of[CHUNK];
    for (int64_t i = 0; i < s->n; i += CHUNK) {
        int64_t count = s->n - i < CHUNK ? s->n - i : CHUNK;
        int any = bucket == BUCKETS;
        load_keys(s, keys, i, count, key);
        find_buckets(key, of);
        for (int j = 0; j < CHUNK; j++)
            any |= of[j] == bucket;
        for (int64_t j = 0; any && j < count; j++)
            if (of[j] == bucket || bucket == BUCKETS)
                s->list[m++] = (ranked){f32_bits(key[j]), (int32_t)(i + j)};
    }
    return m;
}

/* The candidate at which the cumulative weight in order of rank reaches the goal (beyond 1: exceeds it); the last-ranked one if
 * none does. unit 1: each candidate weighs 1. */
static inline ranked cross(self alone, set *s, const float *keys, double goal, int beyond, int unit) {
    int64_t sum = 0, i, m;
    int bucket = BUCKETS;
    ranked *list;
    (void)alone;
    if (!unit)
        weigh(s);
    if (s->n > FEW)
        bucket = find_bucket(s, keys, goal, beyond, unit, &sum);
    m = gather(s, keys, bucket);
    list = sort_ranked(s->list, s->other, m);
    if (bucket == BUCKETS && s->n > FEW)
        return list[m - 1];
    for (i = 0; i < m - 1; i++)
        if (reached(sum += share_of(s, list[i].at, unit), goal, beyond))
            break;
    return list[i];
}

static inline void keep_count(self m, set *s, int64_t k) {
    if (k >= s->n)
        return;
    if (k > HEAP) {
        keep_first(m, s, NULL, cross(m, s, NULL, (double)k, 0, 1));
        return;
    }
    select_first(s, k);
    keep_first(m, s, NULL, s->list[k - 1]);
}

/* Distances of the n first-ranked candidates, in order; n <= HEAP. */
static inline const float *first_distances(self m, set *s, int n) {
    (void)m;
    select_first(s, n);
    for (int i = 0; i < n; i++)
        s->keys[i] = distance(s, s->list[i].at);
    return s->keys;
}

#endif
