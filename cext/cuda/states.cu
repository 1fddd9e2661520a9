/* states.cu: layers with a recurrent state, gated_scan_write of runtime/ops/recurrent.py: the gated delta rule and the selective
 * scan (SSM) in one launch list, with the state after them.
 *
 * Token by token (scan_each, scan_short), a group has 32 columns of a head's state in registers: one pass over it gives k S and
 * q S together, for q S' = f q S + (q k) u. So a decoded token reads and writes each state once.
 *
 * By chunks (Yang et al., arXiv 2412.06464; Dao & Gu, arXiv 2405.21060), with f the decay between two tokens, or from the chunk's
 * start S to a token: u solves  u_t = beta_t (v_t - f S k_t - sum over i < t of f (k_t k_i) u_i). scan_matrices makes, for all
 * chunks and heads at once, the inverse of that triangular system times beta, and `seen`, f (q_t k_i). scan_chunks then goes
 * through a head's chunks with 16 columns of the state in each warp's accumulators: u = inverse (v - f S k), outputs
 * f S q + seen u, then the next state f S + sum of f k u. Operands are rounded to tf32, sums and states are float32. Matrices are
 * transposed (columns of the state are rows of a product), so that every left operand is a warp's own accumulators.
 * Decays are exponentials of differences of sums in float64: those of float32 would be too large to subtract.
 */
#include "hopper.h"
#include "mma_tf32.h"
#include "pieces.k.h"
#include "states_shape.h"

struct scan_call {
    const gpu_call &c;
    const gpu_view *q, *k, *v, *g, *beta, *state, *slots;
    int block, delta, tiled;
    int tokens, heads, groups, keys, width; /* tokens of this step, H, G, N, P */

    __device__ __forceinline__ explicit scan_call(const gpu_call &call)
        : c(call), q(c.v + 1), k(c.v + 2), v(c.v + 3), g(c.v + 4), beta(c.v + 5), state(c.v + 6), slots(c.v + 7) {
        const arg_gated_scan_write *a = (const arg_gated_scan_write *)c.arg;
        block = a->block, delta = a->delta, tiled = a->tiled;
        tokens = rows_of(&c, v), heads = v->shape[1], groups = k->shape[1], keys = k->shape[2], width = v->shape[2];
    }
    __device__ __forceinline__ int group_of(int head) const {
        return tiled ? head % groups : head / (heads / groups);
    }
    /* The head's state in a page. */
    __device__ __forceinline__ float *page_at(int page, int head) const {
        return ROW(float, state, page) + (int64_t)head * keys * width;
    }
    /* goes_on() of a token below `tokens`, with all its loads at once. */
    __device__ __forceinline__ bool joined(int t) const {
        const int before = t > 0 ? t - 1 : 0, slot = i32_at(slots, t), pos = i32_at(slots + 1, t),
                  last_slot = i32_at(slots, before), last = i32_at(slots + 1, before);
        return (t > 0) & (slot == last_slot) & ((int64_t)pos == (int64_t)last + 1);
    }
    __device__ __forceinline__ bool ends(int t) const {
        return t + 1 >= tokens || !joined(t + 1);
    }
    /* Whether the piece that starts at token t is cut into chunks. */
    __device__ __forceinline__ bool is_long(int t) const {
        bool all = true;
        if (t + STATE_LONG > tokens)
            return false;
#pragma unroll
        for (int i = 1; i < STATE_LONG; i++)
            all &= joined(t + i);
        return all;
    }
};

/* --- token by token */

