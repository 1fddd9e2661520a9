/* template_functions.h: filters, tests, methods and functions of the template machine, by their names in Jinja and Python. */
#ifndef SATCHEL_EMBED_TEMPLATE_FUNCTIONS_H
#define SATCHEL_EMBED_TEMPLATE_FUNCTIONS_H

#include <time.h>

#include "sections.h"
#include "template_value.h"

/* What functions need of a rendering. */
typedef struct {
    tpl_heap *heap;
    const tpl_escape *escape; /* n 0: user text is not escaped */
    const tpl_printing *printing;
    const tpl_value *own; /* strings of the template itself */
    uint32_t n_own, n_cases;
    const template_case *cases;
    struct tm now;
} tpl_context;

/* The last n_named values are named by `names`. */
typedef struct {
    const tpl_value *values;
    uint32_t n, n_named;
    const tpl_value *names; /* strings */
} tpl_arguments;

/* Puts arguments at the places of `names` (one space between two); TPL_MISSING where none is given. 0, or the code of a failure. */
int tpl_bind(tpl_context *, const char *what, const tpl_arguments *, const char *names, tpl_value *out);

/* Numbers of the tables; -1: there is none of this name. The calls take no other number. */
int tpl_find_filter(const tpl_text *name);
int tpl_find_test(const tpl_text *name);
int tpl_find_function(const tpl_text *name);
tpl_value tpl_filter(tpl_context *, uint32_t number, tpl_value, const tpl_arguments *);
int tpl_test(tpl_context *, uint32_t number, tpl_value, const tpl_arguments *);
tpl_value tpl_function(tpl_context *, uint32_t number, const tpl_arguments *);

/* Whether a value of this kind has the method. */
int tpl_has_method(tpl_value, const tpl_text *name);
tpl_value tpl_call_method(tpl_context *, tpl_value, const tpl_text *name, const tpl_arguments *);

/* --- what the machine and the functions share */

/* value.name and value[key], as Jinja looks them up. A failure where the value is undefined. */
tpl_value tpl_attribute(tpl_context *, tpl_value, const tpl_text *name);
tpl_value tpl_item(tpl_context *, tpl_value, tpl_value key);
tpl_value tpl_slice(tpl_context *, tpl_value, tpl_value start, tpl_value stop, tpl_value step);
tpl_value tpl_add_values(tpl_context *, tpl_value, tpl_value);
int tpl_compare(tpl_context *, uint32_t comparison, tpl_value, tpl_value);
/* A failure for an undefined value, and 1. */
int tpl_refuse_undefined(tpl_context *, tpl_value);
/* str() with the escape's characters kept. */
tpl_value tpl_text_of(tpl_context *, tpl_value);

/* Escaped or plain, as it occurs in the text. */
tpl_value tpl_needle(tpl_context *, tpl_value text, tpl_value sought);
/* Characters to strip, also escaped. */
tpl_value tpl_characters(tpl_context *, tpl_value);
/* Escapes user text again that the template changed. */
tpl_value tpl_rewritten(tpl_context *, tpl_value before, tpl_value after);

/* Operations on text: template_text.c. */
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
tpl_value tpl_strip(tpl_context *, const tpl_text *, tpl_value characters, int sides); /* none: white space */
tpl_value tpl_replace(tpl_context *, const tpl_text *, const tpl_text *what, const tpl_text *with, int64_t count);
tpl_value tpl_split(tpl_context *, const tpl_text *, tpl_value separator, int64_t most, int from_right);
tpl_value tpl_lines(tpl_context *, const tpl_text *);
enum { CASE_LOWER, CASE_UPPER, CASE_CAPITAL, CASE_TITLE, CASE_WORDS };
/* A failure for letters beyond ASCII of which the section has no table. */
tpl_value tpl_case(tpl_context *, const tpl_text *, int how);
tpl_value tpl_join(tpl_context *, const tpl_text *between, tpl_value items, int as_text);

/* `text % values` and text.format(...): template_format.c. */
tpl_value tpl_printf(tpl_context *, const tpl_text *, tpl_value values);
tpl_value tpl_format(tpl_context *, const tpl_text *, const tpl_arguments *);
tpl_value tpl_strftime(tpl_context *, const tpl_text *);

#endif
