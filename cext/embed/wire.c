/* wire.c: see wire.h. */
#include <stdlib.h>
#include <string.h>

#include "wire.h"

static void add(wire_writer *w, const void *bytes, uint64_t size) {
    if (w->failed || size > WIRE_MOST || w->n + size > WIRE_MOST) {
        w->failed = 1;
        return;
    }
    if (w->n + size > w->room) {
        uint64_t room = 2 * w->room + size + 256;
        uint8_t *grown = realloc(w->data, (size_t)room);
        if (!grown) {
            w->failed = 1;
            return;
        }
        w->data = grown;
        w->room = room;
    }
    if (size)
        memcpy(w->data + w->n, bytes, (size_t)size);
    w->n += size;
}

void wire_begin(wire_writer *w) {
    wire_head head = {0, 0, 0};
    *w = (wire_writer){0};
    add(w, &head, sizeof head);
}

void wire_number(wire_writer *w, int64_t value) {
    add(w, &value, sizeof value);
}

void wire_real(wire_writer *w, double value) {
    add(w, &value, sizeof value);
}

void wire_bytes(wire_writer *w, const void *bytes, uint64_t size) {
    wire_number(w, (int64_t)size);
    add(w, bytes, size);
}

void wire_text(wire_writer *w, const char *text) {
    wire_bytes(w, text, strlen(text));
}

void wire_free(wire_writer *w) {
    free(w->data);
    *w = (wire_writer){0};
}

int64_t wire_take_number(wire_reader *r) {
    int64_t value = 0;
    if (r->wrong || (size_t)(r->end - r->at) < sizeof value) {
        r->wrong = 1;
        return 0;
    }
    memcpy(&value, r->at, sizeof value);
    r->at += sizeof value;
    return value;
}

gguf_bytes wire_take_bytes(wire_reader *r) {
    int64_t size = wire_take_number(r);
    gguf_bytes found = {r->at, (uint64_t)size};
    if (r->wrong || size < 0 || (uint64_t)size > (uint64_t)(r->end - r->at)) {
        r->wrong = 1;
        return (gguf_bytes){(const uint8_t *)"", 0};
    }
    r->at += size;
    return found;
}

int wire_ended(const wire_reader *r) {
    return !r->wrong && r->at == r->end;
}
