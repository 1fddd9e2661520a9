/* template_format.c: `text % values`, text.format(...) and strftime_now of the template machine; see template_functions.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "template_functions.h"

enum { MOST_WIDTH = 10000 };

/* How one field is written. */
typedef struct {
    char fill[5], align, sign, type;       /* fill: one character; sign: 0, '+' or ' ' */
    int zero, alternate, width, precision; /* precision -1: none */
} field;

/* Writes a text in its width. align: '<', '>', '^', or '=' for zeros behind the sign. */
static void put_padded(tpl_heap *h, tpl_builder *b, const field *f, tpl_value text, char align) {
    int64_t pad = f->width - tpl_length(text);
    int64_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    uint32_t sign = 0;
    if (h->code || text.kind != TPL_STRING)
        return;
    if (align == '=') {
        sign = text.text->size && strchr("+- ", text.text->data[0]) ? 1 : 0;
        tpl_put(h, b, text.text->data, sign);
        left = pad;
    }
    for (int64_t i = 0; i < left && !h->code; i++)
        tpl_put_word(h, b, f->fill);
    tpl_put(h, b, text.text->data + sign, text.text->size - sign);
    for (int64_t i = left < 0 ? 0 : left; i < pad && !h->code; i++)
        tpl_put_word(h, b, f->fill);
}

/* printf writes the point of the process' locale. */
static void put_digits(tpl_heap *h, tpl_builder *b, const char *digits) {
    for (; *digits; digits++)
        tpl_put(h, b, (*digits >= '0' && *digits <= '9') || strchr("+- eEabcdefABCDEFxXo", *digits) ? digits : ".", 1);
}

static tpl_value number_text(tpl_context *c, const field *f, tpl_value v, char type) {
    char form[16], text[512];
    tpl_builder b = {0};
    double real = 0;
    if (type == 'd' || type == 'x' || type == 'X' || type == 'o') {
        unsigned long long size = v.number < 0 ? 0 - (unsigned long long)v.number : (unsigned long long)v.number;
        snprintf(form, sizeof form, type == 'd' ? "%%llu" : type == 'x' ? "%%llx" : type == 'X' ? "%%llX" : "%%llo");
        snprintf(text, sizeof text, form, size);
        if (v.number < 0 || f->sign)
            tpl_put(c->heap, &b, v.number < 0 ? "-" : &f->sign, 1);
        if (f->alternate && type != 'd')
            tpl_put_word(c->heap, &b, type == 'x' ? "0x" : type == 'X' ? "0X" : "0o");
        tpl_put_word(c->heap, &b, text);
        return tpl_built(c->heap, &b);
    }
    tpl_real(v, &real);
    if (f->precision > 100 || real > 1e100 || real < -1e100 || real != real) {
        tpl_fail(c->heap, HAL_E_INVALID, "formats a number that is too long");
        return tpl_none();
    }
    snprintf(form, sizeof form, "%%%s.*%c", f->sign == '+' ? "+" : f->sign ? " " : "", type);
    snprintf(text, sizeof text, form, f->precision < 0 ? 6 : f->precision, real);
    put_digits(c->heap, &b, text);
    return tpl_built(c->heap, &b);
}

static tpl_value cut(tpl_context *c, tpl_value text, int precision) {
    if (text.kind != TPL_STRING || precision < 0)
        return text;
    return tpl_part(c->heap, text.text, 0, tpl_offset(c->heap, text.text, (uint32_t)precision));
}

static int read_int(const tpl_text *t, uint32_t *at, tpl_heap *h) {
    int number = 0;
    for (; *at < t->size && t->data[*at] >= '0' && t->data[*at] <= '9'; ++*at)
        if ((number = number * 10 + t->data[*at] - '0') > MOST_WIDTH) {
            tpl_fail(h, HAL_E_INVALID, "formats a field wider than %d characters", MOST_WIDTH);
            return 0;
        }
    return number;
}

static int next_is(const tpl_text *t, uint32_t *at, const char *any) {
    int found = *at < t->size && t->data[*at] && strchr(any, t->data[*at]) ? t->data[*at] : 0;
    *at += found != 0;
    return found;
}

