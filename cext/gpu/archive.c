/* archive.c: takes from an archive of compiled kernels (pack.py, which has its layout) what fits a device, and loads it.
 *
 * Of each name one image is loaded, the first of these that the driver takes: machine code for this very capability; that of
 * the same major and the highest minor that is not above the device's; a list from which the driver takes one by itself; PTX
 * of the highest capability, which it compiles; a source, which the vendor's run-time compiler does. Without an image of the
 * first name, the portable kernels, the device cannot be used; without another one the portable kernels compute in its place.
 *
 * A device that passes for an older one (vendor.h's lower()) takes lowered images alone: machine code of its own, of what the
 * compiler makes for the older one.
 */
#include "archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inflate.h"
#include "os.h"

enum { EXACT, FAMILY, LIST, PTX, SOURCE, LOWERED }; /* in the order of the above */
enum { PAGE = 4096 /* code objects are mapped where they lie */, OUT_OF_MEMORY = 2 };

typedef struct {
    char magic[8];
    uint32_t n, driver; /* images; the lowest version of the driver's API that loads them, 0: any */
} archive_head;

typedef struct {
    char name[24], arch[64];
    uint32_t kind, number;     /* number: ten times the compute capability */
    uint64_t at, stored, size; /* place in the archive; bytes there and unpacked */
} archive_image;

static const archive_head *head_of(const hal_device *d) {
    return d->vendor->archive;
}

static const archive_image *image_of(const archive_head *head, uint32_t i) {
    return (const archive_image *)(head + 1) + i;
}

static int fits(const hal_device *d, const archive_image *image) {
    uint32_t arch = (uint32_t)d->traits.arch;
    if (d->traits.lowered != (image->kind == LOWERED))
        return 0;
    switch (image->kind) {
    case EXACT:
        return image->number == arch;
    case FAMILY:
    case LOWERED:
        return image->number / 10 == arch / 10 && image->number <= arch;
    case SOURCE:
        return d->vendor->compile != NULL;
    default:
        return image->number <= arch;
    }
}

/* Of images with one name, the one of the lowest rank is tried first. */
static int64_t rank_of(const archive_image *image) {
    return (int64_t)image->kind << 32 | (UINT32_MAX - image->number);
}

/* The image of this name that fits and has the lowest rank above `last`; NULL: there is none. */
static const archive_image *next_image(const hal_device *d, const char *name, int64_t last) {
    const archive_head *head = head_of(d);
    const archive_image *best = NULL;
    for (uint32_t i = 0; i < head->n; i++) {
        const archive_image *image = image_of(head, i);
        if (!strcmp(image->name, name) && fits(d, image) && rank_of(image) > last &&
            (!best || rank_of(image) < rank_of(best)))
            best = image;
    }
    return best;
}

/* --- words */

static void add(char *out, size_t room, const char *before, const char *word) {
    size_t n = strlen(out);
    snprintf(out + n, room - n, "%s%s", n ? before : "", word);
}

/* Describes an image that is loaded. A vendor's code objects may each have a kernel that tells which one the driver took. */
static void name_image(hal_device *d, const archive_image *image) {
    char word[sizeof image->arch], kernel[sizeof image->arch + 8];
    gpu_function unused;
    int length = 0;
    switch (image->kind) {
    case PTX:
        snprintf(d->image, sizeof d->image, "PTX of %s, compiled by the driver", image->arch);
        return;
    case SOURCE:
        snprintf(d->image, sizeof d->image, "compiled when the device was opened");
        return;
    case LIST:
        for (const char *at = image->arch; sscanf(at, " %63s%n", word, &length) == 1; at += length) {
            snprintf(kernel, sizeof kernel, "image_%s", word);
            if (!gpu_function_find(d, kernel, &unused)) {
                snprintf(d->image, sizeof d->image, "%s", word);
                return;
            }
        }
        snprintf(d->image, sizeof d->image, "the driver's choice of %s", image->arch);
        return;
    default:
        snprintf(d->image, sizeof d->image, "%s", image->arch);
    }
}

/* The images of the first name, which every device needs. */
static void list_images(const hal_device *d, char *out, size_t room) {
    const archive_head *head = head_of(d);
    *out = 0;
    for (uint32_t i = 0; i < head->n; i++)
        if (!strcmp(image_of(head, i)->name, image_of(head, 0)->name) && image_of(head, i)->kind != SOURCE)
            add(out, room, ", ", image_of(head, i)->arch);
}

