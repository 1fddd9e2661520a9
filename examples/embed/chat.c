/* chat.c: a chat in the terminal, with the file's own template: chat MODEL [WORKER] reads a message from each line. WORKER: the program
 * that runs files without a plan (docs/apps.md). */
#include <stdio.h>
#include "satchel_conversation.h"

int main(int argc, char **argv) {
    satchel_model_options how = {.size = sizeof how, .worker = argc > 2 ? argv[2] : NULL};
    satchel_generate_options options;
    satchel_conversation chat = {0};
    satchel_piece piece = {.size = sizeof piece};
    how.engine = argc > 2 ? SATCHEL_ENGINE_EITHER : SATCHEL_ENGINE_LIBRARY;
    satchel_generate_options_init(&options, sizeof options);
    options.temperature = 0, options.max_tokens = 64;
    int32_t code = satchel_conversation_open(&chat, argc > 1 ? argv[1] : "", &how);
    for (char line[4096]; code >= 0 && fgets(line, sizeof line, stdin); puts("")) {
        code = satchel_conversation_ask(&chat, line, (int64_t)strcspn(line, "\n"), &options);
        while (code >= 0 && (code = satchel_conversation_next(&chat, &piece)) > 0)
            fwrite(piece.text, 1, (size_t)piece.length, stdout), fflush(stdout);
    }
    if (code < 0)
        fprintf(stderr, "%s\n", satchel_error());
    satchel_conversation_close(&chat);
    return code < 0;
}
