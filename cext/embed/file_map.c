/* file_map.c: see file_map.h. POSIX and Windows; a system without either, such as WebAssembly, has memory alone. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "file_map.h"
#include "satchel.h"
#include "size.h"

enum { LEAST = 24 }; /* bytes of a GGUF file's head */

static int no_model(const char *path, uint64_t size) {
    return hal_fail(SATCHEL_E_FILE, "%s: expected a GGUF file, got %llu bytes of something else", path,
                    (unsigned long long)size);
}

/* Checks the part of a file of `size` bytes, and settles how long it is. */
static int settle(const char *path, uint64_t size, uint64_t offset, uint64_t *part) {
    if (offset % FILE_MAP_ALIGN)
        return hal_fail(SATCHEL_E_ARGUMENT, "%s: expected a part at a multiple of %d bytes, got %llu", path,
                        FILE_MAP_ALIGN, (unsigned long long)offset);
    if (*part == FILE_MAP_REST && offset <= size)
        *part = size - offset;
    if (offset > size || *part > size - offset)
        return hal_fail(SATCHEL_E_FILE, "%s: expected %llu bytes at %llu, but the file has %llu", path,
                        (unsigned long long)*part, (unsigned long long)offset, (unsigned long long)size);
    return *part < LEAST ? no_model(path, *part) : 0;
}

int file_map_memory(const void *data, uint64_t size, file_map *out) {
    *out = (file_map){0};
    if ((uintptr_t)data % FILE_MAP_ALIGN)
        return hal_fail(SATCHEL_E_ARGUMENT, "memory: expected an address that is a multiple of %d", FILE_MAP_ALIGN);
    if (size < LEAST || size > SIZE_MAX)
        return no_model("memory", size);
    *out = (file_map){.data = (uint8_t *)(uintptr_t)data, .size = size};
    return 0;
}

#if defined(__wasi__)
int file_map_open(const char *path, uint64_t offset, uint64_t size, file_map *out) {
    uint64_t part = size;
    *out = (file_map){0};
    return settle(path, 0, offset, &part);
}

void file_map_forget(const file_map *m, uint64_t offset, uint64_t size) {
    (void)m, (void)offset, (void)size;
}

void file_map_close(file_map *m) {
    *m = (file_map){0};
}
#elif defined(_WIN32)
#include <windows.h>

/* The wide form of a path of UTF-8, for free(); NULL where there is none. */
static wchar_t *wide(const char *path) {
    int n = MultiByteToWideChar(CP_UTF8, 0, path, -1, NULL, 0);
    wchar_t *text = n > 0 ? malloc((size_t)n * sizeof *text) : NULL;
    if (text)
        MultiByteToWideChar(CP_UTF8, 0, path, -1, text, n);
    return text;
}

static int map_part(HANDLE file, const char *path, uint64_t offset, uint64_t size, file_map *out) {
    LARGE_INTEGER whole;
    SYSTEM_INFO info;
    HANDLE mapping;
    uint64_t begin;
    int code;
    GetSystemInfo(&info);
    if (!GetFileSizeEx(file, &whole))
        return no_model(path, 0);
    if ((code = settle(path, (uint64_t)whole.QuadPart, offset, &size)))
        return code;
    begin = offset / info.dwAllocationGranularity * info.dwAllocationGranularity;
    mapping = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
    out->length = offset - begin + size;
    out->base = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, (DWORD)(begin >> 32), (DWORD)begin, out->length) : NULL;
    if (mapping)
        CloseHandle(mapping);
    if (!out->base)
        return hal_fail(SATCHEL_E_FILE, "%s: can't be mapped: error %lu of the system", path, GetLastError());
    out->data = out->base + (offset - begin);
    out->size = size;
    return 0;
}

int file_map_open(const char *path, uint64_t offset, uint64_t size, file_map *out) {
    wchar_t *name = wide(path);
    HANDLE file =
        name ? CreateFileW(name, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, 0, NULL) : INVALID_HANDLE_VALUE;
    int code;
    *out = (file_map){0};
    free(name);
    if (file == INVALID_HANDLE_VALUE)
        return hal_fail(SATCHEL_E_FILE,
                        "%s: can't be read: error %lu of the system; check the path and its permissions", path,
                        GetLastError());
    code = map_part(file, path, offset, size, out);
    CloseHandle(file);
    return code;
}

void file_map_forget(const file_map *m, uint64_t offset, uint64_t size) {
    (void)m, (void)offset, (void)size; /* the system takes pages that are not used by itself */
}

void file_map_close(file_map *m) {
    if (m->base)
        UnmapViewOfFile(m->base);
    *m = (file_map){0};
}
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t page_size(void) {
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static int fault(const char *path) {
    return hal_fail(SATCHEL_E_FILE, "%s: can't be read: %s; check the path and its permissions", path, strerror(errno));
}

static int map_part(int fd, const char *path, uint64_t offset, uint64_t size, file_map *out) {
    struct stat info;
    uint64_t begin = offset / page_size() * page_size();
    void *at;
    int code;
    if (fstat(fd, &info))
        return fault(path);
    if (!S_ISREG(info.st_mode))
        return no_model(path, 0);
    if ((code = settle(path, (uint64_t)info.st_size, offset, &size)))
        return code;
    at = mmap(NULL, (size_t)(offset - begin + size), PROT_READ, MAP_SHARED, fd, (off_t)begin);
    if (at == MAP_FAILED)
        return fault(path);
    *out = (file_map){.base = at, .length = offset - begin + size, .size = size};
    out->data = out->base + (offset - begin);
    return 0;
}

int file_map_open(const char *path, uint64_t offset, uint64_t size, file_map *out) {
    int fd = open(path, O_RDONLY | O_CLOEXEC), code;
    *out = (file_map){0};
    if (fd < 0)
        return fault(path);
    code = map_part(fd, path, offset, size, out);
    close(fd);
    return code;
}

void file_map_forget(const file_map *m, uint64_t offset, uint64_t size) {
    uint64_t before = (uint64_t)(m->data - m->base), page = page_size(), first, end;
    if (!m->base)
        return;
    first = size_line_up(before + offset, page);
    end = (before + offset + size) / page * page;
    if (end > first)
        madvise(m->base + first, (size_t)(end - first), MADV_DONTNEED);
}

void file_map_close(file_map *m) {
    if (m->base)
        munmap(m->base, (size_t)m->length);
    *m = (file_map){0};
}
#endif
