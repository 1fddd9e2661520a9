/* limits.h: the CPU quota of a process's control groups. See limits.c; pool_default_threads is in pool.h. */
#ifndef SATCHEL_CPU_LIMITS_H
#define SATCHEL_CPU_LIMITS_H

/* CPUs that the control groups of the file `groups` (/proc/self/cgroup) allow, rounded up, by the files below `mounts`
 * (/sys/fs/cgroup); 0: no limit. */
int limits_quota(const char *groups, const char *mounts);

#endif
