/* wide.cu: matrix products of many tokens: y (T, N) = x (T, K) @ weights (N, K).T, by bf16 wgmma with float32 accumulators.
 *
 * First wide_tiles.cu converts activations and weights of any format to bf16 tiles in scratch, so all formats share one
 * product. Then a persistent kernel loops over the tiles of y, 128 tokens by 256 (or 128) columns: one producer thread loads
 * operands by bulk copies into a ring, and two warpgroups multiply 64 tokens each. A sum runs over K in order for any number
 * of tokens. (Measured: in clusters, multicast bulk copies were slower than plain ones.)
 *
 * The kernels ..._fp8, of --precision fast, multiply E4M3 tiles of wide_tiles_fp8.cu, twice as many numbers at a time; the scales of a
 * token and of a column multiply the sums. FP8 sums keep some 14 bits within the tensor core, for all of K: what that costs is less
 * than what E4M3's three bits of mantissa do (docs/notes/gpu-prompts.md).
 *
 * The kernels of PRODUCT_DETERMINISTIC sum K in the parts that columns.cu's groups have there and add these in the same order, so
 * a token's bits are those of columns.cu. That takes a second set of accumulators: they have tiles of 128 columns alone.
 *
 * In a group of devices, the kernels ..._push begin the all-reduce of y (tile_push.cuh) in place of writing y.
 */
#include "columns.h"
#include "fp8_wgmma.h"
#include "hopper.h"
#include "tile_push.cuh"
#include "wgmma.h"
#include "wide_rows.cuh"

template <int BN, int MODE> struct wide_ring {
    static constexpr int STAGES = tiles_stages(BN, MODE), X = PANEL_BYTES, STAGE = X + BN * PANEL_WIDTH;
    uint32_t tiles, barriers;
    float *rooms, *scales; /* of wide_store_rows(); of a tile's tokens, then its columns */
    __device__ __forceinline__ uint32_t full(int s) const {
        return barriers + 16 * s;
    }
    __device__ __forceinline__ uint32_t empty(int s) const {
        return barriers + 16 * s + 8;
    }
    /* The scales of this group's n-th tile. While it is stored, the ring may be filled with as many others as it has stages. */
    __device__ __forceinline__ float *scales_of(int n) const {
        return scales + n % (STAGES + 1) * tiles_row_scales(BN);
    }
};

/* Producer thread: fills the ring, tile after tile. */
template <int BN, int MODE, bool FP8>
static __device__ __forceinline__ void wide_load(const wide_shape &s, const wide_ring<BN, MODE> &ring) {
    typedef wide_ring<BN, MODE> R;
    const int64_t panel = (int64_t)s.across * PANEL_BYTES;
    uint32_t stage = 0, phase = 1;
    int n = 0;
    for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x, n++) {
        const uint8_t *x = s.x + tile % s.tiles_m * panel, *w = s.w + tile / s.tiles_m * (BN / PANEL_ROWS) * panel;
        for (int k = 0; k < s.across; k++, x += PANEL_BYTES, w += PANEL_BYTES) {
            const uint32_t full = ring.full(stage), at = ring.tiles + stage * R::STAGE;
            barrier_wait(ring.empty(stage), phase);
            barrier_expect(full, R::STAGE + (FP8 && !k ? 4 * tiles_row_scales(BN) : 0));
            if (FP8 && !k) {
                const uint32_t scales = shared_address(ring.scales_of(n));
                bulk_load(scales, s.x_scales + tile % s.tiles_m * PANEL_ROWS, 4 * PANEL_ROWS, full);
                bulk_load(scales + 4 * PANEL_ROWS, s.w_scales + tile / s.tiles_m * BN, 4 * BN, full);
            }
            bulk_load(at, x, PANEL_BYTES, full);
#pragma unroll
            for (int i = 0; i < BN / PANEL_ROWS; i++)
                bulk_load(at + R::X + i * PANEL_BYTES, w + i * panel, PANEL_BYTES, full);
            if (++stage == R::STAGES)
                stage = 0, phase ^= 1;
        }
    }
}

