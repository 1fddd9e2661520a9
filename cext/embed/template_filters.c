/* template_filters.c: filters, tests and functions of the template machine, as Jinja has them; see template_functions.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "template_functions.h"
#include "template_json.h"

enum { MOST_INDENT = 64, MOST_RANGE = 100000 };
#define MOST_NUMBER (1ll << 40) /* of a range */

typedef tpl_value (*filter)(tpl_context *, tpl_value, const tpl_arguments *);

static const tpl_value missing = {.kind = TPL_MISSING};

static int given(tpl_value v) {
    return v.kind != TPL_MISSING && v.kind != TPL_NONE;
}

static int64_t number_or(tpl_context *c, tpl_value v, int64_t otherwise) {
    if (!given(v))
        return otherwise;
    if (v.kind != TPL_INT && v.kind != TPL_BOOL && !tpl_refuse_undefined(c, v))
        tpl_fail(c->heap, HAL_E_INVALID, "expected an integer, got %s", tpl_kind_name(v));
    return v.number;
}

static int flag_or(tpl_value v, int otherwise) {
    return v.kind == TPL_MISSING ? otherwise : tpl_truth(v);
}

/* --- text */

static tpl_value f_string(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return tpl_bind(c, "string", a, "", NULL) ? v : tpl_text_of(c, v);
}

static tpl_value f_trim(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value set;
    if (tpl_bind(c, "trim", a, "chars", &set))
        return v;
    v = tpl_text_of(c, v);
    set = tpl_characters(c, set);
    if (given(set) && set.kind != TPL_STRING)
        tpl_fail(c->heap, HAL_E_INVALID, "strip arg must be None or str");
    return c->heap->code ? v : tpl_strip(c, v.text, set, STRIP_LEFT | STRIP_RIGHT);
}

static tpl_value cased(tpl_context *c, tpl_value v, const tpl_arguments *a, int how) {
    tpl_value text = tpl_bind(c, "a change of case", a, "", NULL) ? v : tpl_text_of(c, v);
    return c->heap->code ? v : tpl_rewritten(c, v, tpl_case(c, text.text, how));
}

static tpl_value f_lower(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return cased(c, v, a, CASE_LOWER);
}

static tpl_value f_upper(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return cased(c, v, a, CASE_UPPER);
}

static tpl_value f_capitalize(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return cased(c, v, a, CASE_CAPITAL);
}

static tpl_value f_title(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return cased(c, v, a, CASE_WORDS);
}

static tpl_value f_replace(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[3], text;
    if (tpl_bind(c, "replace", a, "old new count", arg))
        return v;
    text = tpl_text_of(c, v);
    arg[0] = tpl_text_of(c, tpl_needle(c, text, arg[0]));
    arg[1] = tpl_text_of(c, arg[1]);
    if (c->heap->code)
        return v;
    return tpl_rewritten(c, v, tpl_replace(c, text.text, arg[0].text, arg[1].text, number_or(c, arg[2], -1)));
}

static tpl_value f_indent(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[3], text, lines, pad;
    tpl_builder b = {0}, spaces = {0};
    int blank;
    if (tpl_bind(c, "indent", a, "width first blank", arg))
        return v;
    text = tpl_text_of(c, v);
    blank = flag_or(arg[2], 0);
    if (arg[0].kind != TPL_STRING)
        for (int64_t i = number_or(c, arg[0], 4); i > 0 && !c->heap->code; i--)
            tpl_put(c->heap, &spaces, " ", 1);
    pad = arg[0].kind == TPL_STRING ? arg[0] : tpl_built(c->heap, &spaces);
    if (c->heap->code)
        return v;
    tpl_put(c->heap, &b, text.text->data, text.text->size);
    tpl_put(c->heap, &b, "\n", 1); /* so that a line break at the end stays */
    text = tpl_built(c->heap, &b);
    if (c->heap->code)
        return v;
    lines = tpl_lines(c, text.text);
    b = (tpl_builder){0};
    for (uint32_t i = 0; !c->heap->code && i < lines.list->n; i++) {
        tpl_value line = lines.list->items[i];
        if (i)
            tpl_put(c->heap, &b, "\n", 1);
        if (i ? blank || line.text->size : flag_or(arg[1], 0))
            tpl_put(c->heap, &b, pad.text->data, pad.text->size);
        tpl_put(c->heap, &b, line.text->data, line.text->size);
    }
    return tpl_built(c->heap, &b);
}

