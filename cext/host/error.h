/* error.h: error codes with a text, and the check of a transfer's bounds, for backends that run on this host's memory or drive a
 * device from it.
 */
#ifndef SATCHEL_ERROR_H
#define SATCHEL_ERROR_H

#include "backend.h"

/* Keeps the text for hal_last_error() and gives the code. */
int hal_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *hal_last_error(void); /* of this thread */

/* 0 if `size` bytes at `offset` lie in a buffer of `most` bytes, else HAL_E_INVALID. what: the call, for the error's text. */
int hal_in_bounds(uint64_t most, uint64_t offset, uint64_t size, const char *what);

#endif
