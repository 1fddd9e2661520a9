/* satchel.h: runs a model file that `satchel build` made, without Python. Level 1.
 *
 * A level is frozen: nothing of it is ever removed or changed, neither a function, nor a number, nor a field's place. A later level
 * adds functions, numbers, and fields at the end of structs. A program that was compiled for a level runs with every library of that
 * level or a later one; satchel_level() tells the library's.
 *
 * Handles are opaque. A struct of options begins with its size: its _init function fills the defaults of the fields that the
 * caller's version has; of a struct that the library fills, the caller sets the size. Fields named `zero` are 0. Functions that
 * return int32_t or int64_t give a negative SATCHEL_E_ code on failure, and satchel_error() its reason; later levels may add codes.
 * Text is UTF-8; a length of -1 says that it ends with a zero byte. What a caller gives is copied unless the function says else.
 *
 * Threads: every function may be called from any thread. A model answers several replies in one step: a caller who asks for a token
 * runs the step for all of them. A handle may not be freed while another thread uses it, and a model not before its replies.
 */
#ifndef SATCHEL_H
#define SATCHEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SATCHEL_API __attribute__((visibility("default")))
#else
#define SATCHEL_API
#endif

#define SATCHEL_LEVEL 1

typedef struct satchel_model satchel_model;
typedef struct satchel_reply satchel_reply;
typedef struct satchel_grammar satchel_grammar;

enum {
    SATCHEL_OK = 0,
    SATCHEL_E_ARGUMENT = -1, /* an argument or option is out of range */
    SATCHEL_E_FILE = -2,     /* the file cannot be read, is damaged, or does not fit its plan */
    SATCHEL_E_UNBUILT = -3,  /* the file has no plan: run `satchel build` */
    SATCHEL_E_MEMORY = -4,
    SATCHEL_E_DEVICE = -5, /* the kernels refuse the plan, or a step failed */
    SATCHEL_E_FULL = -6,   /* every slot has a reply */
    SATCHEL_E_LONG = -7,   /* the prompt is longer than the context */
    SATCHEL_E_WORKER = -8, /* the worker process cannot be started, has ended, is silent, or broke its rules */
    SATCHEL_E_LACKS = -9   /* the engine in use does not do this; the other one may */
};

SATCHEL_API uint32_t satchel_level(void);      /* SATCHEL_LEVEL of the library */
SATCHEL_API const char *satchel_version(void); /* the library's version, such as "1.2.0" */
SATCHEL_API const char *satchel_error(void);   /* one line, of this thread's last failed call, until the next one */

/* --- models */

/* What computes. The full engine needs no built file, and has what this library lacks, such as grammars by their text; but it is
 * Satchel's Python package, in a process of its own. The choice is the caller's: nothing is started that was not asked for. */
enum {
    SATCHEL_ENGINE_LIBRARY = 0, /* this library */
    SATCHEL_ENGINE_WORKER = 1,  /* a worker process, `satchel worker` */
    SATCHEL_ENGINE_EITHER = 2   /* the library, or a worker process for a file that fails with SATCHEL_E_UNBUILT */
};

typedef struct {
    uint32_t size;          /* bytes of this struct, as the caller knows it */
    int32_t context;        /* tokens that a prompt and its answer may have together; 0: as the file says */
    int32_t slots;          /* replies at a time, 1 to 64; 0: as the file says */
    int32_t threads;        /* for prompts; 0: one for each processor that this process may use */
    int32_t threads_decode; /* for steps of one token per reply; 0: the same */
    int32_t engine;         /* SATCHEL_ENGINE_ */
    const char *worker;     /* the worker's program, a path or a name in PATH; NULL: "satchel" */
} satchel_model_options;
SATCHEL_API void satchel_model_options_init(satchel_model_options *, uint32_t size);

/* Maps the file, checks it and compiles its plan. options: NULL: the defaults. *model is for satchel_close(). The file must not be
 * changed while it is open. */
