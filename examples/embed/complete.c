/* complete.c: continues a text by the C library: complete MODEL TEXT, where `satchel build` made the model file (docs/apps.md). */
#include <stdio.h>
#include "satchel.h"

int main(int argc, char **argv) {
    satchel_model *model;
    satchel_reply *reply;
    satchel_piece piece = {.size = sizeof piece};
    if (argc != 3 || satchel_open(argv[1], NULL, &model) < 0 ||
        satchel_generate_text(model, argv[2], -1, 0, NULL, &reply) < 0) {
        fprintf(stderr, "complete MODEL TEXT: %s\n", satchel_error());
        return 1;
    }
    while (satchel_reply_next(reply, &piece) > 0)
        fwrite(piece.text, 1, (size_t)piece.length, stdout), fflush(stdout);
    satchel_reply_free(reply);
    satchel_close(model);
}
