/* unpack.h: dequantizes rows of a weight in any format to float32; rows of a packed weight are unpacked from their panel
 * first. */
#ifndef SATCHEL_CPU_UNPACK_H
#define SATCHEL_CPU_UNPACK_H

#include "cpu.h"
#include "panel.h"

/* Row `id` of k elements in the file's layout, of the matrix at `from`: in place, or unpacked to `to`, which has room for k
 * doubles. */
static inline const uint8_t *packed_row(const cpu_view *w, const uint8_t *from, int64_t k, int32_t id, uint8_t *to) {
    const panel_format *f = panel_format_find(w->format);
    panel_unpack_row(f, k, id % PANEL_ROWS, from + panel_bytes(f, k) * (uint64_t)(id / PANEL_ROWS), to);
    return to;
}

#endif
