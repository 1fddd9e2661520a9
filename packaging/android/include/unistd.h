/* unistd.h: files and the system, of Android's C library (64-bit). Its numbers for sysconf are its own. */
#pragma once
#include <stddef.h>
#include <sys/types.h>
#define _SC_PAGESIZE 0x0027
#define _SC_NPROCESSORS_ONLN 0x0061
#define _SC_PHYS_PAGES 0x0062
pid_t getpid(void);
long sysconf(int);
long syscall(long, ...);
int close(int);
int unlink(const char *);
ssize_t read(int, void *, size_t);
ssize_t write(int, const void *, size_t);
ssize_t readlink(const char *, char *, size_t);
