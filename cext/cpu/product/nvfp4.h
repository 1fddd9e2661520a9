/* nvfp4: word 0: the scales of 16; 1-8: nibbles, two words to a group: its first eight codes are the low ones. Products are
 * exact in integers within a group. */
VI_INLINE void nvfp4_panel_codes(const uint8_t *words, int group, vi *q) {
    static const uint8_t table[16] = E2M1_TABLE(SIGN_CODE);
    UNROLL for (int j = 0; j < 4; j++)
        q[j] = vi_lookup(table, vi_shift_right(word(words, 1 + 2 * group + j % 2), 4 * (j / 2)) & 0x0F0F0F0F);
}

/* Half of the scale: as nvfp4_scale has it, from bits where a float32 has its own, 2^120 times too small. */
VI_INLINE vf nvfp4_panel_scale(const uint8_t *words, int group) {
    vi code = vi_shift_right(word(words, 0), 8 * group) & 255, nan = code == 0x7F;
    return (vf)((vi)((vf)((code & 0x7F) << 20) * vf_set(0x1p119f)) & ~nan);
}

/* Adds a group, the first or second 16 numbers of the block a. first: the sum of a's first half. */
VI_INLINE vf nvfp4_add(const vi *q, vf scale, const block_a8_32 *a, int second, vi first, vf sum) {
    vi isum = SIGNED_BIAS ? (second ? first - a->sum : -first) * SIGNED_BIAS : vi_set(0);
    UNROLL for (int j = 0; j < 4; j++)
        isum = dot4_signed(isum, q[j], vi_set_at(a->qs + 16 * second + 4 * j));
    return vf_fused(vi_to_vf(isum), scale * vf_set(a->d), sum);
}

VI_INLINE void nvfp4_block(const uint8_t *words, const uint8_t *lone, const uint8_t *x, uint64_t x_stride, vf *sum, int n) {
    (void)lone;
    fetch(words, (int)sizeof(block_nvfp4) / 4 * LINE);
    UNROLL for (int i = 0; i < 2; i++) {
        vf scale[2] = {nvfp4_panel_scale(words, 2 * i), nvfp4_panel_scale(words, 2 * i + 1)};
        vi q[8];
        nvfp4_panel_codes(words, 2 * i, q);
        nvfp4_panel_codes(words, 2 * i + 1, q + 4);
        UNROLL for (int c = 0; c < n; c++) {
            const block_a8_32 *a = (const block_a8_32 *)(x + x_stride * (uint64_t)c) + i;
            vi first = vi_set(0);
            UNROLL for (int j = 0; j < 4 && SIGNED_BIAS; j++)
                first = dot4(first, vi_set(0x01010101), vi_set_at(a->qs + 4 * j));
            sum[c] = nvfp4_add(q, scale[0], a, 0, first, sum[c]);
            sum[c] = nvfp4_add(q + 4, scale[1], a, 1, first, sum[c]);
        }
    }
}

static void nvfp4_expand(const uint8_t *words, const uint8_t *lone, float *to) {
    (void)lone;
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

#if defined(__AMX_INT8__)
static void nvfp4_unpack_groups(const product *p, const uint8_t *panel, int64_t group, int groups, scales_32 *s,
                                uint8_t *codes) {
    for (int g = 0; g < groups; g++) {
        const uint8_t *words = panel + p->head + sizeof(block_nvfp4) / 4 * LINE * (uint64_t)((group + g) / 4);
        vi q[4];
        s->d[g] = nvfp4_panel_scale(words, (int)((group + g) % 4));
        nvfp4_panel_codes(words, (int)((group + g) % 4), q);
        for (int j = 0; j < 4; j++)
            vi_store(codes + LINE * (4 * g + j), sign_codes(q[j]));
    }
}

static void nvfp4_tiled(const product *p) {
    tiles_32(p, nvfp4_unpack_groups, 16, 0);
}

static void nvfp4_amx(const product *p) {
    amx_cut(p, FROM_COLUMNS_32, nvfp4_tiled, nvfp4_product);
}
#define PRODUCT_nvfp4 {TYPE_nvfp4, TYPE_a8_32, nvfp4_amx}, EXPAND_ENTRIES(nvfp4)
#else
#define PRODUCT_nvfp4 PRODUCT_ENTRY(nvfp4, a8_32), EXPAND_ENTRIES(nvfp4)
#endif
