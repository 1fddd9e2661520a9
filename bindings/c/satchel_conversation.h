/* satchel_conversation.h: a conversation over satchel.h, for C programs that chat. It is a header alone, of functions of level 1:
 *
 *     satchel_conversation chat = {0};
 *     satchel_conversation_open(&chat, "app.gguf", NULL);
 *     satchel_conversation_ask(&chat, "Hello!", -1, NULL);
 *     while (satchel_conversation_next(&chat, &piece) > 0)
 *         fwrite(piece.text, 1, (size_t)piece.length, stdout);
 *     satchel_conversation_close(&chat);
 *
 * The messages so far are kept as the JSON of a request, each answer with its text, without thinking. A program whose messages have
 * more, such as tools, writes the request of satchel_chat_render() itself. Functions that return int32_t give a negative SATCHEL_E_
 * code on failure, whose reason satchel_error() tells; of SATCHEL_E_MEMORY it may tell none. A conversation belongs to one thread at
 * a time. */
#ifndef SATCHEL_CONVERSATION_H
#define SATCHEL_CONVERSATION_H

#include <stdlib.h>
#include <string.h>

#include "satchel.h"

/* All zero: no conversation. */
typedef struct {
    satchel_model *model;
    satchel_reply *reply; /* the answer that is under way, or NULL */
    char *request;        /* without its end: {"messages": [{...}, {... */
    size_t size, room;
    int failed; /* 1: a part of the request found no memory */
} satchel_conversation;

/* Appends `length` bytes as they are. */
static inline void satchel_conversation_put_(satchel_conversation *chat, const char *text, size_t length) {
    if (chat->room - chat->size <= length) {
        size_t room = (chat->size + length) * 2 + 64;
        char *grown = (char *)realloc(chat->request, room);
        if (!grown) {
            chat->failed = 1;
            return;
        }
        chat->request = grown;
        chat->room = room;
    }
    memcpy(chat->request + chat->size, text, length);
    chat->size += length;
    chat->request[chat->size] = 0;
}

/* Appends bytes as a part of a JSON string. */
static inline void satchel_conversation_quote_(satchel_conversation *chat, const char *text, int64_t length) {
    static const char digits[] = "0123456789abcdef";
    for (int64_t i = 0; length < 0 ? text[i] != 0 : i < length; i++) {
        const unsigned char byte = (unsigned char)text[i];
        const char escaped[] = {'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]};
        if (byte < 0x20 || byte == '"' || byte == '\\')
            satchel_conversation_put_(chat, escaped, sizeof escaped);
        else
            satchel_conversation_put_(chat, text + i, 1);
    }
}

/* Begins a message, within whose text the request then ends. role: system, user or assistant. */
static inline void satchel_conversation_begin_(satchel_conversation *chat, const char *role) {
    const char *before = chat->size ? "\"}, {\"role\": \"" : "{\"messages\": [{\"role\": \"";
    satchel_conversation_put_(chat, before, strlen(before));
    satchel_conversation_put_(chat, role, strlen(role));
    satchel_conversation_put_(chat, "\", \"content\": \"", 15);
}

/* Opens the model of a conversation, as satchel_open() does. chat: all zero; it is for satchel_conversation_close(). */
static inline int32_t satchel_conversation_open(satchel_conversation *chat, const char *path,
                                                const satchel_model_options *options) {
    return satchel_open(path, options, &chat->model);
}

/* Adds a message, such as one of the role "system"; a length of -1: up to a zero byte. */
static inline int32_t satchel_conversation_add(satchel_conversation *chat, const char *role, const char *text,
                                               int64_t length) {
    satchel_conversation_begin_(chat, role);
    satchel_conversation_quote_(chat, text, length);
    return chat->failed ? SATCHEL_E_MEMORY : SATCHEL_OK;
}

/* Adds a message of the user and begins the answer. options: NULL: the defaults. An answer that is under way ends where it is. On
 * failure, such as SATCHEL_E_LONG, the message is not kept. */
static inline int32_t satchel_conversation_ask(satchel_conversation *chat, const char *text, int64_t length,
                                               const satchel_generate_options *options) {
    satchel_chat_prompt *prompt = NULL;
    const size_t before = chat->size;
    int32_t code = satchel_conversation_add(chat, "user", text, length);
    const size_t size = chat->size;
    satchel_reply_free(chat->reply);
    chat->reply = NULL;
    satchel_conversation_put_(chat, "\"}]}", 4);
    if (code || chat->failed)
        return SATCHEL_E_MEMORY;
    if (!(code = satchel_chat_render(chat->model, chat->request, (int64_t)chat->size, &prompt))) {
        int64_t count;
        const int32_t *ids = satchel_chat_prompt_ids(prompt, &count);
        code = satchel_generate(chat->model, ids, count, options, &chat->reply);
    }
    satchel_chat_prompt_free(prompt);
    chat->size = code ? before : size; /* the message's end comes with the next one's begin */
    if (!code)
        satchel_conversation_begin_(chat, "assistant");
    return code;
}

/* The answer's next piece, as satchel_reply_next() gives it, which becomes a part of the conversation: 1, or 0 where the answer is
 * over. piece->size is set by the caller. */
static inline int32_t satchel_conversation_next(satchel_conversation *chat, satchel_piece *piece) {
    int32_t code = chat->reply ? satchel_reply_next(chat->reply, piece) : 0;
    if (code > 0 && piece->kind != SATCHEL_THINKING)
        satchel_conversation_quote_(chat, piece->text, piece->length);
    if (code <= 0) {
        satchel_reply_free(chat->reply);
        chat->reply = NULL;
    }
    return chat->failed ? SATCHEL_E_MEMORY : code;
}

/* Ends the conversation and closes its model. */
static inline void satchel_conversation_close(satchel_conversation *chat) {
    satchel_reply_free(chat->reply);
    satchel_close(chat->model);
    free(chat->request);
    memset(chat, 0, sizeof *chat);
}

#endif
