/* entries.cuh: kernels of the library by its own tables, loaded from the fat binaries that CMake built: an entry of a table for a
 * call, and its launches. kernel.h is included before it.
 */
#include <cstring>

#include "cases.cuh"

static std::vector<cudaLibrary_t> libraries;
static gpu_traits traits = {90, 132, 232448, 32, 0};

/* Learns about the GPU and loads the fat binaries of these names. arch: of a device that the GPU passes for (80, 86, 89), with the
 * images that SATCHEL_CUDA_LOWERED built for it, its shared memory and no early launch; 0: the GPU's own. */
static void open_libraries(const std::string &folder, const std::vector<std::string> &names, int arch = 0) {
    cudaDeviceProp device;
    OK(cudaGetDeviceProperties(&device, 0));
    traits.units = device.multiProcessorCount, traits.arch = 10 * device.major + device.minor;
    traits.shared = (int)device.sharedMemPerBlockOptin;
    if (arch)
        traits.arch = arch, traits.shared = (arch == 80 || arch == 87 ? 163 : 99) << 10, traits.lowered = 1;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (const std::string &name : names) {
        cudaLibrary_t library;
        const std::string file = folder + "/" + name + (arch ? ".80" : "") + ".fatbin";
        OK(cudaLibraryLoadFromFile(&library, file.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
        libraries.push_back(library);
    }
}

struct entry {
    const gpu_kernel *kernel = nullptr;
    std::string name; /* of its kernels, joined by + */
    std::vector<cudaKernel_t> functions;
    std::vector<gpu_grid> grids;
    uint64_t scratch = 0;

    /* The launches of table entry k for the call. format: the name of the call's format. False: a kernel is missing. */
    bool find(const gpu_kernel *k, gpu_call &c, const char *format) {
        *this = entry();
        kernel = k;
        c.mode = k->mode;
        for (int i = 0; i < GPU_LAUNCHES && k->launch[i].kernel; i++) {
            std::string own = k->launch[i].kernel;
            if (k->format_of > 0 && !k->launch[i].common)
                own += std::string("_") + format;
            cudaKernel_t f = nullptr;
            for (cudaLibrary_t library : libraries)
                if (!f && cudaLibraryGetKernel(&f, library, own.c_str()) != cudaSuccess)
                    f = nullptr, cudaGetLastError();
            if (!f) {
                printf("no kernel %s\n", own.c_str());
                return false;
            }
            gpu_grid g = {{1, 1, 1}, 0, 0, 0};
            k->launch[i].grid(&c, &traits, &g);
            if (g.shared > 48 << 10)
                allow((const void *)f, (int)g.shared);
            OK(cudaFuncSetAttribute((const void *)f, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
            functions.push_back(f), grids.push_back(g);
            name += (i ? "+" : "") + own;
        }
        scratch = k->scratch ? k->scratch(&c, &traits) : 0;
        return true;
    }
};

/* only: the one launch to start; -1: all. */
static void start(const entry &e, gpu_call &c, int only = -1) {
    for (size_t i = 0; i < e.functions.size(); i++)
        if (only < 0 || only == (int)i) {
            const gpu_grid &g = e.grids[i];
            launch((const void *)e.functions[i],
                   {dim3(g.groups[0], g.groups[1], g.groups[2]), (int)g.threads, (int)g.shared,
                    e.kernel->launch[i].early != 0 && !traits.lowered, (int)g.cluster},
                   c);
        }
}
