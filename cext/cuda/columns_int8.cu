/* columns_int8.cu: products of packed weights with many columns in int8, by mma.sync m16n8k32: prompts on devices without wgmma whose
 * tensor cores add f16 products up in float32 at half their rate, which int8 does not share.
 *
 * columns_int8_convert brings the activations, or their norm, to bytes and bytes of what they left over, in gemv.cuh's order: 16 bits an
 * activation, two columns of the tensor cores a token. A group has 256 rows and 64 tokens. Each of its eight warps unpacks a chunk of
 * 32 rows to registers, where all of its codes are int8 and the operand A of eight stretches of 32 elements; unpacked so a code takes
 * two instructions, so there is nothing to share with the other warps. Then the warp multiplies the chunk with the tokens, 16 of them a
 * step. A product of a stretch begins at zero and is added to the chunk's sum times the stretch's integer scale (of formats that have
 * float scales, as a float); after the chunk the sum is multiplied with the row's scale and the token's.
 *
 * The pieces of the activations come through a ring that all warps read, the weights into memory of the warp's own, whose next chunk is
 * fetched as soon as one is unpacked. Where rows and columns make too few groups, `parts` of them split K, as in columns_warp.cu. A
 * sum's order depends on the matrices, the number of columns that the call is made for and the device.
 */
#include "columns_exchange.cuh"
#include "columns_int8.h"
#include "columns_norm.cuh"
#include "columns_sums.cuh"
#include "gemv.cuh"
#include "hopper.h"
#include "port.h"

/* A group converts a row, or without a norm eight chunks of a row, one for each warp. */
extern "C" __global__ void __launch_bounds__(256) columns_int8_convert(const __grid_constant__ gpu_call c) {
    __shared__ float room[8];
    const int token = blockIdx.y, width = c.v[1].shape[1], chunks = packed_chunks(&c.v[1]), lane = threadIdx.x % 32;
    const float *row = (const float *)(c.v[1].data + token * c.v[1].stride);
    const float *norm = c.mode & PRODUCT_NORM ? (const float *)c.v[product_last(&c, c.mode) + 1].data : nullptr;
    launch_next();
    wait_before();
    if (token >= rows_now(c, c.v[0]))
        return;
    const float scale = columns_normed(c, token, width, norm, row, room);
    for (int k = blockIdx.x * 8 + threadIdx.x / 32; k < chunks; k += 8 * gridDim.x) {
        eight x, w;
        x.load(row + k * CHUNK, width - k * CHUNK, lane);
        if (norm) {
            w.load(norm + k * CHUNK, width - k * CHUNK, lane);
#pragma unroll
            for (int i = 0; i < 8; i++)
                x.v[i] = x.v[i] * scale * w.v[i];
        }
        gemv_quantize(x.v, (char *)c.scratch + ((int64_t)(token / 16) * chunks + k) * BATCH_ACTS, token % 16, 16, lane);
    }
}

/* A lane's part of a chunk of 16 rows. KIND: of the format (tile_formats.cuh). */
template <int KIND> struct int8_tile {
    enum { SCALES = KIND == SCALE_HALVES ? 4 : 8 };
    uint32_t code[8][4]; /* the A operand of each stretch */
    /* Of rows lane / 4 and 8 more: floats or integers of the stretches, or bytes of their halves. */
    uint32_t scale[2][SCALES];
    uint32_t low[2]; /* the rows' minimums as an A operand of m16n8k8, where the kind has some */
    /* What a row's sum is multiplied with, and its minimums. */
    float unit[2], least[2];

    template <class F> __device__ __forceinline__ void unpack(const char *w) {
        const int lane = threadIdx.x % 32, g = lane / 4;
        const typename F::scales_type s[2] = {F::scales(w, g), F::scales(w, g + 8)};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            uint32_t two[2][4];
            F::codes(w, lane, p, two);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                code[2 * p][r] = two[0][r]; /* of a SPLIT format the odd stretch has 16 times its codes */
                code[2 * p + 1][r] = F::SPLIT ? two[1][r] >> 4 & 0x0F0F0F0Fu : two[1][r];
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if constexpr (KIND == SCALE_HALVES) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    scale[r][j] = word_of(s[r].v, j);
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    if constexpr (KIND == SCALE_FLOAT)
                        scale[r][j] = __float_as_uint(F::unit(0) * s[r].of(j));
                    else
                        scale[r][j] = (uint32_t)s[r].of(j);
            }
            if constexpr (KIND != SCALE_FLOAT)
                unit[r] = s[r].d() * F::unit(0);
            low[r] = 0, least[r] = 0.0f;
            if constexpr (F::MINS != 0)
                low[r] = s[r].low_pair(lane % 4), least[r] = s[r].dmin();
        }
    }
};

