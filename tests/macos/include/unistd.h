/* unistd.h: what our sources use of macOS's header, declared as POSIX and C say, to compile them where there is no macOS. */
#pragma once
typedef int pid_t;
enum { _SC_NPROCESSORS_ONLN = 58, _SC_PHYS_PAGES = 200, _SC_PAGESIZE = 29 };
pid_t getpid(void);
long sysconf(int);
long read(int, void *, unsigned long);
long write(int, const void *, unsigned long);
