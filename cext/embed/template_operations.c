/* template_operations.c: arguments, the escape, comparisons, slices and sums of the template machine; see template_functions.h. */
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "template_functions.h"

enum { MOST_BOUND = 8 };

int tpl_bind(tpl_context *c, const char *what, const tpl_arguments *a, const char *names, tpl_value *out) {
    uint32_t positional = a->n - a->n_named, n = 0;
    const char *begins[MOST_BOUND];
    size_t sizes[MOST_BOUND];
    for (const char *at = names; *at && n < MOST_BOUND; n++) {
        begins[n] = at;
        sizes[n] = strcspn(at, " ");
        at += sizes[n] + (at[sizes[n]] == ' ');
        out[n] = n < positional ? a->values[n] : (tpl_value){.kind = TPL_MISSING};
    }
    if (positional > n)
        return tpl_fail(c->heap, HAL_E_INVALID, "%s takes %u arguments, %u were given", what, n, positional);
    for (uint32_t i = 0; i < a->n_named; i++) {
        const tpl_text *name = a->names[i].text;
        uint32_t k = 0;
        while (k < n && (sizes[k] != name->size || memcmp(begins[k], name->data, name->size)))
            k++;
        if (k == n || out[k].kind != TPL_MISSING)
            return tpl_fail(c->heap, HAL_E_INVALID, "%s takes no argument '%.*s'", what,
                            (int)(name->size < 40 ? name->size : 40), name->data);
        out[k] = a->values[positional + i];
    }
    return c->heap->code;
}

int tpl_refuse_undefined(tpl_context *c, tpl_value v) {
    const tpl_text *name = v.text;
    if (v.kind != TPL_UNDEFINED)
        return 0;
    if (name)
        tpl_fail(c->heap, HAL_E_INVALID, "'%.*s' is undefined", (int)(name->size < 60 ? name->size : 60), name->data);
    else
        tpl_fail(c->heap, HAL_E_INVALID, "a value is undefined");
    return 1;
}

tpl_value tpl_text_of(tpl_context *c, tpl_value v) {
    return tpl_printed(c->heap, c->printing, v);
}

/* --- the escape */

tpl_value tpl_needle(tpl_context *c, tpl_value text, tpl_value sought) {
    tpl_value other = tpl_escaped(c->heap, c->escape, sought);
    if (c->heap->code || sought.kind != TPL_STRING || text.kind != TPL_STRING || other.text == sought.text)
        return sought;
    return tpl_find(c->heap, text.text, other.text, 0) >= 0 ? other : sought;
}

tpl_value tpl_characters(tpl_context *c, tpl_value set) {
    tpl_value other = tpl_escaped(c->heap, c->escape, set);
    tpl_builder b = {0};
    if (c->heap->code || set.kind != TPL_STRING || other.text == set.text)
        return set;
    tpl_put(c->heap, &b, set.text->data, set.text->size);
    tpl_put(c->heap, &b, other.text->data, other.text->size);
    return tpl_built(c->heap, &b);
}

static int is_own(tpl_context *c, tpl_value text) {
    for (uint32_t i = 0; i < c->n_own && !tpl_pay(c->heap, 1); i++)
        if (tpl_same_text(c->own[i].text, text.text))
            return 1;
    return 0;
}

tpl_value tpl_rewritten(tpl_context *c, tpl_value before, tpl_value after) {
    if (!c->escape->n || c->heap->code || before.kind != TPL_STRING || after.kind != TPL_STRING)
        return after;
    if (is_own(c, before) || tpl_escaped(c->heap, c->escape, before).text != before.text)
        return after;
    return tpl_escaped(c->heap, c->escape, after);
}

/* Whether two texts are equal, one of which may be escaped. */
static int same(tpl_context *c, tpl_value a, tpl_value b) {
    if (!c->escape->n || a.kind != TPL_STRING || b.kind != TPL_STRING)
        return tpl_equal(c->heap, a, b);
    if (tpl_same_text(a.text, b.text))
        return 1;
    if (a.text->points != b.text->points)
        return 0;
    a = tpl_escaped(c->heap, c->escape, a);
    if (!c->heap->code && tpl_same_text(a.text, b.text))
        return 1;
    return 0;
}

static int same_either(tpl_context *c, tpl_value a, tpl_value b) {
    return same(c, a, b) || (!c->heap->code && same(c, b, a));
}

/* --- comparisons */

static int contains(tpl_context *c, tpl_value item, tpl_value items) {
    if (items.kind == TPL_STRING) {
        if (item.kind != TPL_STRING) {
            if (!tpl_refuse_undefined(c, item))
                tpl_fail(c->heap, HAL_E_INVALID, "'in <string>' requires string as left operand, not %s",
                         tpl_kind_name(item));
            return 0;
        }
        item = tpl_needle(c, items, item);
        return !c->heap->code && tpl_find(c->heap, items.text, item.text, 0) >= 0;
    }
    if (items.kind == TPL_MAP) {
        if (item.kind == TPL_LIST || item.kind == TPL_MAP)
            tpl_fail(c->heap, HAL_E_INVALID, "unhashable type: '%s'", tpl_kind_name(item));
        return !c->heap->code && tpl_get(c->heap, items.map, item) != NULL;
    }
    if (tpl_is_sequence(items)) {
        for (uint32_t i = 0; i < items.list->n; i++)
            if (tpl_equal(c->heap, items.list->items[i], item))
                return 1;
        return 0;
    }
    if (items.kind != TPL_UNDEFINED)
        tpl_fail(c->heap, HAL_E_INVALID, "argument of type '%s' is not iterable", tpl_kind_name(items));
    return 0;
}

