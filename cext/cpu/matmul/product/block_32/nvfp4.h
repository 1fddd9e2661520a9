/* nvfp4: word 0: the scales of 16; 1-8: nibbles, two words to a group: its first eight codes are the low ones. */
VI_INLINE void nvfp4_panel_codes(const uint8_t *words, int group, vi *q) {
    static const uint8_t table[16] = E2M1_TABLE(SIGN_CODE);
    UNROLL_FOR (int j = 0; j < 4; j++)
        q[j] = vi_lookup(table, vi_shift_right(word(words, 1 + 2 * group + j % 2), 4 * (j / 2)) & 0x0F0F0F0F);
}

/* Half of the scale: as nvfp4_scale has it, from bits where a float32 has its own. Codes below 8, without a leading one, are
 * counted: such float32 cost a processor a hundred times as much as others. */
VI_INLINE vf nvfp4_panel_scale(const uint8_t *words, int group) {
    vi byte = vi_shift_right(word(words, 0), 8 * group) & 255, code = byte & 0x7F, small = code < 8, nan = byte == 0x7F;
    vi counted = (vi)(vi_to_vf(code) * vf_set(0x1p-10f)), leading = (code << 20) + (119 << 23);
    return (vf)((small & counted) | (~(small | nan) & leading));
}

/* The sum of a group, the first or second 16 numbers of the block a. first: the sum of a's first half. */
VI_INLINE vf nvfp4_sum(const vi *q, const block_a8_32 *a, int second, vi first) {
    vi isum = SIGNED_BIAS ? (second ? first - a->sum : -first) * SIGNED_BIAS : vi_set(0);
    UNROLL_FOR (int j = 0; j < 4; j++)
        isum = dot4_signed(isum, q[j], vi_set_at(a->qs + 16 * second + 4 * j));
    return vi_to_vf(isum);
}

VI_INLINE void nvfp4_block(const uint8_t *words, const uint8_t *tail, const uint8_t *x, uint64_t x_stride, vf *sum,
                           int n) {
    (void)tail;
    fetch(words, (int)sizeof(block_nvfp4) / 4 * LINE, n);
    UNROLL_FOR (int i = 0; i < 2; i++) {
        vf scale[2] = {nvfp4_panel_scale(words, 2 * i), nvfp4_panel_scale(words, 2 * i + 1)};
        vi q[8];
        nvfp4_panel_codes(words, 2 * i, q);
        nvfp4_panel_codes(words, 2 * i + 1, q + 4);
        UNROLL_FOR (int c = 0; c < n; c++) {
            const block_a8_32 *a = (const block_a8_32 *)(x + x_stride * (uint64_t)c) + i;
            vi first = vi_set(0);
            UNROLL_FOR (int j = 0; j < (SIGNED_BIAS ? 4 : 0); j++)
                first = dot4(first, vi_set(0x01010101), vi_set_at(a->qs + 4 * j));
            vf both = vf_fma(nvfp4_sum(q + 4, a, 1, first), scale[1], nvfp4_sum(q, a, 0, first) * scale[0]);
            sum[c] = vf_fused(both, vf_set(a->d), sum[c]); /* the products in `both` are exact, fused or not */
        }
    }
}

static void nvfp4_expand(const uint8_t *words, const uint8_t *tail, float *to) {
    (void)tail;
    for (int g = 0; g < 4; g++) {
        vf scale = nvfp4_panel_scale(words, g);
        vi q[4];
        nvfp4_panel_codes(words, g, q);
        for (int i = 0; i < 16; i++)
            vf_store(to + 16 * (16 * g + i), scale * code_at(q[i / 4], i % 4, SIGNED_CODES));
    }
}

BLOCK_COLUMNS(nvfp4, a8_32)
EXPAND(nvfp4)

#if defined(__AMX_BF16__)
/* Powers of two between two scales under which products still sum exactly in float32: 12 * 15 * 128 * 16 * (1 + 2^5) < 2^24. */
enum { NVFP4_SPREAD = 5 };

