/* plan_section.h: the section satchel.plan, checked, and its plans relocated to a context and a number of slots. */
#ifndef SATCHEL_EMBED_PLAN_SECTION_H
#define SATCHEL_EMBED_PLAN_SECTION_H

#include "gguf.h"
#include "sections.h"

enum { MOST_GROUPS = 16, MOST_PLANS = 64, MOST_VARIANTS = 8, MOST_SLOTS = 64 };

typedef struct {
    const plan_entry *entry;
    const plan_field *fields;
    const hal_step *steps;
    const plan_view *views;
    const hal_op *ops;
    const uint8_t *args, *consts;
} plan_tables;

/* The section. It owns an aligned copy of the bytes, into which the others point. */
typedef struct {
    uint8_t *copy;
    const plan_head *head;
    const char *names;
    const plan_weight *weights;
    const plan_state *states;
    const plan_group *groups;
    plan_tables plans[MOST_PLANS];
} plan_section;

/* Reads and checks the section of this file; on failure nothing is kept. plan_section_free() ends it. */
int plan_section_read(const gguf_file *, plan_section *out);
void plan_section_free(plan_section *);

/* A size of the cache. */
typedef struct {
    int32_t context, slots, width; /* width: blocks of a slot */
    int32_t pools[MOST_GROUPS];    /* blocks of each layer group */
} cache_size;

/* Where a plan's inputs stand in the step block, by number; of tables, by layer group. */
typedef struct {
    uint64_t fields[N_FIELDS], tables[MOST_GROUPS], size;
} block_layout;

/* Bytes of all states. offsets: of each state, n_states numbers. */
uint64_t plan_states(const plan_section *, const cache_size *, uint64_t *offsets);
/* The step block of a plan; an error where a field has not the size that its contents take. */
int plan_block(const plan_section *, const plan_tables *, const cache_size *, block_layout *out);
/* The views of a plan for this size, n_views of them. weights: the place of each in its buffer. What they say is checked by
 * compile(). */
void plan_views(const plan_section *, const plan_tables *, const cache_size *, const uint64_t *states,
                const uint64_t *weights, hal_view *out);

#endif
