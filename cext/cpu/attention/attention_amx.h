/* attention_amx.h: one span of MLA attention on AMX tiles: many query heads share one KV head, whose keys begin with the
 * values.
 *
 * Every operand is split into two bfloat16: an f16 of the cache exactly, queries and weights to 16 significant bits. Of the
 * four partial products the one of both lower parts is dropped. A span is read once. Its keys, by rows, are the operands of
 * scores (positions by heads, transposed afterwards); its pairs of positions are the operands of values. A row's sums and
 * their order do not depend on other rows: positions that it does not see have weight 0. A span with an infinity or a NaN is
 * computed by attention_tile.h instead. A tile's row count is a multiple of 16.
 */
#ifndef SATCHEL_CPU_ATTENTION_AMX_H
#define SATCHEL_CPU_ATTENTION_AMX_H

#include "attention_tile.h"

#if defined(__AMX_BF16__)
#include "simd/amx_tiles.h"

enum { WORDS = 16 /* pairs of bfloat16 in a row of a tile */, WIDE = 4 /* accumulator tiles side by side */ };

static inline int has_tiles(const setup *s) {
    int halves = s->k->format == KV_F16 || s->k->format == KV_BF16;
    int fits =
        s->rank ? s->rank % 32 == 0 && s->nope % 32 == 0 && s->made_pitch % (WIDE * TILE) == 0 : s->group % TILE == 0;
    return (s->joint || s->rank) && halves && fits && s->d % 32 == 0 && s->dv % (WIDE * TILE) == 0;
}

static inline void tiles_begin(const setup *s) {
    if (has_tiles(s))
        amx_begin(TILE, 64);
}

static inline void tiles_end(const setup *s) {
    if (has_tiles(s))
        amx_end();
}

/* Rounds two vectors of floats to bfloat16; leaves the remainders in a and b. */
TILE_INLINE __m512i upper_part(vf *a, vf *b) {
    __m512i upper = (__m512i)_mm512_cvtne2ps_pbh(*b, *a);
    *a = *a - (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(upper)), 16);
    *b = *b - (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(upper, 1)), 16);
    return upper;
}

/* Packs the queries: for each 16 rows and 32 elements a tile (pairs, rows) of upper parts, then one of lower parts. */
static void tile_queries(const tile *w) {
    const setup *s = w->s;
    float words[2][TILE * WORDS];
    for (int row = 0; row < w->rows; row += TILE)
        for (int k = 0; k < s->d; k += 2 * LANES) {
            float *to = w->paired + (int64_t)row * s->d + k * WORDS;
            for (int r = 0; r < TILE; r++) {
                const float *q = w->queries + (int64_t)(row + r) * s->d + k;
                vf a = vf_load(q), b = vf_load(q + LANES);
                _mm512_storeu_si512(words[0] + r * WORDS, upper_part(&a, &b));
                _mm512_storeu_si512(words[1] + r * WORDS, upper_part(&a, &b));
            }
            for (int part = 0; part < 2; part++)
                tile_transpose(words[part], WORDS, to + part * TILE * WORDS, TILE, WORDS);
        }
}

/* 16 elements of a row; zeros for row NULL. */
TILE_INLINE vf half_row(const uint16_t *row, int at, int is_f16) {
    if (!row)
        return vf_set(0);
    return is_f16 ? vf_load_f16(row + at) : vf_load_bf16(row + at);
}

/* Loads two positions: keys by rows, upper and lower parts `plane` halves apart, and pairs of values likewise. Gives the
 * mask of elements that are not finite. */
TILE_INLINE __mmask16 load_pair(const uint16_t *const row[2], const setup *s, uint16_t *keys, uint32_t *values,
                                int is_f16) {
    const int64_t k_plane = (int64_t)SPAN * s->d, v_plane = (int64_t)SPAN / 2 * s->dv;
    const __m512i high = _mm512_set1_epi32((int32_t)0xFFFF0000), half = _mm512_set1_epi32(0x8000);
    __mmask16 bad = 0;
    for (int k = 0; k < s->d; k += 2 * LANES) {
        __m512i up[2][2], low[2][2];
        for (int i = 0; i < 2; i++) {
            for (int j = 0; j < 2; j++) {
                vf x = half_row(row[i], k + j * LANES, is_f16), rest;
                up[i][j] = _mm512_and_si512(_mm512_add_epi32((__m512i)x, half), high);
                rest = x - (vf)up[i][j];
                low[i][j] = (__m512i)rest;
                bad |= _mm512_cmp_ps_mask(rest, rest, _CMP_UNORD_Q);
            }
            uint16_t *to = keys + (int64_t)i * s->d + k;
            _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)up[i][1], (__m512)up[i][0]));
            _mm512_storeu_si512(to + k_plane, (__m512i)_mm512_cvtne2ps_pbh((__m512)low[i][1], (__m512)low[i][0]));
        }
        for (int j = 0; j < 2 && k + j * LANES < s->dv; j++) {
            uint32_t *to = values + k + j * LANES;
            _mm512_storeu_si512(to, _mm512_or_si512(_mm512_srli_epi32(up[0][j], 16), up[1][j]));
            _mm512_storeu_si512(to + v_plane, _mm512_or_si512(_mm512_srli_epi32(low[0][j], 16), low[1][j]));
        }
    }
    return bad;
}

