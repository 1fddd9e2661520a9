/* template_value.c: see template_value.h. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "template_value.h"
#include "utf8.h"

enum { CHUNK = 1 << 15, FEW = 8, STRING_STEP = 64 };

struct tpl_chunk {
    tpl_chunk *before;
    uint64_t used, size;
    uint64_t data[]; /* aligned */
};

/* --- the heap */

void tpl_begin(tpl_heap *h, uint64_t steps, uint64_t bytes) {
    *h = (tpl_heap){.steps = steps, .bytes = bytes};
}

void tpl_end(tpl_heap *h) {
    while (h->chunks) {
        tpl_chunk *c = h->chunks;
        h->chunks = c->before;
        free(c);
    }
}

int tpl_fail(tpl_heap *h, int code, const char *format, ...) {
    va_list args;
    if (h->code)
        return h->code;
    va_start(args, format);
    vsnprintf(h->reason, sizeof h->reason, format, args);
    va_end(args);
    return h->code = code;
}

int tpl_pay(tpl_heap *h, uint64_t steps) {
    if (h->steps < steps) {
        h->steps = 0;
        return tpl_fail(h, HAL_E_INVALID, "took too many steps; does a loop never end?");
    }
    h->steps -= steps;
    return h->code;
}

void *tpl_alloc(tpl_heap *h, uint64_t size) {
    tpl_chunk *c = h->chunks;
    uint64_t wanted = (size + 15) / 16 * 16;
    void *made;
    if (h->code)
        return NULL;
    if (size > h->bytes || wanted < size) {
        tpl_fail(h, HAL_E_MEMORY, "needed more memory than a template may have");
        return NULL;
    }
    if (!c || c->size - c->used < wanted) {
        uint64_t room = wanted > CHUNK ? wanted : CHUNK;
        if (!(c = malloc(sizeof *c + (size_t)room))) {
            tpl_fail(h, HAL_E_MEMORY, "no memory for a chat template");
            return NULL;
        }
        *c = (tpl_chunk){.before = h->chunks, .size = room};
        h->chunks = c;
    }
    made = (char *)c->data + c->used;
    c->used += wanted;
    h->bytes -= wanted < h->bytes ? wanted : h->bytes;
    memset(made, 0, (size_t)wanted);
    return made;
}

/* --- making */

tpl_value tpl_undefined(tpl_heap *h, const tpl_text *name) {
    (void)h;
    return (tpl_value){.kind = TPL_UNDEFINED, .text = name};
}

tpl_value tpl_none(void) {
    return (tpl_value){.kind = TPL_NONE};
}

tpl_value tpl_bool(int value) {
    return (tpl_value){.kind = TPL_BOOL, .number = value != 0};
}

tpl_value tpl_int(int64_t value) {
    return (tpl_value){.kind = TPL_INT, .number = value};
}

tpl_value tpl_float(double value) {
    return (tpl_value){.kind = TPL_FLOAT, .real = value};
}

static uint32_t count_points(const char *data, uint64_t size) {
    uint32_t n = 0;
    for (uint64_t i = 0; i < size; i++)
        n += ((uint8_t)data[i] & 0xC0) != 0x80;
    return n;
}

tpl_value tpl_string(tpl_heap *h, const char *data, uint64_t size) {
    tpl_text *made = tpl_alloc(h, sizeof *made);
    if (!made || size > UINT32_MAX / 2 || tpl_pay(h, size / STRING_STEP))
        return (tpl_value){.kind = TPL_UNDEFINED};
    *made = (tpl_text){(uint32_t)size, count_points(data, size), data};
    return (tpl_value){.kind = TPL_STRING, .text = made};
}

tpl_value tpl_word(tpl_heap *h, const char *word) {
    return tpl_string(h, word, strlen(word));
}

static tpl_value sequence(tpl_heap *h, int kind, uint64_t room) {
    tpl_list *made = tpl_alloc(h, sizeof *made);
    if (made && room < UINT32_MAX / sizeof(tpl_value) && (made->items = tpl_alloc(h, room * sizeof *made->items)))
        made->room = (uint32_t)room;
    if (!h->code && made && made->room < room)
        tpl_fail(h, HAL_E_MEMORY, "needed more memory than a template may have");
    return h->code ? (tpl_value){.kind = TPL_UNDEFINED} : (tpl_value){.kind = (uint8_t)kind, .list = made};
}

