/* trie.c: see trie.h. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "grammar.h"
#include "trie.h"

enum { LONGEST = 1024 }; /* bytes of a token; longer ones never come within a grammar */

typedef struct {
    gguf_bytes bytes;
    int32_t token;
} entry;

static int by_bytes(const void *a, const void *b) {
    const entry *x = a, *y = b;
    uint64_t common = x->bytes.size < y->bytes.size ? x->bytes.size : y->bytes.size;
    int order = memcmp(x->bytes.data, y->bytes.data, common);
    if (order)
        return order;
    if (x->bytes.size != y->bytes.size)
        return x->bytes.size < y->bytes.size ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static uint64_t common(gguf_bytes a, gguf_bytes b) {
    uint64_t n = 0;
    while (n < a.size && n < b.size && a.data[n] == b.data[n])
        n++;
    return n;
}

/* Writes the nodes of the sorted entries. path: the node at each depth. */
static void build(trie *t, const entry *entries, uint32_t count, uint32_t *path) {
    gguf_bytes before = {NULL, 0};
    t->nodes[0] = (trie_node){0};
    t->n_nodes = 1;
    path[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        gguf_bytes now = entries[i].bytes;
        uint64_t depth = before.data ? common(before, now) : 0;
        for (uint64_t d = before.size; d > depth; d--)
            t->nodes[path[d]].next = t->n_nodes;
        for (uint64_t d = depth; d < now.size; d++) {
            path[d + 1] = t->n_nodes;
            t->nodes[t->n_nodes++] = (trie_node){.first = i, .depth = (uint16_t)(d + 1), .byte = now.data[d]};
        }
        t->nodes[path[now.size]].n_here++;
        t->tokens[i] = entries[i].token;
        before = now;
    }
    for (uint64_t d = before.size + 1; d-- > 0;)
        t->nodes[path[d]].next = t->n_nodes;
}

int trie_open(const words *w, trie **out) {
    uint32_t most = w->head->n_tokens, n = 0;
    uint64_t nodes = 1;
    entry *entries = malloc(((size_t)most + 1) * sizeof *entries);
    uint32_t *path = malloc((LONGEST + 1) * sizeof *path);
    trie *t = calloc(1, sizeof *t);
    for (uint32_t i = 0; entries && i < most; i++) {
        gguf_bytes bytes = words_token(w, (int32_t)i, 1);
        if (!(w->flags[i] & TOKEN_PLAIN) || !bytes.size || bytes.size > LONGEST)
            continue;
        entries[n++] = (entry){bytes, (int32_t)i};
        nodes += bytes.size;
    }
    if (entries)
        qsort(entries, n, sizeof *entries, by_bytes);
    for (uint32_t i = 1; entries && i < n; i++)
        nodes -= common(entries[i - 1].bytes, entries[i].bytes);
    if (entries && path && t && (t->nodes = calloc(nodes, sizeof *t->nodes)) &&
        (t->tokens = malloc(((size_t)n + 1) * sizeof *t->tokens))) {
        t->n_tokens = n;
        build(t, entries, n, path);
        for (uint32_t i = 0; i < t->n_nodes; i++)
            t->most_depth = t->nodes[i].depth > t->most_depth ? t->nodes[i].depth : t->most_depth;
        *out = t;
        t = NULL;
    }
    free(entries);
    free(path);
    if (!t)
        return 0;
    trie_free(t);
    return hal_fail(HAL_E_MEMORY, "no memory for a trie of %u tokens", n);
}

void trie_free(trie *t) {
    if (!t)
        return;
    free(t->nodes);
    free(t->tokens);
    free(t);
}
