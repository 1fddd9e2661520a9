/* template_value.h: values of the template machine, in a heap that pays for every step and every byte.
 *
 * A rendering has one heap. All that it makes lies there and ends with it; nothing is freed before. The first failure is kept: from
 * then on allocations give NULL, makers give undefined values, and a caller that runs a loop looks at `code`. Strings are UTF-8. Nested
 * values are walked to TPL_DEPTH at most, so the C stack does not grow with the input. */
#ifndef SATCHEL_EMBED_TEMPLATE_VALUE_H
#define SATCHEL_EMBED_TEMPLATE_VALUE_H

#include <stddef.h>
#include <stdint.h>

enum { TPL_DEPTH = 128 };

typedef struct tpl_chunk tpl_chunk;
typedef struct {
    uint64_t steps, bytes; /* that are left */
    tpl_chunk *chunks;
    int code; /* 0, or a code of hal.h: HAL_E_MEMORY where the limit or the machine's memory is reached */
    char reason[400];
} tpl_heap;

void tpl_begin(tpl_heap *, uint64_t steps, uint64_t bytes);
void tpl_end(tpl_heap *);
/* Notes the first failure; gives its code. */
int tpl_fail(tpl_heap *, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Pays; a failure where the steps are used up. */
int tpl_pay(tpl_heap *, uint64_t steps);
/* Memory of zeros, or NULL after a failure. */
void *tpl_alloc(tpl_heap *, uint64_t size);

typedef struct {
    uint32_t size, points; /* bytes and code points */
    const char *data;
} tpl_text;

typedef struct tpl_value tpl_value;
typedef struct {
    uint32_t n, room;
    tpl_value *items;
} tpl_list;
typedef struct tpl_entry tpl_entry;
typedef struct {
    uint32_t n, room, n_index;
    tpl_entry *entries; /* in the order in which they were added */
    uint32_t *index;    /* of an open hash table, entry + 1; NULL while there are few */
} tpl_map;
typedef struct tpl_loop tpl_loop;
typedef struct tpl_method tpl_method;

enum {
    TPL_UNDEFINED, /* text: its name, or NULL */
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STRING,
    TPL_LIST,
    TPL_TUPLE,
    TPL_MAP,
    TPL_NAMESPACE, /* map */
    TPL_MACRO,     /* number: of the template's macros */
    TPL_FUNCTION,  /* number: of the machine's functions */
    TPL_METHOD,
    TPL_LOOP,
    TPL_MISSING /* an argument that was not given */
};
enum {
    TPL_SAFE = 1, /* flag of a string: marked by `safe` or `escape` */
    TPL_VIEW = 2  /* flag of a list: Python has a lazy view or range there, which cannot be printed */
};
struct tpl_value {
    uint8_t kind, flags;
    union {
        int64_t number; /* bool, int, macro, function */
        double real;
        const tpl_text *text;
        tpl_list *list;
        tpl_map *map;
        tpl_loop *loop;
        const tpl_method *method;
    };
};
struct tpl_entry {
    tpl_value key, value;
};
struct tpl_loop {
    tpl_value items; /* a list or a tuple */
    uint32_t at;     /* passes that have begun */
    tpl_list kept;
    tpl_value changed; /* what `changed` saw last */
};
struct tpl_method {
    tpl_value of;
    const tpl_text *name;
};

/* What keeps user text from becoming a special token: characters and what each becomes. n 0: none. */
typedef struct {
    uint32_t n, mark;
    const struct tpl_pair {
        uint32_t from, to;
    } *pairs; /* rising by `from` */
} tpl_escape;

/* --- making */

tpl_value tpl_undefined(tpl_heap *, const tpl_text *name);
tpl_value tpl_none(void);
tpl_value tpl_bool(int);
tpl_value tpl_int(int64_t);
tpl_value tpl_float(double);
/* A string of bytes that outlive the rendering or lie in its heap. */
tpl_value tpl_string(tpl_heap *, const char *data, uint64_t size);
tpl_value tpl_word(tpl_heap *, const char *zero_terminated);
tpl_value tpl_list_new(tpl_heap *, uint64_t room);
tpl_value tpl_tuple_new(tpl_heap *, uint64_t room);
void tpl_add(tpl_heap *, tpl_value list, tpl_value item);
tpl_value tpl_map_new(tpl_heap *);
/* A failure for a key that Python cannot hash. */
void tpl_set(tpl_heap *, tpl_map *, tpl_value key, tpl_value value);
/* NULL: it has no such key. */
const tpl_value *tpl_get(tpl_heap *, const tpl_map *, tpl_value key);
const tpl_value *tpl_get_word(tpl_heap *, tpl_value map, const char *key);
void tpl_set_word(tpl_heap *, tpl_value map, const char *key, tpl_value value);

/* Text that grows. All zeros at first. */
typedef struct {
    char *data;
    uint64_t size, room;
} tpl_builder;
void tpl_put(tpl_heap *, tpl_builder *, const char *data, uint64_t size);
void tpl_put_word(tpl_heap *, tpl_builder *, const char *zero_terminated);
void tpl_put_point(tpl_heap *, tpl_builder *, uint32_t point);
tpl_value tpl_built(tpl_heap *, const tpl_builder *);

/* --- asking */

const char *tpl_kind_name(tpl_value); /* as Python names the type */
int tpl_is_sequence(tpl_value);       /* a list or a tuple */
int tpl_is_word(tpl_value, const char *zero_terminated);
int tpl_truth(tpl_value);
int tpl_same_text(const tpl_text *, const tpl_text *);
int tpl_equal(tpl_heap *, tpl_value, tpl_value);
/* -1, 0, 1; a failure for values without an order. */
int tpl_order(tpl_heap *, tpl_value, tpl_value);
/* A number as an integer or a real; 0: it is none. */
int tpl_real(tpl_value, double *);
/* What a loop goes over: items, characters, keys. A failure for a value that cannot be iterated. */
tpl_value tpl_items_of(tpl_heap *, tpl_value);
/* Number of items, -1: it has no length. */
int64_t tpl_length(tpl_value);

/* --- text */

/* The code point at data[*at], which moves on. The text is UTF-8. */
uint32_t tpl_point(const char *data, uint32_t *at);
/* The byte at which a code point begins. */
uint32_t tpl_offset(tpl_heap *, const tpl_text *, uint32_t point);
/* A part of a text by bytes. */
tpl_value tpl_part(tpl_heap *, const tpl_text *, uint32_t begin, uint32_t end);
/* The byte at which `what` is found in text from `from` on, -1: nowhere. */
int64_t tpl_find(tpl_heap *, const tpl_text *text, const tpl_text *what, uint32_t from);

/* How values are printed: ranges of code points that Python's repr writes as numbers; private: those of private use stay as they
 * are, for the escape uses them. */
typedef struct {
    uint32_t n_ranges;
    const struct tpl_range {
        uint32_t low, high;
    } *ranges;
    int private_use;
} tpl_printing;
/* str() of a value. */
void tpl_print(tpl_heap *, const tpl_printing *, tpl_builder *, tpl_value);
tpl_value tpl_printed(tpl_heap *, const tpl_printing *, tpl_value);
/* repr() of a real. */
void tpl_put_real(tpl_heap *, tpl_builder *, double);

tpl_value tpl_escaped(tpl_heap *, const tpl_escape *, tpl_value string);
/* Writes text with the escape undone. */
void tpl_put_unescaped(tpl_heap *, const tpl_escape *, tpl_builder *, const char *data, uint64_t size);

#endif
