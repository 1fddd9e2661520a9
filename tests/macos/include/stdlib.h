/* stdlib.h: what our sources use of macOS's header, declared as POSIX and C say, to compile them where there is no macOS. */
#pragma once
#include <stddef.h>
void *malloc(size_t);
void *calloc(size_t, size_t);
void *realloc(void *, size_t);
void *aligned_alloc(size_t, size_t);
void free(void *);
char *getenv(const char *);
int abs(int);
int atoi(const char *);
long long strtoll(const char *, char **, int);
unsigned long long strtoull(const char *, char **, int);
void qsort(void *, size_t, size_t, int (*)(const void *, const void *));
/* Apple's includes <sys/wait.h>, so a name of ours must not be wait. */
int wait(int *);
