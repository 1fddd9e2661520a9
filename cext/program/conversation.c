/* conversation.c: see conversation.h. A model that knows <|im_start|> gets ChatML; every other one a plain dialogue, which its next
 * "User:" ends. The text of a message never becomes a control token. */
#include <stdlib.h>
#include <string.h>

#include "conversation.h"

typedef struct {
    int32_t *ids;
    int64_t n, room;
} prompt;

static int append(prompt *p, const satchel_model *m, const char *text, int64_t size, uint32_t flags) {
    int64_t found = satchel_tokenize(m, text, size, flags, p->ids + p->n, p->room - p->n);
    if (found < 0)
        return (int)found;
    if (found > p->room - p->n) {
        int32_t *grown = realloc(p->ids, (size_t)(2 * p->room + found) * sizeof *grown);
        if (!grown)
            return SATCHEL_E_MEMORY;
        p->ids = grown;
        p->room = 2 * p->room + found;
        found = satchel_tokenize(m, text, size, flags, p->ids + p->n, p->room - p->n);
    }
    p->n += found > 0 ? found : 0;
    return found < 0 ? (int)found : 0;
}

/* A message's text behind its heading, in one piece: so tokens are as if the whole prompt had been one. */
static int append_text(prompt *p, const satchel_model *m, const char *heading, const char *between, const message *of) {
    size_t a = strlen(heading), b = strlen(between), size = of->size > 0 ? (size_t)of->size : 0;
    char *joined = malloc(a + b + size + 1);
    int code;
    if (!joined)
        return SATCHEL_E_MEMORY;
    memcpy(joined, heading, a);
    memcpy(joined + a, between, b);
    memcpy(joined + a + b, size ? of->text : "", size);
    code = append(p, m, joined, (int64_t)(a + b + size), SATCHEL_NO_BOS);
    free(joined);
    return code;
}

static int chatml(prompt *p, const satchel_model *m, const message *messages, int count) {
    static const message answer = {"assistant", "", 0};
    const uint32_t marker = SATCHEL_SPECIAL | SATCHEL_NO_BOS;
    int code = 0;
    for (int i = 0; !code && i <= count; i++) {
        const message *of = i < count ? messages + i : &answer;
        if ((code = append(p, m, "<|im_start|>", -1, marker)) || (code = append_text(p, m, of->role, "\n", of)))
            return code;
        if (i < count && !(code = append(p, m, "<|im_end|>", -1, marker)))
            code = append(p, m, "\n", 1, SATCHEL_NO_BOS);
    }
    return code;
}

static int plain(prompt *p, const satchel_model *m, const message *messages, int count) {
    int code = 0;
    for (int i = 0; !code && i < count; i++) {
        const char *role = messages[i].role;
        const char *name = !strcmp(role, "user") ? "User: " : !strcmp(role, "assistant") ? "Assistant: " : "";
        if (!(code = append_text(p, m, name, "", messages + i)))
            code = append(p, m, "\n", 1, SATCHEL_NO_BOS);
    }
    return code ? code : append(p, m, "Assistant:", -1, SATCHEL_NO_BOS);
}

int answer_begin(satchel_model *m, const message *messages, int count, const satchel_generate_options *options,
                 answer *out) {
    prompt p = {malloc(256 * sizeof *p.ids), 0, 256};
    int64_t markers = satchel_tokenize(m, "<|im_start|>", -1, SATCHEL_SPECIAL | SATCHEL_NO_BOS, NULL, 0);
    int code = p.ids ? append(&p, m, "", 0, 0) : SATCHEL_E_MEMORY; /* what the file asks for at the begin */
    *out = (answer){.stop = markers == 1 ? NULL : "\nUser:"};
    if (!code)
        code = markers == 1 ? chatml(&p, m, messages, count) : plain(&p, m, messages, count);
    if (!code)
        code = satchel_generate(m, p.ids, p.n, options, &out->reply);
    free(p.ids);
    return code;
}

int answer_text(satchel_model *m, const char *text, int64_t size, const satchel_generate_options *options,
                answer *out) {
    *out = (answer){0};
    return satchel_generate_text(m, text, size, 0, options, &out->reply);
}

static int keep(answer *a, const satchel_piece *piece) {
    size_t size = (size_t)piece->length;
    if (a->have + size + 1 > a->room) {
        char *grown = realloc(a->text, 2 * (a->have + size + 1));
        if (!grown)
            return SATCHEL_E_MEMORY;
        a->text = grown;
        a->room = 2 * (a->have + size + 1);
    }
    memcpy(a->text + a->have, piece->text, size);
    a->have += size;
    return 0;
}

/* Bytes of the text that may be given out: those before `stop`, which ends the answer, or before what may be its begin. */
static size_t ready(answer *a) {
    size_t size = a->stop ? strlen(a->stop) : 0;
    for (size_t i = 0; size && i < a->have; i++) {
        size_t left = a->have - i, n = left < size ? left : size;
        if (memcmp(a->text + i, a->stop, n))
            continue;
        if (n == size) {
            a->have = i;
            a->over = 1;
        }
        return a->over ? a->have : i;
    }
    return a->have;
}

int answer_next(answer *a, const char **text, size_t *size) {
    satchel_piece piece = {.size = sizeof piece};
    if (a->given)
        memmove(a->text, a->text + a->given, a->have - a->given);
    a->have -= a->given;
    a->given = 0;
    while (!a->given && !a->over) {
        int more = satchel_reply_next(a->reply, &piece), code = more > 0 ? keep(a, &piece) : more;
        if (code < 0)
            return code;
        a->over = !more;
        a->given = ready(a);
    }
    *text = a->text;
    *size = a->given;
    return a->given > 0;
}

void answer_end(answer *a) {
    satchel_reply_free(a->reply);
    free(a->text);
    *a = (answer){0};
}
