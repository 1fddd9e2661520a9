/* inflate.h: unpacks what pack.py has deflated. */
#ifndef SATCHEL_GPU_INFLATE_H
#define SATCHEL_GPU_INFLATE_H

#include <stdint.h>

/* Unpacks `stored` bytes to exactly `size` bytes; 0, or -1: the bytes are no deflate stream of that size, or there is no memory. */
int gpu_inflate(const uint8_t *from, uint64_t stored, uint8_t *to, uint64_t size);

#endif
