/* memory.c: a GPU's buffers, and transfers between host and device.
 *
 * What is written to buffers of weights is written on the stream `packer`, in the order of the calls: bytes as they lie, and rows that
 * are packed on the way, whose pieces the stream `side` sends ahead, so that the link has work while others are packed. Out of memory
 * that pin() has page-locked they are sent from where they lie; others go through pinned staging pieces: the host fills one piece while
 * the other is sent. Only the first run waits for them. Weights of a HAL_PREFETCH buffer are replaced while steps run: their upload
 * waits, on the device, for the last exec that has read the buffer, and the next such exec for the upload. Other transfers are ordered
 * with the steps: a write or read waits for running steps. A small output is read from its mirror in host memory, where the exec has
 * copied it.
 */
#include <stdlib.h>
#include <string.h>

#include "block_format.h"
#include "device.h"
#include "size.h"

int gpu_alloc(hal_device *d, const hal_bufdesc *desc, hal_buffer **out) {
    hal_buffer *b = calloc(1, sizeof *b);
    int code = b ? gpu_lock(d) : hal_fail(HAL_E_MEMORY, "no memory for a buffer's handle");
    if (code) {
        free(b);
        return code;
    }
    *b = (hal_buffer){.device = d, .size = desc->size, .usage = desc->usage};
    code = gpu_take(d, 0, desc->size ? desc->size : 1, &b->at, "memory for a buffer");
    if (!code && desc->size)
        code = gpu_check(d, d->api.fill(b->at, 0, desc->size, d->packer), "zeros for a buffer");
    d->loading = 1;
    if (!code && desc->usage == HAL_PREFETCH)
        code = gpu_check(d, d->api.event(&b->written, 2), "an event");
    if (!code && desc->usage == HAL_OUT && desc->size && desc->size <= GPU_OUT_MIRROR)
        code = gpu_take_host(d, GPU_PINNED, desc->size, (void **)&b->mirror, "host memory for an output");
    gpu_unlock(d);
    if (code) {
        gpu_free(b);
        return code;
    }
    atomic_fetch_add(&d->allocations, 1);
    *out = b;
    return 0;
}

int gpu_wrap(hal_device *d, const void *host, uint64_t size, hal_buffer **out) {
    hal_buffer *b = calloc(1, sizeof *b);
    int code = b ? gpu_lock(d) : hal_fail(HAL_E_MEMORY, "no memory for a buffer's handle");
    if (!code) {
        *b = (hal_buffer){.device = d, .size = size, .usage = HAL_WEIGHT, .wrapped = 1};
        code = gpu_check(d, d->api.wrap(&b->at, host, size), "taking memory in place");
        gpu_unlock(d);
    }
    if (code) {
        free(b);
        return code;
    }
    atomic_fetch_add(&d->allocations, 1);
    *out = b;
    return 0;
}

void gpu_free(hal_buffer *b) {
    if (!b)
        return;
    if (b->at && !gpu_lock(b->device)) {
        b->device->api.finish(b->device->packer);
        b->device->api.finish(b->device->main);
        if (b->wrapped)
            b->device->api.free(b->at);
        else
            gpu_give(b->device, b->at);
        if (b->written)
            b->device->api.end_event(b->written);
        gpu_give(b->device, (uint64_t)(uintptr_t)b->mirror);
        gpu_unlock(b->device);
    }
    free(b);
}

/* The next staging piece; waits until the device has copied its contents. */
static int next_piece(hal_device *d, gpu_piece **out) {
    gpu_piece *p = d->pieces + d->next;
    int code = 0;
    d->next = (d->next + 1) % GPU_PIECES;
    *out = p;
    if (p->sent && (code = gpu_check(d, d->api.wait(p->sent), "waiting for a piece of weights")))
        return code;
    if (!p->host)
        code = gpu_check(d, d->api.alloc_host((void **)&p->host, GPU_PIECE, 1), "pinned host memory");
    if (!code && !p->sent)
        code = gpu_check(d, d->api.event(&p->sent, 2), "an event");
    return code;
}

/* The next piece of the device alone: `side` waits until its contents are packed. */
static int next_device_piece(hal_device *d, gpu_piece **out) {
    gpu_piece *p = d->pieces + d->next;
    d->next = (d->next + 1) % GPU_PIECES;
    *out = p;
    return p->sent ? gpu_check(d, d->api.await(d->side, p->sent, 0), "waiting for a piece of weights")
                   : gpu_check(d, d->api.event(&p->sent, 2), "an event");
}

