/* merge.c: see merge.h. A heap holds every pair that may be merged, with some that are outdated: a symbol only grows, so a pair whose
 * sizes no longer add up is one of these. Each merge takes one symbol away and offers two pairs. */
#include <stdlib.h>

#include "error.h"
#include "merge.h"

int merge_begin(merger *m, uint64_t size) {
    merge_symbol *symbols;
    merge_pair *heap;
    m->n = m->n_heap = 0;
    if (size <= m->room)
        return 0;
    symbols = realloc(m->symbols, size * sizeof *symbols);
    m->symbols = symbols ? symbols : m->symbols;
    heap = realloc(m->heap, 3 * size * sizeof *heap);
    m->heap = heap ? heap : m->heap;
    if (!symbols || !heap)
        return hal_fail(HAL_E_MEMORY, "no memory for a word of %llu bytes", (unsigned long long)size);
    m->room = size;
    return 0;
}

void merge_end(merger *m) {
    free(m->symbols);
    free(m->heap);
    m->symbols = NULL;
    m->heap = NULL;
    m->room = 0;
}

void merge_add(merger *m, int32_t token, uint32_t at, uint32_t size) {
    uint32_t i = m->n++;
    m->symbols[i] = (merge_symbol){token, at, size, i ? i - 1 : NOWHERE, NOWHERE};
    if (i)
        m->symbols[i - 1].after = i;
}

static int before(const merge_pair *a, const merge_pair *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

static void heap_add(merger *m, merge_pair p) {
    uint32_t i = m->n_heap++;
    for (; i && before(&p, m->heap + (i - 1) / 2); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = p;
}

static merge_pair heap_take(merger *m) {
    merge_pair first = m->heap[0], last = m->heap[--m->n_heap];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < m->n_heap && before(m->heap + child + 1, m->heap + child))
            child++;
        if (child >= m->n_heap || !before(m->heap + child, &last))
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return first;
}

/* Adds the pair of the symbol at `place` and the one after it, if it may be merged. */
static void offer(merger *m, merge_rule *rule, uint32_t place) {
    const merge_symbol *left = m->symbols + place, *right;
    merge_pair p;
    if (place == NOWHERE || left->after == NOWHERE)
        return;
    right = m->symbols + left->after;
    if (rule(m, left, right, &p)) {
        p.place = place;
        p.size = left->size + right->size;
        heap_add(m, p);
    }
}

void merge_all(merger *m, merge_rule *rule) {
    for (uint32_t i = 0; i < m->n; i++)
        offer(m, rule, i);
    while (m->n_heap) {
        merge_pair p = heap_take(m);
        merge_symbol *left = m->symbols + p.place, *right;
        if (!left->size || left->after == NOWHERE)
            continue;
        right = m->symbols + left->after;
        if (left->size + right->size != p.size)
            continue;
        left->token = p.made;
        left->size = p.size;
        left->after = right->after;
        if (right->after != NOWHERE)
            m->symbols[right->after].before = p.place;
        right->size = 0;
        offer(m, rule, left->before);
        offer(m, rule, p.place);
    }
}