static tpl_value f_truncate(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[4], text, end, cut;
    int64_t length, leeway;
    tpl_builder b = {0};
    if (tpl_bind(c, "truncate", a, "length killwords end leeway", arg))
        return v;
    text = tpl_text_of(c, v);
    end = arg[2].kind == TPL_STRING ? arg[2] : tpl_word(c->heap, "...");
    length = number_or(c, arg[0], 255);
    leeway = number_or(c, arg[3], 5);
    if (c->heap->code || (int64_t)text.text->points <= length + leeway)
        return text;
    if (length < (int64_t)end.text->points || leeway < 0) {
        tpl_fail(c->heap, HAL_E_INVALID, "expected length >= %u", end.text->points);
        return v;
    }
    cut = tpl_part(c->heap, text.text, 0, tpl_offset(c->heap, text.text, (uint32_t)(length - end.text->points)));
    if (!flag_or(arg[1], 0)) {
        tpl_value pieces = tpl_split(c, cut.text, tpl_word(c->heap, " "), 1, 1);
        cut = c->heap->code ? cut : pieces.list->items[0];
    }
    if (c->heap->code)
        return v;
    tpl_put(c->heap, &b, cut.text->data, cut.text->size);
    tpl_put(c->heap, &b, end.text->data, end.text->size);
    return tpl_built(c->heap, &b);
}

static tpl_value f_format(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value text = tpl_text_of(c, v), values;
    if (v.flags & TPL_SAFE || (a->n_named && a->n > a->n_named)) {
        tpl_fail(c->heap, HAL_E_INVALID, "formats text marked safe, or with both kinds of arguments");
        return v;
    }
    values = a->n_named ? tpl_map_new(c->heap) : tpl_tuple_new(c->heap, a->n);
    for (uint32_t i = 0; i < a->n && !c->heap->code; i++) {
        if (a->n_named)
            tpl_set(c->heap, values.map, a->names[i], a->values[i]);
        else
            tpl_add(c->heap, values, a->values[i]);
    }
    return c->heap->code ? v : tpl_printf(c, text.text, values);
}

static tpl_value f_safe(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value text = tpl_bind(c, "safe", a, "", NULL) ? v : tpl_text_of(c, v);
    text.flags |= text.kind == TPL_STRING ? TPL_SAFE : 0;
    return text;
}

static tpl_value f_escape(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    static const char from[] = "&<>'\"", *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    tpl_value text = tpl_bind(c, "escape", a, "", NULL) ? v : tpl_text_of(c, v);
    tpl_builder b = {0};
    if (c->heap->code || v.flags & TPL_SAFE)
        return text;
    for (uint32_t i = 0; i < text.text->size && !tpl_pay(c->heap, 1); i++) {
        const char *found = text.text->data[i] ? strchr(from, text.text->data[i]) : NULL;
        if (found)
            tpl_put_word(c->heap, &b, to[found - from]);
        else
            tpl_put(c->heap, &b, text.text->data + i, 1);
    }
    text = tpl_built(c->heap, &b);
    text.flags |= text.kind == TPL_STRING ? TPL_SAFE : 0;
    return text;
}

static tpl_value f_tojson(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    static const tpl_text comma = {1, 1, ","}, space = {2, 2, ", "}, colon = {2, 2, ": "};
    tpl_value arg[4], pad;
    tpl_json_form form = {.item = &space, .key = &colon};
    tpl_builder b = {0}, spaces = {0};
    if (tpl_bind(c, "tojson", a, "ensure_ascii indent separators sort_keys", arg))
        return v;
    form.ascii = flag_or(arg[0], 0);
    form.sorted = flag_or(arg[3], 0);
    form.private_use = c->escape->n != 0;
    if (given(arg[1])) {
        int64_t width = arg[1].kind == TPL_STRING ? arg[1].text->points : number_or(c, arg[1], 0);
        if (width > MOST_INDENT)
            tpl_fail(c->heap, HAL_E_INVALID, "indents JSON with more than %d characters", MOST_INDENT);
        for (int64_t i = 0; i < width && arg[1].kind != TPL_STRING && !c->heap->code; i++)
            tpl_put(c->heap, &spaces, " ", 1);
        pad = arg[1].kind == TPL_STRING ? arg[1] : tpl_built(c->heap, &spaces);
        form.indent = pad.text;
        form.item = &comma;
    }
    if (given(arg[2])) {
        if (!tpl_is_sequence(arg[2]) || arg[2].list->n != 2 || arg[2].list->items[0].kind != TPL_STRING ||
            arg[2].list->items[1].kind != TPL_STRING)
            tpl_fail(c->heap, HAL_E_INVALID, "separators of JSON: expected two texts");
        else if (arg[2].list->items[0].text->points + arg[2].list->items[1].text->points > MOST_INDENT)
            tpl_fail(c->heap, HAL_E_INVALID, "separates JSON with more than %d characters", MOST_INDENT);
        if (c->heap->code)
            return v;
        form.item = arg[2].list->items[0].text;
        form.key = arg[2].list->items[1].text;
    }
    if (!c->heap->code)
        tpl_json_write(c->heap, &form, &b, v);
    return tpl_built(c->heap, &b);
}

/* --- numbers */

