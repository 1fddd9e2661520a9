/* metal.c: a Metal for tests, whose GPU is this processor: devices, buffers, libraries and pipelines. (work.c has what runs.)
 * Libraries are compiled as C++ by compile.py.
 *
 * What the processor and the GPU see of a buffer are two mappings of the same memory, so an address of one is none of the
 * other's; the GPU's is taken away but while an encoder runs that was told of the buffer. Behind a buffer is a page that
 * nobody has. New buffers hold poison.
 */
#include "mock.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))
enum { POISON = 0xFF, WAVE = 32, FAMILY_METAL_3 = 5001, FAMILY_APPLE = 1000, OPTIONS_KNOWN = 0, LINE = 4096 };

typedef struct {
    object base;
    int fast;
} options;

typedef struct {
    object base;
    void *code;
} library;

typedef struct {
    object base;
    const msl_kernel *kernel;
    library *of;
} function;

typedef struct {
    object base;
    function *function;
    int indirect;
} description;

static buffer *buffers;
static size_t allocated;

static size_t number_of(const char *name, size_t usual) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : usual;
}

static size_t pages_of(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

/* --- buffers */

buffer *buffer_at(uint64_t gpu) {
    for (buffer *b = buffers; b; b = b->next)
        if (gpu >= (uintptr_t)b->mapped && gpu - (uintptr_t)b->mapped < b->pages + 4096)
            return b;
    return NULL;
}

static void protect(buffer *b, int seen) {
    int rights = seen ? b->writable ? PROT_READ | PROT_WRITE : PROT_READ : PROT_NONE;
    if (b->mapped && mprotect(b->mapped, b->pages, rights))
        wrong("the rights of a buffer cannot be changed");
}

void show(buffer *const *which, int n) {
    for (int i = 0; i < n; i++)
        protect(which[i], 1);
    if (!which)
        for (buffer *b = buffers; b; b = b->next)
            protect(b, 0);
}

static void end_buffer(object *o) {
    buffer *b = (buffer *)o, **place = &buffers;
    while (*place != b)
        place = &(*place)->next;
    *place = b->next;
    allocated -= b->mapped_host ? b->length : 0;
    if (b->mapped)
        munmap(b->mapped, b->pages);
    if (b->mapped_host)
        munmap(b->mapped_host, b->pages);
}

static buffer *listed(buffer *b) {
    b->next = buffers;
    buffers = b;
    return b;
}

/* Mapped twice; the bytes end where the pages do, but for alignment. */
static object *buffer_of(object *device, selector s, unsigned long length, unsigned long with) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), at;
    buffer *b = make(&buffer_class);
    int file = memfd_create("buffer", 0);
    (void)device, (void)s;
    if (!length || length > number_of("MOCK_METAL_BUFFER", 1ul << 32) || with != OPTIONS_KNOWN)
        wrong("newBufferWithLength: %lu bytes, options %lu", length, with);
    b->length = length;
    b->writable = 1;
    b->pages = pages_of(length);
    at = b->pages - (length + OFFSET_UNIT - 1) / OFFSET_UNIT * OFFSET_UNIT;
    if (ftruncate(file, (off_t)b->pages))
        wrong("no memory for a buffer");
    b->mapped = mmap(NULL, b->pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    b->mapped_host = mmap(NULL, b->pages, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    mmap(b->mapped, b->pages, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0);
    close(file);
    memset(b->mapped_host, POISON, b->pages);
    b->host = b->mapped_host + at;
    b->gpu = b->mapped + at;
    allocated += length;
    return &listed(b)->base;
}

/* The same memory: nothing is copied. A second view is had of shared mappings alone. */
static object *buffer_around(object *device, selector s, void *host, unsigned long length, unsigned long with,
                             void *end) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    buffer *b = make(&buffer_class);
    void *second;
    (void)device, (void)s;
    if ((uintptr_t)host % page || !length || length % page || with != OPTIONS_KNOWN || end)
        wrong("newBufferWithBytesNoCopy: %p, %lu bytes: whole pages are wanted, shared, and nobody to end them", host,
              length);
    if (length > number_of("MOCK_METAL_BUFFER", 1ul << 32))
        wrong("newBufferWithBytesNoCopy: %lu bytes are more than maxBufferLength", length);
    b->length = b->pages = length;
    b->host = b->gpu = host;
    second = mremap(host, 0, length, MREMAP_MAYMOVE);
    if (second != MAP_FAILED)
        b->mapped = b->gpu = second;
    if (getenv("MOCK_METAL_TELL"))
        fprintf(stderr, "wrapped %lu bytes, seen %s\n", length, b->mapped ? "twice" : "once");
    listed(b);
    protect(b, 0);
    return &b->base;
}

