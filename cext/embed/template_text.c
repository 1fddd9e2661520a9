/* template_text.c: operations on text of the template machine, as Python's str has them; see template_functions.h. */
#include <string.h>

#include "backend.h"
#include "template_functions.h"

static int is_space(uint32_t point) {
    return (point >= 9 && point <= 13) || (point >= 28 && point <= 32) || point == 0x85 || point == 0xA0 ||
           point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 ||
           point == 0x202F || point == 0x205F || point == 0x3000;
}

static int is_break(uint32_t point) {
    return (point >= 10 && point <= 13) || (point >= 28 && point <= 30) || point == 0x85 || point == 0x2028 ||
           point == 0x2029;
}

/* The byte at which the character before `at` begins. */
static uint32_t before(const char *data, uint32_t at) {
    for (at--; at && ((uint8_t)data[at] & 0xC0) == 0x80;)
        at--;
    return at;
}

static int in_set(tpl_value set, const char *data, uint32_t begin, uint32_t end) {
    uint32_t at = begin;
    if (set.kind != TPL_STRING)
        return is_space(tpl_point(data, &at));
    for (uint32_t i = 0, next = 0; i < set.text->size; i = next) {
        next = i;
        tpl_point(set.text->data, &next);
        if (next - i == end - begin && !memcmp(set.text->data + i, data + begin, end - begin))
            return 1;
    }
    return 0;
}

tpl_value tpl_strip(tpl_context *c, const tpl_text *t, tpl_value set, int sides) {
    uint32_t begin = 0, end = t->size;
    uint64_t cost = 1 + (set.kind == TPL_STRING ? set.text->size / 8 : 0);
    while (sides & STRIP_LEFT && begin < end && !tpl_pay(c->heap, cost)) {
        uint32_t at = begin;
        tpl_point(t->data, &at);
        if (!in_set(set, t->data, begin, at))
            break;
        begin = at;
    }
    while (sides & STRIP_RIGHT && end > begin && !tpl_pay(c->heap, cost)) {
        uint32_t at = before(t->data, end);
        if (!in_set(set, t->data, at, end))
            break;
        end = at;
    }
    return tpl_part(c->heap, t, begin, end);
}

tpl_value tpl_replace(tpl_context *c, const tpl_text *t, const tpl_text *what, const tpl_text *with, int64_t count) {
    tpl_builder b = {0};
    uint32_t at = 0;
    while (count && !c->heap->code) {
        int64_t found = tpl_find(c->heap, t, what, at);
        uint32_t end;
        if (found < 0 || tpl_pay(c->heap, 1))
            break;
        tpl_put(c->heap, &b, t->data + at, (uint64_t)found - at);
        tpl_put(c->heap, &b, with->data, with->size);
        count -= count > 0;
        end = at = (uint32_t)found + what->size;
        if (what->size)
            continue;
        if (at >= t->size)
            return tpl_built(c->heap, &b);
        tpl_point(t->data, &end); /* nothing is found before each character and at the end */
        tpl_put(c->heap, &b, t->data + at, end - at);
        at = end;
    }
    tpl_put(c->heap, &b, t->data + at, t->size - at);
    return tpl_built(c->heap, &b);
}

/* The last place of `what` that ends at or before `end`; -1: none. */
static int64_t find_last(tpl_heap *h, const tpl_text *t, const tpl_text *what, uint32_t end) {
    if (what->size > end)
        return -1;
    for (uint32_t at = end - what->size;; at--) {
        if (tpl_pay(h, 1))
            return -1;
        if (!memcmp(t->data + at, what->data, what->size))
            return at;
        if (!at)
            return -1;
    }
}

static void reverse(tpl_value list) {
    tpl_value *items = list.list->items;
    for (uint32_t i = 0, k = list.list->n; k && i < --k; i++) {
        tpl_value kept = items[i];
        items[i] = items[k];
        items[k] = kept;
    }
}

