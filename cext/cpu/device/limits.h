/* limits.h: how many CPUs a process may use; see limits.c. */
#ifndef SATCHEL_CPU_LIMITS_H
#define SATCHEL_CPU_LIMITS_H

/* CPUs that the control groups of the file `groups` (/proc/self/cgroup) allow, rounded up, by the files below `mounts`
 * (/sys/fs/cgroup); 0: no limit. */
int limits_quota(const char *groups, const char *mounts);

int limits_default_threads(void); /* CPUs that this process may use */

#endif
