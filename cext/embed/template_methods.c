/* template_methods.c: methods of values that a template may call; see template_functions.h. */
#include <string.h>

#include "backend.h"
#include "template_functions.h"

typedef tpl_value (*method)(tpl_context *, tpl_value, const tpl_arguments *);

static const tpl_value missing = {.kind = TPL_MISSING};

static int64_t number_or(tpl_context *c, tpl_value v, int64_t otherwise) {
    if (v.kind == TPL_MISSING || v.kind == TPL_NONE)
        return otherwise;
    if (v.kind != TPL_INT && v.kind != TPL_BOOL && !tpl_refuse_undefined(c, v))
        tpl_fail(c->heap, HAL_E_INVALID, "expected an integer, got %s", tpl_kind_name(v));
    return v.number;
}

/* The argument is a string; else a failure. */
static int is_text(tpl_context *c, const char *what, tpl_value v) {
    if (v.kind == TPL_STRING)
        return 1;
    if (!tpl_refuse_undefined(c, v))
        tpl_fail(c->heap, HAL_E_INVALID, "%s: expected a text, got %s", what,
                 v.kind == TPL_MISSING ? "nothing" : tpl_kind_name(v));
    return 0;
}

/* --- text */

static tpl_value strip(tpl_context *c, tpl_value v, const tpl_arguments *a, int sides) {
    tpl_value set;
    if (tpl_bind(c, "strip", a, "chars", &set))
        return v;
    if (set.kind == TPL_STRING)
        set = tpl_characters(c, set);
    else if (set.kind != TPL_NONE && set.kind != TPL_MISSING)
        is_text(c, "strip", set);
    return c->heap->code ? v : tpl_strip(c, v.text, set, sides);
}

static tpl_value m_strip(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return strip(c, v, a, STRIP_LEFT | STRIP_RIGHT);
}

static tpl_value m_lstrip(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return strip(c, v, a, STRIP_LEFT);
}

static tpl_value m_rstrip(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return strip(c, v, a, STRIP_RIGHT);
}

static tpl_value split(tpl_context *c, tpl_value v, const tpl_arguments *a, int right) {
    tpl_value given[2];
    if (tpl_bind(c, "split", a, "sep maxsplit", given))
        return v;
    return tpl_split(c, v.text, tpl_needle(c, v, given[0]), number_or(c, given[1], -1), right);
}

static tpl_value m_split(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return split(c, v, a, 0);
}

static tpl_value m_rsplit(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return split(c, v, a, 1);
}

static tpl_value m_splitlines(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return tpl_bind(c, "splitlines", a, "", NULL) ? v : tpl_lines(c, v.text);
}

static tpl_value m_replace(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value given[3];
    if (tpl_bind(c, "replace", a, "old new count", given) || !is_text(c, "replace", given[0]) ||
        !is_text(c, "replace", given[1]))
        return v;
    given[0] = tpl_needle(c, v, given[0]);
    return tpl_rewritten(c, v, tpl_replace(c, v.text, given[0].text, given[1].text, number_or(c, given[2], -1)));
}

static int has_end(tpl_value v, const tpl_text *t, int at_end) {
    return t->size <= v.text->size && !memcmp(v.text->data + (at_end ? v.text->size - t->size : 0), t->data, t->size);
}

/* Whether the text begins or ends with one of the texts, in either form. */
static tpl_value ends(tpl_context *c, tpl_value v, const tpl_arguments *a, int at_end) {
    tpl_value what;
    if (tpl_bind(c, at_end ? "endswith" : "startswith", a, "prefix", &what))
        return v;
    if (what.kind != TPL_TUPLE) {
        if (!is_text(c, at_end ? "endswith" : "startswith", what))
            return v;
        what = tpl_needle(c, v, what);
        return tpl_bool(!c->heap->code && has_end(v, what.text, at_end));
    }
    for (uint32_t i = 0; i < what.list->n; i++) {
        tpl_value one = what.list->items[i];
        if (!is_text(c, "startswith", one))
            return v;
        tpl_pay(c->heap, 1 + one.text->size / 64);
        if (has_end(v, one.text, at_end) || has_end(v, tpl_escaped(c->heap, c->escape, one).text, at_end))
            return tpl_bool(1);
    }
    return tpl_bool(0);
}