/* Steps of a head's 32 columns through the piece that starts at token t. ROWS: most rows of a thread. */
template <int ROWS> static __device__ __forceinline__ void scan_piece(const scan_call &x, int t) {
    __shared__ float sums[2][TOKEN_THREADS / 32][STATE_COLUMNS / 4][9];
    const int slices = state_slices(x.state), head = blockIdx.x / slices, group = x.group_of(head);
    const int quad = threadIdx.x % (STATE_COLUMNS / 4), row = threadIdx.x / (STATE_COLUMNS / 4);
    const int column = blockIdx.x % slices * STATE_COLUMNS + 4 * quad, warp = threadIdx.x / 32;
    const bool mine = column < x.width;
    float4 s[ROWS];
    int page = page_before(x.slots, x.state, t, x.block), turn = 0;
    if (page == PAGE_OUTSIDE) {
        fault(&x.c);
        return;
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        s[i] = page >= 0 && mine && row + TOKEN_ROWS * i < x.keys
                   ? *(const float4 *)(x.page_at(page, head) + (int64_t)(row + TOKEN_ROWS * i) * x.width + column)
                   : make_float4(0, 0, 0, 0);
    for (bool last = false; !last; t++, turn ^= 1) {
        const float *k = ROW(const float, x.k, t) + (int64_t)group * x.keys + row;
        const float *q = ROW(const float, x.q, t) + (int64_t)group * x.keys + row;
        const float beta = ROW(const float, x.beta, t)[head], g = ROW(const float, x.g, t)[head];
        const float4 v = mine ? *(const float4 *)(ROW(const float, x.v, t) + (int64_t)head * x.width + column)
                              : make_float4(0, 0, 0, 0);
        float key[ROWS], sum[9] = {};
        last = x.ends(t);
        page = page_after(x.slots, x.state, t, last, x.block);
        if (page == PAGE_OUTSIDE) {
            fault(&x.c);
            return;
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const bool is = row + TOKEN_ROWS * i < x.keys;
            const float query = is ? q[TOKEN_ROWS * i] : 0;
            key[i] = is ? k[TOKEN_ROWS * i] : 0;
            sum[0] = fmaf(key[i], s[i].x, sum[0]), sum[1] = fmaf(key[i], s[i].y, sum[1]);
            sum[2] = fmaf(key[i], s[i].z, sum[2]), sum[3] = fmaf(key[i], s[i].w, sum[3]);
            sum[4] = fmaf(query, s[i].x, sum[4]), sum[5] = fmaf(query, s[i].y, sum[5]);
            sum[6] = fmaf(query, s[i].z, sum[6]), sum[7] = fmaf(query, s[i].w, sum[7]);
            sum[8] = fmaf(key[i], query, sum[8]);
        }
#pragma unroll
        for (int i = 0; i < 9; i++) {
            sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 8);
            sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 16);
        }
        if (threadIdx.x % 32 < STATE_COLUMNS / 4)
#pragma unroll
            for (int i = 0; i < 9; i++)
                sums[turn][warp][quad][i] = sum[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 9; i++) {
            sum[i] = 0;
#pragma unroll
            for (int w = 0; w < TOKEN_THREADS / 32; w++)
                sum[i] += sums[turn][w][quad][i];
        }
        const float fade = expf(g), old = x.delta ? fade : 0;
        const float4 u = make_float4(beta * (v.x - old * sum[0]), beta * (v.y - old * sum[1]),
                                     beta * (v.z - old * sum[2]), beta * (v.w - old * sum[3]));
        if (mine && row == 0)
            *(float4 *)(ROW(float, x.c.v, t) + (int64_t)head * x.width + column) =
                make_float4(fmaf(fade, sum[4], sum[8] * u.x), fmaf(fade, sum[5], sum[8] * u.y),
                            fmaf(fade, sum[6], sum[8] * u.z), fmaf(fade, sum[7], sum[8] * u.w));
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            s[i] = make_float4(fmaf(key[i], u.x, s[i].x * fade), fmaf(key[i], u.y, s[i].y * fade),
                               fmaf(key[i], u.z, s[i].z * fade), fmaf(key[i], u.w, s[i].w * fade));
            if (page >= 0 && mine && row + TOKEN_ROWS * i < x.keys)
                *(float4 *)(x.page_at(page, head) + (int64_t)(row + TOKEN_ROWS * i) * x.width + column) = s[i];
        }
    }
}

/* All pieces of a call: a group has those of token blockIdx.y. */
template <int ROWS> static __device__ __forceinline__ void scan_all(const gpu_call &c) {
    const scan_call x(c);
    if ((int)blockIdx.y < x.tokens && !x.joined(blockIdx.y))
        scan_piece<ROWS>(x, blockIdx.y);
}

extern "C" __global__ void __launch_bounds__(TOKEN_THREADS) scan_each(const __grid_constant__ gpu_call c) {
    AWAIT_BEFORE();
    scan_all<STATE_KEYS / TOKEN_ROWS>(c);
}

extern "C" __global__ void __launch_bounds__(TOKEN_THREADS) scan_each_wide(const __grid_constant__ gpu_call c) {
    AWAIT_BEFORE();
    scan_all<STATE_KEYS_BY_TOKEN / TOKEN_ROWS>(c);
}

/* The short pieces of a call with long ones: neighbours among gridDim.y groups, so that tokens which are decoded together do not
 * take turns. */
