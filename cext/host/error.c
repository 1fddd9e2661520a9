/* error.c: the last error of each thread; see error.h. */
#include <stdarg.h>
#include <stdio.h>

#include "error.h"

static _Thread_local char message[512];

int hal_fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return code;
}

const char *hal_last_error(void) {
    return message;
}

int hal_in_bounds(uint64_t most, uint64_t offset, uint64_t size, const char *what) {
    if (offset <= most && size <= most - offset)
        return 0;
    return hal_fail(HAL_E_INVALID, "%s: %llu bytes at %llu, but the buffer has %llu", what, (unsigned long long)size,
                    (unsigned long long)offset, (unsigned long long)most);
}
