/* grammar.c: see grammar.h. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "grammar.h"
#include "trie.h"

/* CONFIGS: of a set. NODES: of stacks. CALLS: without a byte between them. VISITS: nodes of the trie and places that one token's mask
 * may take: a walk over a vocabulary of 250,000 tokens takes some 2 * 10^6. KEPT: states whose tokens are remembered. */
enum { CONFIGS = 128, NODES = 1 << 16, CALLS = 256, VISITS = 1 << 26, KEPT = 128, HASH = 1 << 12 };
/* MUST_COME: bytes that are looked ahead. LOOK_BACK: tokens at their end that longer ones may replace. */
enum { MUST_COME = 1024, LOOK_BACK = 4, LONGEST_TOKEN = 1024 };
enum { EMPTY = 0 }; /* the stack of nothing */

/* A stack: where its rule's caller goes on, and the stack below. */
typedef struct {
    uint32_t state, below;
} stack_node;
typedef struct {
    uint32_t state, stack;
} config;
typedef struct {
    uint32_t n, complete; /* complete: the text may end here */
    config list[CONFIGS];
} config_set;

/* Stacks in growing memory. Equal ones are found again in most cases, so that sets do not grow by copies. */
typedef struct {
    stack_node *nodes;
    uint32_t n, room;
    uint32_t found[HASH];
} stacks;

/* What a state allows, whatever its stack is: tokens; and nodes of the trie at which the rule is over, so that the stack says what
 * may follow. */
typedef struct {
    uint32_t state, n_over, room;
    uint32_t *bitmask, *over;
} known;

struct grammar {
    automaton a;
    uint32_t start, words;
    const trie *trie;
    known kept[KEPT];
    uint32_t n_kept, oldest;
    config_set *sets; /* of each depth of a walk */
    uint32_t *marks;  /* stacks at each depth */
    stacks work;
    uint64_t visits; /* that are left */
    int fault;
    config_set after; /* behind bytes that must come */
};

struct place {
    grammar *grammar;
    int32_t last; /* token; -1: none yet */
    config_set now;
    stacks stacks;
};

static int too_large(grammar *g) {
    g->fault = 1;
    return 0;
}

static int fault(void) {
    return hal_fail(HAL_E_INVALID, "grammar: it is too ambiguous, or nested too deeply; make it simpler");
}

/* Before each piece of work. */
static void begin(grammar *g) {
    g->fault = 0;
    g->visits = VISITS;
}

/* --- stacks and sets */

/* The stack `below` with a state on it; EMPTY with a fault where there is no room. */
static uint32_t push(grammar *g, stacks *s, uint32_t state, uint32_t below) {
    uint32_t *at = s->found + (state * 2654435761u ^ below * 40503u) % HASH;
    if (*at && *at < s->n && s->nodes[*at].state == state && s->nodes[*at].below == below)
        return *at;
    if (s->n == s->room) {
        uint32_t room = s->room ? 2 * s->room : 64;
        stack_node *grown = room > NODES ? NULL : realloc(s->nodes, room * sizeof *grown);
        if (!grown)
            return (uint32_t)too_large(g);
        s->nodes = grown;
        s->room = room;
    }
    s->n += !s->n; /* number 0 is the empty one */
    s->nodes[s->n] = (stack_node){state, below};
    return *at = s->n++;
}

static int is_in(const config_set *set, config c) {
    for (uint32_t i = 0; i < set->n; i++)
        if (set->list[i].state == c.state && set->list[i].stack == c.stack)
            return 1;
    return 0;
}

/* Whether nothing but the rule's end follows a state. */
static int is_end(const automaton *a, uint32_t state) {
    const grammar_state *s = a->states + state;
    return s->final && s->first_range == s[1].first_range && s->first_call == s[1].first_call;
}

/* Adds a place and all that it becomes without a byte. */
static void add(grammar *g, stacks *s, config_set *set, config c, int calls) {
    const grammar_state *state = g->a.states + c.state;
    if (g->fault || is_in(set, c))
        return;
    if (set->n == CONFIGS || calls == CALLS || !g->visits--) {
        too_large(g);
        return;
    }
    set->list[set->n++] = c;
    if (state->final && c.stack == EMPTY)
        set->complete = 1;
    else if (state->final)
        add(g, s, set, (config){s->nodes[c.stack].state, s->nodes[c.stack].below}, calls + 1);
    for (uint32_t i = state->first_call; i < state[1].first_call && !g->fault; i++) {
        const grammar_call *call = g->a.calls + i;
        uint32_t stack = is_end(&g->a, call->to) ? c.stack : push(g, s, call->to, c.stack);
        add(g, s, set, (config){g->a.starts[call->rule], stack}, calls + 1);
    }
}