static __device__ __forceinline__ void wide_release(uint32_t empty) {
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

/* 32 bytes of K of both operands: 16 elements of bf16, or 32 of E4M3. */
template <bool FP8> static __device__ __forceinline__ void product(float (&d)[128], uint64_t a, uint64_t b, int keep) {
    if constexpr (FP8)
        product_e4m3_256(d, a, b, keep);
    else
        product_bf16_256(d, a, b, keep);
}

template <bool FP8> static __device__ __forceinline__ void product(float (&d)[64], uint64_t a, uint64_t b, int keep) {
    if constexpr (FP8)
        product_e4m3_128(d, a, b, keep);
    else
        product_bf16_128(d, a, b, keep);
}

/* Multiplies the sums of a tile of y with the scales of its tokens and columns. row: the warp's first token in the tile. */
template <int BN>
static __device__ __forceinline__ void apply_scales(const float *scales, float (&d)[BN / 2], int row) {
    const int lane = threadIdx.x % 32;
    const float above = scales[row + lane / 4], below = scales[row + lane / 4 + 8];
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const float2 w = *(const float2 *)(scales + PANEL_ROWS + 8 * j + 2 * (lane % 4));
        d[4 * j] *= above * w.x, d[4 * j + 1] *= above * w.y;
        d[4 * j + 2] *= below * w.x, d[4 * j + 3] *= below * w.y;
    }
}

/* Prefetches a tile's residual to L2 while its sums are computed. */
template <int BN>
static __device__ __forceinline__ void wide_expect(const gpu_call &c, const wide_shape &s, int row, int column) {
    for (int i = threadIdx.x % 128; i < 64 * (BN / 32); i += 128) {
        const int r = row + i / (BN / 32), at = column + i % (BN / 32) * 32;
        if (r < s.tokens && at < c.v[0].shape[1])
            asm volatile("prefetch.global.L2 [%0];" ::"l"(c.v[3].data + (uint64_t)r * c.v[3].stride + 4 * at));
    }
}

/* The step of PANEL_K that part i of K begins with. */
static __device__ __forceinline__ int part_border(const wide_shape &s, int i) {
    return min(columns_part(s.chunks, i, s.parts) * (CHUNK / PANEL_K), s.across);
}

/* Consumer warpgroup: multiplies 64 tokens of each tile. */
template <int BN, int MODE, bool FIXED, bool PUSH, bool FP8>
static __device__ __forceinline__ void wide_multiply(const gpu_call &c, const wide_shape &s,
                                                     const wide_ring<BN, MODE> &ring) {
    typedef wide_ring<BN, MODE> R;
    const int half = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, own = half * 64 + warp * 16;
    float *const room = ring.rooms + own * (tiles_pass(BN) + ROOM_PAD);
    const bool aligned = rows_aligned(c);
    uint32_t stage = 0, phase = 0, last = 0;
    int n = 0;
    int64_t pushed = -1; /* a piece that is not flagged yet */
    for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x, n++) {
        const int row = tile % s.tiles_m * PANEL_ROWS + own, column = tile / s.tiles_m * BN;
        float d[BN / 2], sum[BN / 2];
        int from = 0, part = 0, border = FIXED ? part_border(s, 1) : 0;
        if (FIXED)
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                sum[i] = 0.0f;
        if (MODE == WIDE_ADD)
            wide_expect<BN>(c, s, row - 16 * warp, column);
        for (int k = 0; k < s.across; k++) {
            const uint32_t at = ring.tiles + stage * R::STAGE;
            const uint64_t a = operand_at(at + half * (PANEL_BYTES / 2), 1024, 16), b = operand_at(at + R::X, 1024, 16);
            barrier_wait(ring.full(stage), phase);
            products_open();
#pragma unroll
            for (int i = 0; i < PANEL_WIDTH / 32; i++)
                product<FP8>(d, a + 2 * i, b + 2 * i, k - from + i);
            products_close();
            products_wait<1>();
            if (k)
                wide_release(ring.empty(last));
            last = stage;
            if (++stage == R::STAGES)
                stage = 0, phase ^= 1;
            if (FIXED && k + 1 == border) {
                products_wait<0>();
#pragma unroll
                for (int i = 0; i < BN / 2; i++)
                    sum[i] += d[i];
                from = border, border = part_border(s, ++part + 1);
            }
        }
        products_wait<0>();
        wide_release(ring.empty(last));
        if (FP8)
            apply_scales<BN>(ring.scales_of(n), d, own);
        if (PUSH) {
            if (pushed >= 0)
                flag_piece(tile_sum_of(c), pushed);
            pushed = (int64_t)tile * PUSH_WAVES + 4 * half + warp;
            push_piece<BN>(tile_sum_of(c), pushed, d);
        } else if (tiles_staged(MODE) && aligned &&
                   (MODE == WIDE_SWIGLU ? (column + BN) / 2 : column + BN) <= c.v[0].shape[1]) {
            wide_store_rows<BN, MODE>(c, s, FIXED ? sum : d, row, column, room);
        } else {
            wide_store<BN, MODE>(c, s, FIXED ? sum : d, row, column);
        }
    }
    bulk_stores_end();
    if (PUSH && pushed >= 0)
        flag_piece(tile_sum_of(c), pushed);
}

