/* library.c: compiles kernels from source text to an MTLLibrary. A function's pipeline is made when it is first looked up. */
#include "metal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32, MATH_SAFE = 0 };

/* Compile options without fast math, so operations round as written. macOS 15 renamed the option. */
static objc_id options(void) {
    objc_id o = objc_make("MTLCompileOptions");
    if (SENT(signed char, objc_sel)(o, objc.responds, objc.set_math_mode))
        SENT(void, long)(o, objc.set_math_mode, MATH_SAFE);
    else
        objc_set_flag(o, objc.set_fast_math, 0);
    return o;
}

static metal_function *own(metal_module *m, const char *name) {
    gpu_function f = NULL;
    return metal_function_of(&f, m, name) ? NULL : f;
}

int metal_load(gpu_module *out, const void *text) {
    metal_module *m = calloc(1, sizeof *m);
    void *pool = objc.push();
    objc_id error = NULL, with;
    if (!m)
        return METAL_NO_MEMORY;
    m->device = metal_current;
    with = options();
    m->library = SENT(objc_id, objc_id, objc_id, objc_id *)(metal_current->is, objc.new_library, objc_string(text),
                                                            with, &error);
    objc_release(with);
    if (!m->library) {
        metal_fail(METAL_FAILED, "Metal does not compile the kernels: %s", metal_text(error));
        objc.pop(pool);
        free(m);
        return METAL_FAILED;
    }
    objc.pop(pool);
    if (!metal_current->copy) {
        metal_current->copy = own(m, "metal_copy");
        metal_current->fill = own(m, "metal_fill");
        if (!metal_current->copy || !metal_current->fill) {
            metal_unload(m);
            return METAL_FAILED;
        }
    }
    *out = m;
    return 0;
}

int metal_unload(gpu_module of) {
    metal_module *m = of;
    for (metal_function *f; (f = m->functions);) {
        m->functions = f->next;
        if (f == m->device->copy || f == m->device->fill)
            m->device->copy = m->device->fill = NULL;
        objc_release(f->pipeline);
        free(f);
    }
    objc_release(m->library);
    free(m);
    return 0;
}

/* Makes a pipeline that indirect command buffers support. */
static int make_pipeline(metal_module *m, metal_function *f) {
    objc_id error = NULL, description, function;
    function = SENT(objc_id, objc_id)(m->library, objc.new_function, objc_string(f->name));
    if (!function)
        return metal_fail(METAL_NOT_FOUND, "kernel %s is not in the library", f->name);
    description = objc_make("MTLComputePipelineDescriptor");
    SENT(void, objc_id)(description, objc.set_function, function);
    objc_set_flag(description, objc.set_indirect, 1);
    f->pipeline = SENT(objc_id, objc_id, unsigned long, objc_id *, objc_id *)(m->device->is, objc.new_pipeline,
                                                                              description, 0, NULL, &error);
    objc_release(description);
    objc_release(function);
    if (!f->pipeline)
        return metal_fail(METAL_FAILED, "kernel %s: %s", f->name, metal_text(error));
    f->most = objc_number(f->pipeline, objc.threads_most);
    if (objc_number(f->pipeline, objc.wave) != LANES) {
        objc_release(f->pipeline);
        return metal_fail(METAL_FAILED, "kernel %s: this GPU's waves have not %d lanes", f->name, LANES);
    }
    return 0;
}

int metal_function_of(gpu_function *out, gpu_module of, const char *name) {
    metal_module *m = of;
    metal_function *f = m->functions;
    void *pool;
    int code;
    for (; f; f = f->next)
        if (!strcmp(f->name, name)) {
            *out = f;
            return 0;
        }
    if (!(f = calloc(1, sizeof *f)))
        return METAL_NO_MEMORY;
    snprintf(f->name, sizeof f->name, "%s", name);
    pool = objc.push();
    code = make_pipeline(m, f);
    objc.pop(pool);
    if (code) {
        free(f);
        return code;
    }
    f->next = m->functions;
    m->functions = f;
    *out = f;
    return 0;
}
