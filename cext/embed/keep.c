/* keep.c: satchel_save() and satchel_load(): the bytes of saved.c to and from memory and files. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "file.h"
#include "reply.h"
#include "saved.h"

static int argument(const char *what) {
    return hal_fail(SATCHEL_E_ARGUMENT, "%s", what);
}

static int lacking(void) {
    return hal_fail(SATCHEL_E_LACKS, "saved conversations: a worker process has none; open the model in this library");
}

/* The reply's prompt and the tokens that its caller has had: those of its slot, and at most one that is not computed yet. */
static int64_t conversation(const satchel_reply *r, int32_t **out) {
    const satchel_model *m = r->model;
    int64_t have = m->blocks.lengths[r->slot], count = r->n_prompt + r->made, n = 0;
    int32_t *ids = malloc((size_t)(count > have ? count : have) * sizeof *ids + sizeof *ids);
    if (!(*out = ids))
        return hal_fail(SATCHEL_E_MEMORY, "no memory for %lld tokens", (long long)count);
    for (; n < have; n++)
        ids[n] = m->tokens[r->slot][n];
    for (; n < r->n_prompt; n++)
        ids[n] = r->prompt[n];
    for (; n < count; n++)
        ids[n] = r->last;
    return n;
}

/* Writes the reply's slot; with a stream of nothing it gives the size alone. */
static int64_t save(satchel_reply *r, saved_stream *s) {
    satchel_model *m = r->model;
    int32_t *ids = NULL;
    int64_t count, size;
    int code = 0;
    if (m->worker)
        return lacking();
    pthread_mutex_lock(&m->lock);
    if (r->failed)
        count = hal_fail(r->failed, "the reply ended with an error: there is nothing to save");
    else
        count = conversation(r, &ids);
    size = count < 0 ? count : (int64_t)saved_size(m, count, m->blocks.lengths[r->slot]);
    if (!size)
        size = SATCHEL_E_FILE;
    if (size > 0 && (s->file || s->size >= (uint64_t)size))
        code = saved_write(m, r->slot, ids, count, s);
    pthread_mutex_unlock(&m->lock);
    free(ids);
    return code ? code : size;
}

int64_t satchel_save(satchel_reply *r, void *bytes, int64_t room) {
    saved_stream s = {.bytes = bytes, .size = room > 0 && bytes ? (uint64_t)room : 0};
    return r ? save(r, &s) : argument("satchel_save: expected a reply, got NULL");
}

int64_t satchel_save_file(satchel_reply *r, const char *path) {
    saved_stream s = {0};
    char *part;
    int64_t size;
    if (!r || !path)
        return argument("satchel_save_file: expected a reply and a path, got NULL");
    if (!(part = malloc(strlen(path) + sizeof ".part")))
        return hal_fail(SATCHEL_E_MEMORY, "no memory for a path");
    strcpy(part, path);
    strcat(part, ".part");
    if (!(s.file = file_write(part))) {
        size = hal_fail(SATCHEL_E_FILE, "%s: can't be written: %s", part, strerror(errno));
        free(part);
        return size;
    }
    size = save(r, &s);
    if (fflush(s.file) && size > 0)
        size = hal_fail(SATCHEL_E_FILE, "%s: can't be written: %s", part, strerror(errno));
    fclose(s.file);
    if (size > 0 && file_replace(part, path))
        size = hal_fail(SATCHEL_E_FILE, "%s: can't be written: %s", path, strerror(errno));
    if (size < 0)
        file_remove(part);
    free(part);
    return size;
}

static int64_t load(satchel_model *m, saved_stream *s, int32_t *to, int64_t room) {
    int32_t *ids = NULL;
    int64_t count;
    if (m->worker)
        return lacking();
    pthread_mutex_lock(&m->lock);
    count = saved_read(m, s, &ids);
    pthread_mutex_unlock(&m->lock);
    if (count > 0 && room > 0 && to)
        memcpy(to, ids, sizeof *to * (size_t)(count < room ? count : room));
    free(ids);
    return count;
}

int64_t satchel_load(satchel_model *m, const void *bytes, int64_t size, int32_t *ids, int64_t room) {
    saved_stream s = {.bytes = (uint8_t *)(uintptr_t)bytes, .size = size > 0 ? (uint64_t)size : 0};
    if (!m || !bytes)
        return argument("satchel_load: expected a model and bytes, got NULL");
    return load(m, &s, ids, room);
}

int64_t satchel_load_file(satchel_model *m, const char *path, int32_t *ids, int64_t room) {
    saved_stream s = {0};
    int64_t count;
    long size = -1;
    if (!m || !path)
        return argument("satchel_load_file: expected a model and a path, got NULL");
    if (!(s.file = file_read(path)))
        return hal_fail(SATCHEL_E_FILE, "%s: can't be read: %s", path, strerror(errno));
    if (fseek(s.file, 0, SEEK_END) || (size = ftell(s.file)) < 0 || fseek(s.file, 0, SEEK_SET)) {
        count = hal_fail(SATCHEL_E_FILE, "%s: can't be read: %s", path, strerror(errno));
    } else {
        s.size = (uint64_t)size;
        count = load(m, &s, ids, room);
    }
    fclose(s.file);
    return count;
}
