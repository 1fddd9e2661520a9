/* blocks.h: which block of each layer group's pool holds which positions of which slot. A slot's blocks are its own.
 *
 * Blocks that no later token attends to go back to the pool; of a recurrent state, the pages before the one that the next token
 * continues from. Table entries without a block are -1. */
#ifndef SATCHEL_EMBED_BLOCKS_H
#define SATCHEL_EMBED_BLOCKS_H

#include "plan_section.h"

typedef struct {
    uint32_t window;
    int32_t *table; /* slots rows of `width` blocks */
    int32_t *free;
    int32_t n_free;
    int32_t first[MOST_SLOTS], end[MOST_SLOTS]; /* of each slot, the entries in use */
} block_group;

typedef struct {
    int32_t n_groups, slots, width, block;
    int32_t lengths[MOST_SLOTS]; /* positions that a slot has */
    block_group groups[MOST_GROUPS];
} blocks;

/* Blocks that a group needs so that every slot finds its own in any step. */
int32_t blocks_pool(uint32_t window, int32_t slots, int32_t width, int32_t block, int32_t batch);
int blocks_open(const plan_section *, const cache_size *, blocks *out);
void blocks_free(blocks *);
/* The most positions, up to `length`, that the slot can go back to. */
int32_t blocks_reach(const blocks *, int32_t slot, int32_t length);
/* Keeps the first `length` positions, which blocks_reach() gave. */
void blocks_cut(blocks *, int32_t slot, int32_t length);
/* Called before positions from the slot's length up to `end` are computed: gives back and takes blocks; then its length is `end`. */
int blocks_advance(blocks *, int32_t slot, int32_t end);
/* The entries of the group's table that a slot of `length` positions needs so that its next token can be computed. */
void blocks_span(const blocks *, int group, int32_t length, int32_t *first, int32_t *end);
/* Gives the slot the blocks of `length` positions, whose contents the caller fills. */
int blocks_restore(blocks *, int32_t slot, int32_t length);

#endif