static tpl_value f_abs(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    if (tpl_bind(c, "abs", a, "", NULL) || tpl_refuse_undefined(c, v))
        return v;
    if (v.kind == TPL_FLOAT)
        return tpl_float(fabs(v.real));
    if ((v.kind != TPL_INT && v.kind != TPL_BOOL) || v.number == INT64_MIN)
        tpl_fail(c->heap, HAL_E_INVALID, "bad operand type for abs(): '%s'", tpl_kind_name(v));
    return tpl_int(v.number < 0 ? -v.number : v.number);
}

/* A text as a number of Python's syntax, without underscores; 0: it is none. */
static int read_number(tpl_context *c, tpl_value v, tpl_value *out) {
    tpl_value text = tpl_strip(c, v.text, missing, STRIP_LEFT | STRIP_RIGHT), read;
    tpl_json_size seen = {0};
    tpl_heap inner;
    const char *data;
    uint32_t size, digits;
    if (c->heap->code || !text.text->size || text.text->size > 400)
        return 0;
    data = text.text->data;
    size = text.text->size;
    if (*data == '+') {
        data++;
        size--;
    }
    digits = size && *data == '-';
    while (digits + 1 < size && data[digits] == '0' && data[digits + 1] >= '0' && data[digits + 1] <= '9' &&
           *data != '-') {
        data++; /* zeros before a number, which JSON does not have */
        size--;
    }
    if (!size || !strchr("-0123456789", *data))
        return 0;
    tpl_begin(&inner, 10000, 10000);
    read = tpl_json_read(&inner, data, size, 1, &seen);
    digits = (uint32_t)inner.code;
    tpl_end(&inner);
    *out = read;
    return !digits && (read.kind == TPL_INT || read.kind == TPL_FLOAT);
}

static tpl_value f_int(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[2], read = v;
    if (tpl_bind(c, "int", a, "default base", arg) || tpl_refuse_undefined(c, v))
        return v;
    if (given(arg[1]) && number_or(c, arg[1], 10) != 10)
        tpl_fail(c->heap, HAL_E_INVALID, "reads numbers of another base than 10, which the C library does not");
    if (v.kind == TPL_STRING && !read_number(c, v, &read))
        read = missing;
    if (read.kind == TPL_INT || read.kind == TPL_BOOL)
        return tpl_int(read.number);
    if (read.kind == TPL_FLOAT && read.real > -9e18 && read.real < 9e18)
        return tpl_int((int64_t)read.real);
    return arg[0].kind == TPL_MISSING ? tpl_int(0) : arg[0];
}

static tpl_value f_float(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value otherwise, read = v;
    double real;
    if (tpl_bind(c, "float", a, "default", &otherwise) || tpl_refuse_undefined(c, v))
        return v;
    if (v.kind == TPL_STRING && !read_number(c, v, &read))
        read = missing;
    return tpl_real(read, &real) ? tpl_float(real) : otherwise.kind == TPL_MISSING ? tpl_float(0) : otherwise;
}

static tpl_value f_round(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[2];
    int64_t precision;
    double real, scale;
    char text[420];
    if (tpl_bind(c, "round", a, "precision method", arg) || tpl_refuse_undefined(c, v))
        return v;
    precision = number_or(c, arg[0], 0);
    if (!tpl_real(v, &real) || precision < 0 || precision > 15 || !(fabs(real) < 1e300)) {
        tpl_fail(c->heap, HAL_E_INVALID, "rounds what the C library does not");
        return v;
    }
    scale = pow(10, (double)precision);
    if (tpl_is_word(arg[1], "ceil"))
        return tpl_float(ceil(real * scale) / scale);
    if (tpl_is_word(arg[1], "floor"))
        return tpl_float(floor(real * scale) / scale);
    if (v.kind != TPL_FLOAT)
        return tpl_int(v.number);
    snprintf(text, sizeof text, "%.*f", (int)precision, real);
    return tpl_float(strtod(text, NULL)); /* both by the process' locale */
}

/* --- sequences */

static tpl_value items_of(tpl_context *c, tpl_value v) {
    return tpl_items_of(c->heap, v);
}

static tpl_value f_length(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    int64_t n = tpl_length(v);
    if (!tpl_bind(c, "length", a, "", NULL) && n < 0)
        tpl_fail(c->heap, HAL_E_INVALID, "object of type '%s' has no len()", tpl_kind_name(v));
    return tpl_int(n);
}

static tpl_value copied(tpl_context *c, tpl_value v, int backwards) {
    tpl_value items = items_of(c, v), made = tpl_list_new(c->heap, 0);
    for (uint32_t i = 0; !c->heap->code && i < items.list->n && !tpl_pay(c->heap, 1); i++)
        tpl_add(c->heap, made, items.list->items[backwards ? items.list->n - 1 - i : i]);
    return made;
}

