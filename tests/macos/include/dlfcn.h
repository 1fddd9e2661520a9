/* dlfcn.h: what our sources use of macOS's header, declared as POSIX and C say, to compile them where there is no macOS. */
#pragma once
#define RTLD_NOW 2
#define RTLD_LOCAL 4
void *dlopen(const char *, int);
void *dlsym(void *, const char *);
int dlclose(void *);
char *dlerror(void);