static void split_at(tpl_context *c, const tpl_text *t, const tpl_text *by, int64_t most, tpl_value made) {
    uint32_t at = 0;
    for (int64_t found; most && (found = tpl_find(c->heap, t, by, at)) >= 0 && !c->heap->code; most -= most > 0) {
        tpl_add(c->heap, made, tpl_part(c->heap, t, at, (uint32_t)found));
        at = (uint32_t)found + by->size;
    }
    tpl_add(c->heap, made, tpl_part(c->heap, t, at, t->size));
}

static void split_at_last(tpl_context *c, const tpl_text *t, const tpl_text *by, int64_t most, tpl_value made) {
    uint32_t end = t->size;
    for (int64_t found; most && (found = find_last(c->heap, t, by, end)) >= 0 && !c->heap->code; most -= most > 0) {
        tpl_add(c->heap, made, tpl_part(c->heap, t, (uint32_t)found + by->size, end));
        end = (uint32_t)found;
    }
    tpl_add(c->heap, made, tpl_part(c->heap, t, 0, end));
    if (!c->heap->code)
        reverse(made);
}

/* Words between white space. */
static void split_words(tpl_context *c, const tpl_text *t, int64_t most, tpl_value made) {
    for (uint32_t at = 0, end; at < t->size && !tpl_pay(c->heap, 1);) {
        uint32_t begin = at;
        if (is_space(tpl_point(t->data, &at)))
            continue;
        if (!most) { /* the rest, without white space at its end */
            uint32_t last = t->size;
            for (uint32_t p; last > begin && (p = before(t->data, last), end = p, is_space(tpl_point(t->data, &end)));)
                last = p;
            tpl_add(c->heap, made, tpl_part(c->heap, t, begin, last));
            return;
        }
        for (end = at; at < t->size && !tpl_pay(c->heap, 1);) {
            end = at;
            if (is_space(tpl_point(t->data, &at)))
                break;
            end = at;
        }
        tpl_add(c->heap, made, tpl_part(c->heap, t, begin, end));
        most -= most > 0;
    }
}

static void split_words_last(tpl_context *c, const tpl_text *t, int64_t most, tpl_value made) {
    for (uint32_t at = t->size, end; at && !tpl_pay(c->heap, 1);) {
        uint32_t begin = before(t->data, at), point = begin;
        if (is_space(tpl_point(t->data, &point))) {
            at = begin;
            continue;
        }
        end = at;
        if (!most) { /* the rest, without white space at its begin */
            uint32_t first = 0, next = 0;
            while (first < end && is_space(tpl_point(t->data, &next)))
                first = next;
            tpl_add(c->heap, made, tpl_part(c->heap, t, first, end));
            break;
        }
        for (at = begin; at && !tpl_pay(c->heap, 1); at = begin) {
            point = begin = before(t->data, at);
            if (is_space(tpl_point(t->data, &point)))
                break;
        }
        tpl_add(c->heap, made, tpl_part(c->heap, t, at, end));
        most -= most > 0;
    }
    if (!c->heap->code)
        reverse(made);
}

tpl_value tpl_split(tpl_context *c, const tpl_text *t, tpl_value by, int64_t most, int from_right) {
    tpl_value made = tpl_list_new(c->heap, 0);
    if (by.kind == TPL_STRING && !by.text->size)
        tpl_fail(c->heap, HAL_E_INVALID, "empty separator");
    else if (by.kind != TPL_STRING && by.kind != TPL_NONE && by.kind != TPL_MISSING)
        tpl_fail(c->heap, HAL_E_INVALID, "must be str or None, not %s", tpl_kind_name(by));
    if (c->heap->code)
        return made;
    if (by.kind == TPL_STRING)
        (from_right ? split_at_last : split_at)(c, t, by.text, most, made);
    else
        (from_right ? split_words_last : split_words)(c, t, most, made);
    return made;
}

