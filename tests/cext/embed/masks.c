/* masks.c: the tokens that a grammar allows, as the tests in Python compare them: by commands from standard input, each answered with one
 * line.
 *
 *   open PATH    grammar NAME (json, value, compact: JSON of any shape)    mask    take ID
 *
 * mask: complete, finished, and the bitmask's words in hex. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choices.h"
#include "model.h"

static satchel_model *model;
static satchel_grammar *made;
static place *at;

static void begin(const char *name) {
    int32_t code;
    place_free(at);
    at = NULL;
    satchel_grammar_free(made);
    made = NULL;
    if (!strcmp(name, "json") || !strcmp(name, "value") || !strcmp(name, "compact"))
        code = satchel_grammar_json(model,
                                    *name == 'v'   ? SATCHEL_JSON_VALUE
                                    : *name == 'c' ? SATCHEL_JSON_COMPACT
                                                   : 0,
                                    &made);
    else
        code = satchel_grammar_named(model, name, &made);
    if (code || place_open(made->grammar, &at))
        printf("error %s", satchel_error());
    else
        printf("ok");
}

static void mask(void) {
    uint32_t words = (model->plan.head->vocabulary + 31) / 32, *bits = malloc(4 * words);
    if (place_fill(at, &model->words, bits))
        printf("error %s", satchel_error());
    else
        printf("%d %d", place_is_complete(at), place_is_finished(at));
    for (uint32_t i = 0; i < words; i++)
        printf(" %08x", bits[i]);
    free(bits);
}

int main(void) {
    static char line[1 << 12];
    while (fgets(line, sizeof line, stdin)) {
        char *word = strtok(line, " \n"), *rest = strtok(NULL, " \n");
        if (!strcmp(word, "open"))
            printf("%s", satchel_open(rest, NULL, &model) ? satchel_error() : "ok");
        else if (!strcmp(word, "grammar"))
            begin(rest);
        else if (!strcmp(word, "mask"))
            mask();
        else if (!strcmp(word, "take"))
            printf("%s", place_take(at, &model->words, atoi(rest)) ? satchel_error() : "ok");
        printf("\n");
        fflush(stdout);
    }
    place_free(at);
    satchel_grammar_free(made);
    satchel_close(model);
    return 0;
}