static tpl_value f_list(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return tpl_bind(c, "list", a, "", NULL) ? v : copied(c, v, 0);
}

static tpl_value f_reverse(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    static const tpl_text none = {0, 0, ""};
    tpl_value made = tpl_bind(c, "reverse", a, "", NULL) ? v : copied(c, v, 1);
    return v.kind == TPL_STRING && !c->heap->code ? tpl_join(c, &none, made, 0) : made;
}

static tpl_value end_of(tpl_context *c, tpl_value v, const tpl_arguments *a, int last) {
    tpl_value items = tpl_bind(c, "first", a, "", NULL) ? v : items_of(c, v);
    if (c->heap->code || !items.list->n)
        return tpl_undefined(c->heap, NULL);
    return items.list->items[last ? items.list->n - 1 : 0];
}

static tpl_value f_first(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return end_of(c, v, a, 0);
}

static tpl_value f_last(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return end_of(c, v, a, 1);
}

static tpl_value f_items(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    static const tpl_text name = {5, 5, "items"};
    if (v.kind == TPL_UNDEFINED)
        return tpl_list_new(c->heap, 0);
    if (v.kind != TPL_MAP) {
        tpl_fail(c->heap, HAL_E_INVALID, "Can only get item pairs from a mapping.");
        return v;
    }
    v = tpl_call_method(c, v, &name, a);
    v.flags = 0; /* Jinja's filter gives a list here */
    return v;
}

/* An attribute path such as "function.name" of an item; undefined where an item lacks it. */
static tpl_value by_path(tpl_context *c, tpl_value item, tpl_value path) {
    const tpl_text *t = path.text;
    if (path.kind != TPL_STRING)
        return tpl_item(c, item, path);
    for (uint32_t at = 0, end; at <= t->size && !tpl_pay(c->heap, 1); at = end + 1) {
        int number = at < t->size;
        int64_t value = 0;
        for (end = at; end < t->size && t->data[end] != '.'; end++) {
            number = number && t->data[end] >= '0' && t->data[end] <= '9' && end - at < 9;
            value = value * 10 % 10000000000 + (t->data[end] - '0') % 10;
        }
        item = tpl_item(c, item, number && end > at ? tpl_int(value) : tpl_part(c->heap, t, at, end));
        if (c->heap->code)
            break;
    }
    return item;
}

static tpl_value f_join(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[2], between, items, made;
    if (tpl_bind(c, "join", a, "d attribute", arg))
        return v;
    between = arg[0].kind == TPL_MISSING ? tpl_string(c->heap, "", 0) : tpl_text_of(c, arg[0]);
    items = items_of(c, v);
    made = items;
    if (given(arg[1])) {
        made = tpl_list_new(c->heap, 0);
        for (uint32_t i = 0; !c->heap->code && i < items.list->n; i++)
            tpl_add(c->heap, made, by_path(c, items.list->items[i], arg[1]));
    }
    return c->heap->code ? v : tpl_join(c, between.text, made, 1);
}

static tpl_value f_default(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[2];
    if (tpl_bind(c, "default", a, "default_value boolean", arg))
        return v;
    if (v.kind != TPL_UNDEFINED && (tpl_truth(v) || !flag_or(arg[1], 0)))
        return v;
    return arg[0].kind == TPL_MISSING ? tpl_string(c->heap, "", 0) : arg[0];
}

static tpl_value f_batch(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[2], items, made, row = missing;
    int64_t n;
    if (tpl_bind(c, "batch", a, "linecount fill_with", arg))
        return v;
    items = items_of(c, v);
    made = tpl_list_new(c->heap, 0);
    n = number_or(c, arg[0], 0);
    if (n < 1)
        tpl_fail(c->heap, HAL_E_INVALID, "batch: expected at least one item a row");
    for (uint32_t i = 0; !c->heap->code && i < items.list->n && !tpl_pay(c->heap, 1); i++) {
        if (row.kind == TPL_MISSING || row.list->n >= n)
            tpl_add(c->heap, made, row = tpl_list_new(c->heap, 0));
        tpl_add(c->heap, row, items.list->items[i]);
    }
    while (!c->heap->code && row.kind == TPL_LIST && given(arg[1]) && row.list->n < n)
        tpl_add(c->heap, row, arg[1]);
    return made;
}

/* --- order */

/* What items are compared by: a part of them, and of texts the small letters. */
static tpl_value sort_key(tpl_context *c, tpl_value item, tpl_value path, int cased) {
    if (given(path))
        item = by_path(c, item, path);
    return item.kind == TPL_STRING && !cased && !c->heap->code ? tpl_case(c, item.text, CASE_LOWER) : item;
}

