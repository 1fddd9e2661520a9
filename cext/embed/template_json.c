/* template_json.c: see template_json.h. Both directions go down TPL_DEPTH levels at most. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "template_json.h"
#include "utf8.h"

/* --- reading */

typedef struct {
    tpl_heap *heap;
    const char *data;
    uint64_t at, size;
    int depth;
    tpl_json_size *seen;
} reader;

static tpl_value wrong(reader *r, const char *expected) {
    unsigned byte = r->at < r->size ? (uint8_t)r->data[r->at] : 0;
    if (r->at >= r->size)
        tpl_fail(r->heap, HAL_E_INVALID, "JSON: expected %s, got the end of the text", expected);
    else if (byte > 0x20 && byte < 0x7F)
        tpl_fail(r->heap, HAL_E_INVALID, "JSON: expected %s at byte %llu, got %c", expected, (unsigned long long)r->at,
                 (int)byte);
    else
        tpl_fail(r->heap, HAL_E_INVALID, "JSON: expected %s at byte %llu, got byte 0x%02X", expected,
                 (unsigned long long)r->at, byte);
    return tpl_none();
}

static int peek(reader *r) {
    while (r->at < r->size && memchr(" \t\n\r", r->data[r->at], 4))
        r->at++;
    return r->at < r->size ? (uint8_t)r->data[r->at] : -1;
}

static int digits(reader *r) {
    uint64_t begin = r->at;
    while (r->at < r->size && r->data[r->at] >= '0' && r->data[r->at] <= '9')
        r->at++;
    return r->at > begin;
}

static int skip(reader *r, const char *any) {
    int found = r->at < r->size && strchr(any, r->data[r->at]) && r->data[r->at];
    r->at += (uint64_t)found;
    return found;
}

/* strtod() reads the point of the process' locale. */
static double real_of(char *text) {
    char half[8], *point = strchr(text, '.');
    snprintf(half, sizeof half, "%.1f", 0.5);
    if (point && half[2] == '5' && !half[3])
        *point = half[1];
    return strtod(text, NULL);
}

static tpl_value read_number(reader *r) {
    uint64_t begin = r->at, whole;
    char text[512];
    int real;
    skip(r, "-");
    whole = r->at;
    if (!digits(r) || (r->data[whole] == '0' && r->at > whole + 1)) {
        r->at = whole;
        return wrong(r, "a value");
    }
    real = skip(r, ".");
    if (real && !digits(r))
        return wrong(r, "a digit");
    if (skip(r, "eE")) {
        real = 1;
        skip(r, "+-");
        if (!digits(r))
            return wrong(r, "a digit");
    }
    if (r->at - begin >= sizeof text) {
        tpl_fail(r->heap, HAL_E_INVALID, "JSON: a number of more than %d characters", (int)sizeof text - 1);
        return tpl_none();
    }
    memcpy(text, r->data + begin, r->at - begin);
    text[r->at - begin] = 0;
    errno = 0;
    if (!real) {
        long long value = strtoll(text, NULL, 10);
        if (!errno)
            return tpl_int(value);
    } else {
        double value = real_of(text);
        if (!isinf(value))
            return tpl_float(value);
    }
    tpl_fail(r->heap, HAL_E_INVALID, "JSON: the number at byte %llu does not fit 64 bits", (unsigned long long)begin);
    return tpl_none();
}

static int read_hex(reader *r, uint32_t *unit) {
    *unit = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int c = r->at < r->size ? (uint8_t)r->data[r->at] : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) {
            wrong(r, "a hexadecimal digit");
            return 0;
        }
        *unit = *unit << 4 | (uint32_t)digit;
    }
    return 1;
}

static void read_escape(reader *r, tpl_builder *b) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = r->at < r->size ? (uint8_t)r->data[r->at] : 0;
    const char *found = c ? strchr(from, c) : NULL;
    uint32_t unit, low;
    if (found) {
        tpl_put(r->heap, b, to + (found - from), 1);
        r->at++;
        return;
    }
    if (c != 'u') {
        wrong(r, "an escape such as \\n");
        return;
    }
    r->at++;
    if (!read_hex(r, &unit))
        return;
    if (unit >= 0xD800 && unit < 0xDC00 && r->size - r->at >= 6 && r->data[r->at] == '\\' &&
        r->data[r->at + 1] == 'u') {
        r->at += 2;
        if (!read_hex(r, &low))
            return;
        if (low >= 0xDC00 && low < 0xE000)
            unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    if (unit >= 0xD800 && unit < 0xE000)
        tpl_fail(r->heap, HAL_E_INVALID, "JSON: half of a surrogate pair before byte %llu, which is no text",
                 (unsigned long long)r->at);
    else
        tpl_put_point(r->heap, b, unit);
}

