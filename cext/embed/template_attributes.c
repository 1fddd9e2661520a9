/* template_attributes.c: value.name and value[key] of the template machine; see template_functions.h. */
#include <string.h>

#include "backend.h"
#include "template_functions.h"

static tpl_value at_index(const tpl_list *l, int64_t at) {
    return at >= 0 && at < (int64_t)l->n ? l->items[at] : (tpl_value){.kind = TPL_UNDEFINED};
}

/* The attributes of Jinja's loop; kind TPL_MISSING: it has none of this name. */
static tpl_value loop_attribute(tpl_context *c, tpl_loop *loop, const tpl_text *name) {
    static const char *const names[] = {"index",     "index0",   "first",    "last",  "length", "revindex",
                                        "revindex0", "previtem", "nextitem", "depth", "depth0"};
    const tpl_list *l = loop->items.list;
    int64_t at = (int64_t)loop->at - 1, n = l->n;
    size_t which = 0;
    (void)c;
    while (which < sizeof names / sizeof *names &&
           (strlen(names[which]) != name->size || memcmp(names[which], name->data, name->size)))
        which++;
    switch (which) {
    case 0:
        return tpl_int(at + 1);
    case 1:
        return tpl_int(at);
    case 2:
        return tpl_bool(at == 0);
    case 3:
        return tpl_bool(at + 1 >= n);
    case 4:
        return tpl_int(n);
    case 5:
        return tpl_int(n - at);
    case 6:
        return tpl_int(n - at - 1);
    case 7:
        return at_index(l, at - 1);
    case 8:
        return at_index(l, at + 1);
    case 9:
        return tpl_int(1);
    case 10:
        return tpl_int(0);
    default:
        return (tpl_value){.kind = TPL_MISSING};
    }
}

/* A method of this name as a value, TPL_MISSING: there is none. */
static tpl_value method_of(tpl_context *c, tpl_value v, const tpl_text *name) {
    tpl_method *made;
    if (!tpl_has_method(v, name) || !(made = tpl_alloc(c->heap, sizeof *made)))
        return (tpl_value){.kind = TPL_MISSING};
    *made = (tpl_method){v, name};
    return (tpl_value){.kind = TPL_METHOD, .method = made};
}

/* What Python's getattr gives; TPL_MISSING: no such attribute. */
static tpl_value own_attribute(tpl_context *c, tpl_value v, const tpl_text *name) {
    static const char *const changing[] = {"clear", "fromkeys", "pop", "popitem", "setdefault", "update"};
    tpl_value found = {.kind = TPL_MISSING};
    const tpl_value *held;
    if (v.kind == TPL_LOOP) {
        found = loop_attribute(c, v.loop, name);
    } else if (v.kind == TPL_NAMESPACE) {
        held = tpl_get(c->heap, v.map, (tpl_value){.kind = TPL_STRING, .text = name});
        return held ? *held : found;
    } else if (v.kind == TPL_MAP) {
        for (size_t i = 0; i < sizeof changing / sizeof *changing; i++)
            if (strlen(changing[i]) == name->size && !memcmp(changing[i], name->data, name->size))
                return tpl_undefined(c->heap, name);
    }
    return found.kind == TPL_MISSING ? method_of(c, v, name) : found;
}

tpl_value tpl_attribute(tpl_context *c, tpl_value v, const tpl_text *name) {
    tpl_value found;
    const tpl_value *held;
    if (tpl_refuse_undefined(c, v))
        return v;
    found = own_attribute(c, v, name);
    if (found.kind == TPL_MISSING && v.kind == TPL_MAP &&
        (held = tpl_get(c->heap, v.map, (tpl_value){.kind = TPL_STRING, .text = name})))
        return *held;
    return found.kind == TPL_MISSING ? tpl_undefined(c->heap, name) : found;
}

tpl_value tpl_item(tpl_context *c, tpl_value v, tpl_value key) {
    tpl_value found = {.kind = TPL_MISSING};
    const tpl_value *held;
    int64_t at, n = tpl_length(v);
    if (tpl_refuse_undefined(c, v))
        return v;
    if (v.kind == TPL_MAP && (held = tpl_get(c->heap, v.map, key)))
        return *held;
    if ((key.kind == TPL_INT || key.kind == TPL_BOOL) && (v.kind == TPL_STRING || tpl_is_sequence(v))) {
        at = key.number < 0 ? key.number + n : key.number;
        if (at < 0 || at >= n)
            return tpl_undefined(c->heap, NULL);
        if (tpl_is_sequence(v))
            return v.list->items[at];
        return tpl_part(c->heap, v.text, tpl_offset(c->heap, v.text, (uint32_t)at),
                        tpl_offset(c->heap, v.text, (uint32_t)at + 1));
    }
    if (key.kind == TPL_STRING)
        found = own_attribute(c, v, key.text);
    return found.kind == TPL_MISSING ? tpl_undefined(c->heap, key.kind == TPL_STRING ? key.text : NULL) : found;
}
