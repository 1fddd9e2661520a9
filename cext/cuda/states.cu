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

/* What a thread needs of a token, and the page of the state after it. */
template <int ROWS> struct scan_token {
    float key[ROWS], query[ROWS], beta, g;
    float4 v;
    int page;
    bool last; /* of its piece */
};

/* A head's 32 columns in a group: a thread has four of every 16th row. */
template <int ROWS> struct scan_tile {
    const scan_call &x;
    int head, group, quad, row, column;
    bool mine;

    __device__ __forceinline__ explicit scan_tile(const scan_call &of) : x(of) {
        const int slices = state_slices(x.state);
        head = blockIdx.x / slices, group = x.group_of(head);
        quad = threadIdx.x % (STATE_COLUMNS / 4), row = threadIdx.x / (STATE_COLUMNS / 4);
        column = blockIdx.x % slices * STATE_COLUMNS + 4 * quad, mine = column < x.width;
    }
    __device__ __forceinline__ float4 *place(int page, int i) const {
        return (float4 *)(x.page_at(page, head) + (int64_t)(row + TOKEN_ROWS * i) * x.width + column);
    }
    __device__ __forceinline__ bool is(int i) const {
        return row + TOKEN_ROWS * i < x.keys;
    }
    __device__ __forceinline__ void load(int t, scan_token<ROWS> &to) const {
        const float *k = ROW(const float, x.k, t) + (int64_t)group * x.keys + row;
        const float *q = ROW(const float, x.q, t) + (int64_t)group * x.keys + row;
        const bool last = x.ends(t);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            to.key[i] = is(i) ? k[TOKEN_ROWS * i] : 0, to.query[i] = is(i) ? q[TOKEN_ROWS * i] : 0;
        to.beta = ROW(const float, x.beta, t)[head], to.g = ROW(const float, x.g, t)[head];
        to.v = mine ? *(const float4 *)(ROW(const float, x.v, t) + (int64_t)head * x.width + column)
                    : make_float4(0, 0, 0, 0);
        to.page = page_after(x.slots, x.state, t, last, x.block), to.last = last;
    }
};

/* Steps of a head's 32 columns through the piece that starts at token t. ROWS: most rows of a thread. */
template <int ROWS> static __device__ __forceinline__ void scan_piece(const scan_call &x, int t) {
    __shared__ float sums[2][TOKEN_THREADS / 32][STATE_COLUMNS / 4][9];
    const scan_tile<ROWS> tile(x);
    const int warp = threadIdx.x / 32;
    scan_token<ROWS> now, next;
    float4 s[ROWS];
    const int before = page_before(x.slots, x.state, t, x.block);
    tile.load(t, now);
    if (before == PAGE_OUTSIDE || now.page == PAGE_OUTSIDE) {
        fault(&x.c);
        return;
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        s[i] = before >= 0 && tile.mine && tile.is(i) ? *tile.place(before, i) : make_float4(0, 0, 0, 0);
    for (int turn = 0;; turn ^= 1, t++) {
        float sum[9] = {};
        if (!now.last)
            tile.load(t + 1, next);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float key = now.key[i], query = now.query[i];
            sum[0] = fmaf(key, s[i].x, sum[0]), sum[1] = fmaf(key, s[i].y, sum[1]);
            sum[2] = fmaf(key, s[i].z, sum[2]), sum[3] = fmaf(key, s[i].w, sum[3]);
            sum[4] = fmaf(query, s[i].x, sum[4]), sum[5] = fmaf(query, s[i].y, sum[5]);
            sum[6] = fmaf(query, s[i].z, sum[6]), sum[7] = fmaf(query, s[i].w, sum[7]);
            sum[8] = fmaf(key, query, sum[8]);
        }
#pragma unroll
        for (int i = 0; i < 9; i++) {
            sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 8);
            sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], 16);
        }
        if (threadIdx.x % 32 < STATE_COLUMNS / 4)