/* The items of `from` by their keys, equal ones in their order. Both lists are as long. */
static void merge_sort(tpl_context *c, tpl_value keys, tpl_value items, int backwards) {
    uint32_t n = items.list->n;
    tpl_value spare = tpl_list_new(c->heap, n), spare_keys = tpl_list_new(c->heap, n);
    for (uint32_t width = 1; width < n && !c->heap->code; width *= 2) {
        tpl_value *from = items.list->items, *key = keys.list->items;
        for (uint32_t at = 0; at < n && !c->heap->code; at += 2 * width) {
            uint32_t left = at, middle = at + width < n ? at + width : n, right = middle;
            uint32_t end = middle + width < n ? middle + width : n;
            for (uint32_t k = at; k < end; k++) {
                int order = left < middle && right < end ? tpl_order(c->heap, key[right], key[left]) : 0;
                int take_right = left >= middle || (right < end && (backwards ? order > 0 : order < 0));
                uint32_t taken = take_right ? right++ : left++;
                spare.list->items[k] = from[taken];
                spare_keys.list->items[k] = key[taken];
            }
        }
        if (c->heap->code)
            return;
        memcpy(from, spare.list->items, n * sizeof *from);
        memcpy(key, spare_keys.list->items, n * sizeof *key);
    }
}

static tpl_value sorted(tpl_context *c, tpl_value items, tpl_value path, int cased, int backwards) {
    tpl_value made = copied(c, items, 0), keys = tpl_list_new(c->heap, 0);
    for (uint32_t i = 0; !c->heap->code && i < made.list->n; i++)
        tpl_add(c->heap, keys, sort_key(c, made.list->items[i], path, cased));
    if (!c->heap->code)
        merge_sort(c, keys, made, backwards);
    return made;
}

static tpl_value f_sort(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[3];
    if (tpl_bind(c, "sort", a, "reverse case_sensitive attribute", arg))
        return v;
    if (arg[2].kind == TPL_STRING && memchr(arg[2].text->data, ',', arg[2].text->size)) {
        tpl_fail(c->heap, HAL_E_INVALID, "sorts by several attributes, which the C library does not");
        return v;
    }
    return sorted(c, v, arg[2], flag_or(arg[1], 0), flag_or(arg[0], 0));
}

static tpl_value f_dictsort(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[3];
    static const tpl_arguments none = {0};
    if (tpl_bind(c, "dictsort", a, "case_sensitive by reverse", arg))
        return v;
    return sorted(c, f_items(c, v, &none), tpl_int(tpl_is_word(arg[1], "value")), flag_or(arg[0], 0),
                  flag_or(arg[2], 0));
}

static tpl_value extreme(tpl_context *c, tpl_value v, const tpl_arguments *a, int sign) {
    tpl_value arg[2], items, best = tpl_undefined(c->heap, NULL), best_key = missing;
    if (tpl_bind(c, "max", a, "case_sensitive attribute", arg))
        return v;
    items = items_of(c, v);
    for (uint32_t i = 0; !c->heap->code && i < items.list->n; i++) {
        tpl_value key = sort_key(c, items.list->items[i], arg[1], flag_or(arg[0], 0));
        if (!i || tpl_order(c->heap, key, best_key) * sign > 0) {
            best = items.list->items[i];
            best_key = key;
        }
    }
    return best;
}

static tpl_value f_max(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return extreme(c, v, a, 1);
}

static tpl_value f_min(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return extreme(c, v, a, -1);
}

static tpl_value f_unique(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[2], items, made = tpl_list_new(c->heap, 0), seen = tpl_map_new(c->heap);
    if (tpl_bind(c, "unique", a, "case_sensitive attribute", arg))
        return v;
    items = items_of(c, v);
    for (uint32_t i = 0; !c->heap->code && i < items.list->n; i++) {
        tpl_value key = sort_key(c, items.list->items[i], arg[1], flag_or(arg[0], 0));
        if (c->heap->code || tpl_get(c->heap, seen.map, key))
            continue;
        tpl_set(c->heap, seen.map, key, tpl_none());
        tpl_add(c->heap, made, items.list->items[i]);
    }
    return made;
}

static tpl_value f_sum(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value arg[2], items, sum;
    if (tpl_bind(c, "sum", a, "attribute start", arg))
        return v;
    items = items_of(c, v);
    sum = arg[1].kind == TPL_MISSING ? tpl_int(0) : arg[1];
    for (uint32_t i = 0; !c->heap->code && i < items.list->n; i++) {
        tpl_value item = items.list->items[i];
        sum = tpl_add_values(c, sum, given(arg[0]) ? by_path(c, item, arg[0]) : item);
    }
    return sum;
}

/* --- what applies other filters and tests */

/* The arguments behind the first `skip` positional ones. */
static tpl_arguments behind(const tpl_arguments *a, uint32_t skip) {
    return (tpl_arguments){a->values + skip, a->n - skip, a->n_named, a->names};
}