SATCHEL_API int32_t satchel_open(const char *path, const satchel_model_options *options, satchel_model **model);
/* The same for `size` bytes of a file from `offset`, a multiple of 64: an asset in an archive, say. size UINT64_MAX: to its end. */
SATCHEL_API int32_t satchel_open_part(const char *path, uint64_t offset, uint64_t size,
                                      const satchel_model_options *options, satchel_model **model);
/* The same for a file in memory, at an address that is a multiple of 64. The memory must stay as it is until the model is closed. */
SATCHEL_API int32_t satchel_open_memory(const void *data, uint64_t size, const satchel_model_options *options,
                                        satchel_model **model);
/* The same for the model that `satchel bundle` put into the program that runs. */
SATCHEL_API int32_t satchel_open_self(const satchel_model_options *options, satchel_model **model);
SATCHEL_API void satchel_close(satchel_model *); /* NULL: nothing */

typedef struct {
    uint32_t size;
    int32_t context, slots, vocabulary;
    char kernels[32];  /* the instruction set in use, such as "avx2" */
    int32_t embedding; /* numbers of a vector of satchel_embed; 0: the model generates text */
    int32_t worker;    /* 1: a worker process computes; 0: this library */
} satchel_model_facts;
SATCHEL_API int32_t satchel_facts(const satchel_model *,
                                  satchel_model_facts *facts); /* facts->size is set by the caller */

/* --- text and tokens */

enum {
    SATCHEL_SPECIAL = 1,  /* tokenize: texts of control tokens become them; detokenize: control tokens show theirs */
    SATCHEL_NO_BOS = 2,   /* tokenize: no token is added at the begin or end that the file asks for */
    SATCHEL_CONTINUES = 4 /* tokenize: the text goes on after others: SentencePiece puts no space before it */
};
/* Number of tokens of a text, of which the first `room` are written to `ids` (NULL where room is 0). */
SATCHEL_API int64_t satchel_tokenize(const satchel_model *, const char *text, int64_t length, uint32_t flags,
                                     int32_t *ids, int64_t room);
/* Bytes of the text of tokens, of which the first `room` are written to `text`; a zero byte follows where there is room. Bytes that
 * are no UTF-8 become U+FFFD. The space that SentencePiece puts before a text is left out. */
SATCHEL_API int64_t satchel_detokenize(const satchel_model *, const int32_t *ids, int64_t count, uint32_t flags,
                                       char *text, int64_t room);

/* --- embeddings */

/* The vector of a text, of a model of embeddings (an encoder, or a file that states its pooling): pooled as the file says, and of
 * Euclidean norm 1. Gives its number of floats, of which the first `room` are written to `row` (NULL where room is 0). flags: of
 * satchel_tokenize. The text takes slot 0 and waits for other callers' texts; none is computed together with another one.
 * SATCHEL_E_LONG where it has more tokens than the context, or than an encoder's step. */
SATCHEL_API int64_t satchel_embed(satchel_model *, const char *text, int64_t length, uint32_t flags, float *row,
                                  int64_t room);

/* --- the text of answers: stop strings and thinking
 *
 * An answer ends at the stop string that is complete first; of two that end together, at the longer one. It may lie across tokens.
 * Text that may begin one is held back until that is decided. The stop string is no part of the text unless include_stop is 1.
 *
 * With two markers, each piece says whether it is text or thinking; markers and the white space beside them are left out. A marker
 * that is a token of the vocabulary counts as that token alone, anywhere in the answer. Another one counts as text: the opening one
 * at the begin of the answer. Stop strings and markers are UTF-8 that ends with a zero byte, and are copied. */

enum { SATCHEL_TEXT = 1, SATCHEL_THINKING = 2 }; /* kinds of pieces */
/* Where the prompt leaves the answer: at its begin, within thinking that the prompt opened, or behind thinking. */
enum { SATCHEL_ANSWER_BEGINS, SATCHEL_ANSWER_THINKS, SATCHEL_ANSWER_PAST_THINKING };