extern "C" __global__ void __launch_bounds__(TOKEN_THREADS) scan_short(const __grid_constant__ gpu_call c) {
    __shared__ uint32_t found[TOKEN_THREADS / 32];
    AWAIT_BEFORE();
    const scan_call x(c);
    for (int first = blockIdx.y; first < x.tokens; first += TOKEN_THREADS * gridDim.y) {
        const int t = first + threadIdx.x * gridDim.y;
        const bool is = t < x.tokens && !x.joined(t) && !x.is_long(t);
        const uint32_t word = __ballot_sync(0xFFFFFFFFu, is);
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            found[threadIdx.x / 32] = word;
        __syncthreads();
        for (int w = 0; w < TOKEN_THREADS / 32; w++)
            for (uint32_t left = found[w]; left; left &= left - 1) {
                scan_piece<STATE_KEYS / TOKEN_ROWS>(x, first + (32 * w + __ffs(left) - 1) * gridDim.y);
                __syncthreads();
            }
    }
}

/* --- chunks */

/* x rounded to tf32. */
static __device__ __forceinline__ float rounded(float x) {
    return __uint_as_float(tf32_of(x) & 0xFFFFE000u);
}

/* Place of element i of row r in a matrix of rows of `pitch` floats: pairs of eight rows, and elements of every second row, are
 * in different banks. */
static __device__ __forceinline__ int spread(int r, int i, int pitch) {
    return r * pitch + (i ^ ((r & 3) ^ (r >> 2 & 1)) << 3);
}

/* Rows r, r + 8, r + 16 ... of such a matrix, from element i (below 8) on, for a lane: four addresses, all else are constants. */
template <int PITCH> struct spread_rows {
    const float *at[4];
    __device__ __forceinline__ spread_rows(const float *m, int r, int i) {
#pragma unroll
        for (int n = 0; n < 4; n++)
            at[n] = m + spread(r, 8 * n + i, PITCH);
    }
    /* Element 8 n + i of row r + 8 j. */
    __device__ __forceinline__ const float *place(int j, int n) const {
        return at[n & 3] + 8 * j * PITCH + n / 4 * 32;
    }
    __device__ __forceinline__ float2 pair(int j, int n) const {
        return *(const float2 *)place(j, n);
    }
    /* Element 8 (m + n) + i, n a multiple of four that need not be a constant. */
    __device__ __forceinline__ float2 pair(int j, int m, int n) const {
        return *(const float2 *)(at[m] + 8 * j * PITCH + 8 * n);
    }
};

/* Whether a chunk starts at token t, and whether a piece does. */
static __device__ __forceinline__ bool chunk_starts(const scan_call &x, int t, bool *piece) {
    const int pos = i32_at(x.slots + 1, t);
    *piece = !x.joined(t);
    return *piece || pos % STATE_CHUNK == 0 ||
           (pos % x.block == 0 && state_page(x.slots, x.state, i32_at(x.slots, t), pos - 1, x.block) >= 0);
}

/* Copies rows of `floats` numbers, `stride` bytes apart, to a matrix of STATE_CHUNK rows of 4 PIECES numbers; rows from `used` on
 * and numbers from `floats` on become 0. */
template <int THREADS, int PIECES, int PITCH>
static __device__ __forceinline__ void fetch(float *to, const void *from, uint64_t stride, int floats, int used,
                                             int thread) {
    const int at = thread % PIECES * 4;
#pragma unroll 8
    for (int r = thread / PIECES; r < STATE_CHUNK; r += THREADS / PIECES) {
        const bool is = r < used && at < floats;
        copy_16(shared_address(to + (PITCH == 4 * PIECES ? spread(r, at, PITCH) : r * PITCH + at)),
                (const float *)((const char *)from + (is ? r : 0) * stride) + (is ? at : 0), is);
    }
}

/* Products of the rows 16 warp .. of a with those of k: out[r][i]. Those above the diagonal are not all made. */
static __device__ __forceinline__ void multiply_rows(const float *a, const float *k, float *out) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const spread_rows<STATE_KEYS> mine(a + 16 * warp * STATE_KEYS, g, 2 * t), others(k, g, 2 * t);
#pragma unroll 1
    for (int half = 0; half <= warp / 2; half++) { /* rows of the upper half need no products with the lower */
        float sum[4][4] = {};
#pragma unroll 1
        for (int n = 0; n < STATE_KEYS / 8; n += 4)
#pragma unroll
            for (int m = 0; m < 4; m++) {
                const float2 low = mine.pair(0, m, n), high = mine.pair(1, m, n);
                const uint32_t left[4] = {tf32_of(low.x), tf32_of(high.x), tf32_of(low.y), tf32_of(high.y)};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float2 b = others.pair(j, m, n + 4 * half * STATE_KEYS);
                    mma_tf32(sum[j], left, tf32_of(b.x), tf32_of(b.y));
                }
            }
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[(16 * warp + g + e / 2 * 8) * STATE_CHUNK + 32 * half + 8 * j + 2 * t + e % 2] = sum[j][e];
    }
}