static tpl_value f_map(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value items = items_of(c, v), made = tpl_list_new(c->heap, 0), arg[2] = {missing, missing};
    uint32_t positional = a->n - a->n_named;
    int number = -1;
    tpl_arguments rest = {0};
    if (!positional) {
        if (tpl_bind(c, "map", a, "attribute default", arg))
            return v;
    } else if (a->values[0].kind != TPL_STRING || (number = tpl_find_filter(a->values[0].text)) < 0 ||
               tpl_is_word(a->values[0], "map")) {
        tpl_fail(c->heap, HAL_E_INVALID, "map: expected the name of a filter that the C library has, other than map");
        return v;
    } else {
        rest = behind(a, 1);
    }
    for (uint32_t i = 0; !c->heap->code && i < items.list->n && !tpl_pay(c->heap, 1); i++) {
        tpl_value item = items.list->items[i];
        item = positional ? tpl_filter(c, (uint32_t)number, item, &rest) : by_path(c, item, arg[0]);
        tpl_add(c->heap, made, item.kind == TPL_UNDEFINED && arg[1].kind != TPL_MISSING ? arg[1] : item);
    }
    return made;
}

/* select(), reject(), selectattr(), rejectattr(): items for which a test, or the item itself, is true. */
static tpl_value selected(tpl_context *c, tpl_value v, const tpl_arguments *a, int by_attribute, int wanted) {
    tpl_value items = items_of(c, v), made = tpl_list_new(c->heap, 0);
    uint32_t skip = (uint32_t)by_attribute, positional = a->n - a->n_named;
    tpl_arguments rest = {0};
    int number = -1;
    if (positional < skip) {
        tpl_fail(c->heap, HAL_E_INVALID, "Missing parameter for attribute name");
        return v;
    }
    if (positional > skip) {
        number = a->values[skip].kind == TPL_STRING ? tpl_find_test(a->values[skip].text) : -1;
        if (number < 0)
            tpl_fail(c->heap, HAL_E_INVALID, "select: expected the name of a test that the C library has");
        rest = behind(a, skip + 1);
    }
    for (uint32_t i = 0; !c->heap->code && i < items.list->n && !tpl_pay(c->heap, 1); i++) {
        tpl_value item = items.list->items[i], tested = by_attribute ? by_path(c, item, a->values[0]) : item;
        int found = c->heap->code ? 0 : number < 0 ? tpl_truth(tested) : tpl_test(c, (uint32_t)number, tested, &rest);
        if (found == wanted)
            tpl_add(c->heap, made, item);
    }
    return made;
}

static tpl_value f_select(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return selected(c, v, a, 0, 1);
}

static tpl_value f_reject(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return selected(c, v, a, 0, 0);
}

static tpl_value f_selectattr(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return selected(c, v, a, 1, 1);
}

static tpl_value f_rejectattr(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    return selected(c, v, a, 1, 0);
}

static const struct {
    const char *name;
    filter run;
} filters[] = {
    {"abs", f_abs},
    {"batch", f_batch},
    {"capitalize", f_capitalize},
    {"count", f_length},
    {"d", f_default},
    {"default", f_default},
    {"dictsort", f_dictsort},
    {"e", f_escape},
    {"escape", f_escape},
    {"first", f_first},
    {"float", f_float},
    {"format", f_format},
    {"indent", f_indent},
    {"int", f_int},
    {"items", f_items},
    {"join", f_join},
    {"last", f_last},
    {"length", f_length},
    {"list", f_list},
    {"lower", f_lower},
    {"map", f_map},
    {"max", f_max},
    {"min", f_min},
    {"reject", f_reject},
    {"rejectattr", f_rejectattr},
    {"replace", f_replace},
    {"reverse", f_reverse},
    {"round", f_round},
    {"safe", f_safe},
    {"select", f_select},
    {"selectattr", f_selectattr},
    {"sort", f_sort},
    {"string", f_string},
    {"sum", f_sum},
    {"title", f_title},
    {"tojson", f_tojson},
    {"trim", f_trim},
    {"truncate", f_truncate},
    {"unique", f_unique},
    {"upper", f_upper},
};

static int is_name(const tpl_text *name, const char *word) {
    return name->size == strlen(word) && !memcmp(name->data, word, name->size);
}

int tpl_find_filter(const tpl_text *name) {
    for (int i = 0; i < (int)(sizeof filters / sizeof *filters); i++)
        if (is_name(name, filters[i].name))
            return i;
    return -1;
}

tpl_value tpl_filter(tpl_context *c, uint32_t number, tpl_value v, const tpl_arguments *a) {
    return c->heap->code ? v : filters[number].run(c, v, a);
}

/* --- tests */

