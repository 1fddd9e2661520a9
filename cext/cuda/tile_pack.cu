/* tile_pack.cu: packs a matrix from the file's layout into tiles (tile.cuh). cext/quant's headers read the blocks.
 *
 * One wave writes one chunk: v[0].data + (stack, tile, chunk) from v[1].data; v[0].shape is (stack, rows, columns). Rows and
 * columns past the matrix's end become zeros.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tile_formats.cuh"

#define inline __device__ __forceinline__
#include "../quant/i8_g128.h"
#include "../quant/iq4_xs.h"
#include "../quant/mxfp4.h"
#include "../quant/q4_0.h"
#include "../quant/q5_0.h"
#include "../quant/q5_k.h"
#include "../quant/q6_k.h"
#include "../quant/q8_0.h"
#undef inline

/* A chunk's source: block `first + i` of row r, or NULL past the matrix's end. */
struct source {
    const char *rows;
    int64_t row_bytes;
    int left, blocks; /* rows of the matrix from this tile on, blocks of a row from this chunk on */
    template <class B> __device__ __forceinline__ const B *block(int row, int i) const {
        return row < left && i < blocks ? (const B *)(rows + row * row_bytes) + i : nullptr;
    }
};

/* The word r of lane's words of stretch j, from code(row, column of the chunk), which answers a byte. */
template <class CODE> __device__ __forceinline__ uint32_t word_from(const CODE &code, int lane, int j, int r) {
    int row = lane / 4 + 8 * (r & 1), k = 32 * j + 16 * (r >> 1) + 4 * (lane % 4);
    uint32_t w = 0;
    for (int i = 0; i < 4; i++)
        w |= (uint32_t)(code(row, k + i) & 255) << (8 * i);
    return w;
}

/* Nibbles of two stretches in a word: the odd one above the even one. */
template <class CODE> __device__ __forceinline__ void put_nibbles(char *to, int lane, const CODE &code) {
    for (int p = 0; p < 4; p++)
        for (int r = 0; r < 4; r++)
            ((uint32_t *)(to + 512 * p + 16 * lane))[r] = (word_from(code, lane, 2 * p, r) & 0x0F0F0F0Fu) |
                                                          (word_from(code, lane, 2 * p + 1, r) & 0x0F0F0F0Fu) << 4;
}

/* The same where tables are looked up: four nibbles of the even stretch below those of the odd one. */
template <class CODE> __device__ __forceinline__ void put_table_nibbles(char *to, int lane, const CODE &code) {
    for (int p = 0; p < 4; p++)
        for (int r = 0; r < 4; r++) {
            uint32_t w[2] = {word_from(code, lane, 2 * p, r), word_from(code, lane, 2 * p + 1, r)}, out = 0;
            for (int h = 0; h < 2; h++)
                for (int i = 0; i < 4; i++)
                    out |= (w[h] >> (8 * i) & 15) << (16 * h + 4 * i);
            ((uint32_t *)(to + 512 * p + 16 * lane))[r] = out;
        }
}

/* Bit 4 of five-bit codes: four words a lane, one per pair of stretches, bit 4 h + r of a byte. */
template <class CODE> __device__ __forceinline__ void put_fifth_bits(char *to, int lane, const CODE &code) {
    for (int p = 0; p < 4; p++) {
        uint32_t out = 0;
        for (int h = 0; h < 2; h++)
            for (int r = 0; r < 4; r++)
                out |= (word_from(code, lane, 2 * p + h, r) >> 4 & 0x01010101u) << (4 * h + r);
        ((uint32_t *)(to + 16 * lane))[p] = out;
    }
}

/* Eight halves of each row: scale(row, stretch) as bits. */
template <class SCALE> __device__ __forceinline__ void put_halves(char *to, int lane, const SCALE &scale) {
    for (int i = lane; i < 128; i += 32)
        ((uint16_t *)to)[i] = scale(i / 8, i % 8);
}

/* Copies the first `bytes` of each row's block; zeros past the matrix's end. */
template <class B> __device__ __forceinline__ void put_heads(char *to, int bytes, int lane, const source &s) {
    for (int i = lane; i < 16 * bytes; i += 32) {
        const B *b = s.block<B>(i / bytes, 0);
        to[i] = b ? ((const char *)b)[i % bytes] : 0;
    }
}

template <class F> struct packer;

