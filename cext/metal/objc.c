/* objc.c: opens the Objective-C runtime and Metal, and looks up classes and selectors. */
#include "objc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

objc_api objc;

static void *open_named(const char *variable, const char *usual, const char **path) {
    const char *named = getenv(variable);
    *path = named ? named : usual;
    return dlopen(*path, RTLD_NOW | RTLD_LOCAL);
}

/* Looks up a function; POSIX guarantees that a function pointer fits the void * that dlsym gives. */
static int look_up(void *library, const char *name, void *out) {
    return (*(void **)out = dlsym(library, name)) != NULL;
}

const char *objc_open(void) {
    static char why[512];
    objc_sel (*selector)(const char *) = NULL;
    const char *runtime, *framework;
    void *base = open_named("SATCHEL_METAL_OBJC", "/usr/lib/libobjc.A.dylib", &runtime);
    void *metal = open_named("SATCHEL_METAL_FRAMEWORK", "/System/Library/Frameworks/Metal.framework/Metal", &framework);
    if (!base || !metal) {
        snprintf(why, sizeof why, "%.400s cannot be opened: the driver is not installed: Metal is a part of macOS",
                 base ? framework : runtime);
        return why;
    }
    if (!look_up(base, "objc_msgSend", &objc.send) || !look_up(base, "objc_getClass", &objc.class_of) ||
        !look_up(base, "sel_registerName", &selector) || !look_up(base, "objc_autoreleasePoolPush", &objc.push) ||
        !look_up(base, "objc_autoreleasePoolPop", &objc.pop) ||
        !look_up(metal, "MTLCopyAllDevices", &objc.all_devices)) {
        snprintf(why, sizeof why, "%.200s and %.200s lack a function", runtime, framework);
        return why;
    }
#define X(name, text) objc.name = selector(text);
    OBJC_SELECTORS(X)
#undef X
    return NULL;
}
