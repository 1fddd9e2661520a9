/* section_tables.h: reads the tables of a section's copy in their order; each begins at a multiple of 8 bytes. */
#ifndef SATCHEL_EMBED_SECTION_TABLES_H
#define SATCHEL_EMBED_SECTION_TABLES_H

#include <stddef.h>
#include <stdint.h>

#include "size.h"

/* The tables that follow each other in the copy. */
typedef struct {
    const uint8_t *data;
    uint64_t at, size;
    int failed;
} tables;

/* The next table, of `count` entries of `each` bytes; NULL, also from then on, where the copy does not have as many. */
static inline const void *next(tables *t, uint64_t count, uint64_t each) {
    uint64_t bytes = size_line_up(size_mul(count, each), 8);
    const uint8_t *found = t->data + t->at;
    if (t->failed || count > UINT32_MAX || bytes > t->size - t->at) {
        t->failed = 1;
        return NULL;
    }
    t->at += bytes;
    return found;
}

#endif