/* Column `column` of the inverse T of 1 + A, A strictly lower triangular, by blocks of 16: those on the diagonal by forward
 * substitution, then, block row by block row, T_ab = -T_aa (sum over b <= c < a of A_ac T_cb). turned: A with rows and columns
 * changed. Called by all threads of the group; loops are short code, which a launch has to fetch. */
static __device__ __forceinline__ void invert_column(const float *turned, int column, float *out) {
    const int first = column / 16 * 16;
    float x[16];
#pragma unroll
    for (int r = 0; r < 16; r++)
        x[r] = r == column % 16;
#pragma unroll
    for (int i = 0; i < 15; i++)
#pragma unroll
        for (int r = (i + 1) / 4 * 4; r < 16; r += 4) {
            const float4 a = *(const float4 *)(turned + (first + i) * MATRIX_PITCH + first + r);
            x[r] = r > i ? fmaf(-a.x, x[i], x[r]) : x[r];
            x[r + 1] = r + 1 > i ? fmaf(-a.y, x[i], x[r + 1]) : x[r + 1];
            x[r + 2] = r + 2 > i ? fmaf(-a.z, x[i], x[r + 2]) : x[r + 2];
            x[r + 3] = fmaf(-a.w, x[i], x[r + 3]);
        }
#pragma unroll 1
    for (int r = 0; r < first; r++)
        out[r * STATE_CHUNK + column] = 0;
#pragma unroll
    for (int r = 0; r < 16; r++)
        out[(first + r) * STATE_CHUNK + column] = x[r];
    __syncthreads();
#pragma unroll 1
    for (int row = 16; row < STATE_CHUNK; row += 16) {
        if (row <= first)
            continue;
#pragma unroll
        for (int r = 0; r < 16; r++)
            x[r] = 0;
#pragma unroll 2
        for (int i = first; i < row; i++) {
            const float known = out[i * STATE_CHUNK + column];
#pragma unroll
            for (int r = 0; r < 16; r += 4) {
                const float4 a = *(const float4 *)(turned + i * MATRIX_PITCH + row + r);
                x[r] = fmaf(a.x, known, x[r]), x[r + 1] = fmaf(a.y, known, x[r + 1]);
                x[r + 2] = fmaf(a.z, known, x[r + 2]), x[r + 3] = fmaf(a.w, known, x[r + 3]);
            }
        }
#pragma unroll 2
        for (int r = 0; r < 16; r++) {
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                const float4 a = *(const float4 *)(out + (row + r) * STATE_CHUNK + row + i);
                sum.x = fmaf(a.x, x[i], sum.x), sum.y = fmaf(a.y, x[i + 1], sum.y);
                sum.z = fmaf(a.z, x[i + 2], sum.z), sum.w = fmaf(a.w, x[i + 3], sum.w);
            }
            out[(row + r) * STATE_CHUNK + column] = -(sum.x + sum.y + (sum.z + sum.w));
        }
    }
}

/* Sums of the logarithms of a chunk's decays up to each token, by one warp. */
static __device__ __forceinline__ void add_decays(const scan_call &x, int start, int used, int head, double *sums) {
    const int lane = threadIdx.x % 32;
    double before = 0;
    for (int half = 0; half < 2; half++) {
        const int i = 32 * half + lane;
        double sum = i < used ? (double)ROW(const float, x.g, start + i)[head] : 0.0;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const double other = __shfl_up_sync(0xFFFFFFFFu, sum, o);
            sum += lane >= o ? other : 0.0;
        }
        sums[i] = before + sum;
        before += __shfl_sync(0xFFFFFFFFu, sum, 31);
    }
}