/* The device's memory of a piece. */
static int give_device(hal_device *d, gpu_piece *p) {
    int code = p->device ? 0 : gpu_check(d, d->api.alloc(&p->device, GPU_PIECE), "a piece of the device");
    return code || p->copied ? code : gpu_check(d, d->api.event(&p->copied, 2), "an event");
}

/* Whether these bytes can be sent from where they lie. */
static int is_pinned(const hal_device *d, const uint8_t *from, uint64_t size) {
    for (int i = 0; i < d->n_pinned; i++)
        if (from >= d->pinned[i].at && from + size <= d->pinned[i].at + d->pinned[i].size)
            return 1;
    return 0;
}

/* Before an upload: of a HAL_PREFETCH buffer `packer` waits for what has read it. */
static int begin_upload(hal_buffer *b) {
    hal_device *d = b->device;
    return b->usage == HAL_PREFETCH && b->reader
               ? gpu_check(d, d->api.await(d->packer, b->reader->done, 0), "waiting for a step")
               : 0;
}

/* After an upload: runs wait for it, of a HAL_PREFETCH buffer those that read it. */
static int end_upload(hal_buffer *b, int code) {
    hal_device *d = b->device;
    if (b->usage != HAL_PREFETCH)
        d->loading = 1;
    else if (!code && !(code = gpu_check(d, d->api.record(b->written, d->packer), "an event")))
        b->fresh = 1;
    return code;
}

/* Writes bytes to a buffer of weights, piece by piece; the lock is held. */
static int send(hal_device *d, gpu_address to, const uint8_t *from, uint64_t size) {
    int code = 0;
    if (is_pinned(d, from, size))
        return gpu_check(d, d->api.write(to, from, size, d->packer), "sending bytes");
    for (uint64_t done = 0, part; !code && done < size; done += part) {
        gpu_piece *p;
        part = size - done < GPU_PIECE ? size - done : GPU_PIECE;
        if ((code = next_piece(d, &p)))
            break;
        memcpy(p->host, from + done, part);
        code = gpu_check(d, d->api.write(to + done, p->host, part, d->packer), "sending bytes");
        if (!code)
            code = gpu_check(d, d->api.record(p->sent, d->packer), "an event");
    }
    return code;
}

/* The two halves of the staging memory for inputs, and their events. */
static int give_input(hal_device *d) {
    int code = d->input ? 0 : gpu_check(d, d->api.alloc_host((void **)&d->input, GPU_PIECE, 1), "pinned host memory");
    for (int i = 0; !code && i < 2; i++)
        if (!d->input_sent[i])
            code = gpu_check(d, d->api.event(&d->input_sent[i], 2), "an event");
    return code;
}

/* Sends bytes to the device on `main`, after all steps so far, and not behind weights that are on their way: what is page-locked
 * from where it lies; otherwise one half of the staging memory is filled while the other is sent. The bytes are read when this
 * returns. The lock is held. */
static int send_in_order(hal_device *d, gpu_address to, const uint8_t *from, uint64_t size) {
    enum { HALF = GPU_PIECE / 2 };
    int code = gpu_settle(d), half = 0;
    if (!code && is_pinned(d, from, size)) {
        code = gpu_check(d, d->api.write(to, from, size, d->main), "sending bytes");
        return code ? code : gpu_check(d, d->api.finish(d->main), "sending bytes");
    }
    if (!code)
        code = give_input(d);
    if (!code)
        code = gpu_check(d, d->api.finish(d->main), "waiting for the last step");
    for (uint64_t done = 0, part; !code && done < size; done += part, half ^= 1) {
        uint8_t *staged = d->input + half * HALF;
        part = size - done < HALF ? size - done : HALF;
        if (done >= GPU_PIECE && (code = gpu_check(d, d->api.wait(d->input_sent[half]), "waiting for bytes")))
            break;
        memcpy(staged, from + done, part);
        code = gpu_check(d, d->api.write(to + done, staged, part, d->main), "sending bytes");
        if (!code)
            code = gpu_check(d, d->api.record(d->input_sent[half], d->main), "an event");
    }
    return code;
}

int gpu_write(hal_buffer *b, uint64_t offset, const void *from, uint64_t size) {
    hal_device *d = b->device;
    int code = hal_in_bounds(b->size, offset, size, "write");
    if (!code && b->wrapped)
        code = hal_fail(HAL_E_INVALID, "write: the buffer is host memory, which is only read");
    if (code || !size || (code = gpu_lock(d)))
        return code;
    if (b->usage != HAL_WEIGHT && b->usage != HAL_PREFETCH)
        code = send_in_order(d, b->at + offset, from, size);
    else if (!(code = begin_upload(b)))
        code = end_upload(b, send(d, b->at + offset, from, size));
    gpu_unlock(d);
    return code;
}