/* The set after a byte. */
static void step(grammar *g, stacks *s, const config_set *from, uint8_t byte, config_set *to) {
    to->n = to->complete = 0;
    for (uint32_t i = 0; i < from->n && !g->fault; i++) {
        const grammar_state *state = g->a.states + from->list[i].state;
        uint32_t low = state->first_range, high = state[1].first_range;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (g->a.ranges[middle].high < byte)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < state[1].first_range && g->a.ranges[low].low <= byte)
            add(g, s, to, (config){g->a.ranges[low].to, from->list[i].stack}, 0);
    }
}

/* --- masks */

static void allow(const grammar *g, const trie_node *node, uint32_t *bitmask) {
    for (uint32_t i = node->first; i < node->first + node->n_here; i++)
        bitmask[g->trie->tokens[i] / 32] |= 1u << g->trie->tokens[i] % 32;
}

static int note(grammar *g, known *k, uint32_t node) {
    if (k->n_over == k->room) {
        uint32_t room = k->room ? 2 * k->room : 64, *grown = realloc(k->over, room * sizeof *grown);
        if (!grown)
            return too_large(g);
        k->over = grown;
        k->room = room;
    }
    k->over[k->n_over++] = node;
    return 1;
}

/* Allows the tokens below a node of the trie, where the set at the node's depth is given. over: notes where the text may end. Without
 * a bitmask: whether there is such a token. */
static int walk(grammar *g, stacks *s, uint32_t node, uint32_t *bitmask, known *over) {
    const trie_node *nodes = g->trie->nodes;
    uint32_t end = nodes[node].next;
    g->marks[nodes[node].depth] = s->n;
    for (uint32_t i = node + 1; i < end && !g->fault;) {
        uint32_t depth = nodes[i].depth;
        config_set *set = g->sets + depth;
        s->n = g->marks[depth - 1];
        if (!g->visits--)
            too_large(g);
        step(g, s, set - 1, nodes[i].byte, set);
        g->marks[depth] = s->n;
        if (!set->n) {
            i = nodes[i].next;
            continue;
        }
        if (!bitmask && nodes[i].n_here)
            return 1;
        if (bitmask)
            allow(g, nodes + i, bitmask);
        if (over && set->complete)
            note(g, over, i);
        i++;
    }
    return 0;
}

/* What a state allows, found or remembered; NULL with a fault. */
static const known *find(grammar *g, uint32_t state) {
    known *k;
    for (uint32_t i = 0; i < g->n_kept; i++)
        if (g->kept[i].state == state)
            return g->kept + i;
    k = g->kept + (g->n_kept < KEPT ? g->n_kept++ : g->oldest++ % KEPT);
    k->state = UINT32_MAX;
    k->n_over = 0;
    if (!k->bitmask && !(k->bitmask = malloc(4 * (size_t)g->words))) {
        too_large(g);
        return NULL;
    }
    memset(k->bitmask, 0, 4 * (size_t)g->words);
    g->work.n = 0;
    g->sets->n = g->sets->complete = 0;
    g->sets->list[g->sets->n++] = (config){state, EMPTY}; /* what it becomes without a byte is in the caller's set */
    walk(g, &g->work, 0, k->bitmask, k);
    if (g->fault)
        return NULL;
    k->state = state;
    return k;
}

/* The tokens of which the bytes may come. */
static int fill(place *p, uint32_t *bitmask) {
    grammar *g = p->grammar;
    memset(bitmask, 0, 4 * (size_t)g->words);
    begin(g);
    for (uint32_t i = 0; i < p->now.n; i++) {
        config c = p->now.list[i];
        const grammar_state *s = g->a.states + c.state;
        const known *k;
        if (s->first_range == s[1].first_range) /* no byte follows here: what it calls is in the set, too */
            continue;
        if (!(k = find(g, c.state)))
            return fault();
        for (uint32_t w = 0; w < g->words; w++)
            bitmask[w] |= k->bitmask[w];
        for (uint32_t e = 0; e < k->n_over && c.stack != EMPTY; e++) {
            const trie_node *node = g->trie->nodes + k->over[e];
            uint32_t mark = p->stacks.n;
            config_set *set = g->sets + node->depth;
            set->n = set->complete = 0;
            add(g, &p->stacks, set, (config){p->stacks.nodes[c.stack].state, p->stacks.nodes[c.stack].below}, 0);
            walk(g, &p->stacks, k->over[e], bitmask, NULL);
            p->stacks.n = mark;
            if (g->fault)
                return fault();
        }
    }
    return 0;
}

/* --- what must come */