static tpl_value m_startswith(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return ends(c, v, a, 0);
}

static tpl_value m_endswith(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return ends(c, v, a, 1);
}

static tpl_value removed(tpl_context *c, tpl_value v, const tpl_arguments *a, int at_end) {
    tpl_value what;
    if (tpl_bind(c, "removeprefix", a, "prefix", &what) || !is_text(c, "removeprefix", what))
        return v;
    what = tpl_needle(c, v, what);
    if (c->heap->code || !has_end(v, what.text, at_end))
        return v;
    return at_end ? tpl_part(c->heap, v.text, 0, v.text->size - what.text->size)
                  : tpl_part(c->heap, v.text, what.text->size, v.text->size);
}

static tpl_value m_removeprefix(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return removed(c, v, a, 0);
}

static tpl_value m_removesuffix(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return removed(c, v, a, 1);
}

/* The last place of a text, -1: nowhere. */
static int64_t find_last(tpl_context *c, const tpl_text *t, const tpl_text *what) {
    int64_t found = -1;
    for (int64_t at = 0; (at = tpl_find(c->heap, t, what, (uint32_t)at)) >= 0 && !c->heap->code; at++) {
        found = at;
        if (tpl_pay(c->heap, 1) || at >= t->size)
            break;
    }
    return found;
}

static int64_t found_at(tpl_context *c, tpl_value v, const tpl_arguments *a, int last) {
    tpl_value what;
    int64_t at;
    uint32_t points = 0;
    if (tpl_bind(c, "find", a, "sub", &what) || !is_text(c, "find", what))
        return -1;
    what = tpl_needle(c, v, what);
    if (c->heap->code)
        return -1;
    at = last ? find_last(c, v.text, what.text) : tpl_find(c->heap, v.text, what.text, 0);
    for (int64_t i = 0; i < at; i++)
        points += ((uint8_t)v.text->data[i] & 0xC0) != 0x80;
    return at < 0 ? -1 : (int64_t)points;
}

static tpl_value m_find(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return tpl_int(found_at(c, v, a, 0));
}

static tpl_value m_rfind(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return tpl_int(found_at(c, v, a, 1));
}

static tpl_value m_index(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    int64_t at = found_at(c, v, a, 0);
    if (at < 0)
        tpl_fail(c->heap, HAL_E_INVALID, "substring not found");
    return tpl_int(at);
}

static tpl_value m_count(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value what;
    int64_t n = 0;
    if (tpl_bind(c, "count", a, "sub", &what) || !is_text(c, "count", what))
        return v;
    what = tpl_needle(c, v, what);
    if (c->heap->code)
        return v;
    if (!what.text->size)
        return tpl_int((int64_t)v.text->points + 1);
    for (int64_t at = 0; (at = tpl_find(c->heap, v.text, what.text, (uint32_t)at)) >= 0 && !c->heap->code; n++)
        at += what.text->size;
    return tpl_int(n);
}

/* partition(), rpartition(): before, what was sought, behind. */
static tpl_value parted(tpl_context *c, tpl_value v, const tpl_arguments *a, int last) {
    tpl_value what, made, empty = tpl_string(c->heap, "", 0);
    int64_t at;
    if (tpl_bind(c, "partition", a, "sep", &what) || !is_text(c, "partition", what))
        return v;
    what = tpl_needle(c, v, what);
    if (!c->heap->code && !what.text->size)
        tpl_fail(c->heap, HAL_E_INVALID, "empty separator");
    made = tpl_tuple_new(c->heap, 3);
    if (c->heap->code)
        return v;
    at = last ? find_last(c, v.text, what.text) : tpl_find(c->heap, v.text, what.text, 0);
    tpl_add(c->heap, made, at < 0 ? last ? empty : v : tpl_part(c->heap, v.text, 0, (uint32_t)at));
    tpl_add(c->heap, made, at < 0 ? empty : what);
    tpl_add(c->heap, made,
            at < 0 ? last ? v : empty : tpl_part(c->heap, v.text, (uint32_t)at + what.text->size, v.text->size));
    return made;
}

static tpl_value m_partition(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return parted(c, v, a, 0);
}

static tpl_value m_rpartition(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return parted(c, v, a, 1);
}

