/* measure.c: measures a GPU's memory bandwidth by copies within its memory. A copied byte counts twice, once read and once
 * written. The fastest of several passes counts, because the result stands for the hardware's limit.
 */
#include "device.h"

enum { PASSES = 8, LEAST_US = 2000 /* shortest pass: launch overhead is negligible */ };

/* Seconds that `copies` copies of one half of the memory to the other take, by the device's events. */
static int time_copies(hal_device *d, gpu_address at, uint64_t half, int copies, gpu_event *marks, double *seconds) {
    float ms = 0;
    int code = gpu_check(d, d->api.record(marks[0], d->main), "an event");
    for (int i = 0; !code && i < copies; i++)
        code =
            gpu_check(d, d->api.copy(at + (i % 2 ? 0 : half), at + (i % 2 ? half : 0), half, d->main), "copying bytes");
    if (!code)
        code = gpu_check(d, d->api.record(marks[1], d->main), "an event");
    if (!code)
        code = gpu_check(d, d->api.wait(marks[1]), "waiting for copies");
    if (!code)
        code = gpu_check(d, d->api.elapsed(&ms, marks[0], marks[1]), "the time of copies");
    *seconds = ms / 1e3;
    return code;
}

static int best_copies(hal_device *d, gpu_address at, uint64_t half, gpu_event *marks, double *per_second) {
    int copies = 1, code = 0;
    *per_second = 0;
    for (int pass = 0; !code && pass < PASSES;) {
        double seconds, rate;
        if ((code = time_copies(d, at, half, copies, marks, &seconds)))
            break;
        if (seconds < LEAST_US / 1e6 && copies < 1 << 14) {
            copies *= 2;
            continue;
        }
        rate = seconds > 0 ? 2.0 * (double)half * copies / seconds : 0;
        *per_second = rate > *per_second ? rate : *per_second;
        pass++;
    }
    return code;
}

int gpu_measure(hal_device *d, uint32_t what, uint64_t bytes, double *per_second) {
    uint64_t half = bytes / 2 > 4096 ? bytes / 2 : 4096;
    gpu_event marks[2] = {0};
    gpu_address at = 0;
    int code;
    if (what != HAL_MEASURE_READ)
        return hal_fail(HAL_E_UNSUPPORTED, "measure: a GPU's multiply-adds are not measured");
    if ((code = gpu_lock(d)))
        return code;
    code = gpu_settle(d);
    if (!code)
        code = gpu_check(d, d->api.alloc(&at, 2 * half), "memory for a measure");
    for (int i = 0; !code && i < 2; i++)
        code = gpu_check(d, d->api.event(marks + i, 0), "an event");
    if (!code)
        code = gpu_check(d, d->api.fill(at, 1, 2 * half, d->main), "filling memory");
    if (!code)
        code = best_copies(d, at, half, marks, per_second);
    for (int i = 0; i < 2; i++)
        if (marks[i])
            d->api.end_event(marks[i]);
    if (at)
        d->api.free(at);
    gpu_unlock(d);
    return code;
}
