/* driver.cpp: the functions of cext/gpu/api.h over SYCL: devices, USM memory, in-order queues, events, and kernels compiled
 * from source at run time. It is a library of its own, because it links with the SYCL runtime; vendor.c opens it, so the
 * backend loads on any machine.
 *
 * Devices are GPUs. SATCHEL_SYCL_DEVICES=cpu: CPUs instead, for tests. SATCHEL_SYCL_WAVE: lanes of a wave (sub-group size),
 * one of those that the device supports; by default the largest up to 32. No exception leaves a function: it becomes an error
 * number, and said() gives its text. An exception while waiting for work, or one that reports a lost device, becomes LOST,
 * CUDA's number of sticky errors: the results of that work are invalid.
 */
#include <sycl/sycl.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "api.h"
#include "call.h"
#include "modes.h"
}

namespace {

namespace extension = sycl::ext::oneapi::experimental;
enum { FAILED = 999, LOST = 719, NO_MEMORY = 2, NOT_FOUND = 500, NOT_READY = 600, INVALID = 1 };
enum { MAJOR = 1, MINOR, UNITS, SHARED, WAVE };

thread_local std::string
    thrown_text; /* message of this thread's last exception; empty: the last error was no exception */

/* Gives f's result, or `thrown` for an exception, whose message it keeps. */
template <typename F> int guarded(F f, int thrown = FAILED) noexcept {
    try {
        int code = f();
        if (code)
            thrown_text.clear();
        return code;
    } catch (const std::exception &e) {
        thrown_text = e.what();
        return thrown_text.find("DEVICE_LOST") == std::string::npos ? thrown : (int)LOST;
    }
}

/* guarded() for waiting on work. */
template <typename F> int waited(F f) noexcept {
    return guarded(f, LOST);
}

struct call_argument { /* same layout as the kernels' port_call */
    gpu_call is;
};

struct device_of {
    sycl::device device;
    sycl::context context;
    sycl::queue any; /* for operations without a stream */
    int wave;
};

struct event_of {
    sycl::event last;
};

struct module_of {
    sycl::kernel_bundle<sycl::bundle_state::executable> bundle;
    std::map<std::string, std::unique_ptr<sycl::kernel>> kernels;
};

std::vector<std::unique_ptr<device_of>> devices;
thread_local device_of *current;

int wave_of(const sycl::device &d) {
    const char *named = std::getenv("SATCHEL_SYCL_WAVE");
    std::vector<size_t> sizes = d.get_info<sycl::info::device::sub_group_sizes>();
    int wanted = named ? std::atoi(named) : 0, best = 0;
    for (size_t size : sizes)
        if (size >= 8 && (wanted ? (int)size == wanted : size <= 32) && (int)size > best)
            best = (int)size;
    return best;
}

/* Shape and sub-group size of a joint_matrix multiplication; depth 0: the device has no shape that fits our tiles (modes.h). */
struct unit_of {
    int tokens, rows, depth, wave;
};

int of_most(size_t exact, size_t most, int wanted) {
    return exact ? (int)exact : std::min((int)most, wanted);
}

/* A GPU's units have fixed shapes and need waves of as many lanes as rows. A CPU's units take any size up to a maximum;
 * waves of 16 are used, whatever the other kernels use, because these were tested. */
unit_of matrix_unit(const device_of &d) {
    using type = extension::matrix::matrix_type;
    std::vector<size_t> waves = d.device.get_info<sycl::info::device::sub_group_sizes>();
    if (!d.device.has(sycl::aspect::ext_intel_matrix))
        return {};
    for (const auto &c : d.device.get_info<extension::info::device::matrix_combinations>()) {
        unit_of u{of_most(c.msize, c.max_msize, 16), of_most(c.nsize, c.max_nsize, 16),
                  of_most(c.ksize, c.max_ksize, 32), c.nsize ? (int)c.nsize : 16};
        bool bf16 = c.atype == type::bf16 && c.btype == type::bf16 && c.ctype == type::fp32 && c.dtype == type::fp32;
        bool fits = u.tokens && u.rows && u.depth && MATRIX_TOKENS / 2 % u.tokens == 0 && u.wave % u.rows == 0 &&
                    MATRIX_ROWS % u.wave == 0 && MATRIX_DEPTH % u.depth == 0;
        if (bf16 && fits && std::count(waves.begin(), waves.end(), (size_t)u.wave))
            return u;
    }
    return {};
}

int said(const char **out) {
    *out = thrown_text.c_str();
    return 0;
}

int init(unsigned) {
    return guarded([] {
        const char *named = std::getenv("SATCHEL_SYCL_DEVICES");
        bool cpu = named && !std::strcmp(named, "cpu");
        auto wanted = cpu ? sycl::info::device_type::cpu : sycl::info::device_type::gpu;
        for (sycl::device d : sycl::device::get_devices(wanted)) {
            if (!d.has(sycl::aspect::usm_device_allocations) || !d.has(sycl::aspect::fp64) || !wave_of(d) ||
                !d.ext_oneapi_can_compile(extension::source_language::sycl))
                continue;
            sycl::context context(d);
            sycl::property_list in_order{sycl::property::queue::in_order()};
            devices.emplace_back(new device_of{d, context, sycl::queue(context, d, in_order), wave_of(d)});
        }
        return 0;
    });
}

int count(int *out) {
    *out = (int)devices.size();
    return 0;
}

int device(int *out, int index) {
    return guarded([&] {
        *out = index;
        return index >= 0 && index < (int)devices.size() ? 0 : (int)INVALID;
    });
}

int name(char *out, int size, int index) {
    return guarded([&] {
        std::snprintf(out, (size_t)size, "%s", devices[index]->device.get_info<sycl::info::device::name>().c_str());
        return 0;
    });
}

int attribute(int *out, int which, int index) {
    return guarded([&] {
        const sycl::device &d = devices[index]->device;
        switch (which) {
        case MAJOR:
        case MINOR:
            *out = 0;
            return 0;
        case UNITS:
            *out = (int)d.get_info<sycl::info::device::max_compute_units>();
            return 0;
        case SHARED:
            *out = (int)std::min<size_t>(d.get_info<sycl::info::device::local_mem_size>(), 1 << 20);
            return 0;
        case WAVE:
            *out = devices[index]->wave;
            return 0;
        }
        return (int)INVALID;
    });
}

int retain(gpu_context *out, int index) {
    *out = devices[index].get();
    return 0;
}

int leave(int) {
    return 0;
}

int enter(gpu_context context) {
    current = (device_of *)context;
    return 0;
}

int memory(size_t *unused, size_t *all) {
    return guarded([&] {
        const sycl::device &d = current->device;
        *all = *unused = d.get_info<sycl::info::device::global_mem_size>();
        if (d.has(sycl::aspect::ext_intel_free_memory))
            *unused = d.get_info<sycl::ext::intel::info::device::free_memory>();
        return 0;
    });
}

int alloc(gpu_address *out, size_t size) {
    return guarded([&] {
        void *at = sycl::malloc_device(size, current->device, current->context);
        *out = (gpu_address)(uintptr_t)at;
        return at ? 0 : (int)NO_MEMORY;
    });
}

int free_device(gpu_address at) {
    return guarded([&] {
        sycl::free((void *)(uintptr_t)at, current->context);
        return 0;
    });
}

int alloc_host(void **out, size_t size, unsigned) {
    return guarded([&] {
        *out = sycl::malloc_host(size, current->context);
        return *out ? 0 : (int)NO_MEMORY;
    });
}

int free_host(void *at) {
    return guarded([&] {
        sycl::free(at, current->context);
        return 0;
    });
}

sycl::queue &queue_of(gpu_stream s) {
    return s ? *(sycl::queue *)s : current->any;
}

int write(gpu_address to, const void *from, size_t size, gpu_stream s) {
    return guarded([&] {
        queue_of(s).memcpy((void *)(uintptr_t)to, from, size);
        return 0;
    });
}

int read(void *to, gpu_address from, size_t size, gpu_stream s) {
    return guarded([&] {
        queue_of(s).memcpy(to, (const void *)(uintptr_t)from, size);
        return 0;
    });
}

int copy(gpu_address to, gpu_address from, size_t size, gpu_stream s) {
    return write(to, (const void *)(uintptr_t)from, size, s);
}

int fill(gpu_address to, unsigned char with, size_t size, gpu_stream s) {
    return guarded([&] {
        queue_of(s).memset((void *)(uintptr_t)to, with, size);
        return 0;
    });
}

int stream(gpu_stream *out, unsigned) {
    return guarded([&] {
        sycl::property_list with{sycl::property::queue::in_order(), sycl::property::queue::enable_profiling()};
        *out = new sycl::queue(current->context, current->device, with);
        return 0;
    });
}

int end_stream(gpu_stream s) {
    delete (sycl::queue *)s;
    return 0;
}

int finish(gpu_stream s) {
    return waited([&] {
        queue_of(s).wait_and_throw();
        return 0;
    });
}

int await(gpu_stream s, gpu_event e, unsigned) {
    return guarded([&] {
        queue_of(s).ext_oneapi_submit_barrier({((event_of *)e)->last});
        return 0;
    });
}

int event(gpu_event *out, unsigned) {
    *out = new event_of{};
    return 0;
}

int end_event(gpu_event e) {
    delete (event_of *)e;
    return 0;
}

int record(gpu_event e, gpu_stream s) {
    return guarded([&] {
        ((event_of *)e)->last = queue_of(s).ext_oneapi_submit_barrier();
        return 0;
    });
}

int reached(gpu_event e) {
    return guarded([&] {
        auto status = ((event_of *)e)->last.get_info<sycl::info::event::command_execution_status>();
        return status == sycl::info::event_command_status::complete ? 0 : (int)NOT_READY;
    });
}

int wait(gpu_event e) {
    return waited([&] {
        ((event_of *)e)->last.wait_and_throw();
        return 0;
    });
}

int elapsed(float *ms, gpu_event from, gpu_event to) {
    return guarded([&] {
        auto ends = [](gpu_event e) {
            return ((event_of *)e)->last.get_profiling_info<sycl::info::event_profiling::command_end>();
        };
        *ms = (float)((double)(ends(to) - ends(from)) * 1e-6);
        return 0;
    });
}

std::string defined_as(const char *name, int value) {
    return "#define " + std::string(name) + " " + std::to_string(value) + "\n";
}

/* The image is the kernels' source text. A text that uses a unit's sizes is for devices with such a unit. */
int load(gpu_module *out, const void *image) {
    return guarded([&] {
        bool units = std::strstr((const char *)image, "PORT_UNIT_DEPTH");
        unit_of u = units ? matrix_unit(*current) : unit_of{};
        if (units && !u.depth)
            return (int)NOT_FOUND;
        std::string text = defined_as("PORT_WAVE", units ? u.wave : current->wave);
        text += defined_as("PORT_UNIT_TOKENS", u.tokens) + defined_as("PORT_UNIT_ROWS", u.rows) +
                defined_as("PORT_UNIT_DEPTH", u.depth);
        text += "#include <cstdint>\n#include <sycl/sycl.hpp>\n";
        text += (const char *)image;
        auto source =
            extension::create_kernel_bundle_from_source(current->context, extension::source_language::sycl, text);
        std::vector<std::string> options{"-ffp-contract=off"}; /* as port.h requires; the default contracts */
        *out = new module_of{extension::build(source, extension::properties{extension::build_options{options}}), {}};
        return 0;
    });
}

int unload(gpu_module m) {
    delete (module_of *)m;
    return 0;
}

int function(gpu_function *out, gpu_module of, const char *name) {
    return guarded([&] {
        module_of *m = (module_of *)of;
        std::unique_ptr<sycl::kernel> &k = m->kernels[name];
        if (!k && !m->bundle.ext_oneapi_has_kernel(name))
            return (int)NOT_FOUND;
        if (!k)
            k = std::make_unique<sycl::kernel>(m->bundle.ext_oneapi_get_kernel(name));
        *out = k.get();
        return 0;
    });
}

/* Reverses the dimensions: SYCL's last dimension is the fastest. */
int launch(gpu_function f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned shared,
           gpu_stream s, void **arguments, void **) {
    return guarded([&] {
        call_argument call{*(const gpu_call *)arguments[0]};
        queue_of(s).submit([&](sycl::handler &h) {
            sycl::local_accessor<char, 1> local(sycl::range<1>(std::max(shared, 16u)), h);
            h.set_arg(0, call);
            h.set_arg(1, local);
            h.parallel_for(sycl::nd_range<3>({z, y, (size_t)x * threads}, {1, 1, threads}), *(sycl::kernel *)f);
        });
        return 0;
    });
}

} // namespace

extern "C" __attribute__((visibility("default"))) void sycl_driver(gpu_api *out) {
    gpu_api api = {};
    api.init = init, api.count = count, api.device = device, api.name = name, api.attribute = attribute;
    api.retain = retain, api.leave = leave, api.enter = enter, api.memory = memory;
    api.alloc = alloc, api.free = free_device, api.alloc_host = alloc_host, api.free_host = free_host;
    api.write = write, api.read = read, api.copy = copy, api.fill = fill;
    api.stream = stream, api.end_stream = end_stream, api.finish = finish, api.await = await;
    api.event = event, api.end_event = end_event, api.record = record, api.reached = reached, api.wait = wait;
    api.said = said, api.elapsed = elapsed, api.load = load, api.unload = unload, api.function = function,
    api.launch = launch;
    api.is = {MAJOR, MINOR, UNITS, SHARED, WAVE, NOT_READY};
    *out = api;
}