int gpu_read(hal_buffer *b, uint64_t offset, void *to, uint64_t size) {
    hal_device *d = b->device;
    int code = hal_in_bounds(b->size, offset, size, "read");
    if (code || !size)
        return code;
    if (b->writer) {
        code = gpu_wait(b->writer, UINT32_MAX);
        if (!code)
            memcpy(to, b->mirror + offset, size);
        return code;
    }
    if ((code = gpu_lock(d)))
        return code;
    if (!(code = gpu_settle(d)) && !(code = gpu_settle_prefetch(b)))
        code = gpu_check(d, d->api.read(to, b->at + offset, size, d->main), "reading bytes");
    if (!code)
        code = gpu_check(d, d->api.finish(d->main), "reading bytes");
    gpu_unlock(d);
    return code;
}

int gpu_copy(hal_buffer *to, uint64_t to_offset, hal_buffer *from, uint64_t from_offset, uint64_t size) {
    hal_device *d = to->device;
    int code = hal_in_bounds(from->size, from_offset, size, "copy from");
    if (!code)
        code = hal_in_bounds(to->size, to_offset, size, "copy to");
    if (!code && from->device != d)
        code = hal_fail(HAL_E_INVALID, "copy: the buffers are on two devices");
    if (code || !size || (code = gpu_lock(d)))
        return code;
    if (!(code = gpu_settle(d)) && !(code = gpu_settle_prefetch(to)) && !(code = gpu_settle_prefetch(from)))
        code = gpu_check(d, d->api.copy(to->at + to_offset, from->at + from_offset, size, d->main), "copying bytes");
    gpu_unlock(d);
    return code;
}

const gpu_packing *gpu_packing_of(const hal_device *d, uint32_t format) {
    const gpu_packing *p = d->vendor->packings;
    for (; p && p->bytes; p++)
        if (p->format == format)
            return p;
    return NULL;
}

uint64_t gpu_packed(hal_device *d, uint32_t format, int64_t stack, int64_t rows, int64_t columns) {
    const gpu_packing *p = gpu_packing_of(d, format);
    gpu_function f;
    if (!p || stack < 1 || (stack != 1 && !d->vendor->stacks) || rows < 1 || columns < 1 || rows > INT32_MAX ||
        columns > INT32_MAX || gpu_lock(d))
        return 0;
    int missing = gpu_function_find(d, p->kernel, &f); /* the kernel may not be built for the device's arch */
    gpu_unlock(d);
    uint64_t bytes = missing ? 0 : size_mul((uint64_t)stack, p->bytes(rows, columns, &d->traits));
    return bytes == SIZE_TOO_MUCH ? 0 : bytes;
}

/* Bytes of a row in the file's layout. */
static uint64_t source_row(uint32_t format, int64_t columns) {
    const block_format *f = block_format_find(format);
    return f ? (uint64_t)columns / f->block * f->bytes : 0;
}

/* Sends bytes to the device's memory of a piece, and packs them as the call says. */
static int pack_piece(hal_device *d, gpu_piece *p, const void *from, uint64_t size, const gpu_launch *launch,
                      const gpu_call *call) {
    int code = gpu_check(d, d->api.write(p->device, from, size, d->side), "sending weights");
    if (!code)
        code = gpu_check(d, d->api.record(p->copied, d->side), "an event");
    if (!code)
        code = gpu_check(d, d->api.await(d->packer, p->copied, 0), "waiting for weights");
    if (!code)
        code = gpu_start(d, launch, call, d->packer);
    return code ? code : gpu_check(d, d->api.record(p->sent, d->packer), "an event");
}

/* Sends rows of one matrix and packs them on the device; the lock is held. A piece holds a multiple of 256 rows. `side` does not wait
 * for the last piece to be packed, which may wait in turn for what the device computes: it sends the next matrix meanwhile. */
