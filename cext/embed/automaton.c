/* automaton.c: the tables of grammars: sections, which are hostile input, and JSON. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "grammar.h"
#include "section_tables.h"

enum { MOST_RULES = 1 << 16, MOST_TABLE = 1 << 22, INDENT = 24 };

static int wrong(const char *what) {
    return hal_fail(HAL_E_INVALID, "satchel.grammar: %s; build the file again with `satchel build`", what);
}

static int check_states(const automaton *a) {
    const grammar_state *last = a->states + a->n_states;
    if (a->states->first_range || a->states->first_call || last->first_range != a->n_ranges ||
        last->first_call != a->n_calls)
        return wrong("its states do not have its edges");
    for (uint32_t i = 0; i < a->n_states; i++) {
        const grammar_state *s = a->states + i;
        if (s->first_range > s[1].first_range || s->first_call > s[1].first_call || s[1].first_range > a->n_ranges ||
            s[1].first_call > a->n_calls)
            return wrong("its states are out of order");
        for (uint32_t k = s->first_range; k < s[1].first_range; k++)
            if (a->ranges[k].low > a->ranges[k].high || a->ranges[k].to >= a->n_states ||
                (k > s->first_range && a->ranges[k].low <= a->ranges[k - 1].high))
                return wrong("an edge is out of order or range");
    }
    for (uint32_t i = 0; i < a->n_calls; i++)
        if (a->calls[i].rule >= a->n_rules || a->calls[i].to >= a->n_states)
            return wrong("a call is out of range");
    for (uint32_t i = 0; i < a->n_rules; i++)
        if (a->starts[i] >= a->n_states)
            return wrong("a rule is out of range");
    return 0;
}

static int read_section(gguf_bytes section, automaton *a) {
    tables t = {a->owned, 0, section.size, 0};
    const grammar_head *h = next(&t, 1, sizeof *h);
    if (!h)
        return wrong("it is too short");
    if (memcmp(h->magic, "SATGRA01", 8) || h->size != section.size)
        return wrong("expected a grammar of this version, of as many bytes as it says");
    if (h->crc != gguf_crc(0, (const uint8_t *)h + 16, h->size - 16))
        return wrong("its checksum is wrong: the file is damaged");
    if (!h->n_rules || h->n_rules > MOST_RULES || !h->n_states || h->n_states > MOST_TABLE ||
        h->n_ranges > MOST_TABLE || h->n_calls > MOST_TABLE)
        return wrong("expected some rules and states, and not too many");
    a->n_rules = h->n_rules;
    a->n_states = h->n_states;
    a->n_ranges = h->n_ranges;
    a->n_calls = h->n_calls;
    a->starts = next(&t, h->n_rules, sizeof *a->starts);
    a->states = next(&t, (uint64_t)h->n_states + 1, sizeof *a->states);
    a->ranges = next(&t, h->n_ranges, sizeof *a->ranges);
    a->calls = next(&t, h->n_calls, sizeof *a->calls);
    return t.failed || t.at != t.size ? wrong("its tables have another size than it says") : check_states(a);
}

int automaton_read(gguf_bytes section, automaton *a) {
    int code;
    *a = (automaton){0};
    if (section.size > UINT32_MAX)
        return wrong("it is too long");
    if (!(a->owned = malloc(section.size + 8)))
        return hal_fail(HAL_E_MEMORY, "no memory for a grammar of %llu bytes", (unsigned long long)section.size);
    memcpy(a->owned, section.data, section.size);
    if ((code = read_section(section, a)))
        automaton_free(a);
    return code;
}

void automaton_free(automaton *a) {
    free(a->owned);
    *a = (automaton){0};
}

/* --- JSON */

/* Object, array, value, string; the end of any rule; white space. */
enum {
    O0,
    O1,
    O2,
    O3,
    O4,
    O5,
    O6,
    O7,
    O8,
    O9,
    O10,
    A0,
    A1,
    A2,
    A3,
    A4,
    A5,
    A6,
    V0,
    N1,
    N2,
    N3,
    N4,
    N5,
    N6,
    N7,
    N8,
    T1,
    T2,
    T3,
    F1,
    F2,
    F3,
    F4,
    U1,
    U2,
    U3,
    Q0,
    Q1,
    Q2,
    Q3,
    Q4,
    Q5,
    Q6,
    Q7,
    Q8,
    Q9,
    END,
    WS,
    FIXED_STATES
};
enum { OBJECT, VALUE, ARRAY, STRING, SPACES, JSON_RULES };
enum { JSON_STATES = FIXED_STATES + INDENT + 1, JSON_RANGES = 128, JSON_CALLS = 32 };