/* The matrices of a chunk of `used` tokens, for two heads that share keys. */
static __device__ __forceinline__ void make_matrices(const scan_call &x, const state_scratch &at, char *local,
                                                     int group, int rank, int start, int used) {
    __shared__ double sums[MATRIX_HEADS][STATE_CHUNK];
    __shared__ float betas[MATRIX_HEADS][STATE_CHUNK];
    float *k = (float *)(local + MATRIX_K), *q = (float *)(local + MATRIX_Q), *kk = (float *)(local + MATRIX_KK),
          *qk = (float *)(local + MATRIX_QK), *scratch = (float *)x.c.scratch;
    const int each = x.heads / x.groups, which = threadIdx.x / 64, i = threadIdx.x % 64, mine = rank + which;
    const int head = x.tiled ? mine * x.groups + group : group * each + mine;
    const bool is = mine < each;
    float *turned = (float *)local + which * STATE_CHUNK * MATRIX_PITCH; /* in the place of keys and queries */
    fetch<MATRIX_THREADS, STATE_KEYS / 4, STATE_KEYS>(k, ROW(const float, x.k, start) + (int64_t)group * x.keys,
                                                      x.k->stride, x.keys, used, threadIdx.x);
    fetch<MATRIX_THREADS, STATE_KEYS / 4, STATE_KEYS>(q, ROW(const float, x.q, start) + (int64_t)group * x.keys,
                                                      x.q->stride, x.keys, used, threadIdx.x);
    copies_close();
    if (is) {
        if (i < 32)
            add_decays(x, start, used, head, sums[which]);
        betas[which][i] = i < used ? ROW(const float, x.beta, start + i)[head] : 0;
    }
    copies_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int i = x.delta ? 0 : 1; i < 2; i++)
        multiply_rows(i ? q : k, k, i ? qk : kk);
    __syncthreads();
    if (is) {
        /* Thread i makes columns i; the system's matrix is written with rows and columns changed. */
        float *seen = scratch + ((uint64_t)start * x.heads + head) * STATE_CHUNK + i;
        const double sum = sums[which][i];
        if (i < used) {
            scratch[at.faded + (uint64_t)head * x.v->shape[0] + start + i] = expf((float)sum);
            scratch[at.left + (uint64_t)head * x.v->shape[0] + start + i] = expf((float)(sums[which][used - 1] - sum));
        }
#pragma unroll 4
        for (int r = 0; r < STATE_CHUNK; r++) {
            const float fade = i <= r ? expf((float)(sums[which][r] - sum)) : 0;
            if (x.delta)
                turned[i * MATRIX_PITCH + r] = i < r ? betas[which][r] * fade * kk[r * STATE_CHUNK + i] : 0;
            if (r < used)
                seen[(uint64_t)r * x.heads * STATE_CHUNK] = i <= r ? rounded(fade * qk[r * STATE_CHUNK + i]) : 0;
        }
    }
    __syncthreads();
    if (x.delta) { /* the inverse is in the place of the products of keys, of the second head in that of queries and keys */
        float *inverse = which ? qk : kk;
        invert_column(turned, i, inverse);
        float *to = scratch + at.inverse + ((uint64_t)start * x.heads + head) * STATE_CHUNK + i;
#pragma unroll 4
        for (int r = 0; r < used && is; r++)
            to[(uint64_t)r * x.heads * STATE_CHUNK] = rounded(inverse[r * STATE_CHUNK + i] * betas[which][i]);
    }
    __syncthreads();
}

/* The chunks that start in tokens STATE_CHUNK blockIdx.y .., for two heads of a group. */
extern "C" __global__ void __launch_bounds__(MATRIX_THREADS, 2) scan_matrices(const __grid_constant__ gpu_call c) {
    extern __shared__ __align__(16) char local[];
    __shared__ uint32_t starts[2 * STATE_CHUNK / 32], chunks[2 * STATE_CHUNK / 32];
    AWAIT_BEFORE();
    const scan_call x(c);
    const state_scratch at = state_scratch_of(&c, x.delta);
    const int each = x.heads / x.groups, pairs = (each + MATRIX_HEADS - 1) / MATRIX_HEADS;
    const int first = STATE_CHUNK * blockIdx.y, t = first + threadIdx.x;
    bool piece = true, starting = true;
    if (first >= x.tokens)
        return;
    if (t < x.tokens)
        starting = chunk_starts(x, t, &piece);
    const bool wanted = starting && t < x.tokens && (!piece || x.is_long(t));
    const uint32_t a = __ballot_sync(0xFFFFFFFFu, starting), b = __ballot_sync(0xFFFFFFFFu, wanted);
    if (threadIdx.x % 32 == 0)
        starts[threadIdx.x / 32] = a, chunks[threadIdx.x / 32] = b;
    __syncthreads();
    for (int i = 0; i < STATE_CHUNK && first + i < x.tokens;) {
        int end = i + 1;
        for (uint32_t left = 0; !left; end = left ? end + __ffs(left) - 1 : (end / 32 + 1) * 32)
            left = starts[end / 32] >> end % 32;
        if (chunks[i / 32] >> i % 32 & 1)
            make_matrices(x, at, local, blockIdx.x / pairs, blockIdx.x % pairs * MATRIX_HEADS, first + i, end - i);
        i = end;
    }
    if (blockIdx.x == 0 && t < x.tokens && t < first + STATE_CHUNK &&
        (page_after(x.slots, x.state, t, x.ends(t), x.block) == PAGE_OUTSIDE ||
         (piece && page_before(x.slots, x.state, t, x.block) == PAGE_OUTSIDE)))
        fault(&c);
}

/* The chunks of a call's long pieces, in order. Bits of tokens say where chunks and pieces start. */
struct chunk_walk {
    const uint32_t *starts, *pieces;
    int tokens, from, to;
    bool opens, closes; /* the chunk is the first, the last of its piece */

