/* attention_expand_amx.h: attention_expand.h on AMX tiles; writes keys and values in the layout of attention_amx.h.
 *
 * Latents, weights, and the keys and values computed from them are split into two bfloat16, like all operands there.
 */
#ifndef SATCHEL_CPU_ATTENTION_EXPAND_AMX_H
#define SATCHEL_CPU_ATTENTION_EXPAND_AMX_H

/* Packs a and b to words of bfloat16 pairs: the upper parts; *lower gets the lower parts. */
TILE_INLINE __m512i pair_words(vf a, vf b, __m512i *lower) {
    const __m512i high = _mm512_set1_epi32((int32_t)0xFFFF0000), half = _mm512_set1_epi32(0x8000);
    __m512i x = _mm512_and_si512(_mm512_add_epi32((__m512i)a, half), high);
    __m512i y = _mm512_and_si512(_mm512_add_epi32((__m512i)b, half), high);
    __m512i s = (__m512i)(a - (vf)x), t = _mm512_and_si512((__m512i)(b - (vf)y), high);
    *lower = _mm512_or_si512(_mm512_srli_epi32(s, 16), t);
    return _mm512_or_si512(_mm512_srli_epi32(x, 16), y);
}

/* Packs the weights of the tile's head by pairs of a latent's elements: upper parts, then lower parts. */
static void pair_weights(const tile *w) {
    const setup *s = w->s;
    int64_t plane = (int64_t)s->rank / 2 * s->made_pitch;
    for (int r = 0; has_tiles(s) && r < s->rank; r += 2)
        for (int i = 0; i < s->made_pitch; i += LANES) {
            const float *from = w->weights + (int64_t)r * s->made_pitch + i;
            float *to = w->pairs + (int64_t)r / 2 * s->made_pitch + i;
            __m512i lower;
            _mm512_storeu_si512(to, pair_words(vf_load(from), vf_load(from + s->made_pitch), &lower));
            _mm512_storeu_si512(to + plane, lower);
        }
}

/* Splits n elements (a multiple of 32): upper bfloat16 parts to `to`, lower ones `plane` further on. Gives the mask of elements
 * that are not finite. */
TILE_INLINE __mmask16 part_row(vf (*load)(const void *, int), const void *from, int n, uint16_t *to, int64_t plane) {
    __mmask16 bad = 0;
    for (int i = 0; i < n; i += 2 * LANES) {
        vf a = load(from, i), b = load(from, i + LANES);
        _mm512_storeu_si512(to + i, upper_part(&a, &b));
        bad |= _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q);
        _mm512_storeu_si512(to + plane + i, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
    }
    return bad;
}

TILE_INLINE vf load_float(const void *from, int at) {
    return vf_load((const float *)from + at);
}
TILE_INLINE vf load_f16(const void *from, int at) {
    return vf_load_f16((const uint16_t *)from + at);
}
TILE_INLINE vf load_bf16(const void *from, int at) {
    return vf_load_bf16((const uint16_t *)from + at);
}

/* Loads the span's latents and the shared RoPE parts of keys; rows that no query sees are zeros. 0 for an invalid block
 * table. */
static int load_latents(const tile *w, int start, int from, int to, __mmask16 *bad) {
    const setup *s = w->s;
    int rope = s->d - s->nope;
    int64_t plane = (int64_t)SPAN * s->rank, k_plane = (int64_t)SPAN * s->d;
    for (int i = 0; i < SPAN; i++) {
        uint16_t *latent = (uint16_t *)w->latents + (int64_t)i * s->rank,
                 *key = (uint16_t *)w->keys + (int64_t)i * s->d + s->nope;
        int seen = start + i >= from && start + i < to, place = seen ? place_of(w, start + i) : 0;
        int32_t number = seen ? block_at(w, s->k, place) : 0;
        const uint16_t *row;
        if (number < 0)
            return 0;
        for (int part = 0; !seen && part < 2; part++) {
            memset(latent + part * plane, 0, sizeof(uint16_t) * (size_t)s->rank);
            memset(key + part * k_plane, 0, sizeof(uint16_t) * (size_t)rope);
        }
        if (!seen)
            continue;
        row = (const uint16_t *)cache_at(w, s->k, number, place);
        if (s->k->format == KV_F16)
            *bad |=
                part_row(load_f16, row, s->rank, latent, plane) | part_row(load_f16, row + s->rank, rope, key, k_plane);
        else
            *bad |= part_row(load_bf16, row, s->rank, latent, plane) |
                    part_row(load_bf16, row + s->rank, rope, key, k_plane);
        fetch(w, 20);
    }
    return 1;
}

/* Computes all keys' and values' elements of 16 positions. */
static void make_rows(const tile *w, int row) {
    const setup *s = w->s;
    const uint16_t *latents = (const uint16_t *)w->latents + (int64_t)row * s->rank;
    const int64_t pitch = 4 * s->made_pitch, plane = (int64_t)s->rank / 2 * s->made_pitch,
                  a_plane = (int64_t)SPAN * s->rank;
    const int is_f16 = 1;
    for (int at = 0; at < s->made_pitch; at += WIDE * TILE) {
        float *made = w->made + (int64_t)row * s->made_pitch + at;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int k = 0; k < s->rank; k += 32) {
            const uint32_t *v = (const uint32_t *)w->pairs + (int64_t)k / 2 * s->made_pitch + at;
            _tile_loadd(4, latents + k, 2 * s->rank);
            _tile_loadd(5, latents + k + a_plane, 2 * s->rank);
            VALUE(0)
            VALUE(1)
            VALUE(2)
            VALUE(3)
        }
        _tile_stored(0, made, pitch);
        _tile_stored(1, made + TILE, pitch);
        _tile_stored(2, made + 2 * TILE, pitch);
        _tile_stored(3, made + 3 * TILE, pitch);
    }
}

/* As load_tiles, with keys and values computed from latents. */
static int expand_tiles(const tile *w, int start, int from, int to, int *finite) {
    const setup *s = w->s;
    const int64_t k_plane = (int64_t)SPAN * s->d, v_plane = (int64_t)SPAN / 2 * s->dv;
    __mmask16 bad = 0;
    if (!load_latents(w, start, from, to, &bad))
        return 0;
    for (int row = 0; row < SPAN; row += TILE)
        make_rows(w, row);
    for (int i = 0; i < SPAN; i++)
        bad |= part_row(load_float, w->made + (int64_t)i * s->made_pitch, s->nope,
                        (uint16_t *)w->keys + (int64_t)i * s->d, k_plane);
    for (int i = 0; i < SPAN; i += 2)
        for (int j = 0; j < s->dv; j += LANES) {
            const float *value = w->made + (int64_t)i * s->made_pitch + s->nope + j;
            uint32_t *pair = (uint32_t *)w->values + (int64_t)i / 2 * s->dv + j;
            vf a = vf_load(value), b = vf_load(value + s->made_pitch), rest = (a - a) + (b - b);
            __m512i lower;
            _mm512_storeu_si512(pair, pair_words(a, b, &lower));
            _mm512_storeu_si512(pair + v_plane, lower);
            bad |= _mm512_cmp_ps_mask(rest, rest, _CMP_UNORD_Q);
        }
    *finite = bad == 0;
    return 1;
}

#endif
