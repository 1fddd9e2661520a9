/* chat.c: a chat in the terminal, with the file's own template: chat MODEL, where `satchel build` made the model file (docs/apps.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "satchel.h"

/* Text that grows. */
typedef struct {
    char *data;
    size_t size, room;
} text;

static void add(text *t, const char *data, size_t size) {
    if (t->room - t->size <= size) {
        t->room = (t->size + size) * 2 + 64;
        if (!(t->data = realloc(t->data, t->room)))
            exit(1);
    }
    memcpy(t->data + t->size, data, size);
    t->data[t->size += size] = 0;
}

/* Adds a message to a JSON list that is not closed yet. */
static void add_message(text *json, const char *role, const char *content) {
    char escape[8];
    add(json, json->size > 1 ? ", {\"role\": \"" : "{\"role\": \"", json->size > 1 ? 12 : 10);
    add(json, role, strlen(role));
    add(json, "\", \"content\": \"", 15);
    for (const char *at = content; *at; at++) {
        unsigned char byte = (unsigned char)*at;
        snprintf(escape, sizeof escape, byte < 0x20 ? "\\u%04x" : byte == '"' || byte == '\\' ? "\\%c" : "%c", byte);
        add(json, escape, strlen(escape));
    }
    add(json, "\"}", 2);
}

/* Answers the messages, and adds the answer to them. */
static int answer(satchel_model *model, text *messages, const satchel_generate_options *options) {
    text request = {0}, said = {0};
    satchel_chat_prompt *prompt = NULL;
    satchel_reply *reply = NULL;
    satchel_piece piece = {.size = sizeof piece};
    const int32_t *ids;
    int64_t count;
    int code;
    add(&request, "{\"messages\": ", 13);
    add(&request, messages->data, messages->size);
    add(&request, "]}", 2);
    code = satchel_chat_render(model, request.data, -1, &prompt);
    if (!code) {
        ids = satchel_chat_prompt_ids(prompt, &count);
        code = satchel_generate(model, ids, count, options, &reply);
    }
    while (!code && (code = satchel_reply_next(reply, &piece)) > 0) {
        fwrite(piece.text, 1, (size_t)piece.length, stdout);
        fflush(stdout);
        add(&said, piece.text, (size_t)piece.length);
        code = 0;
    }
    puts("");
    if (!code)
        add_message(messages, "assistant", said.data ? said.data : "");
    satchel_reply_free(reply);
    satchel_chat_prompt_free(prompt);
    free(request.data);
    free(said.data);
    return code;
}

int main(int argc, char **argv) {
    satchel_generate_options options;
    satchel_model *model = NULL;
    text messages = {0};
    char line[4096];
    int code = 0;
    satchel_generate_options_init(&options, sizeof options);
    if (argc > 2)
        options.seed = atoll(argv[2]);
    if (argc < 2 || satchel_open(argv[1], NULL, &model) < 0) {
        fprintf(stderr, "chat MODEL [SEED]: %s\n", argc < 2 ? "expected a model file" : satchel_error());
        return 1;
    }
    add(&messages, "[", 1);
    while (fputs("> ", stdout), fflush(stdout), !code && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        add_message(&messages, "user", line);
        code = answer(model, &messages, &options);
    }
    puts("");
    if (code < 0)
        fprintf(stderr, "%s\n", satchel_error());
    free(messages.data);
    satchel_close(model);
    return code < 0;
}
