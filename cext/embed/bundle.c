/* bundle.c: see bundle.h. The program's file is read by stdio; nothing in it is trusted. */
#include <stdio.h>
#include <string.h>
#if defined(_WIN32)
#include <windows.h>
#elif defined(__APPLE__)
#include <mach-o/dyld.h>
#elif defined(__linux__)
#include <unistd.h>
#endif

#include "bundle.h"
#include "error.h"
#include "file.h"
#include "gguf.h"
#include "satchel.h"

static int none(const char *path) {
    return hal_fail(SATCHEL_E_FILE, "%s: this program holds no model: `satchel bundle` adds one", path);
}

/* Path of the running program. */
static int own_path(char *path, size_t room) {
#if defined(_WIN32)
    wchar_t wide[2048];
    DWORD n = GetModuleFileNameW(NULL, wide, 2048);
    return n && n < 2048 && WideCharToMultiByte(CP_UTF8, 0, wide, -1, path, (int)room, NULL, NULL) > 0;
#elif defined(__APPLE__)
    uint32_t size = (uint32_t)room;
    return !_NSGetExecutablePath(path, &size);
#elif defined(__linux__)
    ssize_t n = readlink("/proc/self/exe", path, room - 1);
    path[n > 0 ? n : 0] = 0;
    return n > 0 && (size_t)n < room - 1;
#else
    (void)path, (void)room;
    return 0;
#endif
}

static int seek(FILE *file, uint64_t at, int whence) {
#if defined(_WIN32)
    return _fseeki64(file, (int64_t)at, whence);
#else
    return fseeko(file, (off_t)at, whence);
#endif
}

static int64_t tell(FILE *file) {
#if defined(_WIN32)
    return _ftelli64(file);
#else
    return (int64_t)ftello(file);
#endif
}

static int read_at(FILE *file, uint64_t at, void *to, size_t size) {
    return !seek(file, at, SEEK_SET) && fread(to, 1, size, file) == size;
}

static uint32_t u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Where the footer ends: at the file's end, or for a signed program of Windows at its certificate table. */
static uint64_t footer_end(FILE *file, uint64_t size) {
    enum { PE32_PLUS = 0x20B, CERTIFICATES = 24 + 144 }; /* entry 4 of the data directory, from the PE header's begin */
    uint8_t dos[64], pe[CERTIFICATES + 8];
    if (!read_at(file, 0, dos, sizeof dos) || dos[0] != 'M' || dos[1] != 'Z' ||
        !read_at(file, u32(dos + 60), pe, sizeof pe) || memcmp(pe, "PE\0", 4) || (pe[24] | pe[25] << 8) != PE32_PLUS)
        return size;
    return u32(pe + CERTIFICATES) && u32(pe + CERTIFICATES) <= size ? u32(pe + CERTIFICATES) : size;
}

static int find(FILE *file, const char *path, bundle *out) {
    bundle_footer f;
    uint32_t crc;
    uint64_t size, end;
    if (seek(file, 0, SEEK_END) || tell(file) < 0)
        return none(path);
    size = (uint64_t)tell(file);
    end = footer_end(file, size);
    if (end < sizeof f || !read_at(file, end - sizeof f, &f, sizeof f) || memcmp(f.magic, BUNDLE_MAGIC, sizeof f.magic))
        return none(path);
    crc = f.crc;
    f.crc = 0;
    if (gguf_crc(0, (const uint8_t *)&f, sizeof f) != crc || f.offset % BUNDLE_ALIGN || f.offset > end - sizeof f ||
        f.size > end - sizeof f - f.offset)
        return hal_fail(SATCHEL_E_FILE, "%s: the model in this program is damaged: download it again", path);
    out->offset = f.offset;
    out->size = f.size;
    out->flags = f.flags;
    return 0;
}

int bundle_read(const char *path, bundle *out) {
    FILE *file = file_read(path);
    int code;
    if (!file)
        return hal_fail(SATCHEL_E_FILE, "%s: can't be read", path);
    if (path != out->path)
        snprintf(out->path, sizeof out->path, "%s", path);
    code = find(file, path, out);
    fclose(file);
    return code;
}

#if defined(__APPLE__)
/* An app folder has the model beside its program: Contents/MacOS/NAME, and Contents/Resources/model.gguf. */
static int read_resource(bundle *out) {
    static const char resource[] = "/../Resources/model.gguf";
    char *slash = strrchr(out->path, '/'), serve[sizeof out->path + 8];
    FILE *file;
    if (!slash || (size_t)(slash - out->path) + sizeof resource > sizeof out->path)
        return none(out->path);
    memcpy(slash, resource, sizeof resource);
    if (!(file = file_read(out->path)))
        return none(out->path);
    fclose(file);
    snprintf(serve, sizeof serve, "%.*s/../Resources/serve", (int)(slash - out->path), out->path);
    out->offset = 0;
    out->size = UINT64_MAX; /* all of it */
    out->flags = (file = file_read(serve)) ? BUNDLE_SERVE : 0;
    if (file)
        fclose(file);
    return 0;
}
#endif

int bundle_find(bundle *out) {
    *out = (bundle){0};
    if (!own_path(out->path, sizeof out->path))
        return hal_fail(SATCHEL_E_FILE, "the path of this program can't be told");
#if defined(__APPLE__)
    if (bundle_read(out->path, out) == 0)
        return 0;
    return read_resource(out);
#else
    return bundle_read(out->path, out);
#endif
}