tpl_value tpl_list_new(tpl_heap *h, uint64_t room) {
    return sequence(h, TPL_LIST, room);
}

tpl_value tpl_tuple_new(tpl_heap *h, uint64_t room) {
    return sequence(h, TPL_TUPLE, room);
}

void tpl_add(tpl_heap *h, tpl_value list, tpl_value item) {
    tpl_list *l = list.list;
    if (h->code || !tpl_is_sequence(list))
        return;
    if (l->n == l->room) {
        uint64_t room = l->room < 4 ? 4 : (uint64_t)l->room * 2;
        tpl_value *grown = room < UINT32_MAX / 2 ? tpl_alloc(h, room * sizeof *grown) : NULL;
        if (!grown) {
            tpl_fail(h, HAL_E_MEMORY, "needed more memory than a template may have");
            return;
        }
        if (l->n)
            memcpy(grown, l->items, l->n * sizeof *grown);
        l->items = grown;
        l->room = (uint32_t)room;
    }
    l->items[l->n++] = item;
}

tpl_value tpl_map_new(tpl_heap *h) {
    tpl_map *made = tpl_alloc(h, sizeof *made);
    return made ? (tpl_value){.kind = TPL_MAP, .map = made} : (tpl_value){.kind = TPL_UNDEFINED};
}