/* --- answers */

typedef struct { /* it has no size, and never grows */
    int32_t token;
    float amount; /* added to its logit, up to 1e9; -INFINITY: it never comes */
} satchel_bias;

enum { SATCHEL_IGNORE_END = 1 }; /* flag of satchel_generate_options: end tokens are tokens as others */
typedef struct {
    uint32_t size, flags;
    int64_t seed;       /* of the random numbers; -1: drawn */
    int64_t max_tokens; /* most tokens of the answer; -1: up to the context's end */
    float temperature;  /* 0: the likeliest token */
    int32_t top_k;      /* 0: all */
    float top_p, min_p, typical_p, top_n_sigma;
    float xtc_probability, xtc_threshold;
    float dynatemp_range, dynatemp_exponent;
    float repeat_penalty, presence_penalty, frequency_penalty;
    int32_t repeat_last_n; /* -1: the whole context */
    int32_t mirostat;      /* 0: off, 1, 2 */
    float mirostat_tau;
    const char *samplers; /* the chain's stages by letter, as --sampler-seq; NULL: "edskypmxt" */
    /* Choices of tokens. Arrays and texts are copied: they need not outlive satchel_generate(). */
    double mirostat_eta;             /* how fast Mirostat learns */
    double dry_multiplier;           /* of DRY's penalty of tokens that would continue a repetition; 0: off */
    double dry_base;                 /* by which that grows for each repeated token */
    int32_t dry_allowed_length;      /* longest repetition without a penalty, in tokens */
    int32_t dry_last_n;              /* last tokens that are searched for repetitions; -1: the whole context */
    const char *const *dry_breakers; /* texts that no repetition crosses; NULL: newline, ':', '"' and '*' */
    int32_t n_dry_breakers;
    int32_t min_tokens;         /* fewest tokens before an end token */
    const satchel_bias *biases; /* at most 512, of different tokens */
    int64_t n_biases;
    const int32_t *allowed; /* the only tokens that may come; NULL: all */
    int64_t n_allowed;
    const int32_t *bad_words; /* token sequences that never come, with a -1 behind each */
    int64_t n_bad_words;      /* numbers in bad_words */
    const satchel_grammar
        *grammar; /* the answer is a text of it, and ends with an end token behind that; NULL: any text */

    /* the text of answers, see above */
    const char *const *stop; /* n_stop stop strings, 0 to 1024; empty ones end nothing */
    int32_t n_stop, include_stop;
    const char *thinking_open, *thinking_close; /* NULL: thinking is text */
    int32_t thinking_begin, zero;
} satchel_generate_options;
SATCHEL_API void satchel_generate_options_init(satchel_generate_options *, uint32_t size);

/* Begins an answer to token ids. What a slot has of their begin is not computed again. SATCHEL_E_FULL where no slot is free. */
SATCHEL_API int32_t satchel_generate(satchel_model *, const int32_t *ids, int64_t count,
                                     const satchel_generate_options *, satchel_reply **reply);
/* The same for a text, tokenized with these flags. */
SATCHEL_API int32_t satchel_generate_text(satchel_model *, const char *text, int64_t length, uint32_t flags,
                                          const satchel_generate_options *, satchel_reply **reply);

typedef struct {
    uint32_t size;
    int32_t token; /* -1: none: more text that the token before released, or what was held back at the end */
    const char
        *text; /* whole characters, with a zero byte behind them; may be empty. Valid until the reply's next call */
    int64_t length;     /* bytes */
    int32_t kind, zero; /* kind: 0 where the text is empty */
} satchel_piece;
/* The next token: 1, or 0 where the answer is over. piece->size is set by the caller. A piece has the text that its token released:
 * less than the token's own while a stop string or marker may begin in it, more where what was held back turned out to be none. */
SATCHEL_API int32_t satchel_reply_next(satchel_reply *, satchel_piece *piece);

