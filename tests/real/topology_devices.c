/* Preloaded in place of libibverbs and the CUDA runtime: RDMA devices with one active port and GPUs,
 * as the file $STAND_IN lists them ("nic mlx5_0 uverbs0", "gpu 0000:13:00.0"). Mooncake's topology
 * asks these functions what there is, and everything else of /sys. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64
#define ACTIVE 4

/* infiniband/verbs.h */
struct ibv_device {
    void *ops[2];
    int node_type, transport_type;
    char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};
struct ibv_context {
    struct ibv_device *device;
    char zeros[4096]; /* not an extended context: its functions are asked by name */
};

static struct ibv_device devices[MOST];
static char gpus[MOST][32];
static int nic_count, gpu_count;

static void load(void)
{
    char kind[8], name[64], node[64], line[256];
    FILE *file = fopen(getenv("STAND_IN"), "r");

    nic_count = gpu_count = 0;
    while (file && fgets(line, sizeof(line), file)) {
        int words = sscanf(line, "%7s %63s %63s", kind, name, node);
        if (words == 3 && !strcmp(kind, "nic") && nic_count < MOST) {
            strcpy(devices[nic_count].name, name);
            strcpy(devices[nic_count++].dev_name, node);
        } else if (words == 2 && !strcmp(kind, "gpu") && gpu_count < MOST) {
            snprintf(gpus[gpu_count++], sizeof(gpus[0]), "%.31s", name);
        }
    }
    if (file)
        fclose(file);
}

struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(MOST + 1, sizeof(*list));

    load();
    for (int at = 0; at < nic_count; at++)
        list[at] = &devices[at];
    if (count)
        *count = nic_count;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *context = calloc(1, sizeof(*context));

    context->device = device;
    return context;
}

int ibv_close_device(struct ibv_context *context)
{
    free(context);
    return 0;
}

int ibv_query_device(struct ibv_context *context, unsigned char *attributes)
{
    (void)context;
    memset(attributes, 0, 232);
    attributes[227] = 1; /* phys_port_cnt */
    return 0;
}

int ibv_query_port(struct ibv_context *context, unsigned char port, int *attributes)
{
    (void)context;
    attributes[0] = ACTIVE;
    attributes[3] = 8; /* gid_tbl_len */
    return port != 1;
}

int cudaGetDeviceCount(int *count)
{
    load();
    *count = gpu_count;
    return 0;
}

int cudaDeviceGetPCIBusId(char *address, int length, int number)
{
    if (number >= gpu_count)
        return 101;
    snprintf(address, length, "%s", gpus[number]);
    return 0;
}