enum {
    T_BOOLEAN,
    T_CALLABLE,
    T_DEFINED,
    T_DIVISIBLE,
    T_EVEN,
    T_FALSE,
    T_FLOAT,
    T_INTEGER,
    T_ITERABLE,
    T_LOWER,
    T_MAPPING,
    T_NONE,
    T_NUMBER,
    T_ODD,
    T_SEQUENCE,
    T_STRING,
    T_TRUE,
    T_UNDEFINED,
    T_UPPER,
    T_COMPARE /* + the comparison */
};

static const struct {
    const char *name;
    int test;
} tests[] = {
    {"!=", T_COMPARE + 1},
    {"<", T_COMPARE + 4},
    {"<=", T_COMPARE + 5},
    {"==", T_COMPARE},
    {">", T_COMPARE + 2},
    {">=", T_COMPARE + 3},
    {"boolean", T_BOOLEAN},
    {"callable", T_CALLABLE},
    {"defined", T_DEFINED},
    {"divisibleby", T_DIVISIBLE},
    {"eq", T_COMPARE},
    {"equalto", T_COMPARE},
    {"even", T_EVEN},
    {"false", T_FALSE},
    {"float", T_FLOAT},
    {"ge", T_COMPARE + 3},
    {"greaterthan", T_COMPARE + 2},
    {"gt", T_COMPARE + 2},
    {"in", T_COMPARE + 6},
    {"integer", T_INTEGER},
    {"iterable", T_ITERABLE},
    {"le", T_COMPARE + 5},
    {"lessthan", T_COMPARE + 4},
    {"lower", T_LOWER},
    {"lt", T_COMPARE + 4},
    {"mapping", T_MAPPING},
    {"ne", T_COMPARE + 1},
    {"none", T_NONE},
    {"number", T_NUMBER},
    {"odd", T_ODD},
    {"sequence", T_SEQUENCE},
    {"string", T_STRING},
    {"true", T_TRUE},
    {"undefined", T_UNDEFINED},
    {"upper", T_UPPER},
};

int tpl_find_test(const tpl_text *name) {
    for (int i = 0; i < (int)(sizeof tests / sizeof *tests); i++)
        if (is_name(name, tests[i].name))
            return i;
    return -1;
}

static int64_t remainder_of(tpl_context *c, tpl_value v, int64_t by) {
    if ((v.kind != TPL_INT && v.kind != TPL_BOOL) || !by) {
        if (!tpl_refuse_undefined(c, v))
            tpl_fail(c->heap, HAL_E_INVALID, "expected an integer and a divisor, got %s", tpl_kind_name(v));
        return 0;
    }
    return by == -1 ? 0 : v.number % by;
}

/* str.islower(), str.isupper(). */
static int is_cased(tpl_context *c, tpl_value v, int upper) {
    int letters = 0;
    v = tpl_text_of(c, v);
    if (c->heap->code)
        return 0;
    if (v.text->points != v.text->size)
        tpl_fail(c->heap, HAL_E_INVALID, "asks for the case of letters beyond ASCII, which the C library does not");
    for (uint32_t i = 0; i < v.text->size; i++) {
        char byte = v.text->data[i];
        if (upper ? byte >= 'a' && byte <= 'z' : byte >= 'A' && byte <= 'Z')
            return 0;
        letters |= (byte | 32) >= 'a' && (byte | 32) <= 'z';
    }
    return letters;
}

int tpl_test(tpl_context *c, uint32_t number, tpl_value v, const tpl_arguments *a) {
    int test = tests[number].test, compares = test >= T_COMPARE;
    tpl_value other = missing;
    if (tpl_bind(c, tests[number].name, a, compares || test == T_DIVISIBLE ? "other" : "", &other))
        return 0;
    if ((compares || test == T_DIVISIBLE) && other.kind == TPL_MISSING) {
        tpl_fail(c->heap, HAL_E_INVALID, "test '%s' takes an argument", tests[number].name);
        return 0;
    }
    if (compares)
        return tpl_compare(c, (uint32_t)(test - T_COMPARE), v, other);
    switch (test) {
    case T_BOOLEAN:
        return v.kind == TPL_BOOL;
    case T_CALLABLE:
        return v.kind == TPL_MACRO || v.kind == TPL_FUNCTION || v.kind == TPL_METHOD || v.kind == TPL_UNDEFINED;
    case T_DIVISIBLE:
        return remainder_of(c, v, number_or(c, other, 0)) == 0;
    case T_EVEN:
        return remainder_of(c, v, 2) == 0;
    case T_ODD:
        return remainder_of(c, v, 2) != 0;
    case T_FALSE:
    case T_TRUE:
        return v.kind == TPL_BOOL && v.number == (test == T_TRUE);
    case T_FLOAT:
        return v.kind == TPL_FLOAT;
    case T_INTEGER:
        return v.kind == TPL_INT;
    case T_NUMBER:
        return v.kind == TPL_INT || v.kind == TPL_FLOAT || v.kind == TPL_BOOL;
    case T_ITERABLE:
        return tpl_length(v) >= 0 || v.kind == TPL_LOOP;
    case T_SEQUENCE:
        return tpl_length(v) >= 0 && !(v.flags & TPL_VIEW);
    case T_MAPPING:
        return v.kind == TPL_MAP;
    case T_NONE:
        return v.kind == TPL_NONE;
    case T_STRING:
        return v.kind == TPL_STRING;
    case T_UNDEFINED:
        return v.kind == TPL_UNDEFINED;
    case T_LOWER:
    case T_UPPER:
        return is_cased(c, v, test == T_UPPER);
    default:
        return v.kind != TPL_UNDEFINED;
    }
}