/* A number such that equal keys have equal ones. */
static uint32_t hash_of(tpl_value v) {
    uint32_t hash = 2166136261u;
    double real = 0;
    const uint8_t *data = (const uint8_t *)&real;
    uint32_t size = sizeof real;
    if (v.kind == TPL_STRING) {
        data = (const uint8_t *)v.text->data;
        size = v.text->size;
    } else if (!tpl_real(v, &real)) {
        real = -1.5;
    }
    for (uint32_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * 16777619u;
    return hash ^ hash >> 15;
}

static int can_be_key(tpl_value v) {
    return v.kind == TPL_STRING || v.kind == TPL_NONE || v.kind == TPL_BOOL || v.kind == TPL_INT || v.kind == TPL_FLOAT;
}

/* The entry of a key + 1, 0: none. */
static uint32_t find_entry(tpl_heap *h, const tpl_map *m, tpl_value key) {
    uint64_t looked = 0;
    uint32_t found = 0;
    if (!can_be_key(key))
        return 0;
    if (!m->index) {
        for (uint32_t i = 0; i < m->n && !found; i++)
            found = tpl_equal(h, m->entries[i].key, key) ? i + 1 : 0;
        return found;
    }
    for (uint32_t at = hash_of(key); m->index[at % m->n_index]; at++, looked++)
        if (tpl_equal(h, m->entries[m->index[at % m->n_index] - 1].key, key)) {
            found = m->index[at % m->n_index];
            break;
        }
    tpl_pay(h, looked);
    return found;
}

static void index_entries(tpl_heap *h, tpl_map *m) {
    m->n_index = m->room * 2;
    m->index = tpl_alloc(h, (uint64_t)m->n_index * sizeof *m->index);
    for (uint32_t i = 0; m->index && i < m->n; i++) {
        uint32_t at = hash_of(m->entries[i].key);
        while (m->index[at % m->n_index])
            at++;
        m->index[at % m->n_index] = i + 1;
    }
}

void tpl_set(tpl_heap *h, tpl_map *m, tpl_value key, tpl_value value) {
    uint32_t found = h->code ? 0 : find_entry(h, m, key);
    if (!can_be_key(key))
        tpl_fail(h, HAL_E_INVALID, "a key of a mapping: expected a text or number, got %s", tpl_kind_name(key));
    if (h->code)
        return;
    if (found) {
        m->entries[found - 1].value = value;
        return;
    }
    if (m->n == m->room) {
        uint64_t room = m->room < 4 ? 4 : (uint64_t)m->room * 2;
        tpl_entry *grown = room < UINT32_MAX / 4 ? tpl_alloc(h, room * sizeof *grown) : NULL;
        if (!grown) {
            tpl_fail(h, HAL_E_MEMORY, "needed more memory than a template may have");
            return;
        }
        if (m->n)
            memcpy(grown, m->entries, m->n * sizeof *grown);
        m->entries = grown;
        m->room = (uint32_t)room;
        if (room > FEW)
            index_entries(h, m);
        if (h->code)
            return;
    }
    m->entries[m->n++] = (tpl_entry){key, value};
    if (m->index) {
        uint32_t at = hash_of(key);
        while (m->index[at % m->n_index])
            at++;
        m->index[at % m->n_index] = m->n;
    }
}

const tpl_value *tpl_get(tpl_heap *h, const tpl_map *m, tpl_value key) {
    uint32_t found = find_entry(h, m, key);
    return found ? &m->entries[found - 1].value : NULL;
}

const tpl_value *tpl_get_word(tpl_heap *h, tpl_value map, const char *key) {
    tpl_text text = {(uint32_t)strlen(key), (uint32_t)strlen(key), key};
    return map.kind == TPL_MAP ? tpl_get(h, map.map, (tpl_value){.kind = TPL_STRING, .text = &text}) : NULL;
}

void tpl_set_word(tpl_heap *h, tpl_value map, const char *key, tpl_value value) {
    tpl_value name = tpl_word(h, key);
    if (!h->code && map.kind == TPL_MAP)
        tpl_set(h, map.map, name, value);
}

void tpl_put(tpl_heap *h, tpl_builder *b, const char *data, uint64_t size) {
    if (h->code || tpl_pay(h, size / STRING_STEP))
        return;
    if (b->room - b->size < size) {
        uint64_t room = b->room * 2 > b->size + size ? b->room * 2 : b->size + size + 64;
        char *grown = tpl_alloc(h, room);
        if (!grown)
            return;
        if (b->size)
            memcpy(grown, b->data, (size_t)b->size);
        b->data = grown;
        b->room = room;
    }
    if (size)
        memcpy(b->data + b->size, data, (size_t)size);
    b->size += size;
}

void tpl_put_word(tpl_heap *h, tpl_builder *b, const char *word) {
    tpl_put(h, b, word, strlen(word));
}

void tpl_put_point(tpl_heap *h, tpl_builder *b, uint32_t point) {
    char bytes[4];
    int size = utf8_size(point);
    if (size == 1)
        bytes[0] = (char)point;
    else
        for (int i = size; i-- > 0; point >>= 6)
            bytes[i] = (char)(i ? 0x80 | (point & 0x3F) : (0xF00u >> size & 0xFF) | point);
    tpl_put(h, b, bytes, (uint64_t)size);
}

tpl_value tpl_built(tpl_heap *h, const tpl_builder *b) {
    return tpl_string(h, b->data ? b->data : "", b->size);
}

/* --- asking */

const char *tpl_kind_name(tpl_value v) {
    static const char *const names[] = {"Undefined", "NoneType", "bool",   "int",         "float",
                                        "str",       "list",     "tuple",  "dict",        "Namespace",
                                        "Macro",     "function", "method", "LoopContext", "missing"};
    return v.kind < sizeof names / sizeof *names ? names[v.kind] : "value";
}

int tpl_is_sequence(tpl_value v) {
    return v.kind == TPL_LIST || v.kind == TPL_TUPLE;
}

int tpl_is_word(tpl_value v, const char *word) {
    return v.kind == TPL_STRING && v.text->size == strlen(word) && !memcmp(v.text->data, word, v.text->size);
}

int tpl_truth(tpl_value v) {
    switch (v.kind) {
    case TPL_UNDEFINED:
    case TPL_NONE:
    case TPL_MISSING:
        return 0;
    case TPL_BOOL:
    case TPL_INT:
        return v.number != 0;
    case TPL_FLOAT:
        return v.real != 0;
    case TPL_STRING:
        return v.text->size != 0;
    case TPL_LIST:
    case TPL_TUPLE:
        return v.list->n != 0;
    case TPL_MAP:
        return v.map->n != 0;
    default:
        return 1;
    }
}

int tpl_same_text(const tpl_text *a, const tpl_text *b) {
    return a->size == b->size && !memcmp(a->data, b->data, a->size);
}

int tpl_real(tpl_value v, double *real) {
    if (v.kind == TPL_BOOL || v.kind == TPL_INT)
        *real = (double)v.number;
    else if (v.kind == TPL_FLOAT)
        *real = v.real;
    else
        return 0;
    return 1;
}

static int is_number(tpl_value v) {
    return v.kind == TPL_BOOL || v.kind == TPL_INT || v.kind == TPL_FLOAT;
}

static int equal_at(tpl_heap *h, tpl_value a, tpl_value b, int depth);

static int equal_maps(tpl_heap *h, const tpl_map *a, const tpl_map *b, int depth) {
    for (uint32_t i = 0; a->n == b->n && i < a->n; i++) {
        const tpl_value *other = tpl_get(h, b, a->entries[i].key);
        if (!other || !equal_at(h, a->entries[i].value, *other, depth + 1))
            return 0;
    }
    return a->n == b->n;
}

static int equal_at(tpl_heap *h, tpl_value a, tpl_value b, int depth) {
    double one, other;
    if (depth > TPL_DEPTH)
        tpl_fail(h, HAL_E_INVALID, "nested lists deeper than %d", TPL_DEPTH);
    if (tpl_pay(h, 1))
        return 0;
    if (is_number(a) && is_number(b))
        return a.kind == TPL_FLOAT || b.kind == TPL_FLOAT ? tpl_real(a, &one) && tpl_real(b, &other) && one == other
                                                          : a.number == b.number;
    if (a.kind != b.kind)
        return 0;
    if (a.kind == TPL_STRING)
        return !tpl_pay(h, a.text->size / STRING_STEP) && tpl_same_text(a.text, b.text);
    if (tpl_is_sequence(a)) {
        for (uint32_t i = 0; a.list->n == b.list->n && i < a.list->n; i++)
            if (!equal_at(h, a.list->items[i], b.list->items[i], depth + 1))
                return 0;
        return a.list->n == b.list->n;
    }
    if (a.kind == TPL_MAP)
        return equal_maps(h, a.map, b.map, depth);
    return a.kind == TPL_NONE || a.kind == TPL_UNDEFINED || a.number == b.number;
}

int tpl_equal(tpl_heap *h, tpl_value a, tpl_value b) {
    return equal_at(h, a, b, 0);
}

static int order_at(tpl_heap *h, tpl_value a, tpl_value b, int depth) {
    double one, other;
    if (depth > TPL_DEPTH)
        tpl_fail(h, HAL_E_INVALID, "nested lists deeper than %d", TPL_DEPTH);
    if (tpl_pay(h, 1))
        return 0;
    if (is_number(a) && is_number(b)) {
        if (a.kind != TPL_FLOAT && b.kind != TPL_FLOAT)
            return (a.number > b.number) - (a.number < b.number);
        tpl_real(a, &one);
        tpl_real(b, &other);
        return (one > other) - (one < other);
    }
    if (a.kind == TPL_STRING && b.kind == TPL_STRING) {
        uint32_t least = a.text->size < b.text->size ? a.text->size : b.text->size;
        int found = memcmp(a.text->data, b.text->data, least);
        tpl_pay(h, least / STRING_STEP);
        return found ? (found > 0) - (found < 0) : (a.text->size > b.text->size) - (a.text->size < b.text->size);
    }
    if (tpl_is_sequence(a) && a.kind == b.kind) {
        for (uint32_t i = 0; i < a.list->n && i < b.list->n; i++)
            if (!equal_at(h, a.list->items[i], b.list->items[i], depth + 1))
                return order_at(h, a.list->items[i], b.list->items[i], depth + 1);
        return (a.list->n > b.list->n) - (a.list->n < b.list->n);
    }
    tpl_fail(h, HAL_E_INVALID, "%s and %s have no order", tpl_kind_name(a), tpl_kind_name(b));
    return 0;
}

int tpl_order(tpl_heap *h, tpl_value a, tpl_value b) {
    return order_at(h, a, b, 0);
}

tpl_value tpl_items_of(tpl_heap *h, tpl_value v) {
    tpl_value made = {.kind = TPL_UNDEFINED};
    if (tpl_is_sequence(v))
        return v;
    if (v.kind == TPL_UNDEFINED)
        return tpl_list_new(h, 0);
    if (v.kind == TPL_MAP) {
        made = tpl_list_new(h, v.map->n);
        for (uint32_t i = 0; i < v.map->n && !tpl_pay(h, 1); i++)
            tpl_add(h, made, v.map->entries[i].key);
    } else if (v.kind == TPL_STRING) {
        made = tpl_list_new(h, v.text->points);
        for (uint32_t at = 0, end; at < v.text->size && !tpl_pay(h, 1); at = end) {
            end = at;
            tpl_point(v.text->data, &end);
            tpl_add(h, made, tpl_part(h, v.text, at, end));
        }
    } else {
        tpl_fail(h, HAL_E_INVALID, "'%s' can't be iterated", tpl_kind_name(v));
    }
    return made;
}

int64_t tpl_length(tpl_value v) {
    return v.kind == TPL_STRING      ? (int64_t)v.text->points
           : tpl_is_sequence(v)      ? (int64_t)v.list->n
           : v.kind == TPL_MAP       ? (int64_t)v.map->n
           : v.kind == TPL_UNDEFINED ? 0
                                     : -1;
}

/* --- text */

uint32_t tpl_point(const char *data, uint32_t *at) {
    const uint8_t *bytes = (const uint8_t *)data + *at;
    int more = bytes[0] < 0x80 ? 0 : bytes[0] < 0xE0 ? 1 : bytes[0] < 0xF0 ? 2 : 3;
    uint32_t point = more ? bytes[0] & (0x3Fu >> more) : bytes[0];
    for (int i = 1; i <= more; i++)
        point = point << 6 | (bytes[i] & 0x3F);
    *at += 1 + (uint32_t)more;
    return point;
}

uint32_t tpl_offset(tpl_heap *h, const tpl_text *t, uint32_t point) {
    uint32_t at = 0;
    if (t->size == t->points || point >= t->points)
        return point >= t->points ? t->size : point;
    tpl_pay(h, point / STRING_STEP);
    for (uint32_t i = 0; i < point; i++)
        for (at++; ((uint8_t)t->data[at] & 0xC0) == 0x80;)
            at++;
    return at;
}

tpl_value tpl_part(tpl_heap *h, const tpl_text *t, uint32_t begin, uint32_t end) {
    return tpl_string(h, t->data + begin, end > begin ? end - begin : 0);
}

int64_t tpl_find(tpl_heap *h, const tpl_text *text, const tpl_text *what, uint32_t from) {
    const char *at = text->data + from, *end = text->data + text->size;
    if (from > text->size || what->size > text->size - from)
        return -1;
    if (!what->size)
        return from;
    for (; (uint64_t)(end - at) >= what->size; at++) {
        const char *found = memchr(at, what->data[0], (size_t)(end - at) - what->size + 1);
        if (tpl_pay(h, 1 + (uint64_t)((found ? found : end) - at) / STRING_STEP + what->size / STRING_STEP) || !found)
            return -1;
        at = found;
        if (!memcmp(at, what->data, what->size))
            return at - text->data;
    }
    return -1;
}

static int printable(const tpl_printing *p, uint32_t point) {
    uint32_t low = 0, high = p->n_ranges;
    if (point < 0x7F)
        return point >= 0x20;
    if (p->private_use && ((point >= 0xE000 && point <= 0xF8FF) || point >= 0xF0000))
        return 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->ranges[middle].high < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low == p->n_ranges || point < p->ranges[low].low;
}

static void repr_text(tpl_heap *h, const tpl_printing *p, tpl_builder *b, const tpl_text *t) {
    int single = memchr(t->data, '\'', t->size) != NULL, twice = memchr(t->data, '"', t->size) != NULL;
    char quote = single && !twice ? '"' : '\'', number[16];
    tpl_put(h, b, &quote, 1);
    for (uint32_t at = 0, begin; at < t->size && !h->code;) {
        uint32_t point;
        begin = at;
        point = tpl_point(t->data, &at);
        if (point == (uint8_t)quote || point == '\\') {
            tpl_put(h, b, "\\", 1);
            tpl_put(h, b, t->data + begin, 1);
        } else if (point == '\n' || point == '\r' || point == '\t') {
            tpl_put_word(h, b, point == '\n' ? "\\n" : point == '\r' ? "\\r" : "\\t");
        } else if (printable(p, point)) {
            tpl_put(h, b, t->data + begin, at - begin);
        } else {
            const char *form = point < 0x100 ? "\\x%02x" : point < 0x10000 ? "\\u%04x" : "\\U%08x";
            snprintf(number, sizeof number, form, point);
            tpl_put_word(h, b, number);
        }
    }
    tpl_put(h, b, &quote, 1);
}

/* Digits and exponent of a positive finite real: the fewest digits that read back as the same. */
static int shortest(double real, char *digits) {
    char text[40];
    int exponent = 0, n = 0;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, real);
        if (strtod(text, NULL) == real)
            break;
    }
    for (const char *at = text; *at && *at != 'e'; at++)
        if (*at >= '0' && *at <= '9') /* the point is the locale's */
            digits[n++] = *at;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    exponent = atoi(strchr(text, 'e') + 1);
    return exponent;
}