int tpl_compare(tpl_context *c, uint32_t how, tpl_value a, tpl_value b) {
    if (how == 0 || how == 1)
        return same_either(c, a, b) == (how == 0);
    if (how >= 6)
        return contains(c, a, b) == (how == 6);
    if (tpl_refuse_undefined(c, a) || tpl_refuse_undefined(c, b))
        return 0;
    if ((a.kind == TPL_FLOAT && a.real != a.real) || (b.kind == TPL_FLOAT && b.real != b.real))
        return 0;
    switch (how) {
    case 2:
        return tpl_order(c->heap, a, b) > 0;
    case 3:
        return tpl_order(c->heap, a, b) >= 0;
    case 4:
        return tpl_order(c->heap, a, b) < 0;
    default:
        return tpl_order(c->heap, a, b) <= 0;
    }
}

/* --- parts and sums */

/* Python's slice.indices(). */
static int64_t bound(tpl_context *c, tpl_value v, int64_t n, int64_t step, int64_t otherwise) {
    int64_t at;
    if (v.kind == TPL_NONE || v.kind == TPL_MISSING)
        return otherwise;
    if (v.kind != TPL_INT && v.kind != TPL_BOOL) {
        if (!tpl_refuse_undefined(c, v))
            tpl_fail(c->heap, HAL_E_INVALID, "slice indices must be integers or None");
        return 0;
    }
    at = v.number < 0 ? v.number + n : v.number;
    if (at < 0)
        return step < 0 ? -1 : 0;
    return at >= n ? (step < 0 ? n - 1 : n) : at;
}

tpl_value tpl_slice(tpl_context *c, tpl_value v, tpl_value start, tpl_value stop, tpl_value step) {
    int64_t n = tpl_length(v), by = step.kind == TPL_INT ? step.number : 1, first, last;
    static const tpl_text none = {0, 0, ""};
    tpl_value made, items;
    if (tpl_refuse_undefined(c, v) || tpl_refuse_undefined(c, step))
        return v;
    if ((v.kind != TPL_STRING && !tpl_is_sequence(v)) || !by || (step.kind != TPL_INT && step.kind != TPL_NONE)) {
        tpl_fail(c->heap, HAL_E_INVALID, by ? "'%s' can't be sliced" : "slice step cannot be zero", tpl_kind_name(v));
        return v;
    }
    by = by > n ? n + 1 : by < -n ? -n - 1 : by;
    first = bound(c, start, n, by, by < 0 ? n - 1 : 0);
    last = bound(c, stop, n, by, by < 0 ? -1 : n);
    if (v.kind == TPL_STRING && by == 1)
        return last <= first ? tpl_string(c->heap, "", 0)
                             : tpl_part(c->heap, v.text, tpl_offset(c->heap, v.text, (uint32_t)first),
                                        tpl_offset(c->heap, v.text, (uint32_t)last));
    made = v.kind == TPL_TUPLE ? tpl_tuple_new(c->heap, 0) : tpl_list_new(c->heap, 0);
    items = tpl_items_of(c->heap, v);
    for (int64_t at = first; !c->heap->code && (by > 0 ? at < last : at > last) && !tpl_pay(c->heap, 1); at += by)
        tpl_add(c->heap, made, items.list->items[at]);
    return v.kind == TPL_STRING && !c->heap->code ? tpl_join(c, &none, made, 0) : made;
}

tpl_value tpl_add_values(tpl_context *c, tpl_value a, tpl_value b) {
    double one, other;
    int64_t sum;
    tpl_builder built = {0};
    tpl_value made;
    if (tpl_refuse_undefined(c, a) || tpl_refuse_undefined(c, b))
        return a;
    if (a.kind == TPL_STRING && b.kind == TPL_STRING) {
        if ((a.flags | b.flags) & TPL_SAFE) {
            tpl_fail(c->heap, HAL_E_INVALID, "joins text marked safe, which the C library does not");
            return a;
        }
        tpl_put(c->heap, &built, a.text->data, a.text->size);
        tpl_put(c->heap, &built, b.text->data, b.text->size);
        return tpl_built(c->heap, &built);
    }
    if (tpl_is_sequence(a) && a.kind == b.kind && !((a.flags | b.flags) & TPL_VIEW)) {
        made = a.kind == TPL_TUPLE ? tpl_tuple_new(c->heap, 0) : tpl_list_new(c->heap, 0);
        for (uint32_t i = 0; i < a.list->n && !tpl_pay(c->heap, 1); i++)
            tpl_add(c->heap, made, a.list->items[i]);
        for (uint32_t i = 0; i < b.list->n && !tpl_pay(c->heap, 1); i++)
            tpl_add(c->heap, made, b.list->items[i]);
        return made;
    }
    if (!tpl_real(a, &one) || !tpl_real(b, &other)) {
        tpl_fail(c->heap, HAL_E_INVALID, "unsupported operand type(s) for +: '%s' and '%s'", tpl_kind_name(a),
                 tpl_kind_name(b));
        return a;
    }
    if (a.kind == TPL_FLOAT || b.kind == TPL_FLOAT)
        return tpl_float(one + other);
    if (__builtin_add_overflow(a.number, b.number, &sum))
        tpl_fail(c->heap, HAL_E_INVALID, "computes an integer of more than 64 bits");
    return tpl_int(sum);
}
