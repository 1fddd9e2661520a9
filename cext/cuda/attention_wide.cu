/* attention_wide.cu: attention of many tokens over paged caches, by wgmma, on other devices than Hopper by mma.sync (after FlashAttention, Dao et al., arXiv
 * 2205.14135, and FlashAttention-3, Shah et al., arXiv 2407.08608).
 *
 * A group computes a tile of 128 tokens of one query head, 64 in each of its two warpgroups, and loops over the keys that they
 * see, 64 at a time, while the next keys and values are loaded. A run is consecutive positions of one slot; a tile's runs are
 * processed one after the other with the other rows masked. attention_split computes tiles of many short runs. A row's last bits may
 * hang on what else the tile computes; those of attention_fixed.cu, which has the same groups, do not.
 *
 * ANY: the kernel takes heads of up to D numbers, whose rows are filled up with zeros, sight both ways, soft caps and ALiBi; the
 * others take heads of D numbers that see what is behind them, with plain scores. Where D is more than 256, or a group has too little
 * memory for 256, it takes 64 tokens and half of the keys at a time: each warpgroup multiplies its half of the columns, of the queries
 * with the keys and of the weights with the values, and they add their scores.
 */
#include "attention_wide.cuh"

/* Divides the sums by their weights and writes them. */
template <class A, int COLUMNS>
static __device__ __forceinline__ void write_rows(const gpu_call &c, const A &a, const row_state<COLUMNS> &w, int first,
                                                  int head) {
    const float sink = sink_of(c, head);
    const int column = A::part() * COLUMNS + threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = A::own_row(h);
        const float scale = a.shape.on ? 1 : a.scales[row];
        float total = w.total[h];
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
        const float share = share_of(w.most[h] == -INFINITY ? w.most[h] : w.most[h] * scale, total, sink);
        float *y =
            (float *)(c.v[0].data + (uint64_t)(first + a.begin() + row) * c.v[0].stride) + head * a.width() + column;
        if (a.begin() + row < a.end())
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++)
                if (column + 8 * j < a.width())
                    *(float2 *)(y + 8 * j) = make_float2(w.o[4 * j + 2 * h] * share, w.o[4 * j + 2 * h + 1] * share);
    }
}

#define ATTENTION(name, FORMAT, D, ANY, GROUPS) ATTENTION_CUT(name, FORMAT, D, ANY, GROUPS, column_parts(D))
#define ATTENTION_CUT(name, FORMAT, D, ANY, GROUPS, CUT)                                                               \
    extern "C" __global__ void __launch_bounds__(256, GROUPS) name(const __grid_constant__ gpu_call c) {               \
        AWAIT_BEFORE();                                                                                                \
        typedef wide_attention<FORMAT, D, ANY, 0, 256, CUT> A;                                                         \
        attention_tile<A>(                                                                                             \
            c, [](const A &, row_state<A::COLUMNS> &) {},                                                              \
            [&](const A &a, const row_state<A::COLUMNS> &w, int first, int head) {                                     \
                write_rows(c, a, w, first, head);                                                                      \
            });                                                                                                        \
    }
/* For groups with 99 KB of shared memory, which no Hopper has: half of the tokens, and of the keys of a step. nvcc's pass for the host
 * needs the names of all kernels. */
#if HOPPER && defined(__CUDA_ARCH__)
#define ATTENTION_HALVED(name, FORMAT, ANY)
#else
#define ATTENTION_HALVED(name, FORMAT, ANY) ATTENTION_CUT(name, FORMAT, 256, ANY, 1, 2)
#endif
#define ATTENTIONS(format, FORMAT)                                                                                     \
    ATTENTION(attention_wide_64_##format, FORMAT, 64, false, 2)                                                        \
    ATTENTION(attention_wide_128_##format, FORMAT, 128, false, 2)                                                      \
    ATTENTION(attention_wide_256_##format, FORMAT, 256, false, 1)                                                      \
    ATTENTION(attention_wide_any_64_##format, FORMAT, 64, true, 2)                                                     \
    ATTENTION(attention_wide_any_128_##format, FORMAT, 128, true, 2)                                                   \
    ATTENTION(attention_wide_any_256_##format, FORMAT, 256, true, 1)                                                   \
    ATTENTION(attention_wide_any_512_##format, FORMAT, 512, true, 1)                                                   \
    ATTENTION_HALVED(attention_wide_halved_256_##format, FORMAT, false)                                                \
    ATTENTION_HALVED(attention_wide_any_halved_256_##format, FORMAT, true)
ATTENTIONS(f16, CACHE_F16)
ATTENTIONS(bf16, CACHE_BF16)
ATTENTIONS(fp8, CACHE_FP8)
ATTENTIONS(q8_0, CACHE_Q8_0)
ATTENTIONS(q4_0, CACHE_Q4_0)