/* Loads the span's positions from..to-1 as tile operands; 0 for an invalid block table. *finite: all elements are finite. */
static int load_tiles(const tile *w, int start, int from, int to, int *finite) {
    const setup *s = w->s;
    __mmask16 bad = 0;
    for (int pos = start; pos < start + SPAN; pos += 2) {
        const uint16_t *row[2] = {NULL, NULL};
        for (int i = 0; i < 2; i++)
            if (pos + i >= from && pos + i < to) {
                int place = place_of(w, pos + i);
                int32_t number = block_at(w, s->k, place);
                if (number < 0)
                    return 0;
                row[i] = (const uint16_t *)cache_at(w, s->k, number, place);
            }
        uint16_t *keys = (uint16_t *)w->keys + (int64_t)(pos - start) * s->d;
        uint32_t *values = (uint32_t *)w->values + (int64_t)(pos - start) / 2 * s->dv;
        bad |= s->k->format == KV_F16 ? load_pair(row, s, keys, values, 1) : load_pair(row, s, keys, values, 0);
        fetch(w, 16);
    }
    *finite = bad == 0;
    return 1;
}

/* Adds one tile of 16 positions to accumulator `c` of scores: upper * upper, upper * lower, lower * upper. */
#define SCORE(c)                                                                                                       \
    _tile_loadd(6, keys + (int64_t)(c) * TILE * s->d, pitch);                                                          \
    _tile_dpbf16ps(c, 6, 4);                                                                                           \
    _tile_dpbf16ps(c, 6, 5);                                                                                           \
    if (is_f16) {                                                                                                      \
        _tile_loadd(7, keys + (int64_t)(c) * TILE * s->d + plane, pitch);                                              \
        _tile_dpbf16ps(c, 7, 4);                                                                                       \
    }

/* Scores of 16 rows at all positions of the span. */
TILE_INLINE void score_rows(const tile *w, int row, int is_f16) {
    const setup *s = w->s;
    const uint16_t *keys = (const uint16_t *)w->keys;
    const float *q = w->paired + (int64_t)row * s->d;
    const int64_t pitch = 2 * s->d, plane = (int64_t)SPAN * s->d;
    float transposed[SPAN * TILE];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < s->d; k += 32, keys += 32, q += 2 * TILE * WORDS) {
        _tile_loadd(4, q, 64);
        _tile_loadd(5, q + TILE * WORDS, 64);
        SCORE(0)
        SCORE(1)
        SCORE(2)
        SCORE(3)
        fetch(w, 8);
    }
    _tile_stored(0, transposed, 64);
    _tile_stored(1, transposed + 256, 64);
    _tile_stored(2, transposed + 512, 64);
    _tile_stored(3, transposed + 768, 64);
    for (int i = 0; i < SPAN / TILE; i++)
        tile_transpose(transposed + i * 256, TILE, w->scores + (int64_t)row * SPAN + i * TILE, SPAN, TILE);
}

/* Splits a row's softmax weights into upper and lower parts; positions that it does not see get 0. */
static void part_weights(const tile *w, int row, int start) {
    float *p = w->scores + (int64_t)row * SPAN;
    int a, b;
    vf x[SPAN / LANES];
    row_range(w, row, start, &a, &b);
    fill(p, 0, 0, a < SPAN ? a : SPAN);
    fill(p, 0, b > 0 && a < b ? b : 0, SPAN);
    for (int i = 0; i < SPAN / LANES; i++)
        x[i] = vf_load(p + i * LANES);
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < 2; i++)
            _mm512_storeu_si512(p + (2 * part + i) * LANES, upper_part(x + 2 * i, x + 2 * i + 1));
}

static void keep_sums(const tile *w, const part *state, int row) {
    float *sums = state->sums + (int64_t)row * w->s->dv_pitch;
    vf keep = vf_set(w->keep[row]);
    if (w->keep[row] != 1)
        for (int i = 0; i < w->s->dv_pitch; i += LANES)
            vf_store(sums + i, vf_load(sums + i) * keep);
}