template <> struct packer<tile_q4_k> {
    enum { COLUMNS = 256, BLOCK = sizeof(block_q4_k) };
    __device__ static void put(char *to, int lane, const source &s) {
        put_nibbles(to, lane, [&](int row, int k) {
            const block_q4_k *b = s.block<block_q4_k>(row, 0);
            return b ? q4_k_code(b, k / 32, k % 32) : 0;
        });
        put_heads<block_q4_k>(to + 2048, 16, lane, s);
    }
};

template <> struct packer<tile_q5_k> {
    enum { COLUMNS = 256, BLOCK = sizeof(block_q5_k) };
    __device__ static void put(char *to, int lane, const source &s) {
        auto code = [&](int row, int k) {
            const block_q5_k *b = s.block<block_q5_k>(row, 0);
            return b ? q5_k_code(b, k / 32, k % 32) : 0;
        };
        put_nibbles(to, lane, code);
        put_fifth_bits(to + 2048, lane, code);
        put_heads<block_q5_k>(to + 2560, 16, lane, s);
    }
};

template <> struct packer<tile_q6_k> {
    enum { COLUMNS = 256, BLOCK = sizeof(block_q6_k) };
    __device__ static void put(char *to, int lane, const source &s) {
        auto code = [&](int row, int k) {
            const block_q6_k *b = s.block<block_q6_k>(row, 0);
            return b ? q6_k_code(b, k) ^ 32 : 0; /* code - 32 in six bits */
        };
        for (int j = 0; j < 8; j++) {
            uint32_t w[4];
            for (int r = 0; r < 4; r++)
                w[r] = word_from(code, lane, j, r);
            for (int i = 0; i < 3; i++) {
                int n = 3 * (j % 4) + i;
                *(uint32_t *)(to + 1536 * (j / 4) + 512 * (n / 4) + 16 * lane + 4 * (n % 4)) =
                    w[i] << 2 | (w[3] >> (4 - 2 * i) & 0x03030303u);
            }
        }
        for (int i = lane; i < 256; i += 32) {
            const block_q6_k *b = s.block<block_q6_k>(i / 16, 0);
            to[3072 + i] = b ? (char)b->scales[i % 16] : 0;
        }
        if (lane < 16) {
            const block_q6_k *b = s.block<block_q6_k>(lane, 0);
            ((uint16_t *)(to + 3328))[lane] = b ? b->d : 0;
        }
    }
};

template <> struct packer<tile_q8_0> {
    enum { COLUMNS = 32, BLOCK = sizeof(block_q8_0) };
    __device__ static void put(char *to, int lane, const source &s) {
        auto code = [&](int row, int k) {
            const block_q8_0 *b = s.block<block_q8_0>(row, k / 32);
            return b ? b->qs[k % 32] : 0;
        };
        for (int j = 0; j < 8; j++)
            for (int r = 0; r < 4; r++)
                ((uint32_t *)(to + 512 * j + 16 * lane))[r] = word_from(code, lane, j, r);
        put_halves(to + 4096, lane, [&](int row, int j) {
            const block_q8_0 *b = s.block<block_q8_0>(row, j);
            return b ? b->d : (uint16_t)0;
        });
    }
};

template <> struct packer<tile_i8_g128> {
    enum { COLUMNS = 128, BLOCK = sizeof(block_i8_g128) };
    __device__ static void put(char *to, int lane, const source &s) {
        auto code = [&](int row, int k) {
            const block_i8_g128 *b = s.block<block_i8_g128>(row, k / 128);
            return b ? b->qs[k % 128] : 0;
        };
        for (int j = 0; j < 8; j++)
            for (int r = 0; r < 4; r++)
                ((uint32_t *)(to + 512 * j + 16 * lane))[r] = word_from(code, lane, j, r);
        const block_i8_g128 *b = s.block<block_i8_g128>(lane / 2, lane % 2);
        ((float *)(to + 4096))[lane] = b ? b->d : 0.0f;
    }
};

template <> struct packer<tile_q4_0> {
    enum { COLUMNS = 32, BLOCK = sizeof(block_q4_0) };
    __device__ static void put(char *to, int lane, const source &s) {
        put_nibbles(to, lane, [&](int row, int k) {
            const block_q4_0 *b = s.block<block_q4_0>(row, k / 32);
            return b ? (b->qs[k % 16] >> (4 * (k % 32 / 16)) & 15) ^ 8 : 0;
        });
        put_halves(to + 2048, lane, [&](int row, int j) {
            const block_q4_0 *b = s.block<block_q4_0>(row, j);
            return b ? b->d : (uint16_t)0;
        });
    }
};

