/* A soft-RoCE device belongs to no NUMA node. Preloaded, this gives each one the node that the file
 * numa_node in $NIC_NODES/<device> names: Mooncake looks for that file in the real path of
 * /sys/class/infiniband/<device>/../.. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *follow(const char *path, char *resolved)
{
    static char *(*next)(const char *, char *);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "realpath");
    return next(path, resolved);
}

char *realpath(const char *path, char *resolved)
{
    const char *folder = getenv("NIC_NODES");
    char device[64], elsewhere[PATH_MAX];
    int end = 0;

    if (folder && path && sscanf(path, "/sys/class/infiniband/%63[^/]/../..%n", device, &end) == 1 &&
        end && !path[end]) {
        snprintf(elsewhere, sizeof(elsewhere), "%s/%s", folder, device);
        return follow(elsewhere, resolved);
    }
    return follow(path, resolved);
}

char *__realpath_chk(const char *path, char *resolved, size_t size)
{
    (void)size;
    return realpath(path, resolved);
}