static tpl_value cased(tpl_context *c, tpl_value v, const tpl_arguments *a, int how) {
    return tpl_bind(c, "a change of case", a, "", NULL) ? v : tpl_rewritten(c, v, tpl_case(c, v.text, how));
}

static tpl_value m_lower(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return cased(c, v, a, CASE_LOWER);
}

static tpl_value m_upper(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return cased(c, v, a, CASE_UPPER);
}

static tpl_value m_capitalize(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return cased(c, v, a, CASE_CAPITAL);
}

static tpl_value m_title(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return cased(c, v, a, CASE_TITLE);
}

static tpl_value m_join(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value items;
    if (tpl_bind(c, "join", a, "iterable", &items))
        return v;
    return tpl_join(c, v.text, items, 0);
}

static tpl_value m_format(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return tpl_format(c, v.text, a);
}

/* --- lists and mappings */

static tpl_value copied(tpl_context *c, tpl_value v) {
    tpl_value made = tpl_list_new(c->heap, v.list->n);
    for (uint32_t i = 0; i < v.list->n && !tpl_pay(c->heap, 1); i++)
        tpl_add(c->heap, made, v.list->items[i]);
    return made;
}

static tpl_value l_append(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value item;
    if (!tpl_bind(c, "append", a, "item", &item) && item.kind == TPL_MISSING)
        tpl_fail(c->heap, HAL_E_INVALID, "append takes one argument");
    tpl_add(c->heap, v, item);
    return tpl_none();
}

static tpl_value l_pop(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value at, found;
    int64_t i;
    if (tpl_bind(c, "pop", a, "index", &at))
        return v;
    i = number_or(c, at, -1);
    i += i < 0 ? v.list->n : 0;
    if (i < 0 || i >= (int64_t)v.list->n) {
        tpl_fail(c->heap, HAL_E_INVALID, "pop index out of range");
        return v;
    }
    found = v.list->items[i];
    tpl_pay(c->heap, 1 + v.list->n / 8);
    memmove(v.list->items + i, v.list->items + i + 1, ((size_t)v.list->n - (size_t)i - 1) * sizeof found);
    v.list->n--;
    return found;
}

static tpl_value l_index(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value item;
    if (tpl_bind(c, "index", a, "item", &item))
        return v;
    for (uint32_t i = 0; i < v.list->n; i++)
        if (tpl_equal(c->heap, v.list->items[i], item))
            return tpl_int(i);
    tpl_fail(c->heap, HAL_E_INVALID, "the item is not in the list");
    return v;
}

static tpl_value l_count(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value item;
    int64_t n = 0;
    if (tpl_bind(c, "count", a, "item", &item))
        return v;
    for (uint32_t i = 0; i < v.list->n; i++)
        n += tpl_equal(c->heap, v.list->items[i], item);
    return tpl_int(n);
}

static tpl_value l_copy(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return tpl_bind(c, "copy", a, "", NULL) ? v : copied(c, v);
}

static tpl_value d_get(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value given[2];
    const tpl_value *found;
    if (tpl_bind(c, "get", a, "key default", given))
        return v;
    found = tpl_get(c->heap, v.map, given[0]);
    return found ? *found : given[1].kind == TPL_MISSING ? tpl_none() : given[1];
}

enum { VIEW_KEYS = 1, VIEW_VALUES = 2 };

static tpl_value view(tpl_context *c, tpl_value v, const tpl_arguments *a, int what) {
    tpl_value made = tpl_list_new(c->heap, v.map->n);
    if (tpl_bind(c, "items", a, "", NULL))
        return v;
    for (uint32_t i = 0; i < v.map->n && !tpl_pay(c->heap, 1); i++) {
        const tpl_entry *e = v.map->entries + i;
        tpl_value item = what == VIEW_KEYS ? e->key : e->value;
        if (what == (VIEW_KEYS | VIEW_VALUES)) {
            item = tpl_tuple_new(c->heap, 2);
            tpl_add(c->heap, item, e->key);
            tpl_add(c->heap, item, e->value);
        }
        tpl_add(c->heap, made, item);
    }
    made.flags = TPL_VIEW;
    return made;
}

static tpl_value d_items(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return view(c, v, a, VIEW_KEYS | VIEW_VALUES);
}

static tpl_value d_keys(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return view(c, v, a, VIEW_KEYS);
}