enum { SATCHEL_ENDED = 1, SATCHEL_LENGTH = 2, SATCHEL_STOPPED = 3 /* by a stop string */ };
typedef struct {
    uint32_t size;
    int32_t reason; /* 0: not over; SATCHEL_ENDED: an end token; SATCHEL_LENGTH: max_tokens or context; or STOPPED */
    int64_t prompt_tokens, cached_tokens, tokens; /* cached: tokens of the prompt that a slot had */
    int64_t seed;
    int32_t stop, zero; /* stop: number of the stop string that was found; -1: none */
} satchel_reply_report;
SATCHEL_API int32_t satchel_report(const satchel_reply *,
                                   satchel_reply_report *report); /* report->size is set by the caller */
/* Ends the answer and frees its slot, which keeps its tokens; NULL: nothing. */
SATCHEL_API void satchel_reply_free(satchel_reply *);

/* --- choices and what is kept: grammars, saved conversations */

/* Structured output: while a reply has a grammar, only tokens come that its text allows, the same ones as Satchel's server allows.
 * A grammar may be used by any number of replies of its model, and not be freed before them. What its states allow is remembered,
 * some 128 states of a bit for each token, so that most tokens cost little more than without. Any thread may call these.
 *
 * satchel_grammar_named: the one that `satchel build --grammar NAME=FILE` put into the file: SATCHEL_E_UNBUILT: there is none of this
 * name. *grammar is for satchel_grammar_free(). A reply whose grammar proves too ambiguous or too deeply nested fails. */
SATCHEL_API int32_t satchel_grammar_named(satchel_model *, const char *name, satchel_grammar **grammar);
enum {
    SATCHEL_JSON_VALUE = 1,  /* any value; else an object */
    SATCHEL_JSON_COMPACT = 2 /* no white space between tokens */
};
/* JSON of any shape, for which the file needs nothing. */
SATCHEL_API int32_t satchel_grammar_json(satchel_model *, uint32_t flags, satchel_grammar **grammar);
/* A grammar by its text, a JSON schema, or a grammar in GBNF or Lark: in a worker process alone, else SATCHEL_E_LACKS.
 * SATCHEL_E_ARGUMENT: it is none; the error says where. */
SATCHEL_API int32_t satchel_grammar_text(satchel_model *, const char *text, int64_t length, satchel_grammar **grammar);
SATCHEL_API void satchel_grammar_free(satchel_grammar *); /* NULL: nothing */

/* What a reply's slot holds, as bytes: its prompt, the tokens that were asked for, and the states of those that are computed, KV cache
 * and recurrent states. Nothing of the model and no options. satchel_load() of the same file, opened for any context that is long
 * enough and any number of slots, on this or another machine of the same kernels, puts it into a slot, so that a
 * satchel_generate() with these tokens goes on from there and gives, with the same options and seed, the tokens that the reply would
 * have given; Mirostat, min_tokens and max_tokens count anew. Any thread may call them; a step that runs is waited for.
 *
 * satchel_save: bytes of the conversation, which are written where `room` is no less. SATCHEL_E_FILE: the states cannot be saved, or
 * the file cannot be written. */
SATCHEL_API int64_t satchel_save(satchel_reply *, void *bytes, int64_t room);
/* The same to a file, which is replaced in one moment. */
SATCHEL_API int64_t satchel_save_file(satchel_reply *, const char *path);
/* Reads such bytes into the free slot that was used longest ago; gives the number of its tokens, of which the first `room` are
 * written to `ids` (NULL where room is 0). They may come from anyone: SATCHEL_E_FILE: they are damaged, or of another model, build or
 * state layout. SATCHEL_E_LONG: the context is too short. SATCHEL_E_FULL: every slot has a reply. On failure nothing is kept, but
 * the slot may have been emptied. The next satchel_generate() should follow before others take the slot. */