/* The format's chunk at w. */
template <int KIND>
static __device__ __forceinline__ void int8_unpack(int format, const char *w, int8_tile<KIND> &tile) {
    switch (format) {
#define UNPACK_OF(f)                                                                                                   \
    case tile_##f::FORMAT:                                                                                             \
        if constexpr ((int)tile_##f::KIND == KIND)                                                                     \
            tile.template unpack<tile_##f>(w);                                                                         \
        break;
        TILE_FORMATS(UNPACK_OF)
    }
}

/* Integers that are the bits of floats: a product that begins at one of them ends as the bits of that float plus the product, if that is
 * below 2^22. A product with remainders ends 254 * INT8_REST above its own number, so that it takes no subtraction to be divided by 254. */
#define INT8_FLOAT 12582912
#define INT8_REST 49541
#define INT8_BITS(x) (0x4B400000 + ((x) - INT8_FLOAT))
static_assert(INT8_FLOAT < 254 * INT8_REST && 254 * INT8_REST < INT8_FLOAT + 1024, "near the middle of these floats");

/* Signed byte i of a word, in one instruction. */
static __device__ __forceinline__ int byte_of(uint32_t x, int i) {
    int d;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(d) : "r"(x), "r"(0x8880 + 0x1111 * i));
    return d;
}

/* acc[t][first + n] += a chunk of tile t times tokens 4 n + lane % 4 of a piece, b, for its rows lane / 4 and 8 more. */
template <int KIND>
static __device__ __forceinline__ void int8_multiply(const char *b, const int8_tile<KIND> (&tile)[INT8_TILES],
                                                     float (&acc)[INT8_TILES][INT8_PIECES * 4][2], int first) {
    constexpr float REST = 1.0f / 254.0f;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
        int sum[2][INT8_TILES][4];
        float part[2][INT8_TILES][2];
#pragma unroll
        for (int i = 0; i < 2 * INT8_TILES; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i / INT8_TILES][i % INT8_TILES][e] = 0;
            part[i / INT8_TILES][i % INT8_TILES][0] = part[i / INT8_TILES][i % INT8_TILES][1] = 0.0f;
        }
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint4 x[2] = {load_16(b + p * 2048 + (32 * n + lane) * 16),
                                load_16(b + p * 2048 + (32 * n + 32 + lane) * 16)};
#pragma unroll
            for (int j = 2 * p; j < 2 * p + 2; j++)
#pragma unroll
                for (int t = 0; t < INT8_TILES; t++) {
                    const uint32_t *const a = tile[t].code[j];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const uint32_t b0 = j % 2 ? x[i].z : x[i].x, b1 = j % 2 ? x[i].w : x[i].y;
                        if constexpr (KIND == SCALE_HALVES) {
                            int c[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
                            mma_s8_half(c, a[0], a[1], b0);
                            mma_s8_half(e, a[2], a[3], b1);
#pragma unroll
                            for (int q = 0; q < 4; q++) {
                                const uint32_t s = tile[t].scale[q / 2][j / 2];
                                sum[i][t][q] += c[q] * byte_of(s, j % 2 * 2);
                                sum[i][t][q] += e[q] * byte_of(s, j % 2 * 2 + 1);
                            }
                        } else if constexpr (KIND == SCALE_INT) {
                            int c[4] = {0, 0, 0, 0};
                            mma_s8(c, a, b0, b1);
#pragma unroll
                            for (int q = 0; q < 4; q++)
                                sum[i][t][q] += c[q] * (int)tile[t].scale[q / 2][j];
                        } else {
                            int c[4] = {INT8_BITS(INT8_FLOAT), INT8_BITS(254 * INT8_REST), INT8_BITS(INT8_FLOAT),
                                        INT8_BITS(254 * INT8_REST)};
                            mma_s8(c, a, b0, b1);
#pragma unroll
                            for (int r = 0; r < 2; r++) {
                                const float main = __int_as_float(c[2 * r]) - (float)(INT8_FLOAT + INT8_REST);
                                part[i][t][r] = fmaf(fmaf(__int_as_float(c[2 * r + 1]), REST, main),
                                                     __uint_as_float(tile[t].scale[r][j]), part[i][t][r]);
                            }
                        }
                    }
                }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float d = ((const float *)(b + 544 * 16))[4 * (n + i) + lane % 4];