    __device__ __forceinline__ static bool bit(const uint32_t *bits, int t) {
        return bits[t / 32] >> t % 32 & 1;
    }
    __device__ __forceinline__ int next_of(const uint32_t *bits, int t) const {
        for (t++; t < tokens && !bit(bits, t);) {
            const uint32_t left = bits[t / 32] >> t % 32;
            t = left ? t + __ffs(left) - 1 : (t / 32 + 1) * 32;
        }
        return t < tokens ? t : tokens;
    }
    /* The next chunk; false: there is none. */
    __device__ __forceinline__ bool next(void) {
        for (from = to; from < tokens; from = next_of(pieces, from)) {
            opens = bit(pieces, from);
            if (!opens || next_of(pieces, from) - from >= STATE_LONG)
                break;
        }
        if (from >= tokens)
            return false;
        to = next_of(starts, from);
        closes = to >= tokens || bit(pieces, to);
        return true;
    }
};

/* Fetches a chunk into a stage, by the loading warps. */
template <bool DELTA>
static __device__ __forceinline__ void fetch_chunk(const scan_call &x, const state_scratch &at, char *stage, int head,
                                                   int column, int start, int used) {
    enum { LOADERS = 32 * CHUNK_LOADERS };
    const float *scratch = (const float *)x.c.scratch;
    const int thread = threadIdx.x - 32 * CHUNK_WARPS, group = x.group_of(head), columns = x.width - column;
    const uint64_t row = ((uint64_t)start * x.heads + head) * STATE_CHUNK, stride = 4ull * x.heads * STATE_CHUNK;
    float *fades = (float *)(stage + CHUNK_FADES);
    fetch<LOADERS, STATE_KEYS / 4, STATE_KEYS>((float *)(stage + CHUNK_K),
                                               ROW(const float, x.k, start) + (int64_t)group * x.keys, x.k->stride,
                                               x.keys, used, thread);
    fetch<LOADERS, STATE_KEYS / 4, STATE_KEYS>((float *)(stage + CHUNK_Q),
                                               ROW(const float, x.q, start) + (int64_t)group * x.keys, x.q->stride,
                                               x.keys, used, thread);
    fetch<LOADERS, STATE_CHUNK / 4, STATE_CHUNK>((float *)(stage + CHUNK_SEEN), scratch + row, stride, STATE_CHUNK,
                                                 used, thread);
    if (DELTA)
        fetch<LOADERS, STATE_CHUNK / 4, STATE_CHUNK>((float *)(stage + CHUNK_INVERSE), scratch + at.inverse + row,
                                                     stride, STATE_CHUNK, used, thread);
    fetch<LOADERS, STATE_COLUMNS / 4, CHUNK_V_PITCH>(
        (float *)(stage + CHUNK_V), ROW(const float, x.v, start) + (int64_t)head * x.width + column, x.v->stride,
        columns < STATE_COLUMNS ? columns : STATE_COLUMNS, used, thread);
    copies_close();
    for (int i = thread; i < STATE_CHUNK; i += LOADERS) {
        const uint64_t from = (uint64_t)head * x.v->shape[0] + start + i;
        fades[i] = i < used ? scratch[at.faded + from] : 0;
        fades[STATE_CHUNK + i] = i < used ? scratch[at.left + from] : 0;
        fades[2 * STATE_CHUNK + i] = i < used ? ROW(const float, x.beta, start + i)[head] : 0;
    }
    copies_wait<0>();
}

/* Operands of a step of products and of the next, which is loaded while the step is computed. */
template <int N> struct operands {
    float2 of[2][N];
};

/* sums[i] += the matrix's row of each i times the left operand, whose rows from a column on are zero (it is triangular). */
static __device__ __forceinline__ void multiply_lower(float (&sums)[STATE_CHUNK / 8][4],
                                                      const float (&left)[STATE_CHUNK / 8][4], const float *matrix) {
    const spread_rows<STATE_CHUNK> rows(matrix, threadIdx.x % 32 / 4, threadIdx.x % 4 * 2);
    operands<STATE_CHUNK / 8> b;
#pragma unroll
    for (int j = 0; j < STATE_CHUNK / 8; j++)
        b.of[0][j] = rows.pair(j, 0);
#pragma unroll
    for (int k = 0; k < STATE_CHUNK / 8; k++) {
        const uint32_t a[4] = {tf32_of(left[k][0]), tf32_of(left[k][2]), tf32_of(left[k][1]), tf32_of(left[k][3])};
#pragma unroll
        for (int j = k + 1; j < STATE_CHUNK / 8; j++)
            b.of[(k + 1) % 2][j] = rows.pair(j, k + 1);
#pragma unroll
        for (int j = k; j < STATE_CHUNK / 8; j++)
            mma_tf32(sums[j], a, __float_as_uint(b.of[k % 2][j].x), __float_as_uint(b.of[k % 2][j].y));
    }
}

