/* sample_edits.k.h: the parts of a sampling chain that look up single tokens, for a group of threads: edits of logits, penalties. */
#ifndef SATCHEL_SAMPLE_EDITS_K_H
#define SATCHEL_SAMPLE_EDITS_K_H

#include "sample_set.k.h"

#include "sample_stages.k.h"

/* Whether `good` holds in all threads. */
FN int all_say(self m, THREAD const set *s, int good) {
    return sum_of_all(m, s, !good) == 0;
}

FN int add_edits(self m, THREAD set *s, DEVICE const int32_t *edits, int n, int vocabulary) {
    DEVICE float *x;
    int good = 1;
    if (n == 0)
        return 1;
    x = writable(m, s);
    for (int i = m.thread; i < n; i += m.threads) {
        int token = edits[2 * i], at, before = 0;
        float amount = f32_from_bits((uint32_t)edits[2 * i + 1]);
        if (!inside(token, vocabulary) || amount != amount) {
            good = 0;
            continue;
        }
        for (int j = 0; j < i && !before; j++)
            before = edits[2 * j] == token;
        at = before ? -1 : place_of(s, token);
        for (int j = i; j < n && at >= 0; j++)
            if (edits[2 * j] == token)
                x[at] = lifted(x[at], f32_from_bits((uint32_t)edits[2 * j + 1]));
    }
    return all_say(m, s, good);
}

FN void stage_penalties(self m, THREAD set *s, THREAD row_facts *r) {
    int n = history_of(r), good = r->ring != NULL;
    DEVICE float *x;
    r->bad_index = !good;
    if (!good)
        return;
    x = writable(m, s);
    for (int i = m.thread; i < n; i += m.threads) {
        int token = r->ring[(r->pos - i) % r->width], count = 0, before = 0, at;
        good = good && inside(token, r->vocabulary);
        for (int j = 0; j < n && !before; j++) {
            int same = r->ring[(r->pos - j) % r->width] == token;
            before = same && j < i;
            count += same;
        }
        if (good && !before && (at = place_of(s, token)) >= 0)
            x[at] = penalized(x[at], count, r);
    }
    r->bad_index = !all_say(m, s, good);
    changed(m, s);
}

#endif