/* The only byte that may come in a set; -1: there are others, or the text may end. */
static int only_byte(const grammar *g, const config_set *set) {
    int found = -1;
    for (uint32_t i = 0; i < set->n && !set->complete; i++) {
        const grammar_state *s = g->a.states + set->list[i].state;
        for (uint32_t k = s->first_range; k < s[1].first_range; k++) {
            const grammar_range *r = g->a.ranges + k;
            if (r->low != r->high || (found >= 0 && found != r->low))
                return -1;
            found = r->low;
        }
    }
    return found;
}

/* The bytes that must come, at most `room`; what may follow them is in g->after. */
static size_t must_come(place *p, uint8_t *bytes, size_t room) {
    grammar *g = p->grammar;
    size_t n = 0;
    g->after = p->now;
    for (int byte = only_byte(g, &g->after); byte >= 0 && n < room; byte = only_byte(g, &g->after)) {
        *g->sets = g->after;
        step(g, &p->stacks, g->sets, (uint8_t)byte, &g->after);
        bytes[n++] = (uint8_t)byte;
    }
    return g->fault ? 0 : n;
}

/* Whether a token that is longer than these bytes, the last ones that must come, may follow. */
static int may_extend(place *p, const uint8_t *bytes, size_t size) {
    grammar *g = p->grammar;
    const trie_node *nodes = g->trie->nodes;
    uint32_t at = 0, mark = p->stacks.n;
    int found;
    for (size_t i = 0; i < size; i++) {
        uint32_t end = nodes[at].next;
        for (at++; at < end && nodes[at].byte != bytes[i]; at = nodes[at].next)
            continue;
        if (at >= end)
            return 0;
    }
    g->sets[size] = g->after;
    found = walk(g, &p->stacks, at, NULL, NULL);
    p->stacks.n = mark;
    return found;
}

/* Appends the tokens of bytes: of text, and of what is left of cut characters. */
static int encode(const words *w, const uint8_t *bytes, size_t size, token_list *out) {
    size_t begin = 0, end = size;
    int code = 0;
    while (begin < size && (bytes[begin] & 0xC0) == 0x80)
        begin++;
    while (end > begin && size - end < 3 && (bytes[end - 1] & 0xC0) == 0x80)
        end--;
    if (end > begin && bytes[end - 1] >= 0xC0) {
        size_t whole = bytes[end - 1] >= 0xF0 ? 4 : bytes[end - 1] >= 0xE0 ? 3 : 2;
        end = size - (end - 1) < whole ? end - 1 : size;
    } else {
        end = size;
    }
    for (size_t i = 0; i < size && !code; i++) {
        if (i == begin && end > begin) {
            code =
                words_encode(w, (const char *)bytes + begin, (int64_t)(end - begin), WORDS_BARE | WORDS_CONTINUES, out);
            i = end - 1;
        } else if (w->byte_tokens[bytes[i]] >= 0) {
            code = token_list_add(out, w->byte_tokens[bytes[i]]);
        }
    }
    return code;
}

/* How many of the last tokens of bytes that must come may come otherwise, because a longer token may be there. */
static int64_t uncertain(place *p, const words *w, const int32_t *ids, int64_t count) {
    uint8_t end[LOOK_BACK * LONGEST_TOKEN];
    size_t size = 0, most = p->grammar->trie->most_depth, sum = 0;
    for (int64_t i = count < LOOK_BACK ? 0 : count - LOOK_BACK; i < count; i++) {
        gguf_bytes bytes = words_token(w, ids[i], 1);
        if (bytes.size > LONGEST_TOKEN)
            return count;
        memcpy(end + size, bytes.data, bytes.size);
        size += bytes.size;
    }
    for (size_t at = size > most ? size - most : 0; at < size; at++) {
        if (!may_extend(p, end + at, size - at))
            continue;
        for (int64_t n = 1; n <= count; n++)
            if ((sum += words_token(w, ids[count - n], 1).size) >= size - at)
                return n;
        return count;
    }
    return 0;
}

/* The token that must come; -1: there is a choice. */
static int32_t only_token(place *p, const words *w) {
    uint8_t bytes[LONGEST_TOKEN + MUST_COME];
    gguf_bytes before = words_token(w, p->last, 1); /* of no token: none */
    token_list list = {0};
    uint32_t mark = p->stacks.n;
    size_t size;
    int64_t known = p->last >= 0;
    int32_t found = -1;
    begin(p->grammar);
    if (before.size > LONGEST_TOKEN || !(size = must_come(p, bytes + before.size, MUST_COME)))
        return -1;
    memcpy(bytes, before.data, before.size);
    if (known && (encode(w, bytes, before.size + size, &list) || !list.n || list.ids[0] != p->last))
        known = list.n = 0;
    if (known || !encode(w, bytes + before.size, size, &list))
        if (list.n - known > uncertain(p, w, list.ids + known, list.n - known))
            found = list.ids[known];
    free(list.ids);
    p->stacks.n = mark;
    return found;
}

