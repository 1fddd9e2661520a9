/* bundle.h: a model that `satchel bundle` put behind a program: where it lies in the program's own file.
 *
 * The model begins at a multiple of BUNDLE_ALIGN, so that every system can map it, and a footer ends the file. In a signed program
 * for Windows the footer ends where the certificate table begins, because signing appends that. cli/bundles/footer.py writes it. */
#ifndef SATCHEL_EMBED_BUNDLE_H
#define SATCHEL_EMBED_BUNDLE_H

#include <stdint.h>

#define BUNDLE_MAGIC "SATBNDL1"
#define BUNDLE_ALIGN 65536
enum { BUNDLE_SERVE = 1 }; /* flag: the program serves, where it is told nothing else */

typedef struct {
    char magic[8];
    uint32_t flags, crc; /* crc: CRC-32 of the footer, with 0 in its place */
    uint64_t offset, size;
    uint8_t digest[32]; /* SHA-256 of the model, for programs that inspect the file */
} bundle_footer;

typedef struct {
    char path[4096]; /* of the file, UTF-8 */
    uint64_t offset, size;
    uint32_t flags;
} bundle;

/* The model of this process's own program. On failure the code is one of satchel.h. */
int bundle_find(bundle *out);
/* The same for a program's file. */
int bundle_read(const char *path, bundle *out);

#endif
