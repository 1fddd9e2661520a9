/* file_map.h: the bytes of a model: a file or a part of it, mapped to be read, or memory of the caller's. */
#ifndef SATCHEL_EMBED_FILE_MAP_H
#define SATCHEL_EMBED_FILE_MAP_H

#include <stdint.h>

/* Parts begin at multiples of these bytes: kernels read aligned rows. */
#define FILE_MAP_ALIGN 64
#define FILE_MAP_REST UINT64_MAX /* size of a part that reaches to the file's end */

typedef struct {
    uint8_t *data;
    uint64_t size;
    uint8_t *base; /* of the mapping, which begins at a page; NULL: the caller's memory */
    uint64_t length;
} file_map;

/* Maps a part of a file. On failure nothing is kept, and the code is one of satchel.h. file_map_close() ends it. */
int file_map_open(const char *path, uint64_t offset, uint64_t size, file_map *out);
/* Takes memory that outlives the map. */
int file_map_memory(const void *data, uint64_t size, file_map *out);
/* Gives pages back that nothing reads again: offset and size within the data. */
void file_map_forget(const file_map *, uint64_t offset, uint64_t size);
void file_map_close(file_map *);

#endif
