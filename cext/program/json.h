/* json.h: reads JSON text forward, without a tree: the caller asks for what it expects. The text is hostile input; reading takes time in
 * proportion to its size, no memory beyond the strings that the caller keeps, and stops at JSON_DEPTH.
 *
 *     for (int n = 0; json_key(j, &n, key, sizeof key);)
 *         if (!strcmp(key, "stream")) stream = json_true(j); else json_skip(j);
 *
 * After a fault every call fails, so `failed` is looked at once, at the end. */
#ifndef SATCHEL_PROGRAM_JSON_H
#define SATCHEL_PROGRAM_JSON_H

#include <stddef.h>

enum { JSON_DEPTH = 32 };

typedef struct {
    const char *at, *end;
    int depth, failed;
} json;

/* The kind of the next value: one of { [ " 0 t f n, or 0 where there is none. */
char json_kind(json *);
/* The next key of an object, cut to the room; 0 behind the last one. *n counts, from 0. */
int json_key(json *, int *n, char *key, size_t room);
/* Whether an array has another value, which is read next. */
int json_item(json *, int *n);
/* Decodes a string into at most its bytes of text; returns the number of bytes. */
size_t json_string(json *, char *out, size_t room);
double json_number(json *);
int json_true(json *);
void json_skip(json *);
/* Nothing but white space is left, and nothing failed. */
int json_over(json *);
/* Writes a text as the inside of a JSON string: at most 6 * size bytes; returns their number. */
size_t json_escape(const char *text, size_t size, char *out);
/* The same of as many whole characters as `room` bytes have place for, and a zero byte behind them. A byte that is no UTF-8 becomes
 * U+FFFD, so the result is JSON whatever the text is. */
size_t json_escape_within(const char *text, size_t size, char *out, size_t room);

#endif
