/* gguf.c: see gguf.h. The file is hostile input: a cursor gives out what is within it, and nothing else is read. */
#include <stdlib.h>
#include <string.h>

#include "block_format.h"
#include "error.h"
#include "gguf.h"
#include "size.h"

enum { COUNT_LIMIT = 1 << 20, DIMS = 4, ALIGNMENT_LIMIT = 1 << 21 };
enum { TYPE_U32 = 4, TYPE_STRING = 8, TYPE_ARRAY = 9, TYPE_U64 = 10, N_TYPES = 13 };
static const uint8_t type_bytes[N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct {
    const uint8_t *file;
    uint64_t at, size;
    int failed;
} cursor;

/* The next bytes; NULL where the file ends before them, and then always. */
static const uint8_t *take(cursor *c, uint64_t size) {
    const uint8_t *found = c->file + c->at;
    if (c->failed || size > c->size - c->at) {
        c->failed = 1;
        return NULL;
    }
    c->at += size;
    return found;
}

static uint32_t take_u32(cursor *c) {
    const uint8_t *from = take(c, 4);
    uint32_t value = 0;
    if (from)
        memcpy(&value, from, 4);
    return value;
}

static uint64_t take_u64(cursor *c) {
    const uint8_t *from = take(c, 8);
    uint64_t value = 0;
    if (from)
        memcpy(&value, from, 8);
    return value;
}

static gguf_bytes take_text(cursor *c) {
    uint64_t size = take_u64(c);
    return (gguf_bytes){take(c, size), size};
}

static int cut(const cursor *c) {
    return hal_fail(HAL_E_INVALID,
                    "header at byte %llu: expected more, got the file's end or a wrong number; download it again",
                    (unsigned long long)c->at);
}

static int is_key(gguf_bytes key, const char *name) {
    return key.data && key.size == strlen(name) && !memcmp(key.data, name, key.size);
}

/* The table for eight bytes at a time. It is made for each call, some microseconds, so that no thread waits for another. */
static void crc_table(uint32_t table[8][256]) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t x = i;
        for (int bit = 0; bit < 8; bit++)
            x = x & 1 ? x >> 1 ^ 0xEDB88320u : x >> 1;
        table[0][i] = x;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++)
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
}

uint32_t gguf_crc(uint32_t crc, const uint8_t *data, uint64_t size) {
    uint32_t table[8][256];
    crc_table(table);
    crc = ~crc;
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; size; size--, data++)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return ~crc;
}

static void skip_array(cursor *c, gguf_bytes *section) {
    uint32_t type = take_u32(c);
    uint64_t count = take_u64(c);
    if (type >= N_TYPES || type == TYPE_ARRAY || count > c->size || (section && type != TYPE_U64)) {
        c->failed = 1; /* the checksum leaves a section out, so it must be one */
    } else if (type == TYPE_STRING) {
        for (uint64_t i = 0; i < count && !c->failed; i++)
            take_text(c);
    } else {
        uint64_t size = size_mul(count, type_bytes[type]);
        const uint8_t *data = take(c, size);
        if (section && data)
            *section = (gguf_bytes){data, size};
    }
}

/* The place for a grammar's section; NULL where the key is none. */
static gguf_bytes *grammar_of(gguf_file *f, gguf_bytes key) {
    static const char prefix[] = "satchel.grammar.";
    size_t size = sizeof prefix - 1;
    gguf_grammar *found;
    if (!key.data || key.size <= size || memcmp(key.data, prefix, size) || f->n_grammars == MOST_GRAMMARS)
        return NULL;
    found = f->grammars + f->n_grammars++;
    found->name = (gguf_bytes){key.data + size, key.size - size};
    return &found->section;
}

/* Reads one key with its value. */
static void read_key(cursor *c, gguf_file *f, uint32_t *alignment) {
    uint64_t start = c->at;
    gguf_bytes key = take_text(c);
    uint32_t type = take_u32(c);
    gguf_bytes *section = is_key(key, "satchel.plan")        ? &f->plan
                          : is_key(key, "satchel.tokenizer") ? &f->tokenizer
                          : is_key(key, "satchel.template")  ? &f->chat
                                                             : grammar_of(f, key);
    if (type >= N_TYPES || (section && type != TYPE_ARRAY))
        c->failed = 1;
    else if (type == TYPE_ARRAY)
        skip_array(c, section);
    else if (type == TYPE_STRING)
        take_text(c);
    else if (type == TYPE_U32 && is_key(key, "general.alignment"))
        *alignment = take_u32(c);
    else
        take(c, type_bytes[type]);
    if (!section && !c->failed)
        f->crc = gguf_crc(f->crc, c->file + start, c->at - start);
}