/* sums[j] += products of the state with the rows of keys or queries. */
static __device__ __forceinline__ void multiply_state(float (&sums)[STATE_CHUNK / 8][4],
                                                      const float (&s)[STATE_KEYS / 8][4], const float *matrix) {
    const spread_rows<STATE_KEYS> rows(matrix, threadIdx.x % 32 / 4, threadIdx.x % 4 * 2);
    operands<STATE_CHUNK / 8> b;
#pragma unroll
    for (int j = 0; j < STATE_CHUNK / 8; j++)
        b.of[0][j] = rows.pair(j, 0);
#pragma unroll
    for (int n = 0; n < STATE_KEYS / 8; n++) {
        const uint32_t a[4] = {tf32_of(s[n][0]), tf32_of(s[n][2]), tf32_of(s[n][1]), tf32_of(s[n][3])};
#pragma unroll
        for (int j = 0; j < STATE_CHUNK / 8 && n + 1 < STATE_KEYS / 8; j++)
            b.of[(n + 1) % 2][j] = rows.pair(j, n + 1);
#pragma unroll
        for (int j = 0; j < STATE_CHUNK / 8; j++)
            mma_tf32(sums[j], a, __float_as_uint(b.of[n % 2][j].x), __float_as_uint(b.of[n % 2][j].y));
    }
}

/* s += u times the keys, eight rows of N at a time. */
static __device__ __forceinline__ void add_keys(float (&s)[STATE_KEYS / 8][4], const float (&u)[STATE_CHUNK / 8][4],
                                                const float *k) {
    enum { STEP = 8, STEPS = STATE_KEYS / 8 / STEP };
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const spread_rows<STATE_KEYS> even(k, 2 * t, g), odd(k, 2 * t + 1, g);
    operands<STEP> b;
#pragma unroll
    for (int n = 0; n < STEP; n++)
        b.of[0][n] = make_float2(*even.place(0, n), *odd.place(0, n));
#pragma unroll
    for (int i = 0; i < STATE_CHUNK / 8 * STEPS; i++) {
        const int j = i / STEPS, first = i % STEPS * STEP, next = (i + 1) % STEPS * STEP;
        const uint32_t a[4] = {tf32_of(u[j][0]), tf32_of(u[j][2]), tf32_of(u[j][1]), tf32_of(u[j][3])};
#pragma unroll
        for (int n = 0; n < STEP && i + 1 < STATE_CHUNK / 8 * STEPS; n++)
            b.of[(i + 1) % 2][n] =
                make_float2(*even.place((i + 1) / STEPS, next + n), *odd.place((i + 1) / STEPS, next + n));
#pragma unroll
        for (int n = 0; n < STEP; n++)
            mma_tf32(s[first + n], a, __float_as_uint(b.of[i % 2][n].x), __float_as_uint(b.of[i % 2][n].y));
    }
}

/* A warp's columns through a chunk. s: rows of N, of the state with rows and columns changed. */
template <bool DELTA>
static __device__ __forceinline__ void multiply_chunk(const scan_call &x, const char *stage, int head, int column,
                                                      int start, int used, float (&s)[STATE_KEYS / 8][4]) {
    const float *k = (const float *)(stage + CHUNK_K), *q = (const float *)(stage + CHUNK_Q),
                *values = (const float *)(stage + CHUNK_V), *fades = (const float *)(stage + CHUNK_FADES);
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float u[STATE_CHUNK / 8][4], y[STATE_CHUNK / 8][4];
    /* The updates, then the outputs: both are products of the state, then of a triangular matrix. Without the delta rule the
     * updates are known. */
#pragma unroll
    for (int outputs = DELTA ? 0 : 1; outputs < 2; outputs++) {
        float of_state[STATE_CHUNK / 8][4] = {};
        multiply_state(of_state, s, outputs ? q : k);
#pragma unroll
        for (int j = 0; j < STATE_CHUNK / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int at = 8 * j + 2 * t + e % 2;
                const float x = fades[at] * of_state[j][e], v = values[at * CHUNK_V_PITCH + 16 * warp + g + e / 2 * 8];
                if (DELTA)
                    u[j][e] = outputs ? y[j][e] : v - x;
                else
                    u[j][e] = v * fades[2 * STATE_CHUNK + at];
                y[j][e] = outputs ? x : 0;
            }
        multiply_lower(y, u, (const float *)(stage + (outputs ? CHUNK_SEEN : CHUNK_INVERSE)));
    }
#pragma unroll
    for (int j = 0; j < STATE_CHUNK / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = 8 * j + 2 * t + e % 2, p = column + 16 * warp + g + e / 2 * 8;
            u[j][e] *= fades[STATE_CHUNK + at];
            if (at < used && p < x.width)
                ROW(float, x.c.v, start + at)[(int64_t)head * x.width + p] = y[j][e];
        }
    const float whole = fades[used - 1];
#pragma unroll
    for (int n = 0; n < STATE_KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] *= whole;
    add_keys(s, u, k);
}