/* Whether the scales of two groups are near each other in all rows, or one of them is zero. */
VI_INLINE int nvfp4_near(const uint8_t *words, int group) {
    __m512i seven = _mm512_set1_epi32(0x7F), one = _mm512_set1_epi32(8);
    __m512i a = _mm512_and_si512((__m512i)vi_shift_right(word(words, 0), 8 * group), seven);
    __m512i b = _mm512_and_si512((__m512i)vi_shift_right(word(words, 0), 8 * group + 8), seven);
    __m512i far = _mm512_sub_epi32(_mm512_srli_epi32(_mm512_max_epi32(a, one), 3),
                                   _mm512_srli_epi32(_mm512_max_epi32(b, one), 3));
    __mmask16 none = (__mmask16)(_mm512_testn_epi32_mask(a, a) | _mm512_testn_epi32_mask(b, b) |
                                 _mm512_cmpeq_epi32_mask(a, seven) | _mm512_cmpeq_epi32_mask(b, seven));
    __mmask16 wide = _mm512_cmpgt_epi32_mask(_mm512_abs_epi32(far), _mm512_set1_epi32(NVFP4_SPREAD));
    return (wide & ~none) == 0;
}

/* A group of 16 as pairs of bfloat16, exactly. */
VI_INLINE void nvfp4_pairs(const uint8_t *words, int group, uint8_t *to) {
    static const float table[16] = E2M1_TABLE(E2M1_PLAIN);
    __m512 numbers = _mm512_loadu_ps(table), scale = (__m512)nvfp4_panel_scale(words, group);
    UNROLL_FOR (int i = 0; i < 16; i += 2) {
        __m512i q = (__m512i)word(words, 1 + 2 * group + i % 8 / 4);
        __m512i at = _mm512_srli_epi32(q, (unsigned)(i % 4 * 8 + i / 8 * 4));
        __m512i next = _mm512_srli_epi32(q, (unsigned)(i % 4 * 8 + 8 + i / 8 * 4));
        __m512i x = _mm512_castps_si512(_mm512_mul_ps(_mm512_permutexvar_ps(at, numbers), scale));
        __m512i y = _mm512_castps_si512(_mm512_mul_ps(_mm512_permutexvar_ps(next, numbers), scale));
        _mm512_storeu_si512(to + LINE / 2 * i, _mm512_or_si512(_mm512_srli_epi32(x, 16), y));
    }
}

static int nvfp4_unpack_groups(const product *p, const uint8_t *panel, int64_t group, int groups, scales_32 *s,
                               uint8_t *to) {
    int near = 1;
    (void)s;
    for (int g = 0; g < groups; g++) {
        const uint8_t *words = panel + p->head + sizeof(block_nvfp4) / 4 * LINE * (uint64_t)((group + g) / 2);
        near &= nvfp4_near(words, 2 * (g % 2));
        nvfp4_pairs(words, 2 * (g % 2), to + TILE_BYTES * g);
        nvfp4_pairs(words, 2 * (g % 2) + 1, to + TILE_BYTES * g + TILE_BYTES / 2);
    }
    return near;
}

/* Without tiles: blocks whose scales differ so much that float32 sums of a tile would round. */
static void nvfp4_fallback(const product *p, int first, int64_t group, int groups) {
    for (int i = 0; i < panels_from(p, first); i++)
        for (int64_t b = group / 2; b < (group + groups) / 2; b++) {
            const uint8_t *panel = p->w + p->stride * (uint64_t)(first + i) + p->head;
            const uint8_t *x = p->x + 2 * sizeof(block_a8_32) * (uint64_t)b;
            float *sums = sums_of(p, first) + 16 * i;
            for (int c = 0; c < p->n; c++, x += p->x_stride, sums += 16 * TOGETHER) {
                vf sum = vf_load(sums);
                nvfp4_block(panel + sizeof(block_nvfp4) / 4 * LINE * (uint64_t)b, NULL, x, p->x_stride, &sum, 1);
                vf_store(sums, sum);
            }
        }
}

static void nvfp4_tiled(const product *p) {
    tiles_32(p, nvfp4_unpack_groups, nvfp4_fallback, OF_NUMBERS);
}

static void nvfp4_amx(const product *p) {
    amx_cut(p, FROM_COLUMNS_32, nvfp4_tiled, nvfp4_product);
}
#define PRODUCT_nvfp4 {TYPE_nvfp4, TYPE_a8_32, nvfp4_amx}, EXPAND_ENTRIES(nvfp4)
#else
#define PRODUCT_nvfp4 PRODUCT_ENTRY(nvfp4, a8_32), EXPAND_ENTRIES(nvfp4)
#endif