/* Adds 16 columns of values: their upper parts times upper and lower weights, their lower parts times upper weights. */
#define VALUE(c)                                                                                                       \
    _tile_loadd(6, v + (c) * TILE, pitch);                                                                             \
    _tile_dpbf16ps(c, 4, 6);                                                                                           \
    _tile_dpbf16ps(c, 5, 6);                                                                                           \
    if (is_f16) {                                                                                                      \
        _tile_loadd(7, v + (c) * TILE + plane, pitch);                                                                 \
        _tile_dpbf16ps(c, 4, 7);                                                                                       \
    }

/* Adds weights times values to the sums of 16 rows. */
TILE_INLINE void value_rows(const tile *w, const part *state, int row, int is_f16) {
    const setup *s = w->s;
    const int64_t pitch = 4 * s->dv, plane = (int64_t)SPAN / 2 * s->dv, c_pitch = 4 * s->dv_pitch;
    for (int at = 0; at < s->dv; at += WIDE * TILE) {
        float *sums = state->sums + (int64_t)row * s->dv_pitch + at;
        _tile_loadd(0, sums, c_pitch);
        _tile_loadd(1, sums + TILE, c_pitch);
        _tile_loadd(2, sums + 2 * TILE, c_pitch);
        _tile_loadd(3, sums + 3 * TILE, c_pitch);
        for (int half = 0; half < 2; half++) {
            const uint32_t *v = (const uint32_t *)w->values + (int64_t)half * TILE * s->dv + at;
            const float *p = w->scores + (int64_t)row * SPAN + half * LANES;
            _tile_loadd(4, p, 4 * SPAN);
            _tile_loadd(5, p + 2 * LANES, 4 * SPAN);
            VALUE(0)
            VALUE(1)
            VALUE(2)
            VALUE(3)
            fetch(w, 16);
        }
        _tile_stored(0, sums, c_pitch);
        _tile_stored(1, sums + TILE, c_pitch);
        _tile_stored(2, sums + 2 * TILE, c_pitch);
        _tile_stored(3, sums + 3 * TILE, c_pitch);
    }
}

#include "attention_expand_amx.h"

/* Whether one of the tile's 16 rows sees something of the span. */
static inline int some_see(const tile *w, int row, int start) {
    int most = 0;
    for (int r = row; r < row + TILE; r++)
        most = w->to[r] > most ? w->to[r] : most;
    return most > start;
}

/* The span from `start` on, of which rows see from..to-1: 1 done, 0 for an invalid block table, -1: has non-finite elements. */
static int attend_tiles(const tile *w, const part *state, int start, int from, int to) {
    int is_f16 = w->s->k->format == KV_F16 || w->s->rank, finite;
    if (!has_tiles(w->s))
        return -1;
    if (!(w->s->rank ? expand_tiles(w, start, from, to, &finite) : load_tiles(w, start, from, to, &finite)))
        return 0;
    if (!finite)
        return -1;
    for (int row = 0; row < w->rows; row += TILE)
        if (w->s->rank && !some_see(w, row, start))
            continue;
        else if (is_f16)
            score_rows(w, row, 1);
        else
            score_rows(w, row, 0);
    weigh_span(w, state, start);
    for (int row = 0; row < w->rows; row++) {
        keep_sums(w, state, row);
        part_weights(w, row, start);
    }
    for (int row = 0; row < w->rows; row += TILE)
        if (w->s->rank && !some_see(w, row, start))
            continue;
        else if (is_f16)
            value_rows(w, state, row, 1);
        else
            value_rows(w, state, row, 0);
    return 1;
}
#else
static inline int has_tiles(const setup *s) {
    (void)s;
    return 0;
}
static inline void tiles_begin(const setup *s) {
    (void)s;
}
static inline void tiles_end(const setup *s) {
    (void)s;
}
static inline void tile_queries(const tile *w) {
    (void)w;
}
static inline void pair_weights(const tile *w) {
    (void)w;
}
static inline int attend_tiles(const tile *w, const part *state, int start, int from, int to) {
    (void)w, (void)state, (void)start, (void)from, (void)to;
    return -1;
}
#endif

/* Computes the tile's state after chunk number `chunk` alone; 0 for an invalid block table. */
static int attend_chunk(const tile *w, int chunk, const part *state) {
    int seen = first_seen(w->s, w->pos), from = seen > chunk * CHUNK ? seen : chunk * CHUNK;
    int to = w->end - chunk * CHUNK < CHUNK ? w->end : (chunk + 1) * CHUNK;
    start_chunk(w, state);
    for (int start = from / SPAN * SPAN; start < to; start += SPAN) {
        int a = from > start ? from : start, b = to - start < SPAN ? to : start + SPAN, done;
        look_ahead(w, b, b + SPAN);
        done = attend_tiles(w, state, start, a, b);
        if (!done || (done < 0 && !attend_span(w, state, start, a, b)))
            return 0;
    }
    for (int r = 0; r < w->rows; r++)
        state->total[r] = vf_sum(vf_load(w->lanes + (int64_t)r * LANES));
    return 1;
}

#endif