static void *contents(buffer *b) {
    return b->host;
}

static uint64_t address(buffer *b) {
    return (uintptr_t)b->gpu;
}

static unsigned long length(buffer *b) {
    return b->length;
}

static const method buffer_methods[] = {
    METHOD("contents", contents), METHOD("gpuAddress", address), METHOD("length", length), {0}};
class buffer_class = {"MTLBuffer", buffer_methods, sizeof(buffer), end_buffer, 0};

static void on_fault(int number, siginfo_t *info, void *context) {
    buffer *b = buffer_at((uintptr_t)info->si_addr);
    (void)context;
    if (b)
        wrong("a kernel uses %p of a buffer of %zu bytes at %p: its encoder was not told of it, it is only read, or "
              "has ended",
              info->si_addr, b->length, (void *)b->gpu);
    signal(number, SIG_DFL);
    raise(number);
}

/* --- libraries */

static void set_fast(options *o, selector s, signed char fast) {
    (void)s;
    o->fast = fast;
}

static const method options_methods[] = {METHOD("setFastMathEnabled:", set_fast), {0}};
static class options_class = {"MTLCompileOptions", options_methods, sizeof(options), NULL, 0};

static void end_library(object *o) {
    (void)o; /* code stays: fibers of it may be known elsewhere */
}

static uint64_t hash_of(const char *text) { /* FNV-1a */
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 0x100000001b3u;
    return h;
}

/* The library at `path`, made if it is not there; NULL, and what the compiler says. */
static void *compiled(const char *text, const char *folder, char *said, size_t room) {
    char path[LINE], command[6 * LINE];
    FILE *f;
    size_t n;
    snprintf(path, sizeof path, "%s/%016llx", folder, (unsigned long long)hash_of(text));
    snprintf(said, room, "%s.so", path);
    if (access(said, R_OK) == 0)
        return dlopen(said, RTLD_NOW | RTLD_LOCAL);
    /* Names of this process's own: another may be compiling the same. */
    snprintf(command, sizeof command, "%s '%s.%d.metal' '%s.%d.so' 2>&1 && mv '%s.%d.so' '%s.so'",
             getenv("MOCK_METAL_COMPILE"), path, (int)getpid(), path, (int)getpid(), path, (int)getpid(), path);
    snprintf(said, room, "%s.%d.metal", path, (int)getpid());
    f = fopen(said, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) || !(f = popen(command, "r")))
        wrong("%s cannot be written", said);
    n = fread(said, 1, room - 1, f);
    said[n] = 0;
    if (pclose(f))
        return NULL;
    snprintf(said, room, "%s.so", path);
    return dlopen(said, RTLD_NOW | RTLD_LOCAL);
}

class library_class;

static object *library_of(object *device, selector s, object *text, options *with, object **error) {
    static char said[LINE];
    const char *folder = getenv("MOCK_METAL_FOLDER");
    msl_words *words;
    library *made;
    void *code;
    (void)device, (void)s;
    as(&options_class, &with->base, "options of a library");
    if (with->fast)
        wrong("kernels are compiled with fast mathematics");
    if (!folder || !getenv("MOCK_METAL_COMPILE"))
        wrong("MOCK_METAL_FOLDER or MOCK_METAL_COMPILE is not set");
    code = compiled(text_of(text), folder, said, sizeof said);
    if (!code || !(words = dlsym(code, "msl_given"))) {
        if (error)
            *error = lent(new_error(said));
        return NULL;
    }
    *words = (msl_words){emulated_barrier, emulated_take, emulated_thread};
    made = make(&library_class);
    made->code = code;
    return &made->base;
}

static void end_function(object *o) {
    released(((function *)o)->of);
}

static class function_class = {"MTLFunction", NULL, sizeof(function), end_function, 0};

static object *function_of(library *of, selector s, object *name) {
    const msl_kernel *k = dlsym(of->code, "msl_kernels");
    function *f;
    (void)s;
    while (k && k->name && strcmp(k->name, text_of(name)) != 0)
        k++;
    if (!k || !k->name)
        return NULL;
    f = make(&function_class);
    f->kernel = k;
    f->of = kept(of);
    return &f->base;
}

