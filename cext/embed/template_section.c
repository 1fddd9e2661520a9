/* template_section.c: see template_section.h. Numbers in the code are checked here, once; what depends on the run, such as the height of
 * the stack, the machine checks at each instruction. The section is hostile input. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "section_tables.h"
#include "template_functions.h"
#include "template_section.h"
#include "utf8.h"

enum {
    MOST_VARIANTS = 64,
    MOST_SLOTS_OF_CODE = 4096,
    MOST_CONSTANTS = 1 << 20,
    MOST_ESCAPES = 1024,
    MOST_ARGUMENTS = 32
};

static int wrong(const char *what) {
    return hal_fail(HAL_E_INVALID, "satchel.template: %s; build the file again with `satchel build`", what);
}

static int read_tables(tpl_template *t, tables *from) {
    const template_head *h = t->head;
    t->variants = next(from, h->n_variants, sizeof *t->variants);
    t->code = (template_code *)(uintptr_t)next(from, h->n_code, sizeof *t->code);
    t->macros = next(from, h->n_macros, sizeof *t->macros);
    t->constants = next(from, h->n_constants, sizeof *t->constants);
    t->members = next(from, h->n_members, 4);
    t->variables = next(from, h->n_variables, sizeof *t->variables);
    t->escape.n = h->n_escapes;
    t->escape.mark = h->mark;
    t->escape.pairs = next(from, h->n_escapes, sizeof *t->escape.pairs);
    t->markers = next(from, h->n_markers, 4);
    t->printing.n_ranges = h->n_ranges;
    t->printing.ranges = next(from, h->n_ranges, sizeof *t->printing.ranges);
    t->cases = next(from, h->n_cases, sizeof *t->cases);
    t->bytes = next(from, h->n_bytes, 1);
    return from->failed || from->at != from->size ? wrong("its tables have another size than it says") : 0;
}

/* --- constants */

static int is_string(const tpl_template *t, uint32_t constant) {
    return constant < t->head->n_constants && t->values[constant].kind == TPL_STRING;
}

/* A string with a zero byte behind it. */
static int is_ended(const tpl_template *t, uint32_t constant) {
    const template_constant *c = t->constants + constant;
    return is_string(t, constant) && (uint64_t)c->value + c->size < t->head->n_bytes &&
           !t->bytes[(uint64_t)c->value + c->size];
}

static int is_names(const tpl_template *t, uint32_t constant) {
    const tpl_value *v = t->values + constant;
    if (constant >= t->head->n_constants || v->kind != TPL_TUPLE || v->list->n > MOST_ARGUMENTS)
        return 0;
    for (uint32_t i = 0; i < v->list->n; i++)
        if (v->list->items[i].kind != TPL_STRING)
            return 0;
    return 1;
}

static int is_text(const char *data, uint32_t size, uint32_t *points) {
    return utf8_points(data, size, points) >= 0;
}

/* The value of a constant; members of a tuple stand before it, so no tuple holds itself. points: room for the longest string. */
static int read_constant(tpl_template *t, uint32_t number, uint32_t *points) {
    const template_head *h = t->head;
    const template_constant *c = t->constants + number;
    tpl_value *v = t->values + number;
    uint64_t first = (uint64_t)c->value;
    switch (c->kind) {
    case CONSTANT_NONE:
        *v = tpl_none();
        return 0;
    case CONSTANT_FALSE:
    case CONSTANT_TRUE:
        *v = tpl_bool(c->kind == CONSTANT_TRUE);
        return 0;
    case CONSTANT_INTEGER:
        *v = tpl_int(c->value);
        return 0;
    case CONSTANT_FLOAT:
        *v = (tpl_value){.kind = TPL_FLOAT};
        memcpy(&v->real, &c->value, sizeof v->real);
        return 0;
    case CONSTANT_STRING:
    case CONSTANT_OWN:
        if (first > h->n_bytes || c->size > h->n_bytes - first || !is_text(t->bytes + first, c->size, points))
            return wrong("a constant is no text within it");
        *v = tpl_string(&t->heap, t->bytes + first, c->size);
        return 0;
    case CONSTANT_TUPLE:
        if (first > h->n_members || c->size > h->n_members - first)
            return wrong("a constant is out of range");
        *v = tpl_tuple_new(&t->heap, c->size);
        for (uint32_t i = 0; i < c->size; i++) {
            if (t->members[first + i] >= number)
                return wrong("a member of a constant does not stand before it");
            tpl_add(&t->heap, *v, t->values[t->members[first + i]]);
        }
        return 0;
    case CONSTANT_UNDEFINED:
        *v = tpl_undefined(&t->heap, NULL);
        return 0;
    default:
        return wrong("a constant is of a kind that is not known");
    }
}