static void put_percent(tpl_context *c, tpl_builder *b, field *f, tpl_value v) {
    char align = f->align ? f->align : '>';
    tpl_value text = tpl_none();
    if (f->type == 's' || f->type == 'r') {
        tpl_value one = tpl_list_new(c->heap, 1);
        if (f->type == 'r' && v.kind == TPL_STRING) { /* as it stands in a list, without its brackets */
            tpl_add(c->heap, one, v);
            text = tpl_printed(c->heap, c->printing, one);
            text = c->heap->code ? text : tpl_part(c->heap, text.text, 1, text.text->size - 1);
        } else {
            text = tpl_printed(c->heap, c->printing, v);
        }
        text = cut(c, text, f->precision);
        f->fill[0] = ' ';
    } else if (v.kind != TPL_INT && v.kind != TPL_FLOAT && v.kind != TPL_BOOL) {
        tpl_fail(c->heap, HAL_E_INVALID, "%%%c format: a real number is required, not %s", f->type, tpl_kind_name(v));
    } else if (strchr("diu", f->type)) {
        if (v.kind == TPL_FLOAT) {
            if (!(v.real > -9e18 && v.real < 9e18)) {
                tpl_fail(c->heap, HAL_E_INVALID, "formats a number that is too long");
                return;
            }
            v = tpl_int((int64_t)v.real);
        }
        text = number_text(c, f, v, 'd');
        if (f->precision > 0 && !c->heap->code) {
            field digits = {.fill = "0", .width = f->precision + (text.text->data[0] < '0')};
            tpl_builder wide = {0};
            put_padded(c->heap, &wide, &digits, text, '=');
            text = tpl_built(c->heap, &wide);
        }
    } else if (strchr("xXo", f->type)) {
        if (v.kind == TPL_FLOAT)
            tpl_fail(c->heap, HAL_E_INVALID, "%%%c format: an integer is required, not float", f->type);
        text = number_text(c, f, v, f->type);
    } else {
        text = number_text(c, f, v, f->type);
    }
    put_padded(c->heap, b, f, text, align == '>' && f->fill[0] == '0' ? '=' : align);
}

/* The value of a field: of a mapping by its key, else the next one. */
static tpl_value percent_value(tpl_context *c, const tpl_text *t, uint32_t *at, tpl_value values, uint32_t *used) {
    if (*at < t->size && t->data[*at] == '(') {
        const char *end = memchr(t->data + *at, ')', t->size - *at);
        const tpl_value *found;
        tpl_value key;
        if (!end || values.kind != TPL_MAP) {
            tpl_fail(c->heap, HAL_E_INVALID, end ? "format requires a mapping" : "incomplete format key");
            return tpl_none();
        }
        key = tpl_part(c->heap, t, *at + 1, (uint32_t)(end - t->data));
        found = tpl_get(c->heap, values.map, key);
        if (!found)
            tpl_fail(c->heap, HAL_E_INVALID, "a format's key is missing");
        *at = (uint32_t)(end - t->data) + 1;
        return found ? *found : tpl_none();
    }
    return (tpl_value){.kind = TPL_MISSING, .number = (*used)++};
}

tpl_value tpl_printf(tpl_context *c, const tpl_text *t, tpl_value values) {
    tpl_builder b = {0};
    uint32_t used = 0, given = values.kind == TPL_TUPLE ? values.list->n : 1;
    for (uint32_t at = 0; at < t->size && !tpl_pay(c->heap, 1);) {
        field f = {.fill = " ", .precision = -1};
        tpl_value v;
        int flag;
        if (t->data[at] != '%') {
            tpl_put(c->heap, &b, t->data + at++, 1);
            continue;
        }
        at++;
        if (next_is(t, &at, "%")) {
            tpl_put(c->heap, &b, "%", 1);
            continue;
        }
        v = percent_value(c, t, &at, values, &used);
        while ((flag = next_is(t, &at, "-+ 0#"))) {
            f.align = flag == '-' ? '<' : f.align;
            f.sign = flag == '+' ? '+' : flag == ' ' && !f.sign ? ' ' : f.sign;
            f.fill[0] = flag == '0' ? '0' : f.fill[0];
            f.alternate |= flag == '#';
        }
        f.fill[0] = f.align == '<' ? ' ' : f.fill[0];
        f.width = read_int(t, &at, c->heap);
        f.precision = next_is(t, &at, ".") ? read_int(t, &at, c->heap) : -1;
        if (!(f.type = (char)next_is(t, &at, "sdiuxXofFeEgGr")))
            tpl_fail(c->heap, HAL_E_INVALID, "a format with %% that the C library does not know");
        if (strchr("eEgG", f.type) && f.type && f.alternate)
            tpl_fail(c->heap, HAL_E_INVALID, "a format with %%# that the C library does not know");
        if (c->heap->code)
            return tpl_none();
        if (v.kind == TPL_MISSING) {
            if (v.number >= given) {
                tpl_fail(c->heap, HAL_E_INVALID, "not enough arguments for format string");
                return tpl_none();
            }
            v = values.kind == TPL_TUPLE ? values.list->items[v.number] : values;
        }
        put_percent(c, &b, &f, v);
    }
    if (used < given && values.kind != TPL_MAP && !(values.kind == TPL_LIST && !used))
        tpl_fail(c->heap, HAL_E_INVALID, "not all arguments converted during string formatting");
    return tpl_built(c->heap, &b);
}