static const method library_methods[] = {METHOD("newFunctionWithName:", function_of), {0}};
class library_class = {"MTLLibrary", library_methods, sizeof(library), end_library, 0};

/* --- pipelines */

static void set_function(description *d, selector s, object *f) {
    (void)s;
    d->function = kept(as(&function_class, f, "setComputeFunction:"));
}

static void set_indirect(description *d, selector s, signed char yes) {
    (void)s;
    d->indirect = yes;
}

static void end_description(object *o) {
    if (((description *)o)->function)
        released(((description *)o)->function);
}

static const method description_methods[] = {
    METHOD("setComputeFunction:", set_function), METHOD("setSupportIndirectCommandBuffers:", set_indirect), {0}};
static class description_class = {"MTLComputePipelineDescriptor", description_methods, sizeof(description),
                                  end_description, 0};

static object *pipeline_of(object *device, selector s, description *d, unsigned long with, object **seen,
                           object **error) {
    pipeline *p = make(&pipeline_class);
    const msl_kernel *k;
    (void)device, (void)s, (void)error;
    as(&description_class, &d->base, "newComputePipelineState: the description");
    if (with || seen || !d->function)
        wrong("newComputePipelineState: options %lu, or no function", with);
    k = d->function->kernel;
    p->indirect = d->indirect;
    p->kernel = (emulated_kernel){k->name, (void (*)(const gpu_call *, const self *))(void (*)(void))k->run,
                                  k->threads < THREADS_MOST ? k->threads : THREADS_MOST, WAVE, NULL};
    return &p->base;
}

static unsigned long threads_most(pipeline *p) {
    return number_of("MOCK_METAL_THREADS", (size_t)p->kernel.threads);
}

static unsigned long lanes(pipeline *p) {
    return (unsigned long)p->kernel.wave;
}

static const method pipeline_methods[] = {
    METHOD("maxTotalThreadsPerThreadgroup", threads_most), METHOD("threadExecutionWidth", lanes), {0}};
class pipeline_class = {"MTLComputePipelineState", pipeline_methods, sizeof(pipeline), NULL, 0};

/* --- the device */

static object *name(object *d) {
    (void)d;
    return lent(new_string("mock of Metal"));
}

static signed char family(object *d, selector s, long which) {
    (void)d, (void)s;
    long apple = (long)number_of("MOCK_METAL_FAMILY", 8); /* 0: a GPU of another maker's */
    return which == FAMILY_METAL_3 ? !getenv("MOCK_METAL_OLD") : which > FAMILY_APPLE && which <= FAMILY_APPLE + apple;
}

static signed char yes(object *d) {
    (void)d;
    return 1;
}

static uint64_t working_set(object *d) {
    (void)d;
    return 1ull << 36;
}

static unsigned long taken(object *d) {
    (void)d;
    return allocated;
}

static unsigned long buffer_most(object *d) {
    (void)d;
    return number_of("MOCK_METAL_BUFFER", 1ul << 32);
}

static unsigned long local_most(object *d) {
    (void)d;
    return LOCAL_MOST;
}

static const method device_methods[] = {
    METHOD("name", name),
    METHOD("supportsFamily:", family),
    METHOD("hasUnifiedMemory", yes),
    METHOD("recommendedMaxWorkingSetSize", working_set),
    METHOD("currentAllocatedSize", taken),
    METHOD("maxBufferLength", buffer_most),
    METHOD("maxThreadgroupMemoryLength", local_most),
    METHOD("newBufferWithLength:options:", buffer_of),
    METHOD("newBufferWithBytesNoCopy:length:options:deallocator:", buffer_around),
    METHOD("newLibraryWithSource:options:error:", library_of),
    METHOD("newComputePipelineStateWithDescriptor:options:reflection:error:", pipeline_of),
    METHOD("newCommandQueue", new_queue),
    METHOD("newEvent", new_event),
    METHOD("newIndirectCommandBufferWithDescriptor:maxCommandCount:options:", new_indirect),
    {0},
};
class device_class = {"MTLDevice", device_methods, sizeof(object), NULL, 0};

SHOWN object *MTLCopyAllDevices(void);

object *MTLCopyAllDevices(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    return new_array(getenv("MOCK_METAL_NONE") ? NULL : make(&device_class));
}

__attribute__((constructor)) static void begin(void) {
    class *all[] = {&device_class,   &buffer_class,      &options_class, &library_class,
                    &function_class, &description_class, &pipeline_class};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tell(all[i]);
}
