/* template_json.h: JSON to values of the template machine and back. */
#ifndef SATCHEL_EMBED_TEMPLATE_JSON_H
#define SATCHEL_EMBED_TEMPLATE_JSON_H

#include "template_value.h"

/* How much a text held: values, and characters of strings. */
typedef struct {
    uint64_t values, characters;
} tpl_json_size;

/* Reads one value (RFC 8259): UTF-8 without halves of surrogate pairs, numbers of 64 bits, at most `depth` levels; of equal keys the
 * last value counts. A failure names the byte. */
tpl_value tpl_json_read(tpl_heap *, const char *data, uint64_t size, int depth, tpl_json_size *);

/* As json.dumps of Python. indent NULL: one line; item, key: what stands between items, and behind a key. */
typedef struct {
    const tpl_text *indent, *item, *key;
    int ascii, sorted;
    int private_use; /* ascii: characters of private use stay as they are, for the escape uses them */
} tpl_json_form;
void tpl_json_write(tpl_heap *, const tpl_json_form *, tpl_builder *, tpl_value);
/* As Python writes it: indented by two spaces a level, or in one line with ", " and ": ". */
tpl_value tpl_json_text(tpl_heap *, tpl_value, int indented);

#endif