/* --- functions */

static tpl_value g_range(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value made = tpl_list_new(c->heap, 0);
    int64_t first = 0, last, step = 1, numbers[3] = {0};
    (void)v;
    if (!a->n || a->n > 3 || a->n_named) {
        tpl_fail(c->heap, HAL_E_INVALID, "range takes one to three integers");
        return made;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        numbers[i] = number_or(c, a->values[i], 0);
        if (numbers[i] > MOST_NUMBER || numbers[i] < -MOST_NUMBER)
            numbers[i] = 0, tpl_fail(c->heap, HAL_E_INVALID, "range: a number is out of range");
    }
    last = a->n == 1 ? numbers[0] : numbers[1];
    first = a->n == 1 ? 0 : numbers[0];
    step = a->n == 3 ? numbers[2] : 1;
    if (!step || (step > 0 ? last - first > MOST_RANGE * step : first - last > -MOST_RANGE * step))
        tpl_fail(c->heap, HAL_E_INVALID, "range: expected at most %d items and a step", MOST_RANGE);
    for (int64_t i = first; !c->heap->code && (step > 0 ? i < last : i > last) && !tpl_pay(c->heap, 1); i += step)
        tpl_add(c->heap, made, tpl_int(i));
    made.flags = TPL_VIEW;
    return made;
}

static tpl_value named(tpl_context *c, const tpl_arguments *a, const char *what) {
    tpl_value made = tpl_map_new(c->heap);
    uint32_t positional = a->n - a->n_named;
    if (positional > 1 || (positional && a->values[0].kind != TPL_MAP)) {
        tpl_fail(c->heap, HAL_E_INVALID, "%s: expected names with values, or a mapping", what);
        return made;
    }
    for (uint32_t i = 0; positional && i < a->values[0].map->n && !tpl_pay(c->heap, 1) && !c->heap->code; i++)
        tpl_set(c->heap, made.map, a->values[0].map->entries[i].key, a->values[0].map->entries[i].value);
    for (uint32_t i = 0; i < a->n_named && !c->heap->code; i++)
        tpl_set(c->heap, made.map, a->names[i], a->values[positional + i]);
    return made;
}

static tpl_value g_dict(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    (void)v;
    return named(c, a, "dict");
}

static tpl_value g_namespace(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value made = named(c, a, "namespace");
    (void)v;
    made.kind = made.kind == TPL_MAP ? TPL_NAMESPACE : made.kind;
    return made;
}

static tpl_value g_raise(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value text = tpl_bind(c, "raise_exception", a, "message", &v) ? v
                     : v.kind == TPL_MISSING                          ? tpl_word(c->heap, "")
                                                                      : tpl_text_of(c, v);
    const char *end;
    if (c->heap->code)
        return v;
    end = memchr(text.text->data, '\n', text.text->size);
    tpl_fail(c->heap, HAL_E_INVALID, "the template refuses this conversation: %.*s",
             (int)(end                     ? end - text.text->data
                   : text.text->size < 250 ? text.text->size
                                           : 250),
             text.text->data);
    return v;
}

static tpl_value g_strftime(tpl_context *c, tpl_value v, const tpl_arguments *a) {
    tpl_value form;
    (void)v;
    if (tpl_bind(c, "strftime_now", a, "pattern", &form))
        return v;
    if (form.kind != TPL_STRING) {
        tpl_fail(c->heap, HAL_E_INVALID, "strftime_now wants a format string, got %s", tpl_kind_name(form));
        return v;
    }
    return tpl_strftime(c, form.text);
}

static const struct {
    const char *name;
    filter run;
} functions[] = {{"dict", g_dict},
                 {"namespace", g_namespace},
                 {"raise_exception", g_raise},
                 {"range", g_range},
                 {"strftime_now", g_strftime}};

int tpl_find_function(const tpl_text *name) {
    for (int i = 0; i < (int)(sizeof functions / sizeof *functions); i++)
        if (is_name(name, functions[i].name))
            return i;
    return -1;
}

tpl_value tpl_function(tpl_context *c, uint32_t number, const tpl_arguments *a) {
    return functions[number].run(c, tpl_none(), a);
}
