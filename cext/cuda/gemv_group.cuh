/* gemv_group.cuh: parts of a group of sixteen waves in gemv.cu: its tiles, the waves' iteration over chunks, quantized
 * activations, and the epilogue.
 */
#ifndef SATCHEL_CUDA_GEMV_GROUP_CUH
#define SATCHEL_CUDA_GEMV_GROUP_CUH

#include "geglu.cuh"
#include "gemv.cuh"
#include "gemv_pair.cuh"
#include "gemv_split.cuh"

#ifndef GROUP_WAVES /* of a group */
#define GROUP_WAVES GEMV_WAVES
#endif

enum {
    TEAMS = 2,
    WAVES = GROUP_WAVES,
    WAYS = WAVES / TEAMS,
    ADD = PRODUCT_ADD,
    GATED = PRODUCT_GATED,
    NORM = PRODUCT_NORM,
    POST = PRODUCT_POST
};

/* One tile of the group: its address, and the output column of its first row; left: rows that exist. */
struct gemv_tile {
    const char *data;
    int column, left, format, bytes;
};

template <class F> struct one {
    __device__ static __forceinline__ int bytes(int) {
        return F::BYTES;
    }
    template <class M> __device__ static __forceinline__ int format(const gpu_call &, const M &, int, int) {
        return F::FORMAT;
    }
    __device__ static __forceinline__ void chunk(int, const char *w, const char *a, int columns, int lane, float *acc) {
        gemv_chunk<F>(w, a, columns, lane, acc);
    }
};

/* Matrices of several formats side by side. */
struct mixed {
    __device__ static __forceinline__ int bytes(int format) {
        return packed_bytes((uint32_t)format);
    }
    template <class M>
    __device__ static __forceinline__ int format(const gpu_call &c, const M &m, int local, int chunks) {
        return m.tile(c, local, chunks).format;
    }
    __device__ static __forceinline__ void chunk(int format, const char *w, const char *a, int columns, int lane,
                                                 float *acc) {
#define CHUNK_OF(f)                                                                                                    \
    if (format == tile_##f::FORMAT) {                                                                                  \
        gemv_chunk<tile_##f>(w, a, columns, lane, acc);                                                                \
        return;                                                                                                        \
    }
        TILE_FORMATS(CHUNK_OF)
    }
};

enum { MATRICES = GEMV_MATRICES };

/* The matrices of a call, from v[2] on: side by side, or alternating by tile if gated. All indices are compile-time
 * constants, so the reads overlap: start-up is a large part of a kernel's time. */
template <class SET, bool SPLIT = false> struct matrices {
    typedef gemv_place<SPLIT> place;
    int count, gated, all, bytes; /* tiles of all, bytes of the largest chunk */
    __device__ __forceinline__ matrices(const gpu_call &c) {
        count = product_last(&c, c.mode) - 1;
        gated = c.mode & GATED ? 1 : 0;
        all = 0;
        bytes = SET::bytes((int)(c.v[2].format & 0xFFFFFFu));
#pragma unroll
        for (int i = 0; i < MATRICES; i++)
            if (i < count) {
                all += packed_tiles(&c.v[2 + i]);
                bytes = max(bytes, SET::bytes((int)(c.v[2 + i].format & 0xFFFFFFu)));
            }
    }
    __device__ __forceinline__ gemv_tile tile(const gpu_call &c, int local, int chunks) const {
        gemv_tile p;
        uint64_t data = c.v[2].data;
        int at = local * (int)place::groups() + place::group(), rows = c.v[2].shape[0];
        p.column = 0;
        p.format = (int)(c.v[2].format & 0xFFFFFFu);
        if (gated) {
            at = (local >> 1) * (int)place::groups() + place::group();
            if (local & 1)
                data = c.v[3].data, p.format = (int)(c.v[3].format & 0xFFFFFFu);
        } else {
#pragma unroll
            for (int i = 1; i < MATRICES; i++) {
                int n = packed_tiles(&c.v[1 + i]);
                if (i < count && at >= n) {
                    at -= n;
                    p.column += rows;
                    data = c.v[2 + i].data, rows = c.v[2 + i].shape[0], p.format = (int)(c.v[2 + i].format & 0xFFFFFFu);
                } else {
                    break;
                }
            }
        }
        p.bytes = SET::bytes(p.format);
        p.left = min(TILE_ROWS, rows - TILE_ROWS * at);
        p.column += TILE_ROWS * at;
        p.data = (const char *)data + (int64_t)at * chunks * p.bytes;
        return p;
    }
};

/* A wave's iteration over its chunks. */
struct chunk_walk {
    int tile, row;
    __device__ __forceinline__ chunk_walk(int team, bool shared) : tile(shared ? 0 : team), row(shared ? team : 0) {}
    __device__ __forceinline__ int chunk(int way) const {
        return row * WAYS + way;
    }
    __device__ __forceinline__ void next(int team, int way, int chunks, bool shared) {
        row += shared ? TEAMS : 1;
        if (chunk(way) >= chunks) {
            row = shared ? team : 0;
            tile += shared ? 1 : TEAMS;
        }
    }
};

