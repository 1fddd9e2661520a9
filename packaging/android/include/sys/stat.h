/* sys/stat.h: facts of a file, of Android's C library (64-bit); the kernel's layout, which differs by processor. */
#pragma once
#include <sys/types.h>
#if defined(__aarch64__)
struct stat {
    unsigned long st_dev, st_ino;
    unsigned st_mode, st_nlink, st_uid, st_gid;
    unsigned long st_rdev, pad;
    off_t st_size;
    int st_blksize, pad_too;
    long st_blocks, times[6];
    unsigned room[2];
};
#elif defined(__x86_64__)
struct stat {
    unsigned long st_dev, st_ino, st_nlink;
    unsigned st_mode, st_uid, st_gid, pad;
    unsigned long st_rdev;
    off_t st_size;
    long st_blksize, st_blocks, times[6], room[3];
};
#endif
#define S_IFMT 0170000
#define S_IFREG 0100000
#define S_ISREG(mode) (((mode) & S_IFMT) == S_IFREG)
int fstat(int, struct stat *);
