/* blocks.c: see blocks.h. */
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "error.h"

enum { GONE = -1 };

static int32_t up(int32_t n, int32_t block) {
    return n / block + (n % block != 0);
}

/* The first block that the token at `position` needs; of a recurrent state, that of the position before. */
static int32_t needed(const block_group *g, int32_t position, int32_t block) {
    int64_t back = g->window == WINDOW_RECURRENT ? 1 : g->window ? (int64_t)g->window - 1 : position;
    return back < position ? (int32_t)((position - back) / block) : 0;
}

int32_t blocks_pool(uint32_t window, int32_t slots, int32_t width, int32_t block, int32_t batch) {
    int64_t whole = (int64_t)slots * width, each;
    if (window == WINDOW_RECURRENT)
        return slots * (width < 2 ? width : 2);
    each = (int64_t)slots * (up((int32_t)window, block) + 3) + up(batch, block);
    whole = window && each < whole ? each : whole;
    return whole > INT32_MAX ? -1 : (int32_t)whole;
}

int blocks_open(const plan_section *s, const cache_size *c, blocks *b) {
    *b = (blocks){.n_groups = (int32_t)s->head->n_groups, .slots = c->slots, .width = c->width};
    b->block = (int32_t)s->head->block;
    for (int k = 0; k < b->n_groups; k++) {
        block_group *g = b->groups + k;
        g->window = s->groups[k].window;
        g->table = calloc((size_t)c->slots * (size_t)c->width, sizeof *g->table);
        g->free = calloc((size_t)c->pools[k], sizeof *g->free);
        if (!g->table || !g->free) {
            blocks_free(b);
            return hal_fail(HAL_E_MEMORY, "no memory for block tables of %d slots", c->slots);
        }
        for (g->n_free = 0; g->n_free < c->pools[k]; g->n_free++)
            g->free[g->n_free] = c->pools[k] - 1 - g->n_free;
    }
    return 0;
}

void blocks_free(blocks *b) {
    for (int k = 0; k < b->n_groups; k++) {
        free(b->groups[k].table);
        free(b->groups[k].free);
    }
    *b = (blocks){0};
}

static void drop(block_group *g, int32_t *entry) {
    if (*entry != GONE)
        g->free[g->n_free++] = *entry;
    *entry = GONE;
}

int32_t blocks_reach(const blocks *b, int32_t slot, int32_t length) {
    for (int k = 0; k < b->n_groups; k++) {
        const block_group *g = b->groups + k;
        if (g->window == WINDOW_RECURRENT ? length != b->lengths[slot] : needed(g, length, b->block) < g->first[slot])
            return 0;
    }
    return length;
}

void blocks_cut(blocks *b, int32_t slot, int32_t length) {
    int32_t keep = up(length, b->block);
    for (int k = 0; k < b->n_groups; k++) {
        block_group *g = b->groups + k;
        int32_t *row = g->table + (size_t)slot * (size_t)b->width;
        while (g->end[slot] > keep)
            drop(g, row + --g->end[slot]);
        g->first[slot] = g->first[slot] < keep ? g->first[slot] : keep;
    }
    b->lengths[slot] = length;
}

void blocks_span(const blocks *b, int group, int32_t length, int32_t *first, int32_t *end) {
    *end = up(length, b->block);
    *first = needed(b->groups + group, length, b->block);
    *first = *first < *end ? *first : *end;
}

int blocks_restore(blocks *b, int32_t slot, int32_t length) {
    blocks_cut(b, slot, 0);
    for (int k = 0; k < b->n_groups; k++) {
        block_group *g = b->groups + k;
        int32_t *row = g->table + (size_t)slot * (size_t)b->width;
        blocks_span(b, k, length, &g->first[slot], &g->end[slot]);
        for (int32_t i = 0; i < g->end[slot]; i++) {
            if (i >= g->first[slot] && !g->n_free) {
                g->end[slot] = i;
                blocks_cut(b, slot, 0);
                return hal_fail(HAL_E_MEMORY, "no block of window %u is free", g->window);
            }
            row[i] = i >= g->first[slot] ? g->free[--g->n_free] : GONE;
        }
    }
    b->lengths[slot] = length;
    return 0;
}

static int advance(block_group *g, const blocks *b, int32_t slot, int32_t end) {
    int32_t *row = g->table + (size_t)slot * (size_t)b->width, last = up(end, b->block);
    int32_t from = needed(g, b->lengths[slot], b->block);
    for (; g->first[slot] < from && g->first[slot] < g->end[slot]; g->first[slot]++)
        drop(g, row + g->first[slot]);
    for (; g->end[slot] < last; g->end[slot]++) {
        int wanted = g->window != WINDOW_RECURRENT || g->end[slot] == last - 1;
        if (wanted && !g->n_free)
            return hal_fail(HAL_E_INVALID, "no block of window %u is free", g->window);
        row[g->end[slot]] = wanted ? g->free[--g->n_free] : GONE;
    }
    return 0;
}

int blocks_advance(blocks *b, int32_t slot, int32_t end) {
    for (int k = 0; k < b->n_groups; k++) {
        int code = advance(b->groups + k, b, slot, end);
        if (code)
            return code;
    }
    b->lengths[slot] = end;
    return 0;
}
