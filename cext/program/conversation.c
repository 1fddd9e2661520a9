/* conversation.c: see conversation.h. The library renders the file's own chat template, or ChatML for a file without one, and keeps
 * the text of a message from becoming a control token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conversation.h"
#include "json.h"

static char *put(char *to, const char *text) {
    size_t size = strlen(text);
    memcpy(to, text, size);
    return to + size;
}

/* The request of satchel_chat_render(), which free() ends; NULL: no memory. */
static char *request_of(const message *messages, int count) {
    size_t size = 64;
    char *request, *to;
    for (int i = 0; i < count; i++)
        size += 64 + 6 * (size_t)messages[i].size;
    if (!(request = malloc(size)))
        return NULL;
    to = put(request, "{\"messages\": [");
    for (int i = 0; i < count; i++) {
        to = put(to, i ? ", {\"role\": \"" : "{\"role\": \"");
        to = put(put(to, messages[i].role), "\", \"content\": \"");
        to += json_escape(messages[i].text, (size_t)messages[i].size, to);
        to = put(to, "\"}");
    }
    *put(to, "], \"add_generation_prompt\": true}") = 0;
    return request;
}

int answer_open(satchel_model *m, const message *messages, int count, const satchel_generate_options *options,
                satchel_reply **out) {
    char *request = request_of(messages, count);
    satchel_chat_prompt *prompt = NULL;
    int64_t size;
    int code = request ? satchel_chat_render(m, request, -1, &prompt) : SATCHEL_E_MEMORY;
    *out = NULL;
    if (!code) {
        const int32_t *ids = satchel_chat_prompt_ids(prompt, &size);
        code = satchel_generate(m, ids, size, options, out);
    }
    satchel_chat_prompt_free(prompt);
    free(request);
    return code;
}

int answer_next(satchel_reply *reply, const char **text, size_t *size) {
    satchel_piece piece = {.size = sizeof piece};
    int more;
    while ((more = satchel_reply_next(reply, &piece)) > 0 && !piece.length)
        continue;
    *text = piece.text;
    *size = (size_t)piece.length;
    return more;
}