int place_fill(place *p, const words *w, uint32_t *bitmask) {
    int code = fill(p, bitmask);
    int32_t token = code ? -1 : only_token(p, w);
    if (token < 0 || !(bitmask[token / 32] & 1u << token % 32))
        return code;
    memset(bitmask, 0, 4 * (size_t)p->grammar->words);
    bitmask[token / 32] = 1u << token % 32;
    return 0;
}

/* --- places */

/* Copies the stack that a set needs into fresh memory. moved: of each old node its new one, 0: none yet. */
static uint32_t copy_stack(grammar *g, const stacks *from, stacks *to, uint32_t *moved, uint32_t stack) {
    uint32_t depth = 0, at = stack, *path = moved + from->n;
    while (at != EMPTY && !moved[at]) {
        path[depth++] = at;
        at = from->nodes[at].below;
    }
    at = at == EMPTY ? EMPTY : moved[at];
    while (depth && !g->fault) {
        uint32_t old = path[--depth];
        at = moved[old] = push(g, to, from->nodes[old].state, at);
    }
    return at;
}

/* Gives back the memory of stacks that no config has. */
static void compact(grammar *g, place *p) {
    stacks fresh = {0};
    uint32_t *moved = p->stacks.n ? calloc(2 * (size_t)p->stacks.n, sizeof *moved) : NULL;
    if (!p->stacks.n)
        return;
    if (!moved) {
        too_large(g);
        return;
    }
    for (uint32_t i = 0; i < p->now.n; i++)
        p->now.list[i].stack = copy_stack(g, &p->stacks, &fresh, moved, p->now.list[i].stack);
    free(moved);
    free(p->stacks.nodes);
    p->stacks = fresh;
}

int place_take(place *p, const words *w, int32_t id) {
    gguf_bytes token = words_token(w, id, 1);
    grammar *g = p->grammar;
    config_set *sets[2] = {&p->now, g->sets};
    begin(g);
    for (uint64_t i = 0; i < token.size; i++) {
        step(g, &p->stacks, sets[i % 2], token.data[i], sets[(i + 1) % 2]);
        if (g->fault)
            return fault();
        if (!sets[(i + 1) % 2]->n)
            return hal_fail(HAL_E_INVALID, "grammar: a token came that it does not allow");
    }
    if (token.size % 2)
        p->now = *g->sets;
    p->last = id;
    compact(g, p);
    return g->fault ? fault() : 0;
}

int place_is_complete(const place *p) {
    return (int)p->now.complete;
}

int place_is_finished(const place *p) {
    const automaton *a = &p->grammar->a;
    for (uint32_t i = 0; i < p->now.n; i++)
        if (a->states[p->now.list[i].state].first_range < a->states[p->now.list[i].state + 1].first_range)
            return 0;
    return 1;
}

int place_open(grammar *g, place **out) {
    place *p = calloc(1, sizeof *p);
    if (!p)
        return hal_fail(HAL_E_MEMORY, "no memory for an answer in a grammar");
    p->grammar = g;
    p->last = -1;
    begin(g);
    add(g, &p->stacks, &p->now, (config){g->a.starts[g->start], EMPTY}, 0);
    if (g->fault) {
        place_free(p);
        return fault();
    }
    *out = p;
    return 0;
}

void place_free(place *p) {
    if (!p)
        return;
    free(p->stacks.nodes);
    free(p);
}

/* --- grammars */

int grammar_open(automaton a, uint32_t start, const trie *t, uint32_t words, grammar **out) {
    grammar *g = calloc(1, sizeof *g);
    place *first = NULL;
    int code;
    if (!g) {
        automaton_free(&a);
        return hal_fail(HAL_E_MEMORY, "no memory for a grammar");
    }
    *g = (grammar){.a = a, .start = start, .words = words, .trie = t};
    g->sets = malloc(((size_t)t->most_depth + 1) * sizeof *g->sets);
    g->marks = malloc(((size_t)t->most_depth + 1) * sizeof *g->marks);
    code = g->sets && g->marks ? place_open(g, &first) : hal_fail(HAL_E_MEMORY, "no memory for a grammar");
    place_free(first);
    if (code)
        grammar_free(g);
    else
        *out = g;
    return code;
}

void grammar_free(grammar *g) {
    if (!g)
        return;
    for (uint32_t i = 0; i < KEPT; i++) {
        free(g->kept[i].bitmask);
        free(g->kept[i].over);
    }
    free(g->sets);
    free(g->marks);
    free(g->work.nodes);
    automaton_free(&g->a);
    free(g);
}
