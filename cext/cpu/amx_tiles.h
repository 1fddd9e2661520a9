/* amx_tiles.h: Intel's tiles, set up and given back. A caller of amx_begin ends with amx_end on the same thread. */
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

/* Tiles of `columns` columns, of `k` bytes of each; k / 4 words of weights. */
static inline void amx_begin(int columns, int k) {
    _Alignas(64) tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = (uint16_t)(i == 4 || i == 5 ? k : 64);
        c.rows[i] = (uint8_t)(i < 6 ? columns : k / 4);
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); /* gcc's _tile_loadconfig says it reads 8 bytes: all must be written */
    _tile_loadconfig(&c);
}

static inline void amx_end(void) {
    _tile_release();
}

#endif
