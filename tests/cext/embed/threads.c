/* threads.c: four threads read four replies of one model at a time; each must get the tokens that it gets alone. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "satchel.h"

enum { READERS = 4, TOKENS = 40, ROUNDS = 3 };
static satchel_model *model;

typedef struct {
    int number;
    int32_t tokens[TOKENS];
    int failed;
} reader;

static void *read_all(void *given) {
    reader *r = given;
    satchel_generate_options o;
    satchel_reply *reply;
    satchel_piece piece = {.size = sizeof piece};
    int32_t prompt[3] = {r->number + 1, 7, 30 * r->number};
    satchel_generate_options_init(&o, sizeof o);
    o.flags = SATCHEL_IGNORE_END;
    o.seed = r->number;
    if ((r->failed = satchel_generate(model, prompt, 3, &o, &reply)))
        return NULL;
    for (int i = 0; i < TOKENS; i++) {
        r->failed |= satchel_reply_next(reply, &piece) != 1;
        r->tokens[i] = piece.token;
    }
    satchel_reply_free(reply);
    return NULL;
}

int main(int argc, char **argv) {
    satchel_model_options o;
    reader alone[READERS] = {{0}}, together[READERS];
    pthread_t threads[READERS];
    satchel_model_options_init(&o, sizeof o);
    o.slots = READERS;
    if (argc != 2 || satchel_open(argv[1], &o, &model))
        return 1;
    for (int i = 0; i < READERS; i++) {
        alone[i].number = i;
        read_all(alone + i);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < READERS; i++) {
            together[i] = (reader){.number = i};
            pthread_create(threads + i, NULL, read_all, together + i);
        }
        for (int i = 0; i < READERS; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < READERS; i++)
            if (alone[i].failed || together[i].failed ||
                memcmp(alone[i].tokens, together[i].tokens, sizeof alone->tokens))
                return 2;
    }
    satchel_close(model);
    puts("equal");
    return 0;
}
