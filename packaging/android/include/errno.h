/* errno.h: numbers of errors, of Android's C library; they are the kernel's. */
#pragma once
int *__errno(void);
#define errno (*__errno())
#define ENOENT 2
#define EINTR 4
#define EAGAIN 11
#define ENOMEM 12
#define EACCES 13
#define EEXIST 17
#define EINVAL 22
#define ENOSPC 28
#define ERANGE 34
#define ETIMEDOUT 110