static int read_constants(tpl_template *t) {
    uint32_t *points = malloc(((size_t)t->head->n_bytes + 1) * sizeof *points);
    int code = points && t->values ? 0 : hal_fail(HAL_E_MEMORY, "no memory for a chat template");
    for (uint32_t i = 0; !code && i < t->head->n_constants; i++)
        code = read_constant(t, i, points);
    free(points);
    if (!code && t->heap.code)
        code = t->heap.code == HAL_E_MEMORY ? hal_fail(HAL_E_MEMORY, "no memory for a chat template")
                                            : wrong("its constants are longer than it");
    return code;
}

/* --- code */

static int check_call(const tpl_template *t, const template_code *c) {
    if (c->count > MOST_ARGUMENTS ||
        (c->b != TEMPLATE_NO_NAMES && (!is_names(t, c->b) || t->values[c->b].list->n > c->count)))
        return wrong("a call's arguments are out of range");
    return 0;
}

/* Finds the function of a filter or test by its name. */
static int resolve(const tpl_template *t, template_code *c) {
    int found = !is_string(t, c->a)        ? -1
                : c->op == TEMPLATE_FILTER ? tpl_find_filter(t->values[c->a].text)
                                           : tpl_find_test(t->values[c->a].text);
    if (!is_string(t, c->a))
        return wrong("a filter or test has no name");
    if (found < 0)
        return hal_fail(HAL_E_INVALID, "satchel.template: this library has no %s '%.*s'; use a newer one",
                        c->op == TEMPLATE_FILTER ? "filter" : "test", (int)(t->values[c->a].text->size & 63),
                        t->values[c->a].text->data);
    c->a = (uint32_t)found;
    return check_call(t, c);
}

static int check_code(const tpl_template *t, template_code *c) {
    const template_head *h = t->head;
    switch (c->op) {
    case TEMPLATE_CONST:
        return c->a < h->n_constants ? 0 : wrong("an instruction's constant is out of range");
    case TEMPLATE_NAME:
    case TEMPLATE_ATTRIBUTE:
    case TEMPLATE_SET_ATTRIBUTE:
    case TEMPLATE_TEXT:
        return is_string(t, c->a) ? 0 : wrong("an instruction's name is no text");
    case TEMPLATE_METHOD:
        return is_string(t, c->a) ? check_call(t, c) : wrong("an instruction's name is no text");
    case TEMPLATE_CALL:
        return check_call(t, c);
    case TEMPLATE_FILTER:
    case TEMPLATE_TEST:
        return resolve(t, c);
    case TEMPLATE_JUMP:
    case TEMPLATE_JUMP_FALSE:
    case TEMPLATE_JUMP_FALSE_KEEP:
    case TEMPLATE_JUMP_TRUE_KEEP:
    case TEMPLATE_JUMP_GIVEN:
    case TEMPLATE_NEXT:
    case TEMPLATE_LOOP_END:
        return c->a < h->n_code ? 0 : wrong("a jump is out of range");
    case TEMPLATE_COMPARE:
        for (int i = 0; i < c->count && i < 8; i++)
            if ((c->a >> 4 * i & 15) >= TEMPLATE_COMPARISONS)
                return wrong("a comparison is not known");
        return c->count && c->count < 8 ? 0 : wrong("a comparison is out of range");
    case TEMPLATE_MACRO:
        return c->a < h->n_macros ? 0 : wrong("a macro is out of range");
    default:
        return c->op < TEMPLATE_OPS ? 0 : wrong("an instruction is not known");
    }
}

static int check_variant(const tpl_template *t, const template_variant *v) {
    if (!is_string(t, v->name) || !is_string(t, v->tools_name) || v->entry >= t->head->n_code ||
        v->n_slots > MOST_SLOTS_OF_CODE || v->flags >= VARIANT_FLAGS || v->tools_place > PLACE_BESIDE ||
        v->call_arguments > CALL_TEXT || v->call_content > CONTENT_EMPTY)
        return wrong("a variant is out of range");
    return 0;
}

static int check_macro(const tpl_template *t, const template_macro *m) {
    if (!is_string(t, m->name) || !is_names(t, m->arguments) || m->entry >= t->head->n_code || m->flags > 7 ||
        m->n_slots > MOST_SLOTS_OF_CODE ||
        t->values[m->arguments].list->n + (m->flags & 1) + (m->flags >> 1 & 1) + (m->flags >> 2 & 1) > m->n_slots)
        return wrong("a macro is out of range");
    return 0;
}