/* --- text.format() */

/* [[fill]align][sign][#][0][width][.precision][type] */
static int read_spec(tpl_context *c, const tpl_text *t, field *f) {
    uint32_t at = 0, after = 0;
    if (t->size) {
        tpl_point(t->data, &after);
        if (after < t->size && strchr("<>^=", t->data[after])) {
            memset(f->fill, 0, sizeof f->fill);
            memcpy(f->fill, t->data, after);
            f->align = t->data[after];
            at = after + 1;
        } else {
            f->align = (char)next_is(t, &at, "<>^=");
        }
    }
    f->sign = (char)next_is(t, &at, "+- ");
    f->sign = f->sign == '-' ? 0 : f->sign;
    f->alternate = next_is(t, &at, "#") != 0;
    if (next_is(t, &at, "0") && !f->align) {
        f->align = '=';
        f->fill[0] = '0';
    }
    f->width = read_int(t, &at, c->heap);
    f->precision = next_is(t, &at, ".") ? read_int(t, &at, c->heap) : -1;
    f->type = (char)next_is(t, &at, "sdxXofFeEgG");
    if (at < t->size || f->alternate)
        return tpl_fail(c->heap, HAL_E_INVALID, "formats with '%.*s', which the C library does not know",
                        (int)(t->size < 40 ? t->size : 40), t->data);
    return c->heap->code;
}

static void put_field(tpl_context *c, tpl_builder *b, tpl_value v, const tpl_text *spec) {
    field f = {.fill = " ", .precision = -1};
    int number = v.kind == TPL_INT || v.kind == TPL_FLOAT || (v.kind == TPL_BOOL && spec->size);
    tpl_value text;
    if (read_spec(c, spec, &f))
        return;
    if (spec->size && v.kind != TPL_STRING && !number) {
        tpl_fail(c->heap, HAL_E_INVALID, "unsupported format string passed to %s.__format__", tpl_kind_name(v));
        return;
    }
    if ((f.type == 's' && number) || (f.type && f.type != 's' && !number) ||
        (v.kind == TPL_FLOAT && f.type && strchr("dxXo", f.type)) ||
        (v.kind == TPL_FLOAT && !f.type && f.precision >= 0) ||
        (v.kind != TPL_FLOAT && number && f.precision >= 0 && (!f.type || strchr("dxXo", f.type)))) {
        tpl_fail(c->heap, HAL_E_INVALID, "Unknown format code for object of type '%s'", tpl_kind_name(v));
        return;
    }
    if (!number)
        text = cut(c, tpl_text_of(c, v), f.precision);
    else if (!f.type && v.kind == TPL_FLOAT)
        text = tpl_printed(c->heap, c->printing, v);
    else
        text = number_text(c, &f, v, f.type ? f.type : 'd');
    put_padded(c->heap, b, &f, text, f.align ? f.align : number ? '>' : '<');
}

/* The value that a field names by number or name. */
static tpl_value format_value(tpl_context *c, const tpl_text *t, uint32_t *at, const tpl_arguments *a, uint32_t *used) {
    uint32_t begin = *at, positional = a->n - a->n_named, number = *used;
    tpl_value v = {.kind = TPL_MISSING}, name;
    while (*at < t->size && !strchr(".[:!}", t->data[*at]))
        ++*at;
    name = tpl_part(c->heap, t, begin, *at);
    if (c->heap->code)
        return v;
    if (begin == *at || (t->data[begin] >= '0' && t->data[begin] <= '9')) {
        uint32_t digits = begin;
        number = begin == *at ? (*used)++ : (uint32_t)read_int(t, &digits, c->heap);
        v = number < positional ? a->values[number] : v;
    } else {
        for (uint32_t i = 0; i < a->n_named; i++)
            if (tpl_same_text(a->names[i].text, name.text))
                v = a->values[positional + i];
    }
    if (v.kind == TPL_MISSING)
        tpl_fail(c->heap, HAL_E_INVALID, "a format names an argument that is missing");
    if (*at < t->size && strchr(".[", t->data[*at]))
        tpl_fail(c->heap, HAL_E_INVALID, "formats a part of a value, which the C library does not");
    return v;
}

