/* stdio.h: files and texts, of Android's C library (64-bit). */
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <sys/types.h>
typedef struct __sFILE FILE;
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2
int snprintf(char *, size_t, const char *, ...) __attribute__((format(printf, 3, 4)));
int vsnprintf(char *, size_t, const char *, va_list) __attribute__((format(printf, 3, 0)));
int sscanf(const char *, const char *, ...) __attribute__((format(scanf, 2, 3)));
FILE *fopen(const char *, const char *);
int fclose(FILE *);
int fflush(FILE *);
char *fgets(char *, int, FILE *);
size_t fread(void *, size_t, size_t, FILE *);
size_t fwrite(const void *, size_t, size_t, FILE *);
int fseek(FILE *, long, int);
long ftell(FILE *);
int fseeko(FILE *, off_t, int);
off_t ftello(FILE *);
int ferror(FILE *);
int rename(const char *, const char *);
int remove(const char *);
