/* trie.h: the bytes of all ordinary tokens as a trie, in the order of a walk that goes down first. */
#ifndef SATCHEL_EMBED_TRIE_H
#define SATCHEL_EMBED_TRIE_H

#include <stdint.h>

typedef struct {
    uint32_t next;          /* the node behind this one's descendants */
    uint32_t first, n_here; /* of `tokens`: those that end here */
    uint16_t depth;         /* bytes up to here */
    uint8_t byte;
} trie_node;

struct trie {
    trie_node *nodes; /* the first one is the root, of no byte */
    int32_t *tokens;  /* by their bytes */
    uint32_t n_nodes, n_tokens, most_depth;
};

#endif