static tpl_value read_string(reader *r) {
    tpl_builder b = {0};
    uint64_t begin = ++r->at;
    tpl_value made;
    while (r->at < r->size && r->data[r->at] != '"' && !r->heap->code) {
        if ((uint8_t)r->data[r->at] < 0x20)
            return wrong(r, "no control character in a string");
        if (r->data[r->at++] != '\\')
            continue;
        tpl_put(r->heap, &b, r->data + begin, r->at - 1 - begin);
        read_escape(r, &b);
        begin = r->at;
    }
    if (r->at >= r->size)
        return wrong(r, "the end of a string");
    tpl_put(r->heap, &b, r->data + begin, r->at - begin);
    r->at++;
    made = tpl_built(r->heap, &b);
    if (made.kind == TPL_STRING)
        r->seen->characters += made.text->points;
    return made;
}

static tpl_value read_value(reader *r, int depth);

static tpl_value read_list(reader *r, int depth) {
    tpl_value made = tpl_list_new(r->heap, 0);
    r->at++;
    for (int c = peek(r), first = 1; c != ']' || !first; c = peek(r), first = 0) {
        if (!first) {
            if (c == ']')
                break;
            if (c != ',')
                return wrong(r, "a comma or ]");
            r->at++;
        }
        tpl_add(r->heap, made, read_value(r, depth + 1));
        if (r->heap->code)
            return made;
    }
    r->at++;
    return made;
}

static tpl_value read_map(reader *r, int depth) {
    tpl_value made = tpl_map_new(r->heap), key, value;
    r->at++;
    for (int c = peek(r), first = 1; c != '}' || !first; c = peek(r), first = 0) {
        if (!first) {
            if (c == '}')
                break;
            if (c != ',')
                return wrong(r, "a comma or }");
            r->at++;
        }
        if (peek(r) != '"')
            return wrong(r, "a key in quotes");
        key = read_string(r);
        if (peek(r) != ':')
            return wrong(r, "a colon");
        r->at++;
        value = read_value(r, depth + 1);
        if (r->heap->code)
            return made;
        tpl_set(r->heap, made.map, key, value);
    }
    r->at++;
    return made;
}

static tpl_value read_value(reader *r, int depth) {
    static const struct {
        const char *word;
        uint8_t kind, number;
    } words[] = {{"null", TPL_NONE, 0}, {"true", TPL_BOOL, 1}, {"false", TPL_BOOL, 0}};
    int c = peek(r);
    r->seen->values++;
    if (depth > r->depth) {
        tpl_fail(r->heap, HAL_E_INVALID, "JSON: nests deeper than %d", r->depth);
        return tpl_none();
    }
    if (tpl_pay(r->heap, 1))
        return tpl_none();
    if (c == '"')
        return read_string(r);
    if (c == '[')
        return read_list(r, depth);
    if (c == '{')
        return read_map(r, depth);
    for (size_t i = 0; i < 3; i++) {
        size_t size = strlen(words[i].word);
        if (r->size - r->at >= size && !memcmp(r->data + r->at, words[i].word, size)) {
            r->at += size;
            return (tpl_value){.kind = words[i].kind, .number = words[i].number};
        }
    }
    return read_number(r);
}

/* The byte that begins no character; `size`: none. */
static uint64_t bad_byte(tpl_heap *h, const char *data, uint64_t size) {
    uint32_t points[256];
    for (uint64_t at = 0; at < size;) {
        uint64_t end = size - at > 256 ? at + 256 : size;
        int64_t found;
        while (end < size && end > at && ((uint8_t)data[end] & 0xC0) == 0x80)
            end--; /* not within a character */
        if (end == at)
            return at;
        found = utf8_points(data + at, (int64_t)(end - at), points);
        if (found < 0)
            return at + (uint64_t)(-1 - found);
        at = end;
        if (tpl_pay(h, 4))
            return size;
    }
    return size;
}

tpl_value tpl_json_read(tpl_heap *h, const char *data, uint64_t size, int depth, tpl_json_size *seen) {
    reader r = {h, data, 0, size, depth < TPL_DEPTH ? depth : TPL_DEPTH, seen};
    uint64_t bad = bad_byte(h, data, size);
    tpl_value made;
    if (bad < size) {
        tpl_fail(h, HAL_E_INVALID, "JSON: expected UTF-8, got another byte at %llu", (unsigned long long)bad);
        return tpl_none();
    }
    made = read_value(&r, 0);
    if (!h->code && peek(&r) >= 0)
        return wrong(&r, "the end of the text");
    return made;
}

/* --- writing */

static void put_unicode(tpl_heap *h, tpl_builder *b, uint32_t point) {
    char number[16];
    if (point >= 0x10000) {
        snprintf(number, sizeof number, "\\u%04x\\u%04x", 0xD800 + ((point - 0x10000) >> 10),
                 0xDC00 + ((point - 0x10000) & 0x3FF));
    } else {
        snprintf(number, sizeof number, "\\u%04x", point);
    }
    tpl_put_word(h, b, number);
}

