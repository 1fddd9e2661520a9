/* pack.c: packs a file's weights into panels in a buffer, on all threads of the device. */
#include "device.h"
#include "mapped.h"
#include "weights/panel.h"

enum { PANELS_A_GRAIN = 8 };

typedef struct {
    const panel_format *format;
    const uint8_t *from;
    uint8_t *to;
    int64_t rows, columns, panels, all; /* panels of one matrix, and of the stack */
    int64_t grain;                      /* panels per grain */
} job;

static void pack_panel(const job *j, int64_t number) {
    int64_t row = number % j->panels * PANEL_ROWS, left = j->rows - row;
    uint64_t row_bytes = (uint64_t)(j->columns / j->format->block) * (uint64_t)j->format->bytes;
    const uint8_t *from = j->from + row_bytes * (uint64_t)(number / j->panels * j->rows + row);
    panel_pack(j->format, j->columns, (int)(left < PANEL_ROWS ? left : PANEL_ROWS), from, row_bytes,
               j->to + panel_bytes(j->format, j->columns) * (uint64_t)number);
}

static void pack_grain(void *context, int64_t grain) {
    const job *j = context;
    for (int64_t i = grain * j->grain; i < (grain + 1) * j->grain && i < j->all; i++)
        pack_panel(j, i);
}

int cpu_pack(hal_buffer *b, uint64_t offset, uint32_t format, int64_t stack, int64_t rows, int64_t columns,
             const void *from) {
    const panel_format *f = panel_format_find(format);
    job j = {.format = f,
             .from = from,
             .to = b->data + offset,
             .rows = rows,
             .columns = columns,
             .panels = panel_count(rows)};
    uint64_t bytes = panel_stack_bytes(f, stack, rows, columns);
    int code, range;
    if (!bytes || !b->owned)
        return hal_fail(HAL_E_INVALID, "pack: this format and shape cannot be packed, or not into this buffer");
    if (offset % PANEL_LINE || offset > b->size || bytes > b->size - offset)
        return hal_fail(HAL_E_INVALID, "pack: %llu bytes at %llu do not fit, or the place is no multiple of %d",
                        (unsigned long long)bytes, (unsigned long long)offset, PANEL_LINE);
    if ((code = pool_check_process(b->device->pool)))
        return code;
    j.all = j.panels * stack;
    j.grain = (j.all + POOL_GRAINS - 1) / POOL_GRAINS;
    j.grain = j.grain > PANELS_A_GRAIN ? j.grain : PANELS_A_GRAIN;
    range = mapped_enter(from, (uint64_t)(columns / f->block) * (uint64_t)f->bytes * (uint64_t)rows * (uint64_t)stack);
    pthread_mutex_lock(&b->device->busy);
    pool_share(b->device->pool, (j.all + j.grain - 1) / j.grain, pack_grain, &j);
    pthread_mutex_unlock(&b->device->busy);
    code = mapped_lost(range) ? hal_fail(HAL_E_INVALID, "pack: " MAPPED_LOST) : 0;
    mapped_drop(range);
    return code;
}