/* Sum of the waves' squares of column t. */
__device__ __forceinline__ float gemv_squares(const float *squares, int t) {
    float sum = 0.0f;
    for (int w = 0; w < WAVES; w++)
        sum += squares[w * 4 + t];
    return sum;
}

/* Adds the waves' partial sums of a row in order. */
__device__ __forceinline__ float gemv_sum(const float *part, int tile, int t, int row, int most, bool together) {
    const float *q = part + ((tile * WAVES + (together ? 0 : tile % TEAMS * WAYS)) * most + t) * TILE_ROWS + row;
    float v[WAVES], sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WAVES; w++)
        v[w] = w < WAYS || together ? q[w * most * TILE_ROWS] : 0.0f;
#pragma unroll
    for (int w = 0; w < WAVES; w++)
        sum += v[w];
    return sum;
}

/* Multiplies sums by the factor of a row whose squares have this sum. */
__device__ __forceinline__ void gemv_norm(const gpu_call &c, float (&y)[2], float squares) {
    float mean = squares / (float)c.v[1].shape[1];
    float scale = rsqrtf(mean + __uint_as_float((uint32_t)c.arg[0]));
    y[0] *= scale, y[1] *= scale;
}

/* Does the rest of the op, gate and residual. */
__device__ __forceinline__ void gemv_write(const gpu_call &c, const float (&y)[2], int column, int t, float residual,
                                           bool gated) {
    float out = !gated ? y[0] : c.mode & PRODUCT_GELU ? geglu_of(c, y[0], y[1]) : y[0] / (1.0f + __expf(-y[0])) * y[1];
    ((float *)(c.v[0].data + t * c.v[0].stride))[column] = out + residual;
}

/* The end of a group that has all of K. */
__device__ __forceinline__ void gemv_finish(const gpu_call &c, const float *part, const float *squares, int column,
                                            int tile, int t, int row, float residual, int most, bool gated,
                                            bool together) {
    float y[2] = {0.0f, 0.0f};
    for (int k = 0; k <= (int)gated; k++)
        y[k] = gemv_sum(part, tile + k, t, row, most, together);
    if (c.mode & NORM)
        gemv_norm(c, y, gemv_squares(squares, t));
    gemv_write(c, y, column, t, residual, gated);
}

/* The end of a group that has a part of K: of its columns, once all parts have come. squares: of the waves, for its part. */
template <class SET, bool SPLIT>
__device__ __forceinline__ void gemv_split_finish(const gpu_call &c, const matrices<SET, SPLIT> &m,
                                                  const gemv_parts<SPLIT> &parts, const float *squares, int columns) {
    const int owned = parts.owned(columns), rank = parts.place.rank,
              sums = (parts.tiles >> m.gated) * owned * TILE_ROWS;
    if (c.mode & NORM && (int)threadIdx.x < columns)
        parts.leave(parts.squares(rank) + threadIdx.x, threadIdx.x, gemv_squares(squares, threadIdx.x));
    __syncthreads(); /* what this group has left for itself */
    for (int i = threadIdx.x; i < sums; i += WAVES * 32) {
        const int row = i % TILE_ROWS, unit = i / TILE_ROWS / owned, first = unit << m.gated,
                  t = (i / TILE_ROWS - unit * owned) * parts.place.parts + rank;
        const gemv_tile tile = m.tile(c, first, packed_chunks(&c.v[1]));
        if (row >= tile.left)
            continue; /* each tile has a first row, so some thread waits */
        float y[2] = {0.0f, 0.0f}, residual = 0.0f;
        if (c.mode & ADD)
            residual = ((const float *)(c.v[c.n_in].data + t * c.v[c.n_in].stride))[tile.column + row];
        parts.wait();
        for (int k = 0; k <= m.gated; k++)
            y[k] = parts.added(first + k, t, row);
        if (c.mode & NORM)
            gemv_norm(c, y, parts.all_squares(t));
        gemv_write(c, y, tile.column + row, t, residual, m.gated);
    }
}

/* Each wave's share of the squares of x, before its post-norm. */
__device__ __forceinline__ void gemv_post_squares(const gpu_call &c, const gemv_plan &p, float *squares, int columns,
                                                  int wave, int lane) {
    int width = c.v[1].shape[1];
    for (int t = 0; t < columns; t++) {
        float sum = 0.0f;
        for (int k = wave; k < p.chunks; k += WAVES) {
            eight v;
            v.load((const float *)(c.v[1].data + t * c.v[1].stride) + k * CHUNK, width - k * CHUNK, lane);
            for (int i = 0; i < 8; i++)
                sum += v.v[i] * v.v[i];
        }
        for (int far = 16; far; far /= 2)
            sum += __shfl_xor_sync(~0u, sum, far);
        if (lane == 0)
            squares[wave * 4 + t] = sum;
    }
}