void tpl_put_real(tpl_heap *h, tpl_builder *b, double real) {
    char digits[40], tail[16];
    int exponent, n;
    if (isnan(real) || isinf(real)) {
        tpl_put_word(h, b, isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
        return;
    }
    if (signbit(real))
        tpl_put(h, b, "-", 1);
    if (real == 0) {
        tpl_put(h, b, "0.0", 3);
        return;
    }
    exponent = shortest(fabs(real), digits);
    n = (int)strlen(digits);
    if (exponent < -4 || exponent >= 16) {
        tpl_put(h, b, digits, 1);
        if (n > 1) {
            tpl_put(h, b, ".", 1);
            tpl_put(h, b, digits + 1, (uint64_t)n - 1);
        }
        snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        tpl_put_word(h, b, tail);
        return;
    }
    if (exponent < 0)
        tpl_put(h, b, "0.0000", (uint64_t)(1 - exponent));
    for (int i = 0; i < n || i <= exponent; i++) {
        if (i == exponent + 1 && exponent >= 0)
            tpl_put(h, b, ".", 1);
        tpl_put(h, b, i < n ? digits + i : "0", 1);
    }
    if (exponent >= 0 && n <= exponent + 1)
        tpl_put(h, b, ".0", 2);
}

static void repr_at(tpl_heap *h, const tpl_printing *p, tpl_builder *b, tpl_value v, int depth);

static void repr_items(tpl_heap *h, const tpl_printing *p, tpl_builder *b, tpl_value v, int depth) {
    int tuple = v.kind == TPL_TUPLE;
    tpl_put(h, b, tuple ? "(" : "[", 1);
    for (uint32_t i = 0; i < v.list->n && !h->code; i++) {
        if (i)
            tpl_put(h, b, ", ", 2);
        repr_at(h, p, b, v.list->items[i], depth + 1);
    }
    tpl_put_word(h, b, tuple ? v.list->n == 1 ? ",)" : ")" : "]");
}

static void repr_map(tpl_heap *h, const tpl_printing *p, tpl_builder *b, const tpl_map *m, int depth) {
    tpl_put(h, b, "{", 1);
    for (uint32_t i = 0; i < m->n && !h->code; i++) {
        if (i)
            tpl_put(h, b, ", ", 2);
        repr_at(h, p, b, m->entries[i].key, depth + 1);
        tpl_put(h, b, ": ", 2);
        repr_at(h, p, b, m->entries[i].value, depth + 1);
    }
    tpl_put(h, b, "}", 1);
}

static void repr_at(tpl_heap *h, const tpl_printing *p, tpl_builder *b, tpl_value v, int depth) {
    char number[32];
    if (depth > TPL_DEPTH)
        tpl_fail(h, HAL_E_INVALID, "nested lists deeper than %d", TPL_DEPTH);
    if (tpl_pay(h, 1))
        return;
    switch (v.kind) {
    case TPL_UNDEFINED:
        tpl_put_word(h, b, depth ? "Undefined" : "");
        return;
    case TPL_NONE:
        tpl_put_word(h, b, "None");
        return;
    case TPL_BOOL:
        tpl_put_word(h, b, v.number ? "True" : "False");
        return;
    case TPL_INT:
        snprintf(number, sizeof number, "%lld", (long long)v.number);
        tpl_put_word(h, b, number);
        return;
    case TPL_FLOAT:
        tpl_put_real(h, b, v.real);
        return;
    case TPL_STRING:
        if (depth)
            repr_text(h, p, b, v.text);
        else
            tpl_put(h, b, v.text->data, v.text->size);
        return;
    case TPL_MAP:
        repr_map(h, p, b, v.map, depth);
        return;
    case TPL_NAMESPACE:
        tpl_put_word(h, b, "<Namespace>");
        return;
    case TPL_LIST:
    case TPL_TUPLE:
        if (!(v.flags & TPL_VIEW)) {
            repr_items(h, p, b, v, depth);
            return;
        }
    }
    tpl_fail(h, HAL_E_INVALID, "prints a %s, which the C library does not",
             v.flags & TPL_VIEW ? "view of a dict or range" : tpl_kind_name(v));
}

void tpl_print(tpl_heap *h, const tpl_printing *p, tpl_builder *b, tpl_value v) {
    repr_at(h, p, b, v, 0);
}

tpl_value tpl_printed(tpl_heap *h, const tpl_printing *p, tpl_value v) {
    tpl_builder b = {0};
    if (v.kind == TPL_STRING)
        return v;
    tpl_print(h, p, &b, v);
    return tpl_built(h, &b);
}

/* --- the escape */

/* What a character becomes; 0: itself. The mark before it: *marked. */
static uint32_t escape_of(const tpl_escape *e, uint32_t point, int *marked) {
    uint32_t low = 0, high = e->n;
    *marked = 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (e->pairs[middle].from < point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < e->n && e->pairs[low].from == point)
        return e->pairs[low].to;
    for (uint32_t i = 0; point >= 0xE000 && i < e->n; i++)
        *marked |= e->pairs[i].to == point;
    *marked |= point == e->mark;
    return *marked ? point : 0;
}

tpl_value tpl_escaped(tpl_heap *h, const tpl_escape *e, tpl_value v) {
    tpl_builder b = {0};
    uint32_t kept = 0, at = 0, begin, to;
    int marked;
    if (!e->n || v.kind != TPL_STRING || tpl_pay(h, v.text->size / 8))
        return v;
    while (at < v.text->size) {
        begin = at;
        if (!(to = escape_of(e, tpl_point(v.text->data, &at), &marked)))
            continue;
        tpl_put(h, &b, v.text->data + kept, begin - kept);
        if (marked)
            tpl_put_point(h, &b, e->mark);
        tpl_put_point(h, &b, to);
        kept = at;
        if (h->code)
            return v;
    }
    if (!kept)
        return v;
    tpl_put(h, &b, v.text->data + kept, v.text->size - kept);
    return tpl_built(h, &b);
}

/* The character that became this one; 0: none. */
static uint32_t unescape_of(const tpl_escape *e, uint32_t point) {
    for (uint32_t i = 0; i < e->n; i++)
        if (e->pairs[i].to == point)
            return e->pairs[i].from;
    return 0;
}

static int is_code(const tpl_escape *e, uint32_t point) {
    return point == e->mark || unescape_of(e, point);
}

void tpl_put_unescaped(tpl_heap *h, const tpl_escape *e, tpl_builder *b, const char *data, uint64_t size) {
    uint32_t kept = 0, at = 0;
    while (e->n && at < size && !h->code) {
        uint32_t begin = at, point = tpl_point(data, &at), after = at, next;
        if (point < 0xE000 || !is_code(e, point))
            continue;
        next = point == e->mark && at < size ? tpl_point(data, &after) : 0;
        tpl_put(h, b, data + kept, begin - kept);
        if (next && is_code(e, next)) { /* it stood in the text already */
            tpl_put_point(h, b, next);
            at = after;
        } else {
            tpl_put_point(h, b, point == e->mark ? point : unescape_of(e, point));
        }
        kept = at;
    }
    tpl_put(h, b, data + kept, size - kept);
}