/* Reads one entry of the tensor list; its offset counts from the data's begin yet. */
static void read_tensor(cursor *c, gguf_tensor *t) {
    const block_format *format;
    uint64_t elements = 1;
    t->name = take_text(c);
    t->ndim = take_u32(c);
    if (t->ndim < 1 || t->ndim > DIMS) {
        c->failed = 1;
        return;
    }
    for (int i = 0; i < DIMS; i++)
        t->shape[i] = 1;
    for (uint32_t i = t->ndim; i-- > 0;) {
        uint64_t dim = take_u64(c);
        elements = size_mul(elements, dim);
        t->shape[i] = (int64_t)dim;
        c->failed |= dim > INT32_MAX;
    }
    t->format = take_u32(c);
    t->offset = take_u64(c);
    format = block_format_find(t->format);
    if (!c->failed && format && t->shape[t->ndim - 1] % format->block == 0)
        t->size = size_mul(elements / format->block, format->bytes);
}

static int place_tensors(cursor *c, gguf_file *f, uint32_t alignment) {
    uint64_t data = size_line_up(c->at, alignment);
    for (uint64_t i = 0; i < f->n_tensors; i++) {
        gguf_tensor *t = f->tensors + i;
        uint64_t end = size_add(size_add(t->offset, data), t->size);
        if (t->offset % alignment || end > c->size)
            return hal_fail(HAL_E_INVALID, "tensor %llu: expected %llu bytes within the file's %llu; download it again",
                            (unsigned long long)i, (unsigned long long)t->size, (unsigned long long)c->size);
        t->offset += data;
    }
    return 0;
}

static int read_all(cursor *c, gguf_file *out) {
    const uint8_t *magic = take(c, 4);
    uint32_t version = take_u32(c), alignment = 32;
    uint64_t start, n_tensors = take_u64(c), n_keys = take_u64(c);
    if (!magic || memcmp(magic, "GGUF", 4) || version < 2 || version > 3)
        return hal_fail(HAL_E_INVALID, "expected a GGUF file of version 2 or 3, got another file");
    if (n_tensors > COUNT_LIMIT || n_keys > COUNT_LIMIT)
        return hal_fail(HAL_E_INVALID, "header: expected at most %d keys and tensors, got more", COUNT_LIMIT);
    for (uint64_t i = 0; i < n_keys && !c->failed; i++)
        read_key(c, out, &alignment);
    if (c->failed || n_tensors > c->size - c->at)
        return cut(c);
    if (!alignment || alignment > ALIGNMENT_LIMIT || alignment & (alignment - 1))
        return hal_fail(HAL_E_INVALID, "general.alignment: expected a power of two up to %d, got %u", ALIGNMENT_LIMIT,
                        alignment);
    if (!(out->tensors = calloc(n_tensors + 1, sizeof *out->tensors)))
        return hal_fail(HAL_E_MEMORY, "no memory for a list of %llu tensors", (unsigned long long)n_tensors);
    out->n_tensors = n_tensors;
    start = c->at;
    for (uint64_t i = 0; i < n_tensors && !c->failed; i++)
        read_tensor(c, out->tensors + i);
    if (c->failed)
        return cut(c);
    out->crc = gguf_crc(out->crc, c->file + start, c->at - start);
    return place_tensors(c, out, alignment);
}

int gguf_read(const uint8_t *file, uint64_t size, gguf_file *out) {
    cursor c = {file, 0, size, 0};
    int code;
    *out = (gguf_file){0};
    if ((code = read_all(&c, out)))
        gguf_free(out);
    return code;
}

void gguf_free(gguf_file *f) {
    free(f->tensors);
    *f = (gguf_file){0};
}

const gguf_tensor *gguf_find(const gguf_file *f, const char *name, uint64_t size) {
    for (uint64_t i = 0; i < f->n_tensors; i++)
        if (f->tensors[i].name.size == size && !memcmp(f->tensors[i].name.data, name, size))
            return f->tensors + i;
    return NULL;
}
