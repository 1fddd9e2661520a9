/* hex.h: bytes as hexadecimal digits, by which the drivers and the tests in Python exchange texts; "-" stands for none. */
#ifndef SATCHEL_TESTS_HEX_H
#define SATCHEL_TESTS_HEX_H

#include <stdio.h>
#include <stdlib.h>

/* The bytes that a word says, with a zero byte behind them; free() ends them. hex NULL: none. *size: their number. */
static inline char *read_hex(const char *hex, size_t *size) {
    char *bytes;
    *size = 0;
    while (hex && *hex != '-' && hex[2 * *size] && hex[2 * *size + 1])
        ++*size;
    bytes = malloc(*size + 1);
    for (size_t i = 0; i < *size; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        bytes[i] = (char)byte;
    }
    bytes[*size] = 0;
    return bytes;
}

static inline void print_hex(const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        printf("%02x", ((const unsigned char *)bytes)[i]);
}

#endif