static void write_text(tpl_heap *h, const tpl_json_form *f, tpl_builder *b, const tpl_text *t) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    uint32_t kept = 0;
    tpl_put(h, b, "\"", 1);
    for (uint32_t at = 0, begin; at < t->size && !h->code;) {
        uint32_t point;
        const char *found;
        begin = at;
        point = tpl_point(t->data, &at);
        found = point && point < 0x80 ? strchr(from, (int)point) : NULL;
        if (!found && point >= 0x20 &&
            (point < 0x7F || !f->ascii || (f->private_use && point >= 0xF0000) ||
             (f->private_use && point >= 0xE000 && point <= 0xF8FF) || point == 0x7F))
            continue;
        tpl_put(h, b, t->data + kept, begin - kept);
        kept = at;
        if (found) {
            char pair[2] = {'\\', to[found - from]};
            tpl_put(h, b, pair, 2);
        } else {
            put_unicode(h, b, point);
        }
    }
    tpl_put(h, b, t->data + kept, t->size - kept);
    tpl_put(h, b, "\"", 1);
}

static void new_line(tpl_heap *h, const tpl_json_form *f, tpl_builder *b, int depth) {
    if (!f->indent)
        return;
    tpl_put(h, b, "\n", 1);
    for (int i = 0; i < depth; i++)
        tpl_put(h, b, f->indent->data, f->indent->size);
}

static void write_at(tpl_heap *h, const tpl_json_form *f, tpl_builder *b, tpl_value v, int depth);

static void write_key(tpl_heap *h, const tpl_json_form *f, tpl_builder *b, tpl_value key) {
    if (key.kind == TPL_STRING) {
        write_text(h, f, b, key.text);
        return;
    }
    tpl_put(h, b, "\"", 1);
    write_at(h, f, b, key, 0);
    tpl_put(h, b, "\"", 1);
}

/* The entries by their keys. */
static const tpl_entry *sorted_entries(tpl_heap *h, const tpl_map *m) {
    tpl_entry *made = tpl_alloc(h, (uint64_t)m->n * sizeof *made);
    for (uint32_t i = 0; made && i < m->n && !h->code; i++) {
        uint32_t at = i;
        for (; at && tpl_order(h, m->entries[i].key, made[at - 1].key) < 0 && !h->code; at--)
            made[at] = made[at - 1];
        made[at] = m->entries[i];
    }
    return made;
}

static void write_map(tpl_heap *h, const tpl_json_form *f, tpl_builder *b, const tpl_map *m, int depth) {
    const tpl_entry *entries = f->sorted ? sorted_entries(h, m) : m->entries;
    tpl_put(h, b, "{", 1);
    for (uint32_t i = 0; i < m->n && !h->code; i++) {
        if (i)
            tpl_put(h, b, f->item->data, f->item->size);
        new_line(h, f, b, depth + 1);
        write_key(h, f, b, entries[i].key);
        tpl_put(h, b, f->key->data, f->key->size);
        write_at(h, f, b, entries[i].value, depth + 1);
    }
    if (m->n)
        new_line(h, f, b, depth);
    tpl_put(h, b, "}", 1);
}

static void write_items(tpl_heap *h, const tpl_json_form *f, tpl_builder *b, const tpl_list *l, int depth) {
    tpl_put(h, b, "[", 1);
    for (uint32_t i = 0; i < l->n && !h->code; i++) {
        if (i)
            tpl_put(h, b, f->item->data, f->item->size);
        new_line(h, f, b, depth + 1);
        write_at(h, f, b, l->items[i], depth + 1);
    }
    if (l->n)
        new_line(h, f, b, depth);
    tpl_put(h, b, "]", 1);
}

static void write_at(tpl_heap *h, const tpl_json_form *f, tpl_builder *b, tpl_value v, int depth) {
    static const tpl_printing plain;
    if (depth > TPL_DEPTH)
        tpl_fail(h, HAL_E_INVALID, "nested lists deeper than %d", TPL_DEPTH);
    if (tpl_pay(h, 1))
        return;
    if (v.kind == TPL_NONE)
        tpl_put_word(h, b, "null");
    else if (v.kind == TPL_BOOL)
        tpl_put_word(h, b, v.number ? "true" : "false");
    else if (v.kind == TPL_FLOAT && (isnan(v.real) || isinf(v.real)))
        tpl_put_word(h, b, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
    else if (v.kind == TPL_INT || v.kind == TPL_FLOAT)
        tpl_print(h, &plain, b, v);
    else if (v.kind == TPL_STRING)
        write_text(h, f, b, v.text);
    else if (v.kind == TPL_MAP)
        write_map(h, f, b, v.map, depth);
    else if (tpl_is_sequence(v) && !(v.flags & TPL_VIEW))
        write_items(h, f, b, v.list, depth);
    else
        tpl_fail(h, HAL_E_INVALID, "Object of type %s is not JSON serializable", tpl_kind_name(v));
}

void tpl_json_write(tpl_heap *h, const tpl_json_form *f, tpl_builder *b, tpl_value v) {
    write_at(h, f, b, v, 0);
}

tpl_value tpl_json_text(tpl_heap *h, tpl_value v, int indented) {
    static const tpl_text spaces = {2, 2, "  "}, item = {2, 2, ", "}, bare = {1, 1, ","}, key = {2, 2, ": "};
    tpl_json_form form = {indented ? &spaces : NULL, indented ? &bare : &item, &key, 0, 0, 0};
    tpl_builder b = {0};
    write_at(h, &form, &b, v, 0);
    return tpl_built(h, &b);
}