SATCHEL_API int64_t satchel_load(satchel_model *, const void *bytes, int64_t size, int32_t *ids, int64_t room);
SATCHEL_API int64_t satchel_load_file(satchel_model *, const char *path, int32_t *ids, int64_t room);

/* --- chats: the file's own chat template, run without Python */

typedef struct satchel_chat_prompt satchel_chat_prompt;

enum {
    SATCHEL_CHAT_TEMPLATE = 1,      /* the file has a template that this library runs */
    SATCHEL_CHAT_THINKS = 2,        /* the template is for a model that reasons before it answers */
    SATCHEL_CHAT_EFFORT = 4,        /* it reads reasoning_effort */
    SATCHEL_CHAT_TOOLS = 8,         /* it writes tools; else they are told in the system message as JSON */
    SATCHEL_CHAT_TOOLS_SPOKEN = 16, /* earlier calls are written as JSON, so an answer's may be too */
    SATCHEL_CHAT_FALLBACK =
        32 /* the file has no template: messages are written as ChatML, which the model may not know */
};
/* What marks the parts of an answer. Texts end with a zero byte and belong to the model; "" where there is none. */
typedef struct {
    uint32_t size, flags;
    const char *thinking_begin, *thinking_end; /* around reasoning, such as <think> and </think> */
    const char *tool_calls;        /* name of the format of tool calls, such as hermes; "": the model makes none */
    const char *tool_calls_begin;  /* texts that may begin calls, a line each */
    const char *thinking_switches; /* variables that turn reasoning on and off, a line each, such as enable_thinking */
} satchel_chat_format;
/* Fills what the caller's version knows; format->size is set by the caller. Every call gives the same texts. */
SATCHEL_API int32_t satchel_chat_facts(const satchel_model *, satchel_chat_format *format);

/* Writes a conversation as the model's chat template does, up to where the answer begins. request: JSON, strict (RFC 8259), such as
 *
 *   {"messages": [{"role": "user", "content": "Hello!"}], "tools": [], "add_generation_prompt": true,
 *    "chat_template_kwargs": {"enable_thinking": false}}
 *
 * with messages and tools as OpenAI's API has them: roles system, developer, user, assistant (with tool_calls and
 * reasoning_content) and tool; "documents" for templates that read some. All but the messages are optional; another key is an error,
 * and so are numbers beyond 64 bits and images. What the template cannot show is told in a message that it can, as the Python
 * library does.
 *
 * *prompt is for satchel_chat_prompt_free(); it outlives nothing but its own memory: the model may be closed before it. The time and
 * the memory of a rendering are bounded, whatever the template and the messages are: SATCHEL_E_MEMORY beyond 64 MB and 400 bytes a
 * byte of the request, SATCHEL_E_ARGUMENT for too many steps, for a request that is wrong, and where the template refuses it (with
 * its line); SATCHEL_E_UNBUILT where the file has no template that this library runs. */
SATCHEL_API int32_t satchel_chat_render(const satchel_model *, const char *request, int64_t length,
                                        satchel_chat_prompt **prompt);
/* The prompt as readable text, with a zero byte behind it; *length (NULL: not told) its bytes. Valid until the prompt is freed. */
SATCHEL_API const char *satchel_chat_prompt_text(const satchel_chat_prompt *, int64_t *length);
/* Its tokens, for satchel_generate(), and their number. The template's special tokens are tokens; the same characters in a message
 * are text, so that no user can write a marker. Valid until the prompt is freed. */
SATCHEL_API const int32_t *satchel_chat_prompt_ids(const satchel_chat_prompt *, int64_t *count);
/* 1: the prompt ends within reasoning, so the answer begins with it, without thinking_begin; 0: it does not. */
SATCHEL_API int32_t satchel_chat_prompt_thinks(const satchel_chat_prompt *);
SATCHEL_API void satchel_chat_prompt_free(satchel_chat_prompt *); /* NULL: nothing */

#ifdef __cplusplus
}
#endif

#endif
