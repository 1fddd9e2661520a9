/* attention_expand.h: expanded MLA attention (DeepSeek-V2, arXiv 2405.04434, 2.1): computes one head's keys and values from a
 * span's cached latents. Worth it for many queries, which share the result.
 *
 * A cache row is a latent of `rank` numbers and the RoPE part of the key, which all heads share. The thread's scratch holds the
 * head's weights k_b (H, rank, nope) and v_b (H, value, rank) side by side, a zero-padded row of made_pitch floats for each
 * element of a latent. Latents (SPAN, latent_pitch) and the keys and values made of them (SPAN, made_pitch) are float32. Each
 * element is one sum over a latent, in order.
 */
#ifndef SATCHEL_CPU_ATTENTION_EXPAND_H
#define SATCHEL_CPU_ATTENTION_EXPAND_H

#include "weights/unpack.h"

static inline int64_t expand_floats(const setup *s) {
    int64_t weights = (int64_t)s->rank * s->made_pitch;
    return s->rank ? (int64_t)SPAN * (s->latent_pitch + s->made_pitch) + 2 * weights : 0;
}

/* Assigns the scratch from `at` on; gives its end. */
static inline float *expand_at(tile *w, float *at) {
    const setup *s = w->s;
    if (!s->rank)
        return at;
    w->latents = at;
    w->made = w->latents + (int64_t)SPAN * s->latent_pitch;
    w->weights = w->made + (int64_t)SPAN * s->made_pitch;
    w->pairs = w->weights + (int64_t)s->rank * s->made_pitch;
    return w->pairs + (int64_t)s->rank * s->made_pitch;
}

/* Dequantizes a row of a head's weight (H, N, K); `raw` holds K doubles. */
static void weight_row(const cpu_call *c, const cpu_view *w, int head, int row, uint8_t *raw, float *to) {
    const panel_format *f = panel_format_find(w->format);
    int64_t k = w->shape[2];
    uint64_t bytes = (uint64_t)k / (uint64_t)f->block * (uint64_t)f->bytes;
    const uint8_t *from = cpu_row(w, head);
    cpu_unpack_of(c->set, w->format)(w->packed ? packed_row(w, from, k, row, raw) : from + bytes * (uint64_t)row, to,
                                     k);
}

/* Loads the weights of the tile's head. It uses the memory of latents and pairs, which hold nothing yet. */
static void load_weights(const tile *w) {
    const setup *s = w->s;
    uint8_t *raw = (uint8_t *)w->pairs;
    float *row = w->latents;
    memset(w->weights, 0, sizeof(float) * (size_t)s->rank * (size_t)s->made_pitch);
    for (int r = 0; r < s->rank; r++)
        weight_row(s->c, s->k_b, w->kv_head, r, raw, w->weights + (int64_t)r * s->made_pitch);
    for (int n = 0; n < s->dv; n++) {
        weight_row(s->c, s->v_b, w->kv_head, n, raw, row);
        for (int r = 0; r < s->rank; r++)
            w->weights[(int64_t)r * s->made_pitch + s->nope + n] = row[r];
    }
}

/* Computes positions from..to-1 of the span and stores keys by rows in the memory of values. 0 for an invalid block table. */
static int expand_keys(const tile *w, int start, int from, int to) {
    const setup *s = w->s;
    int rope = s->d - s->nope;
    float *latents = w->latents + (int64_t)(from - start) * s->latent_pitch;
    tile_product p = {latents,         w->weights,    w->made + (int64_t)(from - start) * s->made_pitch,
                      s->latent_pitch, s->made_pitch, s->made_pitch,
                      s->rank,         NULL};
    if (!load_rows(w, s->k, start, from, to, w->latents, s->latent_pitch))
        return 0;
    tile_multiply(&p, to - from, s->made_pitch / LANES);
    for (int i = from - start; i < to - start; i++) {
        float *key = w->values + (int64_t)i * s->d_pitch;
        memcpy(key, w->made + (int64_t)i * s->made_pitch, sizeof(float) * (size_t)s->nope);
        memcpy(key + s->nope, w->latents + (int64_t)i * s->latent_pitch + s->rank, sizeof(float) * (size_t)rope);
    }
    return 1;
}

/* Copies the values that expand_keys computed. */
static void expand_values(const tile *w, int start, int from, int to) {
    const setup *s = w->s;
    for (int i = from - start; i < to - start; i++)
        memcpy(w->values + (int64_t)i * s->dv_pitch, w->made + (int64_t)i * s->made_pitch + s->nope,
               sizeof(float) * (size_t)s->dv);
}

#endif
