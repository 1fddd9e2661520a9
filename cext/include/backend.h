/* backend.h: the header that every source file of a C backend includes: hal.h with the standard types it needs, the ABI hash
 * of hal.h's tables (HAL_ABI_HASH), and the attribute that exports the backend's one entry. It owns nothing.
 */
#ifndef SATCHEL_BACKEND_H
#define SATCHEL_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "hal.h"
#include "hal_abi.h"

/* GGUF's type numbers of I8 and of I32, the type of ids, positions and block tables. */
enum { HAL_FORMAT_I8 = 24, HAL_FORMAT_I32 = 26 };

#define HAL_EXPORT __attribute__((visibility("default")))

#endif
