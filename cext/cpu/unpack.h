/* unpack.h: rows of a weight in any format as float32, taken out of their panels where the weight is packed. */
#ifndef SATCHEL_CPU_UNPACK_H
#define SATCHEL_CPU_UNPACK_H

#include "cpu.h"
#include "panel.h"

/* Row `id` of k numbers as the file has it, of the matrix whose data begin at `from`: in place, or in `to`, which holds the
 * row as doubles would. */
static inline const uint8_t *packed_row(const cpu_view *w, const uint8_t *from, int64_t k, int32_t id, uint8_t *to) {
    const panel_format *f = panel_format_find(w->format);
    panel_unpack_row(f, k, id % PANEL_ROWS, from + panel_bytes(f, k) * (uint64_t)(id / PANEL_ROWS), to);
    return to;
}

#endif
