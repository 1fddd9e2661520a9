/* objc.h: objects of the tests' own Objective-C run time, which is strict: see objc.c. */
#ifndef MOCK_OBJC_H
#define MOCK_OBJC_H

#include <stddef.h>
#include <stdint.h>

typedef struct object object;
typedef struct class class;
typedef const char *selector; /* one pointer for each name */

typedef struct {
    const char *selector;
    void (*function)(void);
} method;

struct class {
    const char *name;
    const method *methods; /* ended by NULL */
    size_t size;           /* of an object */
    void (*end)(object *); /* gives back what it holds; NULL: nothing */
    long live;
};

/* What every object begins with. */
struct object {
    class *is;
    long count; /* of owners; 0: it has ended, but its memory stays */
    uint32_t magic;
};

#define METHOD(text, function) {text, (void (*)(void))(function)}

/* Says what was done wrong and ends the process, with a number that no other failure has. */
enum { WRONG = 86 };
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

void *make(class *); /* the caller's own */
void *lent(void *);  /* the same object, the pool's */
void *kept(void *);  /* one owner more */
void released(void *);
/* The object, which must live and be of this class. */
void *as(class *, object *, const char *what);
object *new_string(const char *);
const char *text_of(object *);
object *new_error(const char *);
object *new_array(object *only);
/* A class that objc_getClass() gives. */
void tell(class *);

extern class string_class;

#endif
