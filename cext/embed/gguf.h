/* gguf.h: reads the header of a mapped GGUF file: its tensor list and the sections. */
#ifndef SATCHEL_EMBED_GGUF_H
#define SATCHEL_EMBED_GGUF_H

#include "backend.h"

typedef struct {
    const uint8_t *data; /* NULL: the file has no such key */
    uint64_t size;
} gguf_bytes;

typedef struct {
    gguf_bytes name;
    uint32_t format, ndim;
    int64_t shape[4];      /* outermost first, unused ones 1 */
    uint64_t offset, size; /* bytes from the file's begin; size 0: of a format that is not known here */
} gguf_tensor;

/* A section satchel.grammar.NAME. */
typedef struct {
    gguf_bytes name, section;
} gguf_grammar;
enum { MOST_GRAMMARS = 64 }; /* the builder puts no more into a file */

typedef struct {
    gguf_tensor *tensors;
    uint64_t n_tensors;
    gguf_bytes plan, tokenizer, chat;     /* chat: of the key satchel.template */
    gguf_grammar grammars[MOST_GRAMMARS]; /* those beyond as many are left out */
    uint32_t n_grammars;
    uint32_t crc; /* CRC-32 of all other keys with their values, then of the tensor list */
} gguf_file;

/* Every tensor lies within the file, and every number was checked. On failure nothing is kept; gguf_free() ends it. */
int gguf_read(const uint8_t *file, uint64_t size, gguf_file *out);
void gguf_free(gguf_file *);
/* The tensor of this name, or NULL. */
const gguf_tensor *gguf_find(const gguf_file *, const char *name, uint64_t size);
/* CRC-32 as zlib's crc32(). */
uint32_t gguf_crc(uint32_t crc, const uint8_t *data, uint64_t size);

#endif
