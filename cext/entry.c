/* entry.c: the one exported symbol of a backend library, hal_backend_entry(). Compiled once per backend, with SATCHEL_BACKEND
 * set to the name of its folder, whose backend.c defines <name>_backend(). Owns nothing: the struct it gives is static.
 */
#include "backend.h"

const hal_backend *SATCHEL_BACKEND(void);

HAL_EXPORT const hal_backend *hal_backend_entry(void) {
    return SATCHEL_BACKEND();
}