template <bool STORE>
static __device__ __forceinline__ void move_state(const scan_call &x, int page, int head, int column,
                                                  float (&s)[STATE_KEYS / 8][4]) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float *at = x.page_at(page < 0 ? 0 : page, head);
#pragma unroll
    for (int n = 0; n < STATE_KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int p = column + 16 * warp + g + e / 2 * 8, row = 8 * n + 2 * t + e % 2;
            const bool is = page >= 0 && p < x.width && row < x.keys;
            if (STORE) {
                if (is)
                    at[(int64_t)row * x.width + p] = s[n][e];
            } else
                s[n][e] = is ? at[(int64_t)row * x.width + p] : 0;
        }
}

/* Barriers: of a stage that is loaded, and of one that may be loaded again. */
enum { STAGE_FULL = 1, STAGE_EMPTY = 3 };

template <bool DELTA>
static __device__ __forceinline__ void multiply_chunks(const scan_call &x, const char *local, int head, int column,
                                                       chunk_walk walk) {
    float s[STATE_KEYS / 8][4];
    for (int i = 0; walk.next(); i++) {
        if (walk.opens)
            move_state<false>(x, page_before(x.slots, x.state, walk.from, x.block), head, column, s);
        some_sync(STAGE_FULL + i % 2, CHUNK_THREADS);
        multiply_chunk<DELTA>(x, local + i % 2 * CHUNK_STAGE, head, column, walk.from, walk.to - walk.from, s);
        some_arrive(STAGE_EMPTY + i % 2, CHUNK_THREADS);
        const int page = page_after(x.slots, x.state, walk.to - 1, walk.closes, x.block);
        if (page >= 0)
            move_state<true>(x, page, head, column, s);
    }
}

/* 32 columns of a head through all chunks. */
template <bool DELTA> static __device__ __forceinline__ void scan_columns(const gpu_call &c, char *local) {
    uint32_t *starts = (uint32_t *)(local + CHUNK_BITS), *pieces = starts + STATE_MOST / 32;
    const scan_call x(c);
    const int slices = state_slices(x.state), head = blockIdx.x / slices, column = blockIdx.x % slices * STATE_COLUMNS;
    for (int t = threadIdx.x; t < (x.tokens + 31) / 32 * 32; t += CHUNK_THREADS) {
        bool piece = true, starting = true;
        if (t < x.tokens)
            starting = chunk_starts(x, t, &piece);
        const uint32_t a = __ballot_sync(0xFFFFFFFFu, starting), b = __ballot_sync(0xFFFFFFFFu, piece);
        if (t % 32 == 0)
            starts[t / 32] = a, pieces[t / 32] = b;
    }
    __syncthreads();
    chunk_walk walk = {starts, pieces, x.tokens, 0, 0, false, false};
    if (threadIdx.x < 32 * CHUNK_WARPS) {
        multiply_chunks<DELTA>(x, local, head, column, walk);
        return;
    }
    const state_scratch at = state_scratch_of(&c, DELTA);
    int i = 0;
    for (; walk.next(); i++) {
        if (i >= 2)
            some_sync(STAGE_EMPTY + i % 2, CHUNK_THREADS);
        fetch_chunk<DELTA>(x, at, local + i % 2 * CHUNK_STAGE, head, column, walk.from, walk.to - walk.from);
        some_arrive(STAGE_FULL + i % 2, CHUNK_THREADS);
    }
    for (int n = i < 2 ? 0 : i - 2; n < i; n++) /* no barrier is left half full */
        some_sync(STAGE_EMPTY + n % 2, CHUNK_THREADS);
}

extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, 1) scan_chunks(const __grid_constant__ gpu_call c) {
    extern __shared__ __align__(16) char local[];
    AWAIT_BEFORE();
    scan_columns<false>(c, local);
}

extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, 1) scan_chunks_delta(const __grid_constant__ gpu_call c) {
    extern __shared__ __align__(16) char local[];
    AWAIT_BEFORE();
    scan_columns<true>(c, local);
}
