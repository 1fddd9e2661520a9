/* os.h: operating system functions of the backends that differ between POSIX and Windows. */
#ifndef SATCHEL_HOST_OS_H
#define SATCHEL_HOST_OS_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#include <malloc.h>
#include <stdlib.h>
#include <windows.h>

/* Allocates memory aligned to `align`, of which `size` is a multiple. Free it with os_free. */
static inline void *os_alloc(size_t align, size_t size) {
    return _aligned_malloc(size, align);
}

static inline void os_free(void *at) {
    _aligned_free(at);
}

/* Requests huge pages. */
static inline void os_want_large_pages(void *at, size_t size) {
    (void)at, (void)size;
}

/* Gives the whole pages of memory that was reserved by malloc back to the system, where it can: what they hold is lost, or zero. */
static inline void os_give_back(void *at, size_t size) {
    (void)at, (void)size;
}

static inline long os_processors(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return (long)info.dwNumberOfProcessors;
}

static inline uint64_t os_memory(void) {
    MEMORYSTATUSEX status = {.dwLength = sizeof status};
    return GlobalMemoryStatusEx(&status) ? status.ullTotalPhys : 0;
}

/* Sets an environment variable that is not set. */
static inline void os_default_variable(const char *name, const char *value) {
    if (!getenv(name))
        _putenv_s(name, value);
}

static inline void *os_library(const char *path) {
    return (void *)LoadLibraryA(path);
}

static inline const char *os_library_fault(void) {
    return "the system does not load it";
}

static inline void *os_function(void *library, const char *name) {
    return (void *)(uintptr_t)GetProcAddress((HMODULE)library, name);
}

static inline void os_end_library(void *library) {
    FreeLibrary((HMODULE)library);
}
#elif defined(__wasi__) /* one processor, one memory, no libraries */
#include <stdlib.h>

static inline void *os_alloc(size_t align, size_t size) {
    return aligned_alloc(align, size);
}

static inline void os_free(void *at) {
    free(at);
}

static inline void os_want_large_pages(void *at, size_t size) {
    (void)at, (void)size;
}

static inline void os_give_back(void *at, size_t size) {
    (void)at, (void)size;
}

static inline long os_processors(void) {
    return 1;
}

static inline uint64_t os_memory(void) {
    return UINT64_C(1) << 32;
}

static inline void os_default_variable(const char *name, const char *value) {
    setenv(name, value, 0);
}

static inline void *os_library(const char *path) {
    (void)path;
    return NULL;
}

static inline const char *os_library_fault(void) {
    return "WebAssembly loads no libraries";
}

static inline void *os_function(void *library, const char *name) {
    (void)library, (void)name;
    return NULL;
}

static inline void os_end_library(void *library) {
    (void)library;
}
#else
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static inline void *os_alloc(size_t align, size_t size) {
    return aligned_alloc(align, size);
}

static inline void os_free(void *at) {
    free(at);
}

static inline void os_want_large_pages(void *at, size_t size) {
#if defined(MADV_HUGEPAGE)
    madvise(at, size, MADV_HUGEPAGE); /* a hint, which may fail */
#else
    (void)at, (void)size;
#endif
}

static inline void os_give_back(void *at, size_t size) {
#if defined(__linux__)
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)at + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)at + size) & ~(page - 1);
    if (first < end)
        madvise((void *)first, end - first, MADV_DONTNEED); /* as above */
#else
    (void)at, (void)size;
#endif
}

static inline long os_processors(void) {
    return sysconf(_SC_NPROCESSORS_ONLN);
}

static inline uint64_t os_memory(void) {
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static inline void os_default_variable(const char *name, const char *value) {
    setenv(name, value, 0);
}

static inline void *os_library(const char *path) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static inline const char *os_library_fault(void) {
    return dlerror();
}

static inline void *os_function(void *library, const char *name) {
    return dlsym(library, name);
}

static inline void os_end_library(void *library) {
    dlclose(library);
}
#endif

#endif
