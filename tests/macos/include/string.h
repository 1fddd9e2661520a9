/* string.h: what our sources use of macOS's header, declared as POSIX and C say, to compile them where there is no macOS. */
#pragma once
#include <stddef.h>
void *memchr(const void *, int, size_t);
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
size_t strlen(const char *);
int strcmp(const char *, const char *);
int strncmp(const char *, const char *, size_t);
char *strchr(const char *, int);
char *strrchr(const char *, int);
char *strstr(const char *, const char *);
size_t strcspn(const char *, const char *);
size_t strspn(const char *, const char *);
