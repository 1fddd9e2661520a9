/* program.c: calls every function of level 1 and prints what they give, a line for each. `program.x86_64` beside it is this file,
 * compiled once against the header of that level; it must run with every later library (test_level.py has the command).
 *
 *   program MODEL FOLDER: a built file, and where files may be written
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "satchel.h"

static satchel_model *model;

static void say(const char *name, int64_t code) {
    printf("%s %lld%s%s\n", name, (long long)code, code < 0 ? " " : "", code < 0 ? satchel_error() : "");
}

static void print_reply(const char *name, satchel_reply *reply) {
    satchel_piece piece = {.size = sizeof piece};
    satchel_reply_report report = {.size = sizeof report};
    int32_t code;
    printf("%s", name);
    while ((code = satchel_reply_next(reply, &piece)) > 0) {
        printf(" %d:%d:", piece.token, piece.kind);
        for (int64_t i = 0; i < piece.length; i++)
            printf("%02x", (unsigned char)piece.text[i]);
    }
    satchel_report(reply, &report);
    printf(" | %d: %d %lld %lld %lld %lld %d\n", code, report.reason, (long long)report.prompt_tokens,
           (long long)report.cached_tokens, (long long)report.tokens, (long long)report.seed, report.stop);
    satchel_reply_free(reply);
}

static void open_and_close(const char *path) {
    satchel_model_options options;
    satchel_model_facts facts = {.size = sizeof facts};
    satchel_model_options_init(&options, sizeof options);
    options.context = 64;
    options.slots = 2;
    options.threads = options.threads_decode = 1;
    options.engine = SATCHEL_ENGINE_LIBRARY;
    options.worker = NULL;
    say("open nothing", satchel_open("/nothing/there", &options, &model));
    say("open_part", satchel_open_part(path, 0, UINT64_MAX, &options, &model));
    satchel_close(model);
    say("open_memory", satchel_open_memory("", 0, &options, &model));
    printf("open_self %d\n", satchel_open_self(&options, &model) < 0);
    say("open", satchel_open(path, &options, &model));
    satchel_facts(model, &facts);
    printf("facts %d %d %d %d %d %d\n", facts.context, facts.slots, facts.vocabulary, facts.kernels[0] != 0,
           facts.embedding, facts.worker);
}

static void read_text(void) {
    int32_t ids[32];
    char text[64];
    float row[4];
    int64_t count = satchel_tokenize(model, "hello you", -1, SATCHEL_SPECIAL | SATCHEL_NO_BOS, ids, 32);
    printf("tokens");
    for (int64_t i = 0; i < count; i++)
        printf(" %d", ids[i]);
    satchel_detokenize(model, ids, count, 0, text, sizeof text);
    printf("\ntext %s\n", text);
    say("embed", satchel_embed(model, "hello", -1, 0, row, 4));
}

static satchel_generate_options usual(void) {
    satchel_generate_options options;
    satchel_generate_options_init(&options, sizeof options);
    options.seed = 11;
    options.max_tokens = 12;
    options.flags = SATCHEL_IGNORE_END;
    return options;
}

static void generate(void) {
    static const int32_t prompt[] = {5, 9, 17, 33, 5, 9, 17, 60}, allowed[] = {5, 9, 17, 33, 60, 61, 64, 65, 101},
                         bad[] = {9, 17, -1};
    static const satchel_bias biases[] = {{101, 1.5f}, {33, -1}};
    static const char *const stops[] = {"zz", "e"}, *const breakers[] = {"\n"};
    satchel_generate_options options = usual();
    satchel_reply *reply;
    say("generate", satchel_generate(model, prompt, 8, &options, &reply));
    print_reply("reply", reply);
    options.temperature = 0;
    options.repeat_penalty = 1.3f;
    say("generate_text", satchel_generate_text(model, "hello", -1, SATCHEL_CONTINUES, &options, &reply));
    print_reply("reply", reply);
    options = usual();
    options.temperature = 1.1f, options.top_k = 20, options.top_p = 0.9f, options.min_p = 0.01f;
    options.typical_p = 0.95f, options.top_n_sigma = 3, options.xtc_probability = 0.2f, options.xtc_threshold = 0.2f;
    options.dynatemp_range = 0.1f, options.dynatemp_exponent = 1.2f;
    options.presence_penalty = 0.1f, options.frequency_penalty = 0.2f, options.repeat_last_n = 8;
    options.samplers = "edskypmxt";
    options.dry_multiplier = 0.5, options.dry_base = 1.5, options.dry_allowed_length = 1, options.dry_last_n = 20;
    options.dry_breakers = breakers, options.n_dry_breakers = 1;
    options.min_tokens = 2;
    options.biases = biases, options.n_biases = 2;
    options.allowed = allowed, options.n_allowed = 9;
    options.bad_words = bad, options.n_bad_words = 3;
    options.stop = stops, options.n_stop = 2, options.include_stop = 1;
    options.thinking_open = "<t>", options.thinking_close = "</t>", options.thinking_begin = SATCHEL_ANSWER_THINKS;
    say("generate with options", satchel_generate(model, prompt, 8, &options, &reply));
    print_reply("reply", reply);
    options = usual();
    options.mirostat = 2, options.mirostat_tau = 4, options.mirostat_eta = 0.2;
    say("generate by Mirostat", satchel_generate(model, prompt, 8, &options, &reply));
    print_reply("reply", reply);
}

static void constrain(void) {
    satchel_generate_options options = usual();
    satchel_grammar *grammar;
    satchel_reply *reply;
    say("grammar_named", satchel_grammar_named(model, "none", &grammar));
    say("grammar_text", satchel_grammar_text(model, "root ::= \"a\"", -1, &grammar));
    say("grammar_json", satchel_grammar_json(model, SATCHEL_JSON_VALUE | SATCHEL_JSON_COMPACT, &grammar));
    options.grammar = grammar;
    options.flags = 0;
    say("generate JSON", satchel_generate_text(model, "hello", -1, 0, &options, &reply));
    print_reply("reply", reply);
    satchel_grammar_free(grammar);
}

static void keep(const char *folder) {
    static char bytes[1 << 20], path[4096];
    int32_t ids[64];
    satchel_generate_options options = usual();
    satchel_piece piece = {.size = sizeof piece};
    satchel_reply *reply;
    int64_t size, count;
    say("generate", satchel_generate_text(model, "hello", -1, 0, &options, &reply));
    for (int i = 0; i < 3; i++)
        satchel_reply_next(reply, &piece);
    size = satchel_save(reply, bytes, sizeof bytes);
    snprintf(path, sizeof path, "%s/saved", folder);
    printf("save %d %d\n", size > 0, satchel_save_file(reply, path) == size);
    satchel_reply_free(reply);
    count = satchel_load(model, bytes, size, ids, 64);
    printf("load %lld %d\n", (long long)count, satchel_load_file(model, path, ids, 64) == count);
    say("load", satchel_load(model, bytes, 10, ids, 64));
}

static void chat(void) {
    satchel_chat_format format = {.size = sizeof format};
    satchel_chat_prompt *prompt;
    int64_t length, count;
    say("chat_facts", satchel_chat_facts(model, &format));
    printf("%u <%s> <%s> <%s> <%s> <%s>\n", format.flags, format.thinking_begin, format.thinking_end, format.tool_calls,
           format.tool_calls_begin, format.thinking_switches);
    say("chat_render nothing", satchel_chat_render(model, "{}", -1, &prompt));
    say("chat_render",
        satchel_chat_render(model, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", -1, &prompt));
    const char *text = satchel_chat_prompt_text(prompt, &length);
    const int32_t *ids = satchel_chat_prompt_ids(prompt, &count);
    printf("prompt %d %d %lld", (int)(strlen(text) == (size_t)length), satchel_chat_prompt_thinks(prompt),
           (long long)count);
    for (int64_t i = 0; i < count; i++)
        printf(" %d", ids[i]);
    printf("\n");
    satchel_chat_prompt_free(prompt);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    printf("level %d\n", satchel_level() >= 1 && satchel_version()[0] != 0);
    open_and_close(argv[1]);
    read_text();
    generate();
    constrain();
    keep(argv[2]);
    chat();
    satchel_close(model);
    return 0;
}
