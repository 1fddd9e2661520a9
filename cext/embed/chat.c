/* chat.c: renders a conversation by the chat template: see chat.h. */
#include <string.h>

#include "backend.h"
#include "chat.h"
#include "template_functions.h"
#include "template_machine.h"

/* What a rendering may take beside what grows with the request; the whole of it is a few tenths of a second at most. */
enum { STEPS = 8000000, STEPS_A_BYTE = 64, BYTES = 64 << 20, BYTES_A_BYTE = 400 };

void chat_begin(tpl_heap *h, uint64_t size) {
    tpl_begin(h, STEPS + size * STEPS_A_BYTE, BYTES + size * BYTES_A_BYTE);
}

static const template_variant *find_variant(const tpl_template *t, const char *name) {
    for (uint32_t i = 0; i < t->head->n_variants; i++)
        if (tpl_is_word(t->values[t->variants[i].name], name))
            return t->variants + i;
    return NULL;
}

const template_variant *chat_variant(const tpl_template *t, const chat_request *r) {
    const template_variant *found = tpl_truth(r->tools) ? find_variant(t, "tool_use") : NULL;
    if (!found && tpl_truth(r->documents))
        found = find_variant(t, "rag");
    return found ? found : t->variants;
}

/* Plain data with every text and key escaped. JSON is not deeper than its reader allows, so neither is this. */
static tpl_value escaped(tpl_heap *h, const tpl_escape *e, tpl_value v, int depth) {
    tpl_value made = v;
    if (depth > TPL_DEPTH)
        tpl_fail(h, HAL_E_INVALID, "nested lists deeper than %d", TPL_DEPTH);
    if (tpl_pay(h, 1))
        return v;
    if (v.kind == TPL_STRING)
        return tpl_escaped(h, e, v);
    if (v.kind == TPL_LIST) {
        made = tpl_list_new(h, v.list->n);
        for (uint32_t i = 0; !h->code && i < v.list->n; i++)
            tpl_add(h, made, escaped(h, e, v.list->items[i], depth + 1));
    } else if (v.kind == TPL_MAP) {
        made = tpl_map_new(h);
        for (uint32_t i = 0; !h->code && i < v.map->n; i++)
            tpl_set(h, made.map, tpl_escaped(h, e, v.map->entries[i].key),
                    escaped(h, e, v.map->entries[i].value, depth + 1));
    }
    return made;
}

static tpl_value variables_of(tpl_heap *h, const tpl_template *t, const tpl_escape *e, const chat_request *r) {
    tpl_value made = tpl_map_new(h);
    for (uint32_t i = 0; !h->code && i < t->head->n_variables; i++)
        tpl_set(h, made.map, t->values[t->variables[i].name], t->values[t->variables[i].value]);
    tpl_set_word(h, made, "documents", escaped(h, e, r->documents, 0));
    tpl_set_word(h, made, "add_generation_prompt", tpl_bool(r->add_generation_prompt));
    for (uint32_t i = 0; !h->code && i < r->variables.map->n; i++)
        tpl_set(h, made.map, r->variables.map->entries[i].key, escaped(h, e, r->variables.map->entries[i].value, 0));
    tpl_set_word(h, made, "messages", escaped(h, e, r->messages, 0));
    tpl_set_word(h, made, "tools", escaped(h, e, r->tools, 0));
    return made;
}

tpl_value chat_render(tpl_heap *h, const tpl_template *t, const char *json, uint64_t size, int with_escape,
                      const struct tm *now) {
    static const tpl_escape plain;
    const tpl_escape *e = with_escape ? &t->escape : &plain;
    const template_variant *v;
    chat_request r = {0};
    tpl_value variables;
    if (!t->head->n_variants) {
        const tpl_text *why = t->values[t->head->refused].text;
        tpl_fail(h, HAL_E_UNSUPPORTED, "the file's chat template was not built: %.*s",
                 (int)(why->size < 250 ? why->size : 250), why->data);
    }
    if (h->code || chat_read(h, t, json, size, &r))
        return tpl_none();
    v = chat_variant(t, &r);
    h->bytes += (uint64_t)v->source * 8;
    if (chat_fit(h, t, v, &r))
        return tpl_none();
    variables = variables_of(h, t, e, &r);
    return h->code ? tpl_none() : template_run(h, t, v, variables, e, now);
}

int chat_thinks(const tpl_template *t, tpl_value prompt) {
    const tpl_text *open = t->values[t->head->thinking_begin].text, *text = prompt.text;
    tpl_heap h;
    tpl_context c = {.heap = &h, .escape = &(tpl_escape){0}, .printing = &t->printing};
    tpl_value end;
    int found;
    tpl_begin(&h, UINT64_MAX / 2, 4096);
    end = prompt.kind == TPL_STRING ? tpl_strip(&c, text, tpl_none(), STRIP_RIGHT) : prompt;
    found = !h.code && end.kind == TPL_STRING && open->size && end.text->size >= open->size &&
            !memcmp(end.text->data + end.text->size - open->size, open->data, open->size);
    tpl_end(&h);
    return found;
}