tpl_value tpl_lines(tpl_context *c, const tpl_text *t) {
    tpl_value made = tpl_list_new(c->heap, 0);
    for (uint32_t at = 0, begin = 0; at < t->size && !tpl_pay(c->heap, 1);) {
        uint32_t end = at, point = tpl_point(t->data, &at);
        if (!is_break(point)) {
            if (at == t->size)
                tpl_add(c->heap, made, tpl_part(c->heap, t, begin, at));
            continue;
        }
        tpl_add(c->heap, made, tpl_part(c->heap, t, begin, end));
        if (point == '\r' && at < t->size && t->data[at] == '\n')
            at++;
        begin = at;
    }
    return made;
}

static int is_letter(uint32_t point) {
    return (point >= 'a' && point <= 'z') || (point >= 'A' && point <= 'Z');
}

/* A character in another case. */
static uint32_t other_case(tpl_context *c, uint32_t point, uint32_t kind) {
    if (point < 0x80)
        return !is_letter(point) ? point : kind == CASE_TO_LOWER ? point | 32 : point & ~32u;
    if (point >= 0xF0000 || (point >= 0xE000 && point <= 0xF8FF))
        return point; /* what the escape uses has no case */
    if (!c->n_cases)
        tpl_fail(c->heap, HAL_E_INVALID, "changes the case of U+%04X, for which the file has no table", point);
    for (uint32_t i = 0; i < c->n_cases; i++) {
        const template_case *row = c->cases + i;
        if (row->kind != kind || point < row->low || point > row->high || (point - row->low) % row->step)
            continue;
        if (row->delta == CASE_REFUSED)
            tpl_fail(c->heap, HAL_E_INVALID, "changes the case of U+%04X, which the C library does not", point);
        return row->delta == CASE_REFUSED ? point : point + (uint32_t)row->delta;
    }
    tpl_pay(c->heap, c->n_cases / 8);
    return kind == CASE_TO_TITLE ? other_case(c, point, CASE_TO_UPPER) : point;
}

/* Whether Jinja's filter `title` begins a word behind this character. */
static int begins_word(uint32_t point) {
    return is_space(point) || (point && point < 0x80 && strchr("-({[<", (int)point));
}

tpl_value tpl_case(tpl_context *c, const tpl_text *t, int how) {
    tpl_builder b = {0};
    int within = 0; /* the word has begun */
    if (how == CASE_TITLE && t->points != t->size)
        tpl_fail(c->heap, HAL_E_INVALID, "title() of letters beyond ASCII, which the C library does not");
    for (uint32_t at = 0; at < t->size && !tpl_pay(c->heap, 1);) {
        uint32_t point = tpl_point(t->data, &at);
        int lower = how == CASE_LOWER || (how != CASE_UPPER && within);
        uint32_t kind = lower ? CASE_TO_LOWER : how == CASE_CAPITAL ? CASE_TO_TITLE : CASE_TO_UPPER;
        tpl_put_point(c->heap, &b, other_case(c, point, kind));
        within = how == CASE_CAPITAL ? 1 : how == CASE_TITLE ? is_letter(point) : !begins_word(point);
    }
    return tpl_built(c->heap, &b);
}

tpl_value tpl_join(tpl_context *c, const tpl_text *between, tpl_value items, int as_text) {
    tpl_builder b = {0};
    tpl_value list = tpl_items_of(c->heap, items);
    for (uint32_t i = 0; !c->heap->code && i < list.list->n; i++) {
        tpl_value item = list.list->items[i];
        if (i)
            tpl_put(c->heap, &b, between->data, between->size);
        if (item.kind != TPL_STRING && !as_text)
            tpl_fail(c->heap, HAL_E_INVALID, "sequence item %u: expected str instance, %s found", i,
                     tpl_kind_name(item));
        tpl_print(c->heap, c->printing, &b, item);
        tpl_pay(c->heap, 1);
    }
    return tpl_built(c->heap, &b);
}
