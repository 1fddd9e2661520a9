/* objc.c: an Objective-C run time for tests that forgives nothing: a message to what is no object or has ended, a selector that
 * the class does not have, a release too many, an object that nobody releases, a pool that is missing or popped out of turn. Each
 * ends the process with WRONG. objc_msgSend finds the method and jumps to it, so arguments come as the caller has laid them.
 */
#include "objc.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))
enum { MAGIC = 0x0B1EC7, CLASSES = 32, SELECTORS = 256, POOL = 4096 };

typedef struct {
    object base;
    char *text;
} string;

typedef struct {
    object base;
    class *of;
} class_object;

typedef struct {
    object base;
    object *only;
} array;

static class *classes[CLASSES];
static class_object of_classes[CLASSES];
static int n_classes;
static const char *selectors[SELECTORS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local object *pool[POOL];
static _Thread_local int n_pool, depth;

void wrong(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("metal mock: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    fflush(stderr);
    _exit(WRONG);
}

/* --- objects */

static object *live(object *o, const char *what) {
    if (!o)
        wrong("%s: a message to nil", what);
    if (o->magic != MAGIC)
        wrong("%s: what it was sent to is no object", what);
    if (o->count < 1)
        wrong("-[%s %s]: the object has been released by all", o->is->name, what);
    return o;
}

void *make(class *c) {
    object *o = calloc(1, c->size);
    *o = (object){c, 1, MAGIC};
    __atomic_fetch_add(&c->live, 1, __ATOMIC_RELAXED);
    return o;
}

void *as(class *c, object *o, const char *what) {
    if (!o)
        wrong("%s: nil, expected %s", what, c->name);
    if (live(o, what)->is != c)
        wrong("%s: %s, expected %s", what, o->is->name, c->name);
    return o;
}

void *kept(void *of) {
    object *o = live(of, "retain");
    __atomic_fetch_add(&o->count, 1, __ATOMIC_RELAXED);
    return o;
}

void released(void *of) {
    object *o = live(of, "release");
    if (__atomic_sub_fetch(&o->count, 1, __ATOMIC_ACQ_REL))
        return;
    if (o->is->end)
        o->is->end(o);
    __atomic_fetch_sub(&o->is->live, 1, __ATOMIC_RELAXED);
}

void *lent(void *o) {
    if (!depth)
        wrong("-[%s autorelease]: there is no pool, so it would never end", ((object *)o)->is->name);
    if (n_pool == POOL)
        wrong("a pool holds %d objects: it is never popped", POOL);
    pool[n_pool++] = o;
    return o;
}

SHOWN void *objc_autoreleasePoolPush(void);
SHOWN void objc_autoreleasePoolPop(void *);
SHOWN object *objc_getClass(const char *);
SHOWN selector sel_registerName(const char *);

void *objc_autoreleasePoolPush(void) {
    depth++;
    return pool + n_pool;
}

void objc_autoreleasePoolPop(void *at) {
    if (!depth-- || (object **)at > pool + n_pool || (object **)at < pool)
        wrong("a pool is popped that was not pushed, or was popped before");
    while (pool + n_pool > (object **)at)
        released(pool[--n_pool]);
}

/* --- classes and messages */

void tell(class *c) {
    classes[n_classes++] = c;
}

object *objc_getClass(const char *name) {
    static class meta = {.name = "Class", .size = sizeof(class_object)};
    for (int i = 0; i < n_classes; i++)
        if (!strcmp(classes[i]->name, name)) {
            of_classes[i] = (class_object){{&meta, 1, MAGIC}, classes[i]};
            return &of_classes[i].base;
        }
    wrong("objc_getClass: there is no class %s", name);
}

selector sel_registerName(const char *name) {
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < SELECTORS - 1 && selectors[i] && strcmp(selectors[i], name) != 0)
        i++;
    if (!selectors[i])
        selectors[i] = strdup(name);
    pthread_mutex_unlock(&lock);
    return selectors[i];
}

static object *do_retain(object *o) {
    return kept(o);
}

static void do_release(object *o) {
    released(o);
}

static object *do_init(object *o) {
    return o;
}

static object *do_alloc(class_object *c) {
    return make(c->of);
}

static void (*find(const method *m, selector s))(void) {
    while (m && m->selector && strcmp(m->selector, s) != 0)
        m++;
    return m && m->selector ? m->function : NULL;
}

static signed char do_responds(object *o, selector s, selector asked) {
    (void)s;
    return find(o->is->methods, asked) != NULL;
}

static object *do_string(class_object *c, selector s, const char *text) {
    (void)s;
    if (c->of != &string_class || !text)
        wrong("+[%s stringWithUTF8String:]: NSString has it, of text", c->of->name);
    return lent(new_string(text));
}

static const method of_all[] = {
    METHOD("retain", do_retain),
    METHOD("release", do_release),
    METHOD("init", do_init),
    METHOD("respondsToSelector:", do_responds),
    {0},
};
static const method of_class[] = {METHOD("alloc", do_alloc), METHOD("stringWithUTF8String:", do_string), {0}};

__attribute__((used)) void (*mock_find(object *o, selector s))(void) {
    void (*found)(void);
    live(o, s);
    found = find(of_all, s);
    if (!strcmp(o->is->name, "Class"))
        found = find(of_class, s);
    else if (!found)
        found = find(o->is->methods, s);
    if (!found)
        wrong("-[%s %s]: unrecognized selector", o->is->name, s);
    return found;
}

#if defined(__x86_64__)
__asm__(".text\n.globl objc_msgSend\n.type objc_msgSend,@function\nobjc_msgSend:\n"
        "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\nsub $8,%rsp\n"
        "call mock_find\n"
        "add $8,%rsp\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\njmp *%rax\n"
        ".size objc_msgSend,.-objc_msgSend\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl objc_msgSend\n.type objc_msgSend,@function\nobjc_msgSend:\n"
        "stp x0,x1,[sp,#-80]!\nstp x2,x3,[sp,#16]\nstp x4,x5,[sp,#32]\nstp x6,x7,[sp,#48]\nstp x8,x30,[sp,#64]\n"
        "bl mock_find\nmov x16,x0\n"
        "ldp x2,x3,[sp,#16]\nldp x4,x5,[sp,#32]\nldp x6,x7,[sp,#48]\nldp x8,x30,[sp,#64]\nldp x0,x1,[sp],#80\nbr x16\n"
        ".size objc_msgSend,.-objc_msgSend\n");
#endif

/* --- strings, errors, arrays */

static void end_string(object *o) {
    free(((string *)o)->text);
}

static const char *utf8(string *s) {
    return s->text;
}

static const method string_methods[] = {METHOD("UTF8String", utf8), {0}};
class string_class = {"NSString", string_methods, sizeof(string), end_string, 0};

object *new_string(const char *text) {
    string *s = make(&string_class);
    s->text = strdup(text);
    return &s->base;
}

const char *text_of(object *o) {
    return ((string *)as(&string_class, o, "a string"))->text;
}

static object *description(string *s) {
    return lent(new_string(s->text));
}

static const method error_methods[] = {METHOD("localizedDescription", description), {0}};
static class error_class = {"NSError", error_methods, sizeof(string), end_string, 0};

object *new_error(const char *text) {
    string *s = make(&error_class);
    s->text = strdup(text);
    return &s->base;
}

static unsigned long count(array *a) {
    return a->only != NULL;
}

static object *at(array *a, selector s, unsigned long i) {
    (void)s;
    if (i >= count(a))
        wrong("-[NSArray objectAtIndex:]: %lu of %lu", i, count(a));
    return a->only;
}

static void end_array(object *o) {
    if (((array *)o)->only)
        released(((array *)o)->only);
}

static const method array_methods[] = {METHOD("count", count), METHOD("objectAtIndex:", at), {0}};
static class array_class = {"NSArray", array_methods, sizeof(array), end_array, 0};

object *new_array(object *only) {
    array *a = make(&array_class);
    a->only = only;
    return &a->base;
}

__attribute__((constructor)) static void begin(void) {
    tell(&string_class);
    tell(&error_class);
    tell(&array_class);
}

/* Devices live as long as the process; all else must have been released. */
__attribute__((destructor)) static void look_back(void) {
    int lost = 0;
    for (int i = 0; i < n_classes; i++)
        if (classes[i]->live && strcmp(classes[i]->name, "MTLDevice") != 0) {
            fprintf(stderr, "metal mock: %ld of %s\n", classes[i]->live, classes[i]->name);
            lost = 1;
        }
    if (lost && !getenv("MOCK_METAL_LEAKS"))
        wrong("these objects were never released");
}