static int is_point(uint32_t point) {
    return point && point < 0x110000 && (point < 0xD800 || point > 0xDFFF);
}

static int check_escape(const tpl_template *t) {
    const tpl_escape *e = &t->escape;
    for (uint32_t i = 0; i < e->n; i++)
        if (!is_point(e->pairs[i].from) || !is_point(e->pairs[i].to) || e->pairs[i].to < 0xE000 ||
            (i && e->pairs[i].from <= e->pairs[i - 1].from))
            return wrong("its escaped characters are out of order");
    if (e->n && (!is_point(e->mark) || e->mark < 0xE000))
        return wrong("its escaped characters are out of order");
    for (uint32_t i = 0; i < t->printing.n_ranges; i++)
        if (t->printing.ranges[i].low > t->printing.ranges[i].high ||
            (i && t->printing.ranges[i].low <= t->printing.ranges[i - 1].high))
            return wrong("its ranges of characters are out of order");
    for (uint32_t i = 0; i < t->head->n_cases; i++) {
        const template_case *c = t->cases + i;
        int64_t low = (int64_t)c->low + c->delta, high = (int64_t)c->high + c->delta;
        if (c->kind >= CASE_KINDS || c->step < 1 || c->step > 2 || c->low > c->high || c->low < 0x80 ||
            !is_point(c->high) ||
            (c->delta != CASE_REFUSED && (low < 1 || high > 0x10FFFF || (high > 0xD7FF && low < 0xE000))))
            return wrong("its letters are out of range");
    }
    return 0;
}

static int check_all(tpl_template *t) {
    const template_head *h = t->head;
    const uint32_t strings[] = {h->refused,      h->thinking_begin, h->thinking_end,
                                h->calls_format, h->calls_begin,    h->switches};
    int code = check_escape(t);
    for (size_t i = 0; !code && i < sizeof strings / sizeof *strings; i++)
        code = is_ended(t, strings[i]) ? 0 : wrong("a marker is no text with a zero byte behind it");
    for (uint32_t i = 0; !code && i < h->n_variables; i++)
        code = is_string(t, t->variables[i].name) && t->variables[i].value < h->n_constants
                   ? 0
                   : wrong("a variable is out of range");
    for (uint32_t i = 0; !code && i < h->n_variants; i++)
        code = check_variant(t, t->variants + i);
    for (uint32_t i = 0; !code && i < h->n_macros; i++)
        code = check_macro(t, t->macros + i);
    for (uint32_t i = 0; !code && i < h->n_code; i++)
        code = check_code(t, t->code + i);
    return code;
}

static int read_section(gguf_bytes section, tpl_template *t) {
    tables from = {t->copy, 0, section.size, 0};
    const template_head *h;
    int code;
    memcpy(t->copy, section.data, section.size);
    if (!(h = t->head = next(&from, 1, sizeof *t->head)))
        return wrong("it is too short");
    if (memcmp(h->magic, "SATTPL01", 8) || h->size != section.size)
        return wrong("expected a chat template of this version, of as many bytes as it says");
    if (h->crc != gguf_crc(0, (const uint8_t *)h + 16, h->size - 16))
        return wrong("its checksum is wrong: the file is damaged");
    if (h->n_variants > MOST_VARIANTS || h->n_constants > MOST_CONSTANTS || h->n_escapes > MOST_ESCAPES)
        return wrong("its counts are out of range");
    if ((code = read_tables(t, &from)))
        return code;
    tpl_begin(&t->heap, (uint64_t)section.size * 16 + 1000, (uint64_t)section.size * 64 + 4096);
    t->values = calloc((size_t)h->n_constants + 1, sizeof *t->values);
    return (code = read_constants(t)) ? code : check_all(t);
}

int template_section_read(gguf_bytes section, tpl_template *t) {
    int code;
    *t = (tpl_template){0};
    if (!section.data)
        return 0;
    if (section.size > UINT32_MAX / 4)
        return wrong("it is too long");
    if (!(t->copy = malloc(section.size + 8)))
        return hal_fail(HAL_E_MEMORY, "no memory for a chat template of %llu bytes", (unsigned long long)section.size);
    if ((code = read_section(section, t)))
        template_section_free(t);
    return code;
}

void template_section_free(tpl_template *t) {
    tpl_end(&t->heap);
    free(t->values);
    free(t->copy);
    *t = (tpl_template){0};
}
