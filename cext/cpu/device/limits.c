/* limits.c: number of CPUs that this process may use: its affinity mask, limited by the CPU quota of its control groups.
 *
 * A container's limit is CPU time per period, not fewer CPUs: threads beyond the quota would be throttled in the middle of
 * their work. Groups nest, and the tightest limit on the path to the root holds. An unreadable file sets no limit.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "os.h"

enum { PATH = 1024, LINE = 1024 };

/* Reads the first line of folder + file; 0 if there is none. */
static int read_line(const char *folder, const char *file, char line[LINE]) {
    char path[PATH];
    FILE *f;
    int found;
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path || !(f = fopen(path, "r")))
        return 0;
    found = fgets(line, LINE, f) != NULL;
    fclose(f);
    return found;
}

static int cpus_of(long long quota, long long period) {
    long long n = quota > 0 && period > 0 ? (quota - 1) / period + 1 : 0;
    return n < 1 << 20 ? (int)n : 0;
}

/* CPUs that one group allows; 0: no limit. cgroup v2: cpu.max has "QUOTA PERIOD" or "max PERIOD", in microseconds. */
static int limit_of(const char *folder) {
    char line[LINE];
    long long quota, period;
    if (read_line(folder, "cpu.max", line))
        return sscanf(line, "%lld %lld", &quota, &period) == 2 ? cpus_of(quota, period) : 0;
    if (!read_line(folder, "cpu.cfs_quota_us", line))
        return 0;
    quota = strtoll(line, NULL, 10);
    return read_line(folder, "cpu.cfs_period_us", line) ? cpus_of(quota, strtoll(line, NULL, 10)) : 0;
}

/* The tightest limit of the group and its ancestors. In a container the path may be the host's, of which only the mount itself
 * exists. */
static int tightest(const char *mount, const char *group) {
    char folder[PATH];
    size_t top = strlen(mount);
    int least = 0;
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int)sizeof folder)
        return 0;
    for (;;) {
        int n = limit_of(folder);
        char *slash = strrchr(folder + top, '/');
        least = n && (!least || n < least) ? n : least;
        if (!slash)
            return least;
        *slash = 0;
    }
}

/* Whether the comma-separated list of controllers has "cpu". */
static int has_cpu(const char *list) {
    for (; *list; list += strcspn(list, ","), list += *list == ',')
        if (strcspn(list, ",") == 3 && memcmp(list, "cpu", 3) == 0)
            return 1;
    return 0;
}

int limits_quota(const char *groups, const char *mounts) {
    FILE *f = fopen(groups, "r");
    char line[LINE], mount[PATH];
    int least = 0, n;
    while (f && fgets(line, sizeof line, f)) { /* "ID:CONTROLLERS:/PATH"; version 2 has no controllers there */
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        *list++ = *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (strcmp(group, "/") == 0)
            *group = 0;
        if (*list && !has_cpu(list))
            continue;
        if (snprintf(mount, sizeof mount, "%s%s%s", mounts, *list ? "/" : "", list) >= (int)sizeof mount)
            continue;
        n = tightest(mount, group);
        least = n && (!least || n < least) ? n : least;
    }
    if (f)
        fclose(f);
    return least;
}

/* CPUs of the affinity mask; all CPUs on other systems, or if there are more than a cpu_set_t holds. */
static int mask_count(void) {
    long n = os_processors();
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
#endif
    return n > 0 ? (int)n : 1;
}

int limits_default_threads(void) {
    int n = mask_count(), quota = limits_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota && quota < n ? quota : n;
}
