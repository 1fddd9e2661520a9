/* satchel.h: runs a model file that `satchel build` made, without Python. Level 0: names and structs may still change.
 *
 * Handles are opaque. A struct of options begins with its size: its _init function fills the defaults of the fields that the
 * caller's version has, and fields are added at the end only. Functions that return int32_t or int64_t give a negative SATCHEL_E_
 * code on failure, and satchel_error() its reason. Text is UTF-8; a length of -1 says that it ends with a zero byte.
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

#define SATCHEL_LEVEL 0

typedef struct satchel_model satchel_model;
typedef struct satchel_reply satchel_reply;

enum {
    SATCHEL_OK = 0,
    SATCHEL_E_ARGUMENT = -1, /* an argument or option is out of range */
    SATCHEL_E_FILE = -2,     /* the file cannot be read, is damaged, or does not fit its plan */
    SATCHEL_E_UNBUILT = -3,  /* the file has no plan: run `satchel build` */
    SATCHEL_E_MEMORY = -4,
    SATCHEL_E_DEVICE = -5, /* the kernels refuse the plan, or a step failed */
    SATCHEL_E_FULL = -6,   /* every slot has a reply */
    SATCHEL_E_LONG = -7    /* the prompt is longer than the context */
};

SATCHEL_API uint32_t satchel_level(void);    /* SATCHEL_LEVEL of the library */
SATCHEL_API const char *satchel_error(void); /* of this thread's last call that failed; valid until the next one */

/* --- models */

typedef struct {
    uint32_t size;          /* bytes of this struct, as the caller knows it */
    int32_t context;        /* tokens that a prompt and its answer may have together; 0: as the file says */
    int32_t slots;          /* replies at a time, 1 to 64; 0: as the file says */
    int32_t threads;        /* for prompts; 0: one for each processor that this process may use */
    int32_t threads_decode; /* for steps of one token per reply; 0: the same */
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
    char kernels[32]; /* the instruction set in use, such as "avx2" */
} satchel_model_facts;
SATCHEL_API int32_t satchel_facts(const satchel_model *,
                                  satchel_model_facts *facts); /* facts->size is set by the caller */

/* --- text and tokens */

enum {
    SATCHEL_SPECIAL = 1, /* tokenize: texts of control tokens become them; detokenize: control tokens show theirs */
    SATCHEL_NO_BOS = 2   /* tokenize: no token is added at the begin or end that the file asks for */
};
/* Number of tokens of a text, of which the first `room` are written to `ids` (NULL where room is 0). */
SATCHEL_API int64_t satchel_tokenize(const satchel_model *, const char *text, int64_t length, uint32_t flags,
                                     int32_t *ids, int64_t room);
/* Bytes of the text of tokens, of which the first `room` are written to `text`; a zero byte follows where there is room. Bytes that
 * are no UTF-8 become U+FFFD. */
SATCHEL_API int64_t satchel_detokenize(const satchel_model *, const int32_t *ids, int64_t count, uint32_t flags,
                                       char *text, int64_t room);

/* --- answers */

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
    const char *samplers; /* the chain's stages by letter, as --sampler-seq; NULL: "eskypmxt" */
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
    int32_t token; /* -1: the last piece, which holds what is left of a cut character */
    const char
        *text; /* whole characters, with a zero byte behind them; may be empty. Valid until the reply's next call */
    int64_t length; /* bytes */
} satchel_piece;
/* The next token: 1, or 0 where the answer is over. piece->size is set by the caller. */
SATCHEL_API int32_t satchel_reply_next(satchel_reply *, satchel_piece *piece);

enum { SATCHEL_ENDED = 1, SATCHEL_LENGTH = 2 };
typedef struct {
    uint32_t size;
    int32_t reason; /* 0: not over; SATCHEL_ENDED: an end token; SATCHEL_LENGTH: max_tokens or context */
    int64_t prompt_tokens, cached_tokens, tokens; /* cached: tokens of the prompt that a slot had */
    int64_t seed;
} satchel_reply_report;
SATCHEL_API int32_t satchel_report(const satchel_reply *,
                                   satchel_reply_report *report); /* report->size is set by the caller */
/* Ends the answer and frees its slot, which keeps its tokens; NULL: nothing. */
SATCHEL_API void satchel_reply_free(satchel_reply *);

#ifdef __cplusplus
}
#endif

#endif