template <> struct packer<tile_q5_0> {
    enum { COLUMNS = 32, BLOCK = sizeof(block_q5_0) };
    __device__ static void put(char *to, int lane, const source &s) {
        auto code = [&](int row, int k) {
            const block_q5_0 *b = s.block<block_q5_0>(row, k / 32);
            return b ? q5_code(b->qs, b->qh, k % 32) ^ 16 : 0;
        };
        put_nibbles(to, lane, code);
        put_fifth_bits(to + 2048, lane, code);
        put_halves(to + 2560, lane, [&](int row, int j) {
            const block_q5_0 *b = s.block<block_q5_0>(row, j);
            return b ? b->d : (uint16_t)0;
        });
    }
};

template <> struct packer<tile_iq4_nl> {
    enum { COLUMNS = 32, BLOCK = sizeof(block_iq4_nl) };
    __device__ static void put(char *to, int lane, const source &s) {
        put_table_nibbles(to, lane, [&](int row, int k) {
            const block_iq4_nl *b = s.block<block_iq4_nl>(row, k / 32);
            return b ? b->qs[k % 16] >> (4 * (k % 32 / 16)) & 15 : 0;
        });
        put_halves(to + 2048, lane, [&](int row, int j) {
            const block_iq4_nl *b = s.block<block_iq4_nl>(row, j);
            return b ? b->d : (uint16_t)0;
        });
    }
};

template <> struct packer<tile_mxfp4> {
    enum { COLUMNS = 32, BLOCK = sizeof(block_mxfp4) };
    __device__ static void put(char *to, int lane, const source &s) {
        put_table_nibbles(to, lane, [&](int row, int k) {
            const block_mxfp4 *b = s.block<block_mxfp4>(row, k / 32);
            return b ? b->qs[k % 16] >> (4 * (k % 32 / 16)) & 15 : 0;
        });
        for (int i = lane; i < 128; i += 32) {
            const block_mxfp4 *b = s.block<block_mxfp4>(i / 8, i % 8);
            to[2048 + i] = b ? (char)b->e : 0;
        }
    }
};

template <> struct packer<tile_iq4_xs> {
    enum { COLUMNS = 256, BLOCK = sizeof(block_iq4_xs) };
    __device__ static void put(char *to, int lane, const source &s) {
        put_table_nibbles(to, lane, [&](int row, int k) {
            const block_iq4_xs *b = s.block<block_iq4_xs>(row, 0);
            return b ? b->qs[16 * (k / 32) + k % 16] >> (4 * (k % 32 / 16)) & 15 : 0;
        });
        put_heads<block_iq4_xs>(to + 2048, 8, lane, s);
    }
};

template <class F> __device__ __forceinline__ void pack(const gpu_call &c) {
    typedef packer<F> P;
    int rows = c.v[0].shape[1], columns = c.v[0].shape[2];
    int64_t chunks = (columns + CHUNK - 1) / CHUNK, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    int64_t waves = (int64_t)gridDim.x * (blockDim.x / 32);
    for (int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < c.v[0].shape[0] * tiles * chunks;
         i += waves) {
        int64_t chunk = i % chunks, tile = i / chunks % tiles, matrix = i / chunks / tiles,
                row_bytes = (int64_t)columns / P::COLUMNS * P::BLOCK;
        source s;
        s.rows = (const char *)c.v[1].data + (matrix * rows + tile * TILE_ROWS) * row_bytes +
                 chunk * (CHUNK / P::COLUMNS) * P::BLOCK;
        s.row_bytes = row_bytes;
        s.left = (int)(rows - tile * TILE_ROWS);
        s.blocks = (int)(columns / P::COLUMNS - chunk * (CHUNK / P::COLUMNS));
        P::put((char *)c.v[0].data + i * F::BYTES, threadIdx.x % 32, s);
    }
}

#define PACK_KERNEL(f)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) pack_##f(const __grid_constant__ gpu_call c) {                   \
        pack<tile_##f>(c);                                                                                             \
    }
TILE_FORMATS(PACK_KERNEL)
