/* chat.h: a conversation as JSON to the prompt that the model's chat template writes, as formats/template does it in Python.
 *
 * A message is changed only where the template would refuse it or leave it out, and its content is never lost. */
#ifndef SATCHEL_EMBED_CHAT_H
#define SATCHEL_EMBED_CHAT_H

#include <time.h>

#include "template_section.h"
#include "words.h"

/* A checked request. Its values lie in the heap: none, bool, int, float, string, list, map. */
typedef struct {
    tpl_value messages, tools, documents, variables; /* tools, documents: none where there are none */
    int add_generation_prompt;
} chat_request;

enum { ROLE_SYSTEM, ROLE_DEVELOPER, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, N_ROLES };
extern const char *const chat_roles[N_ROLES];

/* Reads and checks a request: {"messages": [...], "tools": [...], "documents": [...], "add_generation_prompt": true,
 * "chat_template_kwargs": {...}}, all but the first optional. A failure names the place of what is wrong. */
int chat_read(tpl_heap *, const tpl_template *, const char *json, uint64_t size, chat_request *);
/* The variant of the template for it. */
const template_variant *chat_variant(const tpl_template *, const chat_request *);
/* Brings it into the form that the variant supports; `variables` gets what the template reads under another name. */
int chat_fit(tpl_heap *, const tpl_template *, const template_variant *, chat_request *);

/* The prompt of a conversation. escaped: user text is escaped, as the template's prompt is tokenized. */
tpl_value chat_render(tpl_heap *, const tpl_template *, const char *json, uint64_t size, int escaped,
                      const struct tm *now);
/* Whether the prompt ends within reasoning. */
int chat_thinks(const tpl_template *, tpl_value prompt);
/* Steps and bytes of a heap that renders a request of so many bytes. */
void chat_begin(tpl_heap *, uint64_t size);

/* Appends the tokens of a rendered prompt: special tokens where the template wrote them, and none of user text. */
int chat_tokenize(tpl_heap *, const tpl_template *, const words *, tpl_value prompt, token_list *out);

#endif