template <int BN, int MODE, bool FIXED = false, bool PUSH = false, bool FP8 = false>
static __device__ __forceinline__ void wide(const gpu_call &c) {
    constexpr int IN_TILE = FP8 ? PANEL_FP8 : PANEL_K;
    typedef wide_ring<BN, MODE> R;
    extern __shared__ uint8_t memory[];
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
    float *const rooms = (float *)(memory + (base - shared_address(memory)) + R::STAGES * R::STAGE);
    float *const scales = rooms + tiles_rooms(BN, MODE) / 4;
    const R ring = {base, shared_address(scales + (R::STAGES + 1) * tiles_row_scales(BN)), rooms, scales};
    const int k = c.v[1].shape[1], tokens = rows_of(&c, &c.v[1]);
    const uint8_t *const tiles = (const uint8_t *)c.scratch;
    wide_shape s = {tiles, tiles + tiles_bytes(c.v[1].shape[0], k, IN_TILE), tokens, (int)tiles_columns(&c),
                    (k + IN_TILE - 1) / IN_TILE};
    s.tiles_m = (tokens + PANEL_ROWS - 1) / PANEL_ROWS;
    s.tiles = s.tiles_m * ((s.columns + BN - 1) / BN);
    if (FIXED)
        s.parts = columns_fixed_parts(&c), s.chunks = packed_chunks(&c.v[1]);
    if (FP8)
        s.x_scales = (const float *)(tiles + tiles_panels_bytes(&c, IN_TILE)),
        s.w_scales = s.x_scales + tiles_scales(&c);
    if (threadIdx.x == 0) {
        for (int i = 0; i < R::STAGES; i++) {
            barrier_init(ring.full(i), 1);
            barrier_init(ring.empty(i), 8);
        }
        barriers_made();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<40>();
        if (threadIdx.x == 0)
            wide_load<BN, MODE, FP8>(s, ring);
    } else {
        registers_take<232>();
        wide_multiply<BN, MODE, FIXED, PUSH, FP8>(c, s, ring);
    }
}

#define WIDE(name, BN, ...)                                                                                            \
    extern "C" __global__ void __launch_bounds__(384, 1) name(const __grid_constant__ gpu_call c) {                    \
        wide<BN, __VA_ARGS__>(c);                                                                                      \
    }
WIDE(linear_wide, 256, WIDE_LINEAR)
WIDE(linear_add_wide, 256, WIDE_ADD)
WIDE(linear_swiglu_wide, 256, WIDE_SWIGLU)
WIDE(linear_narrow, 128, WIDE_LINEAR)
WIDE(linear_add_narrow, 128, WIDE_ADD)
WIDE(linear_swiglu_narrow, 128, WIDE_SWIGLU)
WIDE(linear_wide_push, 256, WIDE_LINEAR, false, true)
WIDE(linear_narrow_push, 128, WIDE_LINEAR, false, true)
WIDE(linear_wide_fp8, 256, WIDE_LINEAR, false, false, true)
WIDE(linear_add_wide_fp8, 256, WIDE_ADD, false, false, true)
WIDE(linear_swiglu_wide_fp8, 256, WIDE_SWIGLU, false, false, true)
WIDE(linear_narrow_fp8, 128, WIDE_LINEAR, false, false, true)
WIDE(linear_add_narrow_fp8, 128, WIDE_ADD, false, false, true)
WIDE(linear_swiglu_narrow_fp8, 128, WIDE_SWIGLU, false, false, true)
WIDE(linear_fixed, 128, WIDE_LINEAR, true)
WIDE(linear_add_fixed, 128, WIDE_ADD, true)
WIDE(linear_swiglu_fixed, 128, WIDE_SWIGLU, true)
