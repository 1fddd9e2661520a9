/* api.h: table of the driver functions (CUDA driver API, HIP) that the host code of GPU backends calls, under common names and
 * signatures. The system's loader fills it when a device is first requested, so building and loading need no vendor header or library.
 *
 * Handles are the vendors' own, as integers or pointers of their size. Every function gives 0 or the vendor's error number.
 * A function whose entry ends with 0 is optional: the host code works without it.
 */
#ifndef SATCHEL_GPU_API_H
#define SATCHEL_GPU_API_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t gpu_address;
typedef void *gpu_stream, *gpu_event, *gpu_module, *gpu_function, *gpu_graph, *gpu_graph_exec, *gpu_context;

/* CUDA 12's CUlaunchAttribute and CUlaunchConfig. HIP has no equivalent. */
typedef struct {
    int32_t id, unused;
    union {
        uint32_t dim[3];
        int32_t value;
        uint8_t room[64];
    } is;
} gpu_launch_attribute;

typedef struct {
    uint32_t grid[3], block[3], shared;
    gpu_stream stream;
    gpu_launch_attribute *attributes;
    uint32_t n_attributes;
} gpu_launch_config;

enum { GPU_LAUNCH_CLUSTER = 4, GPU_LAUNCH_EARLY = 6 };

/* X(field, arguments, CUDA's name, HIP's name, needed) */
#define GPU_API(X)                                                                                                     \
    X(init, (unsigned), "cuInit", "hipInit", 1)                                                                        \
    X(version, (int *), "cuDriverGetVersion", "hipDriverGetVersion", 0)                                                \
    X(count, (int *), "cuDeviceGetCount", "hipGetDeviceCount", 1)                                                      \
    X(device, (int *, int), "cuDeviceGet", "hipDeviceGet", 1)                                                          \
    X(name, (char *, int, int), "cuDeviceGetName", "hipDeviceGetName", 1)                                              \
    X(attribute, (int *, int, int), "cuDeviceGetAttribute", "hipDeviceGetAttribute", 1)                                \
    X(retain, (gpu_context *, int), "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain", 1)                        \
    X(leave, (int), "cuDevicePrimaryCtxRelease_v2", "hipDevicePrimaryCtxRelease", 1)                                   \
    X(enter, (gpu_context), "cuCtxSetCurrent", "hipCtxSetCurrent", 1)                                                  \
    X(state, (int, unsigned *, int *), "cuDevicePrimaryCtxGetState", "hipDevicePrimaryCtxGetState", 0)                 \
    X(limit, (int, size_t), "cuCtxSetLimit", "hipDeviceSetLimit", 0)                                                   \
    X(memory, (size_t *, size_t *), "cuMemGetInfo_v2", "hipMemGetInfo", 1)                                             \
    X(alloc, (gpu_address *, size_t), "cuMemAlloc_v2", "hipMalloc", 1)                                                 \
    X(free, (gpu_address), "cuMemFree_v2", "hipFree", 1)                                                               \
    X(alloc_host, (void **, size_t, unsigned), "cuMemHostAlloc", "hipHostMalloc", 1)                                   \
    X(free_host, (void *), "cuMemFreeHost", "hipHostFree", 1)                                                          \
    X(pin, (void *, size_t, unsigned), "cuMemHostRegister_v2", "hipHostRegister", 0)                                   \
    X(unpin, (void *), "cuMemHostUnregister", "hipHostUnregister", 0)                                                  \
    X(seen, (gpu_address *, void *), "", "",                                                                           \
      0) /* the device address of alloc_host() memory; without it: the same address */                                 \
    X(wrap, (gpu_address *, const void *, size_t), "", "", 0) /* uses host memory in place; free() ends it */          \
    X(said, (const char **), "", "", 0)                       /* the last error's message */                           \
    X(write, (gpu_address, const void *, size_t, gpu_stream), "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync", 1)         \
    X(read, (void *, gpu_address, size_t, gpu_stream), "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", 1)                \
    X(copy, (gpu_address, gpu_address, size_t, gpu_stream), "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync", 1)           \
    X(can_reach, (int *, int, int), "cuDeviceCanAccessPeer", "", 0)                                                    \
    X(reach, (gpu_context, unsigned), "cuCtxEnablePeerAccess", "", 0)                                                  \
    X(pair, (int *, int, int, int), "cuDeviceGetP2PAttribute", "", 0)                                                  \
    X(fill, (gpu_address, unsigned char, size_t, gpu_stream), "cuMemsetD8Async", "hipMemsetD8Async", 1)                \
    X(stream, (gpu_stream *, unsigned), "cuStreamCreate", "hipStreamCreateWithFlags", 1)                               \
    X(end_stream, (gpu_stream), "cuStreamDestroy_v2", "hipStreamDestroy", 1)                                           \
    X(finish, (gpu_stream), "cuStreamSynchronize", "hipStreamSynchronize", 1)                                          \
    X(await, (gpu_stream, gpu_event, unsigned), "cuStreamWaitEvent", "hipStreamWaitEvent", 1)                          \
    X(event, (gpu_event *, unsigned), "cuEventCreate", "hipEventCreateWithFlags", 1)                                   \
    X(end_event, (gpu_event), "cuEventDestroy_v2", "hipEventDestroy", 1)                                               \
    X(record, (gpu_event, gpu_stream), "cuEventRecord", "hipEventRecord", 1)                                           \
    X(reached, (gpu_event), "cuEventQuery", "hipEventQuery", 1)                                                        \
    X(wait, (gpu_event), "cuEventSynchronize", "hipEventSynchronize", 1)                                               \
    X(elapsed, (float *, gpu_event, gpu_event), "cuEventElapsedTime", "hipEventElapsedTime", 1)                        \
    X(load, (gpu_module *, const void *), "cuModuleLoadData", "hipModuleLoadData", 1)                                  \
    X(unload, (gpu_module), "cuModuleUnload", "hipModuleUnload", 1)                                                    \
    X(function, (gpu_function *, gpu_module, const char *), "cuModuleGetFunction", "hipModuleGetFunction", 1)          \
    X(allow, (gpu_function, int, int), "cuFuncSetAttribute", "", 0)                                                    \
    X(launch,                                                                                                          \
      (gpu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, gpu_stream, void **,        \
       void **),                                                                                                       \
      "cuLaunchKernel", "hipModuleLaunchKernel", 1)                                                                    \
    X(launch_with, (const gpu_launch_config *, gpu_function, void **, void **), "cuLaunchKernelEx", "", 0)             \
    X(capture, (gpu_stream, int), "cuStreamBeginCapture_v2", "hipStreamBeginCapture", 0)                               \
    X(end_capture, (gpu_stream, gpu_graph *), "cuStreamEndCapture", "hipStreamEndCapture", 0)                          \
    X(instantiate, (gpu_graph_exec *, gpu_graph, uint64_t), "cuGraphInstantiateWithFlags",                             \
      "hipGraphInstantiateWithFlags", 0)                                                                               \
    X(upload, (gpu_graph_exec, gpu_stream), "cuGraphUpload", "hipGraphUpload", 0)                                      \
    X(replay, (gpu_graph_exec, gpu_stream), "cuGraphLaunch", "hipGraphLaunch", 0)                                      \
    X(end_graph, (gpu_graph), "cuGraphDestroy", "hipGraphDestroy", 0)                                                  \
    X(end_graph_exec, (gpu_graph_exec), "cuGraphExecDestroy", "hipGraphExecDestroy", 0)

/* Enum values that differ between CUDA and HIP. */
typedef struct {
    int major, minor, units, shared, wave; /* arguments of attribute() */
    int not_ready;                         /* result of reached() for an event that is not recorded yet */
} gpu_numbers;

typedef struct {
#define X(field, arguments, cuda, hip, needed) int(*field) arguments;
    GPU_API(X)
#undef X
    gpu_numbers is;
} gpu_api;

#endif