#pragma unroll
            for (int i = 0; i < 9; i++)
                sums[turn][warp][tile.quad][i] = sum[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 9; i++) {
            sum[i] = 0;
#pragma unroll
            for (int w = 0; w < TOKEN_THREADS / 32; w++)
                sum[i] += sums[turn][w][tile.quad][i];
        }
        const float fade = expf(now.g), old = x.delta ? fade : 0, beta = now.beta;
        const float4 u = make_float4(beta * (now.v.x - old * sum[0]), beta * (now.v.y - old * sum[1]),
                                     beta * (now.v.z - old * sum[2]), beta * (now.v.w - old * sum[3]));
        if (tile.mine && tile.row == 0)
            *(float4 *)(ROW(float, x.c.v, t) + (int64_t)tile.head * x.width + tile.column) =
                make_float4(fmaf(fade, sum[4], sum[8] * u.x), fmaf(fade, sum[5], sum[8] * u.y),
                            fmaf(fade, sum[6], sum[8] * u.z), fmaf(fade, sum[7], sum[8] * u.w));
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float key = now.key[i];
            s[i] = make_float4(fmaf(key, u.x, s[i].x * fade), fmaf(key, u.y, s[i].y * fade),
                               fmaf(key, u.z, s[i].z * fade), fmaf(key, u.w, s[i].w * fade));
            if (now.page >= 0 && tile.mine && tile.is(i))
                *tile.place(now.page, i) = s[i];
        }
        if (now.last)
            return;
        now = next;
        if (now.page == PAGE_OUTSIDE) {
            fault(&x.c);
            return;
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
    float sum[4][4] = {};
    for (int half = 0; half < 2; half++)
        if (half <= warp / 2) { /* rows of the upper half need no products with the lower */
#pragma unroll
            for (int n = 0; n < STATE_KEYS / 8; n++) {
                const float2 low = mine.pair(0, n), high = mine.pair(1, n);
                const uint32_t left[4] = {tf32_of(low.x), tf32_of(high.x), tf32_of(low.y), tf32_of(high.y)};
                float2 b[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    b[j] = others.pair(4 * half + j, n);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    mma_tf32(sum[j], left, tf32_of(b[j].x), tf32_of(b[j].y));
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    out[(16 * warp + g + e / 2 * 8) * STATE_CHUNK + 32 * half + 8 * j + 2 * t + e % 2] = sum[j][e];
                    sum[j][e] = 0;
                }
        }
}

/* Column `column` of the inverse of 1 + A, A strictly lower triangular; turned: A with rows and columns changed. */
static __device__ __forceinline__ void invert_column(const float *turned, int column, float out[STATE_CHUNK]) {
#pragma unroll
    for (int i = 0; i < STATE_CHUNK; i++)
        out[i] = i == column;
#pragma unroll
    for (int i = 0; i < STATE_CHUNK - 1; i++)
#pragma unroll
        for (int four = (i + 1) / 4 * 4; four < STATE_CHUNK; four += 4) {
            const float4 a = *(const float4 *)(turned + i * MATRIX_PITCH + four);
            if (four > i)
                out[four] = fmaf(-a.x, out[i], out[four]);
            if (four + 1 > i)
                out[four + 1] = fmaf(-a.y, out[i], out[four + 1]);
            if (four + 2 > i)
                out[four + 2] = fmaf(-a.z, out[i], out[four + 2]);
            out[four + 3] = fmaf(-a.w, out[i], out[four + 3]);
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
    multiply_rows(q, k, qk);
    if (x.delta)
        multiply_rows(k, k, kk);
    __syncthreads();
    if (is) {
        /* Thread i makes columns i; the system's matrix is written with rows and columns changed. */
        float *seen = scratch + ((uint64_t)start * x.heads + head) * STATE_CHUNK + i;
        const double sum = sums[which][i];
        if (i < used) {
            scratch[at.faded + (uint64_t)head * x.v->shape[0] + start + i] = expf((float)sum);
            scratch[at.left + (uint64_t)head * x.v->shape[0] + start + i] = expf((float)(sums[which][used - 1] - sum));
        }
#pragma unroll 8
        for (int r = 0; r < STATE_CHUNK; r++) {
            const float fade = i <= r ? expf((float)(sums[which][r] - sum)) : 0;
            if (x.delta)
                turned[i * MATRIX_PITCH + r] = i < r ? betas[which][r] * fade * kk[r * STATE_CHUNK + i] : 0;
            if (r < used)
                seen[(uint64_t)r * x.heads * STATE_CHUNK] = i <= r ? fade * qk[r * STATE_CHUNK + i] : 0;
        }
    }
    __syncthreads();
    if (is && x.delta) {
        float column[STATE_CHUNK];
        invert_column(turned, i, column);
        float *to = scratch + at.inverse + ((uint64_t)start * x.heads + head) * STATE_CHUNK + i;
#pragma unroll
        for (int r = 0; r < STATE_CHUNK; r++)
            if (r < used)
                to[(uint64_t)r * x.heads * STATE_CHUNK] = column[r] * betas[which][i];
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
        while (!(starts[end / 32] >> end % 32 & 1))
            end++;
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
            mma_tf32(sums[j], a, tf32_of(b.of[k % 2][j].x), tf32_of(b.of[k % 2][j].y));
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
            mma_tf32(sums[j], a, tf32_of(b.of[n % 2][j].x), tf32_of(b.of[n % 2][j].y));
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
            mma_tf32(s[first + n], a, tf32_of(b.of[i % 2][n].x), tf32_of(b.of[i % 2][n].y));
    }
}

/* A warp's columns through a chunk. s: rows of N, of the state with rows and columns changed. */
template <bool DELTA>
static __device__ __forceinline__ void multiply_chunk(const scan_call &x, const char *stage, int head, int column,
                                                      int start, int used, float (&s)[STATE_KEYS / 8][4]) {
    const float *k = (const float *)(stage + CHUNK_K), *q = (const float *)(stage + CHUNK_Q),
                *values = (const float *)(stage + CHUNK_V), *fades = (const float *)(stage + CHUNK_FADES);
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float u[STATE_CHUNK / 8][4] = {}, y[STATE_CHUNK / 8][4] = {};
    if (DELTA) {
        float missing[STATE_CHUNK / 8][4] = {};
        multiply_state(missing, s, k);
#pragma unroll
        for (int j = 0; j < STATE_CHUNK / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int at = 8 * j + 2 * t + e % 2;
                missing[j][e] = values[at * CHUNK_V_PITCH + 16 * warp + g + e / 2 * 8] - fades[at] * missing[j][e];
            }
        multiply_lower(u, missing, (const float *)(stage + CHUNK_INVERSE));
    } else
#pragma unroll
        for (int j = 0; j < STATE_CHUNK / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int at = 8 * j + 2 * t + e % 2;
                u[j][e] = values[at * CHUNK_V_PITCH + 16 * warp + g + e / 2 * 8] * fades[2 * STATE_CHUNK + at];
            }
    multiply_state(y, s, q);
#pragma unroll
    for (int j = 0; j < STATE_CHUNK / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[j][e] *= fades[8 * j + 2 * t + e % 2];
    multiply_lower(y, u, (const float *)(stage + CHUNK_SEEN));
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
    if (x.width - column < STATE_COLUMNS) /* values of columns that do not exist are never fetched */
        for (int i = threadIdx.x; i < 2 * STATE_CHUNK * CHUNK_V_PITCH; i += CHUNK_THREADS)
            ((float *)(local + i / (STATE_CHUNK * CHUNK_V_PITCH) * CHUNK_STAGE +
                       CHUNK_V))[i % (STATE_CHUNK * CHUNK_V_PITCH)] = 0;
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
