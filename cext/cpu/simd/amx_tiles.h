/* amx_tiles.h: configures and releases AMX tiles. A thread that calls amx_begin calls amx_end afterwards. */
#ifndef SATCHEL_CPU_AMX_TILES_H
#define SATCHEL_CPU_AMX_TILES_H

#include <immintrin.h>
#include <stdint.h>

enum { TILE = 16, TILE_BYTES = 1024 };

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

/* Configures tiles of `columns` columns by `k` bytes, and k / 4 words of weights. */
static inline void amx_begin(int columns, int k) {
    _Alignas(64) tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = (uint16_t)(i == 4 || i == 5 ? k : 64);
        c.rows[i] = (uint8_t)(i < 6 ? columns : k / 4);
    }
    /* gcc declares that _tile_loadconfig reads 8 bytes; this forces all of c to memory */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

static inline void amx_end(void) {
    _tile_release();
}

#endif