static tpl_value d_values(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return view(c, v, a, VIEW_VALUES);
}

static tpl_value d_copy(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value made = tpl_map_new(c->heap);
    if (tpl_bind(c, "copy", a, "", NULL))
        return v;
    for (uint32_t i = 0; i < v.map->n && !tpl_pay(c->heap, 1); i++)
        tpl_set(c->heap, made.map, v.map->entries[i].key, v.map->entries[i].value);
    return made;
}

/* --- a loop */

static tpl_value o_cycle(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    if (!a->n || a->n_named || !v.loop->at) {
        tpl_fail(c->heap, HAL_E_INVALID, "no items for cycling given");
        return v;
    }
    return a->values[(v.loop->at - 1) % a->n];
}

static tpl_value o_changed(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value given = tpl_tuple_new(c->heap, a->n);
    int changed;
    for (uint32_t i = 0; i < a->n; i++)
        tpl_add(c->heap, given, a->values[i]);
    if (c->heap->code)
        return v;
    changed = v.loop->changed.kind != TPL_TUPLE || !tpl_equal(c->heap, v.loop->changed, given);
    v.loop->changed = given;
    return tpl_bool(changed);
}

static const struct {
    uint8_t kind;
    const char *name;
    method run;
} methods[] = {
    {TPL_STRING, "capitalize", m_capitalize},
    {TPL_STRING, "count", m_count},
    {TPL_STRING, "endswith", m_endswith},
    {TPL_STRING, "find", m_find},
    {TPL_STRING, "format", m_format},
    {TPL_STRING, "index", m_index},
    {TPL_STRING, "join", m_join},
    {TPL_STRING, "lower", m_lower},
    {TPL_STRING, "lstrip", m_lstrip},
    {TPL_STRING, "partition", m_partition},
    {TPL_STRING, "removeprefix", m_removeprefix},
    {TPL_STRING, "removesuffix", m_removesuffix},
    {TPL_STRING, "replace", m_replace},
    {TPL_STRING, "rfind", m_rfind},
    {TPL_STRING, "rpartition", m_rpartition},
    {TPL_STRING, "rsplit", m_rsplit},
    {TPL_STRING, "rstrip", m_rstrip},
    {TPL_STRING, "split", m_split},
    {TPL_STRING, "splitlines", m_splitlines},
    {TPL_STRING, "startswith", m_startswith},
    {TPL_STRING, "strip", m_strip},
    {TPL_STRING, "title", m_title},
    {TPL_STRING, "upper", m_upper},
    {TPL_LIST, "append", l_append},
    {TPL_LIST, "copy", l_copy},
    {TPL_LIST, "count", l_count},
    {TPL_LIST, "index", l_index},
    {TPL_LIST, "pop", l_pop},
    {TPL_TUPLE, "count", l_count},
    {TPL_TUPLE, "index", l_index},
    {TPL_MAP, "copy", d_copy},
    {TPL_MAP, "get", d_get},
    {TPL_MAP, "items", d_items},
    {TPL_MAP, "keys", d_keys},
    {TPL_MAP, "values", d_values},
    {TPL_LOOP, "changed", o_changed},
    {TPL_LOOP, "cycle", o_cycle},
};

static int find_method(tpl_value v, const tpl_text *name) {
    for (int i = 0; i < (int)(sizeof methods / sizeof *methods); i++)
        if (methods[i].kind == v.kind && strlen(methods[i].name) == name->size &&
            !memcmp(methods[i].name, name->data, name->size))
            return i;
    return -1;
}

int tpl_has_method(tpl_value v, const tpl_text *name) {
    return !(v.flags & TPL_VIEW) && find_method(v, name) >= 0;
}

tpl_value tpl_call_method(tpl_context *c, tpl_value v, const tpl_text *name, const tpl_arguments *a) {
    int found = find_method(v, name);
    if (found < 0) {
        tpl_fail(c->heap, HAL_E_INVALID, "'%s' has no method '%.*s'", tpl_kind_name(v),
                 (int)(name->size < 40 ? name->size : 40), name->data);
        return missing;
    }
    if (v.flags & TPL_SAFE && a->n) {
        tpl_fail(c->heap, HAL_E_INVALID, "calls a method of text marked safe, which the C library does not");
        return missing;
    }
    return methods[found].run(c, v, a);
}