static int pack_rows(hal_device *d, const gpu_packing *p, gpu_address to, const int64_t shape[2], const uint8_t *from) {
    uint64_t row = source_row(p->format, shape[1]);
    int64_t most = (int64_t)(GPU_PIECE / row) / 256 * 256, rows;
    int pinned = is_pinned(d, from, row * (uint64_t)shape[0]);
    gpu_piece *piece = NULL;
    gpu_launch launch = {.grid.groups = {1, 1, 1}};
    int code = gpu_function_find(d, p->kernel, &launch.function);
    for (int64_t at = 0; !code && at < shape[0]; at += rows) {
        const uint8_t *part = from + row * (uint64_t)at;
        gpu_call call = {.n_in = 1};
        rows = shape[0] - at < most ? shape[0] - at : most;
        code = pinned ? next_device_piece(d, &piece) : next_piece(d, &piece);
        if (code || (code = give_device(d, piece)))
            break;
        if (!pinned)
            part = memcpy(piece->host, part, row * (uint64_t)rows);
        call.v[0] =
            (gpu_view){.data = to, .shape = {1, (int32_t)rows, (int32_t)shape[1], 1}, .count = -1, .format = p->format};
        call.v[1] = (gpu_view){.data = piece->device,
                               .stride = row,
                               .shape = {(int32_t)rows, (int32_t)shape[1], 1, 1},
                               .count = -1,
                               .format = p->format};
        p->grid(&call, &d->traits, &launch.grid);
        code = pack_piece(d, piece, part, row * (uint64_t)rows, &launch, &call);
        to += p->bytes(rows, shape[1], &d->traits);
    }
    return code;
}

int gpu_pack(hal_buffer *to, uint64_t offset, uint32_t format, int64_t stack, int64_t rows, int64_t columns,
             const void *from) {
    hal_device *d = to->device;
    const gpu_packing *p = gpu_packing_of(d, format);
    uint64_t size = gpu_packed(d, format, stack, rows, columns), row = source_row(format, columns), each;
    int64_t shape[2] = {rows, columns};
    int code;
    if (!p || !size || !row || row > GPU_PIECE / 256)
        return hal_fail(HAL_E_INVALID, "pack: format %u of %lld columns has no order of its own here", format,
                        (long long)columns);
    if (stack > 1 && rows % 256 == 0 && gpu_packed(d, format, 1, stack * rows, columns) == size) {
        shape[0] *= stack; /* its matrices lie as one does: they share pieces and launches */
        stack = 1;
    }
    each = row * (uint64_t)shape[0];
    if ((code = hal_in_bounds(to->size, offset, size, "pack")) || (code = gpu_lock(d)))
        return code;
    code = begin_upload(to);
    for (int64_t i = 0; !code && i < stack; i++)
        code = pack_rows(d, p, to->at + offset + size / (uint64_t)stack * (uint64_t)i, shape,
                         (const uint8_t *)from + each * (uint64_t)i);
    code = end_upload(to, code);
    gpu_unlock(d);
    return code;
}

int gpu_pin(hal_device *d, const void *host, uint64_t size, int writable) {
    enum { READ_ONLY = 8 /* of CU_MEMHOSTREGISTER and hipHostRegister */ };
    gpu_pinned *more;
    int code;
    if (!d->api.pin || !d->api.unpin)
        return hal_fail(HAL_E_UNSUPPORTED, "the driver locks no memory of others");
    if ((code = gpu_lock(d)))
        return code;
    if (!(more = realloc(d->pinned, sizeof *more * (size_t)(d->n_pinned + 1)))) {
        code = hal_fail(HAL_E_MEMORY, "no memory for a list");
    } else {
        d->pinned = more;
        code = gpu_check(d, d->api.pin((void *)(uintptr_t)host, size, writable ? 0 : READ_ONLY),
                         "locking pages of host memory");
        if (!code)
            more[d->n_pinned++] = (gpu_pinned){host, size};
    }
    gpu_unlock(d);
    return code;
}

int gpu_unpin(hal_device *d, const void *host) {
    int i = 0, code = gpu_lock(d);
    if (code)
        return code;
    while (i < d->n_pinned && d->pinned[i].at != (const uint8_t *)host)
        i++;
    if (i == d->n_pinned) {
        code = hal_fail(HAL_E_INVALID, "unpin: these pages are not locked");
    } else {
        code = gpu_check(d, d->api.finish(d->side), "waiting for weights that are sent");
        if (!code)
            code = gpu_check(d, d->api.finish(d->packer), "waiting for weights that are sent");
        if (!code)
            code = gpu_check(d, d->api.unpin((void *)(uintptr_t)host), "unlocking pages of host memory");
        d->pinned[i] = d->pinned[--d->n_pinned];
    }
    gpu_unlock(d);
    return code;
}
