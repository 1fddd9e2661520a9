/* model.h: an open model: the mapped file, its plans compiled for a context and a number of slots, and what the slots hold.
 *
 * `lock` is held by a caller that reads or writes what stands below it. */
#ifndef SATCHEL_EMBED_MODEL_H
#define SATCHEL_EMBED_MODEL_H

#include <pthread.h>

#include "blocks.h"
#include "file_map.h"
#include "grammar.h"
#include "satchel.h"
#include "template_section.h"
#include "words.h"
#include "worker.h"

/* A compiled plan. */
typedef struct {
    uint32_t tokens, rows, what; /* what: OUTPUT_ */
    uint64_t output;
    block_layout layout;
    uint8_t *block; /* the step block */
    hal_buffer *step, *consts;
    hal_exec *exec;
} program;

struct satchel_model {
    worker *worker;     /* NULL: this library computes; else the plan, its programs and blocks are none */
    int32_t vocabulary; /* tokens that may be sampled */
    int32_t embedding;  /* numbers of a text's vector; 0: the model generates text */
    const hal_backend *backend;
    hal_device *device;
    file_map map;
    gguf_file gguf;
    plan_section plan;
    words words;
    trie *trie;        /* NULL until a grammar needs it */
    tpl_template chat; /* head NULL: the file has none */
    cache_size size;
    int has_panels; /* packed weights are in the mapped file */
    hal_buffer *mapped, *packed, *state, *arena, *out;
    program programs[MOST_PLANS];
    int n_programs;
    char kernels[32];
    pthread_mutex_t lock;
    blocks blocks;
    int32_t *tokens[MOST_SLOTS]; /* of the positions that a slot has */
    uint64_t used[MOST_SLOTS], uses;
    struct satchel_reply *replies[MOST_SLOTS]; /* of each slot, NULL: it is free */
};

/* Opens everything but the slots' replies, over a map that it ends. path: for errors. On failure nothing is kept, the map neither, and
 * the code is one of satchel.h. */
int model_open(const char *path, const file_map *, const satchel_model_options *, satchel_model *);
/* The same in a worker process, which opens the file by its path. */
int model_open_in_worker(const char *path, const satchel_model_options *, satchel_model *);
void model_close(satchel_model *);

/* The code of satchel.h for a HAL_E_ code of a step or an open device. */
int model_code(int code);

#endif