tpl_value tpl_format(tpl_context *c, const tpl_text *t, const tpl_arguments *a) {
    tpl_builder b = {0};
    uint32_t used = 0;
    for (uint32_t at = 0; at < t->size && !tpl_pay(c->heap, 1);) {
        char byte = t->data[at++];
        uint32_t begin;
        tpl_value v, spec;
        if (byte != '{' && byte != '}') {
            tpl_put(c->heap, &b, &byte, 1);
            continue;
        }
        if (at < t->size && t->data[at] == byte) {
            tpl_put(c->heap, &b, &byte, 1);
            at++;
            continue;
        }
        v = byte == '{' ? format_value(c, t, &at, a, &used) : tpl_none();
        begin = at + (at < t->size && t->data[at] == ':');
        at = begin;
        while (at < t->size && t->data[at] != '}' && t->data[at] != '{')
            at++;
        spec = tpl_part(c->heap, t, begin, at);
        if (byte == '}' || at >= t->size || t->data[at] == '{' || (begin < at && t->data[begin - 1] != ':'))
            tpl_fail(c->heap, HAL_E_INVALID, "a format with braces that the C library does not know");
        at++;
        if (!c->heap->code)
            put_field(c, &b, v, spec.text);
    }
    return tpl_built(c->heap, &b);
}

/* --- dates */

static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};

/* One field of a date; 0: it is not known. flag '-': without zeros before it. */
static int put_date(tpl_heap *h, tpl_builder *b, const struct tm *now, char what, char flag) {
    char text[64];
    const char *two = flag == '-' ? "%d" : "%02d";
    int hour = now->tm_hour % 12 ? now->tm_hour % 12 : 12, number = -1;
    switch (what) {
    case 'a':
    case 'A':
        snprintf(text, sizeof text, what == 'a' ? "%.3s" : "%s", days[(unsigned)now->tm_wday % 7]);
        break;
    case 'b':
    case 'B':
    case 'h':
        snprintf(text, sizeof text, what == 'B' ? "%s" : "%.3s", months[(unsigned)now->tm_mon % 12]);
        break;
    case 'p':
        snprintf(text, sizeof text, "%s", now->tm_hour < 12 ? "AM" : "PM");
        break;
    case 'Y':
        snprintf(text, sizeof text, "%d", now->tm_year + 1900);
        break;
    case 'j':
        snprintf(text, sizeof text, flag == '-' ? "%d" : "%03d", now->tm_yday + 1);
        break;
    case 'e':
        snprintf(text, sizeof text, flag == '-' ? "%d" : "%2d", now->tm_mday);
        break;
    case 'F':
        snprintf(text, sizeof text, "%d-%02d-%02d", now->tm_year + 1900, now->tm_mon + 1, now->tm_mday);
        break;
    case 'T':
    case 'R':
        snprintf(text, sizeof text, what == 'T' ? "%02d:%02d:%02d" : "%02d:%02d", now->tm_hour, now->tm_min,
                 now->tm_sec);
        break;
    case '%':
        snprintf(text, sizeof text, "%%");
        break;
    default:
        number = what == 'd'   ? now->tm_mday
                 : what == 'm' ? now->tm_mon + 1
                 : what == 'y' ? now->tm_year % 100
                 : what == 'H' ? now->tm_hour
                 : what == 'I' ? hour
                 : what == 'M' ? now->tm_min
                 : what == 'S' ? now->tm_sec
                               : -1;
        if (number < 0)
            return 0;
        snprintf(text, sizeof text, two, number);
    }
    tpl_put_word(h, b, text);
    return 1;
}

tpl_value tpl_strftime(tpl_context *c, const tpl_text *t) {
    tpl_builder b = {0};
    if (t->points > 256)
        tpl_fail(c->heap, HAL_E_INVALID, "strftime_now wants a short format such as '%%d %%b %%Y'");
    for (uint32_t at = 0; at < t->size && !tpl_pay(c->heap, 1); at++) {
        char flag;
        if (t->data[at] != '%') {
            tpl_put(c->heap, &b, t->data + at, 1);
            continue;
        }
        at++;
        flag = (char)next_is(t, &at, "-");
        if (at >= t->size || !put_date(c->heap, &b, &c->now, t->data[at], flag))
            tpl_fail(c->heap, HAL_E_INVALID, "strftime_now with a field that the C library does not know: %%%c",
                     at < t->size ? t->data[at] : ' ');
    }
    return tpl_built(c->heap, &b);
}
