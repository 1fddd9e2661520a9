/* dlfcn.h: loading of libraries, of Android's C library (64-bit), as far as libsatchel calls it. */
#pragma once
#define RTLD_LOCAL 0
#define RTLD_NOW 2
void *dlopen(const char *, int);
void *dlsym(void *, const char *);
int dlclose(void *);
char *dlerror(void);