/* By their states, then their bytes. */
static const struct {
    uint8_t from, low, high, to;
} edges[] = {
    {O0, '{', '{', O1},   {O2, '}', '}', END},  {O4, ':', ':', O5},   {O8, ',', ',', O9},   {O8, '}', '}', END},
    {A0, '[', '[', A1},   {A2, ']', ']', END},  {A4, ',', ',', A5},   {A4, ']', ']', END},  {V0, '-', '-', N1},
    {V0, '0', '0', N2},   {V0, '1', '9', N3},   {V0, 'f', 'f', F1},   {V0, 'n', 'n', U1},   {V0, 't', 't', T1},
    {N1, '0', '0', N2},   {N1, '1', '9', N3},   {N2, '.', '.', N4},   {N2, 'E', 'E', N6},   {N2, 'e', 'e', N6},
    {N3, '.', '.', N4},   {N3, '0', '9', N3},   {N3, 'E', 'E', N6},   {N3, 'e', 'e', N6},   {N4, '0', '9', N5},
    {N5, '0', '9', N5},   {N5, 'E', 'E', N6},   {N5, 'e', 'e', N6},   {N6, '+', '+', N7},   {N6, '-', '-', N7},
    {N6, '0', '9', N8},   {N7, '0', '9', N8},   {N8, '0', '9', N8},   {T1, 'r', 'r', T2},   {T2, 'u', 'u', T3},
    {T3, 'e', 'e', END},  {F1, 'a', 'a', F2},   {F2, 'l', 'l', F3},   {F3, 's', 's', F4},   {F4, 'e', 'e', END},
    {U1, 'u', 'u', U2},   {U2, 'l', 'l', U3},   {U3, 'l', 'l', END},  {Q0, '"', '"', Q1},   {Q1, ' ', '!', Q1},
    {Q1, '"', '"', END},  {Q1, '#', '[', Q1},   {Q1, '\\', '\\', Q2}, {Q1, ']', '~', Q1},   {Q1, 0xC2, 0xDF, Q3},
    {Q1, 0xE0, 0xE0, Q4}, {Q1, 0xE1, 0xEC, Q5}, {Q1, 0xED, 0xED, Q6}, {Q1, 0xEE, 0xEF, Q5}, {Q1, 0xF0, 0xF0, Q7},
    {Q1, 0xF1, 0xF3, Q8}, {Q1, 0xF4, 0xF4, Q9}, {Q2, '"', '"', Q1},   {Q2, '\\', '\\', Q1}, {Q2, 'b', 'b', Q1},
    {Q2, 'f', 'f', Q1},   {Q2, 'n', 'n', Q1},   {Q2, 'r', 'r', Q1},   {Q2, 't', 't', Q1},   {Q3, 0x80, 0xBF, Q1},
    {Q4, 0xA0, 0xBF, Q3}, {Q5, 0x80, 0xBF, Q3}, {Q6, 0x80, 0x9F, Q3}, {Q7, 0x90, 0xBF, Q5}, {Q8, 0x80, 0xBF, Q5},
    {Q9, 0x80, 0x8F, Q5}};
static const struct {
    uint8_t from, rule, to;
} calls[] = {{O1, SPACES, O2}, {O2, STRING, O3},  {O3, SPACES, O4},  {O5, SPACES, O6},
             {O6, VALUE, O7},  {O7, SPACES, O8},  {O9, SPACES, O10}, {O10, STRING, O3},
             {A1, SPACES, A2}, {A2, VALUE, A3},   {A3, SPACES, A4},  {A5, SPACES, A6},
             {A6, VALUE, A3},  {V0, OBJECT, END}, {V0, ARRAY, END},  {V0, STRING, END}};
static const uint8_t finals[] = {N2, N3, N5, N8, END, WS};

/* The tables in one piece of memory. */
typedef struct {
    uint32_t starts[JSON_RULES];
    grammar_state states[JSON_STATES + 1];
    grammar_range ranges[JSON_RANGES];
    grammar_call calls[JSON_CALLS];
} json_tables;

int automaton_json(int spaces, automaton *a) {
    json_tables *t = calloc(1, sizeof *t);
    uint32_t n = 0, k = 0;
    if (!t)
        return hal_fail(HAL_E_MEMORY, "no memory for the grammar of JSON");
    for (uint32_t i = 0; i < JSON_STATES; i++) {
        t->states[i] = (grammar_state){.first_range = n, .first_call = k, .final = i > WS};
        for (size_t e = 0; e < sizeof finals; e++)
            t->states[i].final |= finals[e] == i;
        for (size_t e = 0; e < sizeof edges / sizeof *edges; e++)
            if (edges[e].from == i)
                t->ranges[n++] = (grammar_range){edges[e].low, edges[e].high, 0, edges[e].to};
        for (size_t e = 0; e < sizeof calls / sizeof *calls; e++)
            if (calls[e].from == i)
                t->calls[k++] = (grammar_call){calls[e].rule, calls[e].to};
        if (i == WS && spaces) {
            t->ranges[n++] = (grammar_range){'\n', '\n', 0, FIXED_STATES};
            t->ranges[n++] = (grammar_range){' ', ' ', 0, END};
        } else if (i > WS && i + 1 < JSON_STATES) { /* the next place of the indent */
            t->ranges[n++] = (grammar_range){'\t', '\t', 0, i + 1};
            t->ranges[n++] = (grammar_range){' ', ' ', 0, i + 1};
        }
    }
    t->states[JSON_STATES] = (grammar_state){.first_range = n, .first_call = k};
    memcpy(t->starts, (uint32_t[]){O0, V0, A0, Q0, WS}, sizeof t->starts);
    *a = (automaton){t, t->starts, t->states, t->ranges, t->calls, JSON_RULES, JSON_STATES, n, k};
    return 0;
}