#pragma unroll
            for (int t = 0; t < INT8_TILES; t++) {
                float low[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                if constexpr (KIND == SCALE_INT)
                    mma_f16_k8(low, tile[t].low[0], tile[t].low[1],
                               *(const uint32_t *)(b + 512 * 16 + 16 * (8 * (n + i) + lane / 4) + 4 * (lane % 4)));
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float y = part[i][t][r];
                    if constexpr (KIND != SCALE_FLOAT)
                        y = tile[t].unit[r] * fmaf((float)sum[i][t][2 * r + 1], REST, (float)sum[i][t][2 * r]);
                    if constexpr (KIND == SCALE_INT)
                        y -= tile[t].least[r] * fmaf(low[2 * r + 1], REST, low[2 * r]);
                    acc[t][first + n + i][r] = fmaf(d, y, acc[t][first + n + i][r]);
                }
            }
        }
    }
}

/* A warp's copies and products. */
struct int8_warp {
    enum { RING = INT8_STAGES * BATCH_ACTS };
    const char *data, *piece; /* of the first of its tiles; this thread's part of the next piece to ask for */
    int apart, back;          /* bytes to the piece of 16 tokens more; to the first piece of the next chunk */
    int tiles, format, bytes; /* tiles that exist; bytes of a chunk of one */
    int chunks, count;        /* of K, and of this part of it */
    int fetched;              /* pieces that were asked for */
    int now;                  /* tokens of the group */
    char *shared, *own;       /* the ring, and the memory for a chunk of its tiles */
    int write, read;          /* offsets in the ring of the next piece to ask for, and to multiply */

    __device__ __forceinline__ void fetch_weights(int k) const {
        if (k < count)
#pragma unroll
            for (int t = 0; t < INT8_TILES; t++)
                if (t < tiles)
                    for (int i = 16 * (threadIdx.x % 32); i < bytes; i += 512)
                        copy_16(shared_address(own + t * bytes + i), data + ((int64_t)t * chunks + k) * bytes + i, 1);
    }

    __device__ __forceinline__ void fetch_piece() {
        constexpr int ALL = 16 * WARP_THREADS, LEFT = BATCH_ACTS % ALL;
        if (fetched < INT8_PIECES * count) {
            const uint32_t to = shared_address(shared) + write + 16 * threadIdx.x;
#pragma unroll
            for (int i = 0; i + ALL <= BATCH_ACTS; i += ALL)
                copy_16(to + i, piece + i, 1);
            if (threadIdx.x < LEFT / 16)
                copy_16(to + BATCH_ACTS - LEFT, piece + BATCH_ACTS - LEFT, 1);
        }
        fetched++;
        piece += fetched % INT8_PIECES ? apart : back;
        write = write + BATCH_ACTS == RING ? 0 : write + BATCH_ACTS;
    }

    /* Begins a step: what is read in it is there, and all warps have read what is written in it. */
    __device__ __forceinline__ void begin() {
        copies_wait<INT8_AHEAD - 1>();
        group_barrier();
        fetch_piece();
    }

    template <int KIND> __device__ __forceinline__ void multiply(float (&acc)[INT8_TILES][INT8_PIECES * 4][2]) {
        int8_tile<KIND> tile[INT8_TILES];
        for (int k = 0; k < count; k++) {
#pragma unroll
            for (int p = 0; p < INT8_PIECES; p++) {
                begin();
                if (p == 0) {
#pragma unroll
                    for (int t = 0; t < INT8_TILES; t++)
                        int8_unpack<KIND>(format, own + t * bytes, tile[t]);
                    __syncwarp();
                    fetch_weights(k + 1);
                }
                copies_close();
                if (16 * p < now)
                    int8_multiply<KIND>(shared + read, tile, acc, 4 * p);
                read = read + BATCH_ACTS == RING ? 0 : read + BATCH_ACTS;
            }
        }
    }
};