static int no_image(const hal_device *d, const char *tried) {
    char have[256];
    list_images(d, have, sizeof have);
    return hal_fail(
        HAL_E_UNSUPPORTED,
        "no kernels were built for this device (compute capability %d.%d%s): the library has those for %s%s%s",
        d->traits.arch / 10, d->traits.arch % 10,
        d->traits.lowered ? ", for which it passes; that needs a build with SATCHEL_CUDA_LOWERED" : "", have,
        *tried ? "; " : "", tried);
}

/* --- loading */

/* The unpacked image, with a zero after it; *why where there is none. Free it with os_free(). */
static void *unpacked(const hal_device *d, const archive_image *image, const char **why) {
    uint64_t room = (image->size / PAGE + 1) * PAGE;
    uint8_t *out = os_alloc(PAGE, room);
    *why = "there is no memory to unpack it";
    if (!out)
        return NULL;
    *why = "it is damaged in the library";
    memset(out + image->size, 0, room - image->size);
    if (!gpu_inflate((const uint8_t *)head_of(d) + image->at, image->stored, out, image->size))
        return out;
    os_free(out);
    return NULL;
}

/* Loads an image as module n. 0; 1 and *why: the driver does not take it, another one may do; a HAL_E_ code. */
static int load_image(hal_device *d, const archive_image *image, int n, const char **why) {
    static _Thread_local char refused[64];
    void *data = unpacked(d, image, why);
    int code;
    if (data && image->kind == SOURCE) {
        void *text = data;
        data = d->vendor->compile(text, &d->traits, why);
        os_free(text);
    }
    if (!data)
        return 1;
    code = d->api.load(d->modules + n, data);
    d->unpacked[n] = data; /* stays as long as the module: a driver may read it later */
    if (!code)
        return 0;
    d->modules[n] = NULL;
    d->unpacked[n] = NULL;
    os_free(data);
    if (code == OUT_OF_MEMORY)
        return gpu_check(d, code, "loading kernels");
    snprintf(refused, sizeof refused, "the driver gave error %d", code);
    *why = refused;
    return 1;
}

/* Loads the best image of a name as module n. 0, or a HAL_E_ code; HAL_E_UNSUPPORTED: no image can be used. */
static int load_name(hal_device *d, const char *name, int n) {
    char tried[512] = "", line[160];
    int64_t last = -1;
    for (const archive_image *image; (image = next_image(d, name, last)); last = rank_of(image)) {
        const char *why;
        int code = load_image(d, image, n, &why);
        if (code <= 0) {
            if (!code && !n)
                name_image(d, image);
            return code;
        }
        snprintf(line, sizeof line, "%s: %.90s", image->arch, why);
        add(tried, sizeof tried, "; ", line);
    }
    return no_image(d, tried);
}

/* 0, or why the installed driver is too old. CUDA 12's images need the driver that came with it, or a newer one. */
static int check_driver(const hal_device *d) {
    uint32_t needed = head_of(d)->driver;
    int version = 0;
    if (!needed || !d->api.version || d->api.version(&version) || (uint32_t)version >= needed)
        return 0;
    return hal_fail(HAL_E_UNSUPPORTED,
                    "the driver is too old: it knows CUDA %d.%d, and these kernels need CUDA %u.%u, for which NVIDIA's "
                    "driver must be %s or newer",
                    version / 1000, version % 1000 / 10, needed / 1000, needed % 1000 / 10,
                    needed < 13000 ? "525" : "580");
}

int gpu_load_archive(hal_device *d) {
    const archive_head *head = head_of(d);
    int n = 0, missing = 0, code = check_driver(d);
    for (uint32_t i = 0; !code && i < head->n; i++) {
        const char *name = image_of(head, i)->name;
        int seen = 0;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = !strcmp(image_of(head, k)->name, name);
        if (seen || (n && !next_image(d, name, -1)))
            continue;
        if (n == GPU_MODULES)
            return hal_fail(HAL_E_UNSUPPORTED, "the library has more files of kernels than %d", GPU_MODULES);
        code = load_name(d, name, n);
        if (code == HAL_E_UNSUPPORTED && n) {
            missing += next_image(d, name, -1)->kind < LIST; /* a list may lack the device */
            code = 0;
        } else
            n += !code;
    }
    if (!code && missing) {
        char text[80];
        snprintf(text, sizeof text, "%d of %d files of kernels refused", missing, n + missing);
        add(d->image, sizeof d->image, "; ", text);
    }
    return code;
}
