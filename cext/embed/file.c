/* file.c: see file.h. Windows' own fopen() takes a path for the user's code page, and its rename() replaces nothing. */
#include <errno.h>
#include <stdlib.h>

#include "file.h"

#if defined(_WIN32)
#include <windows.h>

/* The wide form of a path, for free(). */
static wchar_t *wide(const char *path) {
    int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    wchar_t *text = n > 0 ? malloc((size_t)n * sizeof *text) : NULL;
    if (text)
        MultiByteToWideChar(CP_UTF8, 0, path, -1, text, n);
    else
        errno = n > 0 ? ENOMEM : EINVAL;
    return text;
}

static FILE *open_as(const char *path, const wchar_t *mode) {
    wchar_t *name = wide(path);
    FILE *file = name ? _wfopen(name, mode) : NULL;
    free(name);
    return file;
}

FILE *file_read(const char *path) {
    return open_as(path, L"rb");
}

FILE *file_write(const char *path) {
    return open_as(path, L"wb");
}

int file_replace(const char *from, const char *to) {
    wchar_t *old = wide(from), *new = wide(to);
    int done = old && new && MoveFileExW(old, new, MOVEFILE_REPLACE_EXISTING);
    if (old && new && !done)
        errno = GetLastError() == ERROR_PATH_NOT_FOUND ? ENOENT : EACCES;
    free(old);
    free(new);
    return done ? 0 : -1;
}

void file_remove(const char *path) {
    wchar_t *name = wide(path);
    if (name)
        DeleteFileW(name);
    free(name);
}
#else
#include <unistd.h>

FILE *file_read(const char *path) {
    return fopen(path, "rb");
}

FILE *file_write(const char *path) {
    return fopen(path, "wb");
}

int file_replace(const char *from, const char *to) {
    return rename(from, to);
}

void file_remove(const char *path) {
    unlink(path);
}
#endif