static __device__ __forceinline__ int int8_kind(int format) {
    switch (format) {
#define KIND_OF(f)                                                                                                     \
    case tile_##f::FORMAT:                                                                                             \
        return tile_##f::KIND;
        TILE_FORMATS(KIND_OF)
    }
    return SCALE_FLOAT;
}

extern "C" __global__ void __launch_bounds__(WARP_THREADS, 1) columns_int8(const __grid_constant__ gpu_call c) {
    extern __shared__ __align__(128) char shared[];
    constexpr int TEAMS = INT8_TILES * WARP_WARPS / 4, STRIDE = INT8_TILES * WARP_WARPS * TILE_ROWS + COLUMNS_PAD;
    __shared__ team_rows where[TEAMS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = packed_chunks(&c.v[1]), parts = gridDim.y;
    const int blocks = (c.v[0].shape[0] + INT8_COLUMNS - 1) / INT8_COLUMNS, first = blockIdx.x % blocks * INT8_COLUMNS;
    const int from = columns_part(chunks, blockIdx.y, parts);
    launch_next();
    if (threadIdx.x < TEAMS)
        where[threadIdx.x] = rows_of_team(c, blockIdx.x / blocks, threadIdx.x, TEAMS);
    __syncthreads();
    const team_rows team = where[warp * INT8_TILES / 4];
    const int in = warp * INT8_TILES % 4;
    int8_warp w;
    w.format = (int)(c.v[team.which].format & 0xFFFFFFu), w.bytes = packed_bytes(w.format);
    w.chunks = chunks, w.count = columns_part(chunks, blockIdx.y + 1, parts) - from;
    w.tiles = max(0, (team.left + TILE_ROWS - 1) / TILE_ROWS - in);
    w.data = (const char *)c.v[team.which].data + ((int64_t)(team.row / TILE_ROWS + in) * chunks + from) * w.bytes;
    w.piece = (const char *)c.scratch + ((int64_t)(first / 16) * chunks + from) * BATCH_ACTS + 16 * threadIdx.x;
    w.apart = chunks * BATCH_ACTS, w.back = BATCH_ACTS - (INT8_PIECES - 1) * w.apart;
    const int8_room room = int8_room_of(columns_bytes(&c));
    w.shared = shared, w.own = shared + room.weights + warp * (room.weight / WARP_WARPS);
    w.fetched = w.write = w.read = 0;
    w.fetch_weights(0);
    wait_before();
    w.now = min(rows_now(c, c.v[0]) - first, INT8_COLUMNS);
    if (w.now <= 0) {
        copies_wait<0>();
        return;
    }
#pragma unroll
    for (int s = 0; s < INT8_AHEAD; s++) {
        w.fetch_piece();
        copies_close();
    }
    float acc[INT8_TILES][INT8_PIECES * 4][2];
#pragma unroll
    for (int i = 0; i < INT8_TILES * INT8_PIECES * 4; i++)
        acc[i / (INT8_PIECES * 4)][i % (INT8_PIECES * 4)][0] = acc[i / (INT8_PIECES * 4)][i % (INT8_PIECES * 4)][1] =
            0.0f;
    switch (int8_kind(w.format)) {
    case SCALE_INT:
        w.multiply<SCALE_INT>(acc);
        break;
    case SCALE_HALVES:
        w.multiply<SCALE_HALVES>(acc);
        break;
    default:
        w.multiply<SCALE_FLOAT>(acc);
    }
    copies_wait<0>();
    if (parts > 1 && !columns_exchange(c, blockIdx.x, gridDim.x, *(float (*)[sizeof acc / 4]) acc, int8_scratch(&c)))
        return;
    __syncthreads(); /* the ring has been read: the sums reuse its memory */
#pragma unroll
    for (int t = 0; t < INT8_TILES; t++) {
        float *to = (float *)shared + lane % 4 * STRIDE + (INT8_TILES * warp + t) * TILE_ROWS + lane / 4;
#pragma unroll
        for (int n = 0; n < INT8_PIECES * 4; n++)
            to[4 * n * STRIDE] = acc[t][n][0], to[4 * n * STRIDE + 8] = acc[t][n][1];
    }
    __syncthreads();
    columns_finish(c, sums_here{(const float *)shared, STRIDE}, where, TEAMS, 1, 0, w.now, first);
}
