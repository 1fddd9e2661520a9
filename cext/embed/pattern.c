/* pattern.c: see pattern.h. A choice on the stack is an alternative to go on at, or a run of one class that may end earlier. */
#include <stdlib.h>

#include "error.h"
#include "pattern.h"

enum { MOST_DEPTH = 8, MOST_STACK = 1 << 22, FIRST_STACK = 64, NONE = -1 };

typedef struct pattern_choice {
    uint32_t code;
    int64_t at, least; /* a run may still end at positions from `least` to at - 1; least > at - 1: go on at `at` */
    int run;
} pattern_choice;

const char *pattern_check(const pattern_set *s) {
    for (uint32_t i = 0; i < s->n_classes; i++) {
        pattern_class c = s->classes[i];
        if (c.first > s->n_ranges || c.count > s->n_ranges - c.first)
            return "a class's ranges are out of range";
        for (uint32_t k = 0; k < c.count; k++) {
            pattern_range r = s->ranges[c.first + k];
            if (r.low > r.high || (k && r.low <= s->ranges[c.first + k - 1].high))
                return "a class's ranges do not rise";
        }
    }
    for (uint32_t i = 0; i < s->n_code; i++) {
        pattern_code c = s->code[i];
        int last = i + 1 == s->n_code;
        if (c.op >= N_PATTERN_OPS || (last && c.op != PATTERN_MATCH))
            return "a pattern's code does not end";
        if (((c.op == PATTERN_CLASS || c.op == PATTERN_BORDER) && c.a >= s->n_classes) ||
            ((c.op == PATTERN_RUN || c.op == PATTERN_HOLD) && (c.c >= s->n_classes || c.a > c.b)) ||
            ((c.op == PATTERN_SPLIT || c.op == PATTERN_JUMP || c.op == PATTERN_LOOK) && c.a >= s->n_code) ||
            (c.op == PATTERN_SPLIT && c.b >= s->n_code) || (c.op == PATTERN_LOOK && c.c > LOOK_NOT_BEHIND))
            return "a pattern's code is out of range";
    }
    return NULL;
}

void pattern_end(pattern_run *r) {
    free(r->stack);
    r->stack = NULL;
    r->room = 0;
}

int pattern_holds(const pattern_set *s, uint32_t number, uint32_t point) {
    const pattern_range *ranges = s->ranges + s->classes[number].first;
    uint32_t low = 0, high = s->classes[number].count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (point > ranges[middle].high)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s->classes[number].count && point >= ranges[low].low;
}

static int push(pattern_run *r, uint32_t *depth, pattern_choice choice) {
    if (*depth == r->room) {
        uint32_t room = r->room ? r->room * 2 : FIRST_STACK;
        pattern_choice *grown = room > MOST_STACK ? NULL : realloc(r->stack, room * sizeof *grown);
        if (!grown)
            return hal_fail(HAL_E_MEMORY, "no memory for the choices of a pattern");
        r->stack = grown;
        r->room = room;
    }
    r->stack[(*depth)++] = choice;
    return 0;
}

static int64_t match(pattern_run *r, uint32_t code, const uint32_t *text, int64_t size, int64_t at, uint32_t base,
                     int nested);

/* Whether a look-around holds at `at`; an error code below 0. */
static int look(pattern_run *r, uint32_t code, const uint32_t *text, int64_t size, int64_t at, uint32_t base,
                int nested) {
    uint32_t how = r->set->code[code].c;
    int behind = how == LOOK_BEHIND || how == LOOK_NOT_BEHIND;
    int64_t found = NONE;
    if (!behind)
        found = match(r, code + 1, text, size, at, base, nested + 1);
    else if (at > 0)
        found = match(r, code + 1, text, at, at - 1, base, nested + 1);
    if (found < NONE)
        return (int)found;
    return (found >= 0) == (how == LOOK_AHEAD || how == LOOK_BEHIND);
}

/* The last choice that is left: sets where to go on. 0: there is none above `base`. */
static int back(pattern_run *r, uint32_t *depth, uint32_t base, uint32_t *code, int64_t *at) {
    pattern_choice *c;
    if (*depth == base)
        return 0;
    c = r->stack + *depth - 1;
    *code = c->code;
    *at = c->run ? --c->at : c->at;
    if (!c->run || c->at <= c->least)
        (*depth)--;
    return 1;
}

/* Whether a condition on the place `at` alone holds. */
static int anchored(const pattern_run *r, const pattern_code *c, const uint32_t *text, int64_t size, int64_t at) {
    if (c->op == PATTERN_START)
        return at == r->search;
    if (c->op == PATTERN_LINE_END)
        return at == size || text[at] == '\n';
    return (at > 0 && pattern_holds(r->set, c->a, text[at - 1])) !=
           (at < size && pattern_holds(r->set, c->a, text[at]));
}

/* Matches from `code` on. base: choices of the stack below it belong to others. */
static int64_t match(pattern_run *r, uint32_t code, const uint32_t *text, int64_t size, int64_t at, uint32_t base,
                     int nested) {
    const pattern_set *s = r->set;
    uint32_t depth = base;
    if (nested > MOST_DEPTH)
        return hal_fail(HAL_E_INVALID, "a pattern's look-arounds are nested too deeply");
    for (;;) {
        pattern_code c = s->code[code];
        int failed = 0, found;
        int64_t end = at;
        if (!r->steps--)
            return r->steps = 0, hal_fail(HAL_E_INVALID, "a pattern takes too long for this text");
        switch (c.op) {
        case PATTERN_MATCH:
            return at;
        case PATTERN_CLASS:
            failed = at >= size || !pattern_holds(s, c.a, text[at]);
            at += !failed;
            code++;
            break;
        case PATTERN_SPLIT:
            if ((found = push(r, &depth, (pattern_choice){.code = c.b, .at = at})))
                return found;
            code = c.a;
            break;
        case PATTERN_JUMP:
            code = c.a;
            break;
        case PATTERN_RUN:
        case PATTERN_HOLD:
            while (end < size && end - at < (int64_t)c.b && pattern_holds(s, c.c, text[end]))
                end++;
            r->steps -= r->steps < (uint64_t)(end - at) / 8 ? r->steps : (uint64_t)(end - at) / 8;
            failed = end - at < (int64_t)c.a;
            code++;
            if (!failed && c.op == PATTERN_RUN && end - at > (int64_t)c.a &&
                (found =
                     push(r, &depth, (pattern_choice){.code = code, .at = end, .least = at + (int64_t)c.a, .run = 1})))
                return found;
            at = end;
            break;
        case PATTERN_START:
        case PATTERN_BORDER:
        case PATTERN_LINE_END:
            failed = !anchored(r, &c, text, size, at);
            code++;
            break;
        default:
            found = look(r, code, text, size, at, depth, nested);
            if (found < 0)
                return found;
            failed = !found;
            code = c.a;
        }
        if (failed && !back(r, &depth, base, &code, &at))
            return NONE;
    }
}

int64_t pattern_match(pattern_run *r, uint32_t start, const uint32_t *text, int64_t size, int64_t at) {
    return match(r, start, text, size, at, 0, 0);
}