/* Quantizes chunks `wave`, wave + WAVES, ... of h times the norm's weights, for h = residual + rms_norm(x, post) of each column, and
 * sums the norm's squares; in the first group writes h after the products' columns. share: as below. */
template <class SHARE>
__device__ __forceinline__ void gemv_post_activations(const gpu_call &c, const gemv_plan &p, const SHARE &share,
                                                      char *acts, float *squares, const float *post_squares,
                                                      int columns, int most, int wave, int lane) {
    int width = c.v[1].shape[1];
    const gpu_view *r = c.v + c.n_in;
    const float *norm = (const float *)r[-2].data, *post = (const float *)r[-1].data;
    for (int t = 0; t < columns; t++) {
        if (!share.owns(t))
            continue;
        const float *x = (const float *)(c.v[1].data + t * c.v[1].stride);
        const float *residual = (const float *)(r->data + t * r->stride);
        float *h = (float *)(c.v[0].data + t * c.v[0].stride) + product_columns(&c, POST), sum = 0.0f;
        float scale = rsqrtf(gemv_squares(post_squares, t) / (float)width + __uint_as_float((uint32_t)c.arg[0]));
        for (int k = wave; k < p.chunks; k += WAVES) {
            eight v, w, add, n;
            int at = k * CHUNK, left = width - at;
            v.load(x + at, left, lane);
            w.load(post + at, left, lane);
            add.load(residual + at, left, lane);
            n.load(norm + at, left, lane);
            for (int i = 0; i < 8; i++) {
                v.v[i] = add.v[i] + v.v[i] * scale * w.v[i];
                sum += v.v[i] * v.v[i];
            }
            if (share.writes())
                v.store(h + at, left, lane);
            for (int i = 0; i < 8; i++)
                v.v[i] *= n.v[i];
            gemv_quantize(v.v, acts + k * p.act_bytes, t, most, lane);
            share.send(acts + k * p.act_bytes, t, most, lane);
        }
        for (int far = 16; far; far /= 2)
            sum += __shfl_xor_sync(~0u, sum, far);
        if (lane == 0) {
            squares[t] = sum;
            share.send_square(squares + t, sum);
        }
    }
}

/* Quantizes chunks `wave`, wave + WAVES, ... of this group's, the first of which is `from`, of all columns, or of those that are its share in a
 * pair of groups (gemv_pair.cuh), and sums the norm's squares. Four are asked for at a time, of several columns where there are several, for
 * what they wait for is longer than what they cost. ask: is called once, behind the first requests. */
template <class SHARE, class ASK>
__device__ __forceinline__ void gemv_activations(const gpu_call &c, const gemv_plan &p, const SHARE &share, int from,
                                                 char *acts, float *squares, int columns, int most, int wave, int lane,
                                                 ASK ask) {
    constexpr int AT_ONCE = 4;
    const int width = c.v[1].shape[1];
    const float *norm = c.mode & NORM ? (const float *)c.v[c.n_in].data : nullptr;
    float sums[GEMV_COLUMNS] = {};
    int t = share.first, k = t < columns ? wave : p.chunks;
    bool asked = false;
    while (k < p.chunks) {
        eight v[AT_ONCE], n[AT_ONCE];
        int next = t, chunk = k;
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int at = (from + chunk) * CHUNK, left = chunk < p.chunks ? width - at : 0;
            v[u].load((const float *)(c.v[1].data + next * c.v[1].stride) + at, left, lane);
            if (norm)
                n[u].load(norm + at, left, lane);
            next = share.after(next, columns);
            chunk += next == share.first ? WAVES : 0;
        }
        if (!asked)
            ask();
        asked = true;
#pragma unroll 1 /* the code stands once */
        for (int u = 0; u < AT_ONCE && k < p.chunks; u++) {
            if (norm) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < GEMV_COLUMNS; i++)
                    sum = t == i ? sums[i] : sum;
                for (int i = 0; i < 8; i++) {
                    sum += v[0].v[i] * v[0].v[i];
                    v[0].v[i] *= n[0].v[i];
                }
#pragma unroll
                for (int i = 0; i < GEMV_COLUMNS; i++)
                    sums[i] = t == i ? sum : sums[i];
            }
            gemv_quantize(v[0].v, acts + k * p.act_bytes, t, most, lane);
            share.send(acts + k * p.act_bytes, t, most, lane);
#pragma unroll
            for (int i = 1; i < AT_ONCE; i++)
                v[i - 1] = v[i], n[i - 1] = n[i];
            t = share.after(t, columns);
            k += t == share.first ? WAVES : 0;
        }
    }
    if (!asked)
        ask();
    if (norm)
#pragma unroll
        for (int i = 0; i < GEMV_COLUMNS; i++)
            if (i < columns && share.owns(i)) {
                for (int far = 16; far; far /= 2)
                    sums[i] += __shfl_xor_sync(~0u, sums[i], far);
                if (lane == 0) {
                    squares[i] = sums[i];
                    share.send_square(squares + i, sums[i]);
                }
            }
}

#endif
