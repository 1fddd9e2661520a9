"""System calls of a loaded worker, by name, with their numbers on x86-64 and 64-bit Arm (-1: none).

ALLOWED: with any arguments.
JUDGED: by their arguments, see seccomp.py.
REFUSED: fail with EPERM.
REMOVING: refused unless Landlock limits the files.

Every other call fails with ENOSYS, as if the kernel did not have it, so libraries fall back to an older one.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*, as seccomp reports them

ALLOWED = """
read 0 63, readv 19 65, pread64 17 67, preadv 295 69, preadv2 327 286
write 1 64, writev 20 66, pwrite64 18 68, pwritev 296 70, pwritev2 328 287
lseek 8 62, close 3 57, close_range 436 436, fstat 5 80, newfstatat 262 79, stat 4 -1, lstat 6 -1
statx 332 291, statfs 137 43, fstatfs 138 44, access 21 -1, faccessat 269 48, faccessat2 439 439
getdents64 217 61, readlink 89 -1, readlinkat 267 78, getcwd 79 17, dup 32 23, dup2 33 -1, dup3 292 24
flock 73 32, fsync 74 82, fdatasync 75 83, ftruncate 77 46, fallocate 285 47, fadvise64 221 223
readahead 187 213, msync 26 227, pipe 22 -1, pipe2 293 59, memfd_create 319 279, umask 95 166
poll 7 -1, ppoll 271 73, select 23 -1, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21
epoll_wait 232 -1, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd2 290 19
timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87
mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, brk 12 214, mincore 27 232
mlock 149 228, mlock2 325 284, munlock 150 229, mbind 237 235, get_mempolicy 239 236, set_mempolicy 238 237
membarrier 324 283, pkey_alloc 330 289, pkey_free 331 290, pkey_mprotect 329 288
futex 202 98, futex_waitv 449 449, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293
set_tid_address 218 96, arch_prctl 158 -1, restart_syscall 219 128, exit 60 93, exit_group 231 94
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132
sched_yield 24 124, sched_getaffinity 204 123, sched_getscheduler 145 120, sched_getparam 143 121
sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_getattr 315 275, getcpu 309 168
getpriority 140 141, getpid 39 172, gettid 186 178, getppid 110 173, getpgrp 111 -1, getpgid 121 155
getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148
getresgid 120 150, getgroups 115 158, capget 125 90, getrlimit 97 163, getrusage 98 165, times 100 153
time 201 -1, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115
nanosleep 35 101, sysinfo 99 179, uname 63 160, getrandom 318 278
recvmsg 47 212, recvfrom 45 207, getsockname 51 204, getpeername 52 205, getsockopt 55 209, shutdown 48 210
"""
JUDGED = """
open 2 -1, openat 257 56, clone 56 220, kill 62 129, tgkill 234 131, prlimit64 302 261, ioctl 16 29
fcntl 72 25, prctl 157 167, setpriority 141 140
sched_setaffinity 203 122, sched_setscheduler 144 119, sched_setparam 142 118
"""
REFUSED = """
socket 41 198, socketpair 53 199, connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242
sendto 44 206, sendmsg 46 211, sendmmsg 307 269
execve 59 221, execveat 322 281, fork 57 -1, vfork 58 -1, ptrace 101 117, process_vm_readv 310 270
process_vm_writev 311 271, pidfd_open 434 434, pidfd_getfd 438 438, pidfd_send_signal 424 424
io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, bpf 321 280
perf_event_open 298 241, userfaultfd 323 282, keyctl 250 219, add_key 248 217, request_key 249 218
unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, creat 85 -1
truncate 76 45, mkdir 83 -1, mkdirat 258 34, mknod 133 -1, mknodat 259 33, rename 82 -1, renameat 264 38
renameat2 316 276, link 86 -1, linkat 265 37, symlink 88 -1, symlinkat 266 36
chmod 90 -1, fchmod 91 52, fchmodat 268 53, chown 92 -1, fchown 93 55, fchownat 260 54
tkill 200 130, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, setrlimit 160 164, setsid 112 157
seccomp 317 277, name_to_handle_at 303 264, open_by_handle_at 304 265, init_module 175 105, kexec_load 246 104
"""
REMOVING = "unlink 87 -1, unlinkat 263 35, rmdir 84 -1"
LANDLOCK = (444, 445, 446)  # create_ruleset, add_rule, restrict_self: on every architecture
CLONE3 = 435  # a filter cannot read its flags, which are in memory; the C library falls back to clone()


def machine() -> str:
    """The architecture of this program, as the tables name it; "" if they lack it."""
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 1 << 32:
        return ""
    return platform.machine() if platform.machine() in ARCHITECTURES else ""


def numbers(table: str) -> dict[str, int]:
    """The numbers of a table's calls on this architecture."""
    column = 1 if machine() == "x86_64" else 2
    rows = (entry.split() for line in table.strip().splitlines() for entry in line.split(","))
    return {row[0]: int(row[column]) for row in rows if int(row[column]) >= 0}


def call(number: int, *arguments: object) -> int:
    """Makes a system call with integers and ctypes pointers. Raises OSError if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *given)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
