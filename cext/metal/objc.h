/* objc.h: Objective-C objects from plain C. libobjc and Metal are opened when a device is first requested, so building and
 * loading need no header and no library of Apple's. A message is a call of objc_msgSend cast to the method's type; selectors
 * are looked up once.
 *
 * Ownership follows Cocoa: the caller owns the result of a selector that begins with "new" or "copy", and sends it `release`.
 * Any other result belongs to the current autorelease pool; code that keeps it sends it `retain`.
 */
#ifndef SATCHEL_METAL_OBJC_H
#define SATCHEL_METAL_OBJC_H

#include <stdint.h>

typedef struct objc_object *objc_id;
typedef struct objc_selector *objc_sel;
typedef struct {
    unsigned long width, height, depth;
} mtl_size;
typedef struct {
    unsigned long location, length;
} mtl_range;

/* X(name, selector): all selectors in use. */
#define OBJC_SELECTORS(X)                                                                                              \
    X(alloc, "alloc")                                                                                                  \
    X(init, "init")                                                                                                    \
    X(retain, "retain")                                                                                                \
    X(release, "release")                                                                                              \
    X(count, "count")                                                                                                  \
    X(object_at, "objectAtIndex:")                                                                                     \
    X(string, "stringWithUTF8String:")                                                                                 \
    X(utf8, "UTF8String")                                                                                              \
    X(description, "localizedDescription")                                                                             \
    X(responds, "respondsToSelector:")                                                                                 \
    X(name, "name")                                                                                                    \
    X(family, "supportsFamily:")                                                                                       \
    X(unified, "hasUnifiedMemory")                                                                                     \
    X(working_set, "recommendedMaxWorkingSetSize")                                                                     \
    X(allocated, "currentAllocatedSize")                                                                               \
    X(buffer_most, "maxBufferLength")                                                                                  \
    X(local_most, "maxThreadgroupMemoryLength")                                                                        \
    X(new_buffer, "newBufferWithLength:options:")                                                                      \
    X(wrap_buffer, "newBufferWithBytesNoCopy:length:options:deallocator:")                                             \
    X(contents, "contents")                                                                                            \
    X(address, "gpuAddress")                                                                                           \
    X(set_fast_math, "setFastMathEnabled:")                                                                            \
    X(set_math_mode, "setMathMode:")                                                                                   \
    X(new_library, "newLibraryWithSource:options:error:")                                                              \
    X(new_function, "newFunctionWithName:")                                                                            \
    X(set_function, "setComputeFunction:")                                                                             \
    X(set_indirect, "setSupportIndirectCommandBuffers:")                                                               \
    X(new_pipeline, "newComputePipelineStateWithDescriptor:options:reflection:error:")                                 \
    X(threads_most, "maxTotalThreadsPerThreadgroup")                                                                   \
    X(wave, "threadExecutionWidth")                                                                                    \
    X(new_queue, "newCommandQueue")                                                                                    \
    X(command_buffer, "commandBuffer")                                                                                 \
    X(encoder, "computeCommandEncoder")                                                                                \
    X(use, "useResources:count:usage:")                                                                                \
    X(set_pipeline, "setComputePipelineState:")                                                                        \
    X(set_bytes, "setBytes:length:atIndex:")                                                                           \
    X(set_local, "setThreadgroupMemoryLength:atIndex:")                                                                \
    X(dispatch, "dispatchThreadgroups:threadsPerThreadgroup:")                                                         \
    X(end_encoding, "endEncoding")                                                                                     \
    X(commit, "commit")                                                                                                \
    X(wait, "waitUntilCompleted")                                                                                      \
    X(status, "status")                                                                                                \
    X(error, "error")                                                                                                  \
    X(end_time, "GPUEndTime")                                                                                          \
    X(new_event, "newEvent")                                                                                           \
    X(signal, "encodeSignalEvent:value:")                                                                              \
    X(await, "encodeWaitForEvent:value:")                                                                              \
    X(set_types, "setCommandTypes:")                                                                                   \
    X(set_inherit_buffers, "setInheritBuffers:")                                                                       \
    X(set_inherit_pipeline, "setInheritPipelineState:")                                                                \
    X(set_buffers_most, "setMaxKernelBufferBindCount:")                                                                \
    X(set_locals_most, "setMaxKernelThreadgroupMemoryBindCount:")                                                      \
    X(new_indirect, "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:")                                 \
    X(command_at, "indirectComputeCommandAtIndex:")                                                                    \
    X(set_kernel_buffer, "setKernelBuffer:offset:atIndex:")                                                            \
    X(set_barrier, "setBarrier")                                                                                       \
    X(dispatch_later, "concurrentDispatchThreadgroups:threadsPerThreadgroup:")                                         \
    X(execute, "executeCommandsInBuffer:withRange:")

typedef struct {
    void (*send)(void);
    objc_id (*class_of)(const char *);
    void *(*push)(void);
    void (*pop)(void *);
    objc_id (*all_devices)(void); /* gives an array that the caller owns */
#define X(name, selector) objc_sel name;
    OBJC_SELECTORS(X)
#undef X
} objc_api;

extern objc_api objc;

/* Opens the libraries; NULL, or why they cannot be used. SATCHEL_METAL_OBJC and SATCHEL_METAL_FRAMEWORK may give other paths of
 * libobjc and of the framework; tests set them to libraries of their own. */
const char *objc_open(void);

/* objc_msgSend cast to a method's type: the result, then the types of arguments after object and selector. */
#define SENT0(result) ((result (*)(objc_id, objc_sel))objc.send)
#define SENT(result, ...) ((result (*)(objc_id, objc_sel, __VA_ARGS__))objc.send)

static inline objc_id objc_get(objc_id object, objc_sel selector) {
    return SENT0(objc_id)(object, selector);
}

static inline void objc_do(objc_id object, objc_sel selector) {
    SENT0(void)(object, selector);
}

static inline unsigned long objc_number(objc_id object, objc_sel selector) {
    return SENT0(unsigned long)(object, selector);
}

static inline void objc_set(objc_id object, objc_sel selector, unsigned long x) {
    SENT(void, unsigned long)(object, selector, x);
}

static inline void objc_set_flag(objc_id object, objc_sel selector, signed char x) {
    SENT(void, signed char)(object, selector, x);
}

static inline void objc_release(objc_id object) {
    if (object)
        objc_do(object, objc.release);
}

static inline objc_id objc_keep(objc_id object) {
    return object ? objc_get(object, objc.retain) : object;
}

/* A new object of a class, which the caller owns. */
static inline objc_id objc_make(const char *name) {
    return objc_get(objc_get(objc.class_of(name), objc.alloc), objc.init);
}

static inline objc_id objc_string(const char *text) {
    return SENT(objc_id, const char *)(objc.class_of("NSString"), objc.string, text);
}

#endif
