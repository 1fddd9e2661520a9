/* web.c: what web/satchel.mjs calls: one model and one answer of a WebAssembly instance, by numbers and addresses alone. Functions give a
 * negative SATCHEL_E_ code where they fail, and web_error() the words. */
#include <stdlib.h>
#include <string.h>

#include "conversation.h"

#define EXPORT(name) __attribute__((export_name(#name)))

enum { TURNS = 1024, LINE = 64 };

static satchel_model *model;
static satchel_generate_options sampling;
static message turns[TURNS];
static int count;
static satchel_reply *current;
static const char *told; /* the text of web_next() */

/* Memory that the caller writes to: of the model's file, of texts. Aligned as satchel_open_memory() expects. */
EXPORT(allocate) void *web_allocate(uint32_t size) {
    return aligned_alloc(LINE, ((size_t)size + LINE) / LINE * LINE);
}

EXPORT(release) void web_release(void *at) {
    free(at);
}

EXPORT(error) const char *web_error(void) {
    return satchel_error();
}

/* Opens the file of these bytes, which stay as they are. context 0: the file's. */
EXPORT(open) int32_t web_open(const void *data, uint32_t size, int32_t context) {
    satchel_model_options o;
    satchel_model_options_init(&o, sizeof o);
    o.context = context;
    o.slots = 1;
    return satchel_open_memory(data, size, &o, &model);
}

EXPORT(context) int32_t web_context(void) {
    satchel_model_facts facts = {.size = sizeof facts};
    satchel_facts(model, &facts);
    return facts.context;
}

/* Adds a message of the next chat; the text is taken over. role: 0 system, 1 user, 2 assistant. */
EXPORT(message) int32_t web_message(int32_t role, char *text, uint32_t size) {
    static const char *const roles[] = {"system", "user", "assistant"};
    if (count == TURNS || role < 0 || role > 2)
        return SATCHEL_E_ARGUMENT;
    turns[count++] = (message){roles[role], text, size};
    return 0;
}

/* Options of the next answer; a negative one is the default. */
EXPORT(options)
void web_options(float temperature, int32_t top_k, float top_p, float min_p, double max_tokens, double seed) {
    satchel_generate_options_init(&sampling, sizeof sampling);
    sampling.temperature = temperature < 0 ? sampling.temperature : temperature;
    sampling.top_k = top_k < 0 ? sampling.top_k : top_k;
    sampling.top_p = top_p < 0 ? sampling.top_p : top_p;
    sampling.min_p = min_p < 0 ? sampling.min_p : min_p;
    sampling.max_tokens = max_tokens < 0 ? sampling.max_tokens : (int64_t)max_tokens;
    sampling.seed = seed < 0 ? sampling.seed : (int64_t)seed;
}

/* Ends the answer that is under way. */
EXPORT(end) void web_end(void) {
    satchel_reply_free(current);
    current = NULL;
}

/* Answers the messages that were added, which are forgotten. */
EXPORT(chat) int32_t web_chat(void) {
    int code;
    web_end();
    code = answer_open(model, turns, count, &sampling, &current);
    for (int i = 0; i < count; i++)
        free((char *)(uintptr_t)turns[i].text);
    count = 0;
    return code;
}

/* Continues a text. */
EXPORT(complete) int32_t web_complete(const char *text, uint32_t size) {
    web_end();
    return satchel_generate_text(model, text, size, 0, &sampling, &current);
}

/* Computes the next text: its number of bytes, of which the first is at web_text(); 0: the answer is over. */
EXPORT(next) int32_t web_next(void) {
    size_t size = 0;
    int code = current ? answer_next(current, &told, &size) : 0;
    return code < 0 ? code : (int32_t)size;
}

EXPORT(text) const char *web_text(void) {
    return told;
}

/* Numbers of the answer: 0: tokens of the prompt, 1: those of them that were still there, 2: tokens of the answer. */
EXPORT(report) double web_report(int32_t which) {
    satchel_reply_report r = {.size = sizeof r};
    if (!current)
        return 0;
    satchel_report(current, &r);
    return (double)(which == 0 ? r.prompt_tokens : which == 1 ? r.cached_tokens : r.tokens);
}
