/* structured.c: the grammars of satchel.h. */
#include <stdlib.h>
#include <string.h>

#include "choices.h"
#include "error.h"
#include "model.h"

static int grammar_code(int code) {
    return code == HAL_E_MEMORY ? SATCHEL_E_MEMORY : code ? SATCHEL_E_FILE : 0;
}

/* Makes a grammar of the automaton, which it takes. The first one of a model makes the trie of its tokens. */
static int open_grammar(satchel_model *m, automaton a, uint32_t start, satchel_grammar **out) {
    satchel_grammar *made = calloc(1, sizeof *made);
    int code = 0;
    if (!made) {
        automaton_free(&a);
        return hal_fail(SATCHEL_E_MEMORY, "no memory for a grammar");
    }
    pthread_mutex_lock(&m->lock);
    if (!m->trie)
        code = trie_open(&m->words, &m->trie);
    pthread_mutex_unlock(&m->lock);
    if (code)
        automaton_free(&a);
    else
        code = grammar_open(a, start, m->trie, ((uint32_t)m->vocabulary + 31) / 32, &made->grammar);
    if (code) {
        free(made);
        return grammar_code(code);
    }
    made->model = m;
    *out = made;
    return 0;
}

/* Makes a grammar that a worker process knows by its kind and text. */
static int open_told(satchel_model *m, int64_t kind, const char *text, uint64_t size, satchel_grammar **out) {
    satchel_grammar *made = calloc(1, sizeof *made);
    if (!made || !(made->text = malloc(size + 1))) {
        free(made);
        return hal_fail(SATCHEL_E_MEMORY, "no memory for a grammar");
    }
    made->model = m;
    made->kind = kind;
    made->size = size;
    if (size)
        memcpy(made->text, text, size);
    *out = made;
    return 0;
}

int32_t satchel_grammar_named(satchel_model *m, const char *name, satchel_grammar **out) {
    automaton a;
    int code;
    if (!m || !name || !out)
        return hal_fail(SATCHEL_E_ARGUMENT, "satchel_grammar_named: expected a model, a name and a place, got NULL");
    if (m->worker)
        return hal_fail(SATCHEL_E_LACKS, "grammar %.60s: a worker process takes its text: call satchel_grammar_text",
                        name);
    for (uint32_t i = 0; i < m->gguf.n_grammars; i++) {
        const gguf_grammar *g = m->gguf.grammars + i;
        if (g->name.size != strlen(name) || memcmp(g->name.data, name, g->name.size))
            continue;
        if ((code = automaton_read(g->section, &a)))
            return grammar_code(code);
        return open_grammar(m, a, 0, out);
    }
    return hal_fail(SATCHEL_E_UNBUILT,
                    "grammar %.60s: the file has none of this name: `satchel build --grammar` adds it", name);
}

int32_t satchel_grammar_json(satchel_model *m, uint32_t flags, satchel_grammar **out) {
    automaton a;
    int code;
    if (!m || !out || flags > (SATCHEL_JSON_VALUE | SATCHEL_JSON_COMPACT))
        return hal_fail(SATCHEL_E_ARGUMENT,
                        "satchel_grammar_json: expected a model, flags SATCHEL_JSON_ and a place for the grammar");
    if (m->worker)
        return open_told(m, GRAMMAR_JSON | flags, "", 0, out);
    if ((code = automaton_json(!(flags & SATCHEL_JSON_COMPACT), &a)))
        return grammar_code(code);
    return open_grammar(m, a, flags & SATCHEL_JSON_VALUE ? JSON_VALUE : JSON_OBJECT, out);
}

int32_t satchel_grammar_text(satchel_model *m, const char *text, int64_t length, satchel_grammar **out) {
    uint64_t size;
    int code;
    if (!m || !text || !out)
        return hal_fail(SATCHEL_E_ARGUMENT, "satchel_grammar_text: expected a model, a text and a place, got NULL");
    if (!m->worker)
        return hal_fail(SATCHEL_E_LACKS, "a grammar by its text: this library compiles none; put it into the file with "
                                         "`satchel build --grammar`, or open the model in a worker process");
    size = length < 0 ? strlen(text) : (uint64_t)length;
    pthread_mutex_lock(&m->lock);
    code = worker_check_grammar(m->worker, text, size);
    pthread_mutex_unlock(&m->lock);
    return code ? code : open_told(m, GRAMMAR_TEXT, text, size, out);
}

void satchel_grammar_free(satchel_grammar *g) {
    if (!g)
        return;
    if (g->grammar)
        grammar_free(g->grammar);
    free(g->text);
    free(g);
}
