/* sections.h: the tables of the metadata keys satchel.plan, satchel.tokenizer and satchel.template, as runtime/aot/records.py writes them.
 *
 * A section is a head, then tables in the order of the comments below, each at a multiple of 8 bytes; the head has their counts,
 * and its size follows from these. Numbers are little-endian. Nothing here is checked: plan_section.c, words.c and template_section.c do
 * that.
 */
#ifndef SATCHEL_EMBED_SECTIONS_H
#define SATCHEL_EMBED_SECTIONS_H

#include "backend.h"

/* Kinds of dimensions that follow the cache; DIM_POOL + k: blocks of layer group k. */
enum { DIM_FIXED, DIM_SLOTS, DIM_RING, DIM_WIDTH, DIM_POOL };
/* Inputs of the step block. */
enum {
    FIELD_IDS,
    FIELD_POS,
    FIELD_SLOT,
    FIELD_ROWS,
    FIELD_PARAMS,
    FIELD_TABLE,
    FIELD_SEGMENTS,
    FIELD_BITMASK,
    FIELD_EDITS,
    N_FIELDS
};
/* What a plan gives for each row: a token (or, for embeddings, a hidden row); or a token and its nll_bits (as a float32's bits), under the row's token bitmask and
 * after its edits, which are inputs. */
enum { OUTPUT_TOKENS, OUTPUT_MASKED, N_OUTPUTS };
enum { MOST_EDITS = 1024 }; /* logit edits of a row: (token, float32) each */
/* Buffers of a plan, by number. */
enum { BUFFER_STEP, BUFFER_ARENA, BUFFER_STATE, BUFFER_CONST, BUFFER_OUT, BUFFER_FILE, BUFFER_PACKED, N_BUFFERS };

/* satchel.plan: plan_head, names (bytes), plan_weight, plan_state, plan_group; then for each plan plan_entry, plan_field, hal_step,
 * plan_view, hal_op, arguments (bytes), constants (bytes). */
typedef struct {
    char magic[8];      /* SATPLAN2 */
    uint32_t size, crc; /* bytes of the section; CRC-32 of what follows this number */
    uint64_t hal;       /* HAL_ABI_HASH */
    uint32_t file_crc;  /* CRC-32 of the file's other keys and its tensor list: the plan belongs to them */
    uint32_t n_names, n_weights, n_states, n_groups, n_plans, n_variants;
    uint32_t block, batch, vocabulary; /* tokens of a KV block, and of the largest step; width of the logits */
    uint32_t least_context, most_context, context, slots;
    uint32_t pooling, whole, width, zero; /* whole: a text is read in one step; width: numbers of a hidden row */
} plan_head;
/* A weight is read as the file has it; or packed when the file is opened; or it is packed in the tensor satchel.panels, where packed
 * weights follow each other in the order of their table, each at a multiple of 64 bytes. */
enum { PACKED_NOT, PACKED_AT_OPEN, PACKED_IN_FILE };
/* What the plans give: tokens, or hidden rows, and how these become the vector of a text. */
enum { POOLING_NONE, POOLING_MEAN, POOLING_FIRST, POOLING_LAST, N_POOLINGS };
typedef struct {
    uint32_t name, name_size;            /* place in the names */
    uint32_t format, packed, ndim, zero; /* packed: PACKED_ */
    int64_t shape[4];                    /* outermost first */
} plan_weight;
typedef struct {
    uint64_t unit; /* bytes: its size is this times the numbers of its kinds */
    uint8_t kinds[4];
    uint32_t zero;
} plan_state;
typedef struct {
    uint32_t window, zero; /* window: 0: all positions; WINDOW_RECURRENT: a recurrent state */
} plan_group;
enum { WINDOW_RECURRENT = 1 << 30 };
typedef struct {
    uint32_t variant, tokens, rows, n_fields, n_steps, n_views, n_ops, n_args, n_consts, what; /* what: OUTPUT_ */
    uint64_t arena, out;                                                                       /* bytes */
    uint64_t output; /* offset of the sampled tokens or hidden rows in the buffer out */
} plan_entry;
typedef struct {
    uint64_t unit;
    uint8_t kinds[4];
    uint16_t what, group;
} plan_field;
typedef struct {
    uint8_t of, kinds[4], zero[3]; /* of: a buffer; kinds: of the dimensions of the view's shape */
    uint32_t index, zero2;         /* of the state, the field or the weight in which view.offset counts */
    hal_view view;                 /* its stride is without the numbers of its inner dimensions' kinds */
} plan_view;

/* satchel.tokenizer: tokenizer_head, begins of tokens in the bytes (uint32, n_tokens + 1), flags of tokens (uint8), tokens of the
 * 256 bytes (int32, -1: none), tokenizer_merge (by left, right), tokenizer_word (by their bytes: what text is looked up in, see the
 * kinds), tokenizer_special (in the order in which a text is cut at them), end tokens (uint32), begins of the patterns in the code
 * (uint32), pattern_code, pattern_class, pattern_range (rising within a class), tokenizer_map (rising), points of the maps (uint32),
 * the precompiled character map (bytes, as formats/tokenizer/charsmap.py describes it), bytes. */
typedef struct {
    char magic[8]; /* SATTOK02 */
    uint32_t size, crc;
    uint32_t n_tokens, n_bytes, n_merges, n_words, n_specials, n_ends, n_programs, n_code, n_classes, n_ranges;
    uint32_t n_maps, n_points, n_charsmap;
    uint32_t flags, kind;
    int32_t bos, eos, unknown; /* -1: none; eos: what is added at the end, which is the separator of WordPiece */
    float unknown_score;       /* of a character without a token, TOKENIZER_UNIGRAM */
    uint32_t zero;
} tokenizer_head;
/* Kinds, and what their words are. BYTES: byte-level BPE; words: tokens that a word may be as a whole. RAW: BPE over characters, with
 * tokens for bytes; words: tokens of one character or of newlines. SCORED: SentencePiece BPE; words: pieces, value: their rank, the
 * best first. UNIGRAM: words: pieces, value: the float32 of their score. WORDPIECE: words: begins of words, and parts that go on
 * with "##" before them. Words of RAW, SCORED and UNIGRAM have a space for U+2581, as texts do. */
enum { TOKENIZER_BYTES, TOKENIZER_RAW, TOKENIZER_SCORED, TOKENIZER_UNIGRAM, TOKENIZER_WORDPIECE, N_TOKENIZERS };
/* SPACE_PREFIX: a space is put before a text, and one is taken from the begin of what tokens say. SQUEEZE: runs of spaces become one.
 * CUTS: no token holds a letter, a space and what follows, so that long texts may be cut there. */
enum {
    TOKENIZER_ADD_BOS = 1,
    TOKENIZER_ADD_EOS = 2,
    TOKENIZER_WHOLE_WORDS = 4,
    TOKENIZER_SPACE_PREFIX = 8,
    TOKENIZER_SQUEEZE = 16,
    TOKENIZER_CUTS = 32
};
enum { TOKEN_HIDDEN = 1, TOKEN_PLAIN = 2 }; /* PLAIN: ordinary text, which may come within a grammar */
typedef struct {
    uint32_t left, right, made, rank;
} tokenizer_merge;
typedef struct {
    uint32_t token, at, size, value; /* at: of the word in the bytes */
} tokenizer_word;
/* ALWAYS: cut out of any text, else only where special tokens are asked for. LEFT, RIGHT: with the white space before and after it. */
enum { SPECIAL_ALWAYS = 1, SPECIAL_LEFT = 2, SPECIAL_RIGHT = 4 };
typedef struct {
    uint32_t token, flags;
} tokenizer_special;
/* What WordPiece makes of the characters low to high; others stay as they are. MOVE: the character `value` further on (modulo 2^32).
 * DROP: nothing. BREAK: nothing, but marks are not sorted across it. SPACED: itself between spaces. HANGUL: a syllable's letters.
 * POINTS: `count` points from `value` on, of which 0 is a BREAK. Class 0 of the patterns is punctuation; marks of class k + 1 come
 * behind those of class k in a run of marks. */
enum { MAP_MOVE, MAP_DROP, MAP_BREAK, MAP_SPACED, MAP_HANGUL, MAP_POINTS, N_MAPS };
typedef struct {
    uint32_t low, high, kind, value, count, zero;
} tokenizer_map;
/* PATTERN_CLASS a: one character of class a. SPLIT a b: go on at a, else at b. JUMP a. RUN c a b: a to b characters of class c,
 * as many as possible first. LOOK a c: whether the code from the next one on matches here (LOOK_BEHIND: before here); then go on
 * at a. HOLD c a b: as RUN, and only as many as possible. START: here the search for a match began. BORDER a: of two characters
 * beside each other one is of class a. LINE_END: the text or a line ends here. */
enum {
    PATTERN_MATCH,
    PATTERN_CLASS,
    PATTERN_SPLIT,
    PATTERN_JUMP,
    PATTERN_RUN,
    PATTERN_LOOK,
    PATTERN_HOLD,
    PATTERN_START,
    PATTERN_BORDER,
    PATTERN_LINE_END,
    N_PATTERN_OPS
};
enum { LOOK_AHEAD, LOOK_NOT_AHEAD, LOOK_BEHIND, LOOK_NOT_BEHIND };
typedef struct {
    uint32_t op, a, b, c;
} pattern_code;
typedef struct {
    uint32_t first, count; /* of its ranges */
} pattern_class;
typedef struct {
    uint32_t low, high;
} pattern_range;

/* satchel.grammar.NAME: grammar_head, the start state of each rule (uint32, the first is the whole text's), grammar_state (one more than
 * n_states), grammar_range (rising within a state), grammar_call. */
typedef struct {
    char magic[8]; /* SATGRA01 */
    uint32_t size, crc;
    uint32_t n_rules, n_states, n_ranges, n_calls;
} grammar_head;
typedef struct {
    uint32_t first_range, first_call; /* of its edges; the next state's first ones end them */
    uint32_t final, zero;             /* final 1: its rule may end here */
} grammar_state;
typedef struct {
    uint8_t low, high;
    uint16_t zero;
    uint32_t to;
} grammar_range;
typedef struct {
    uint32_t rule, to;
} grammar_call;

/* satchel.template: template_head, template_variant, template_code, template_macro, template_constant, members of tuples (uint32),
 * variables (template_variable), template_escape (rising by from), tokens that are markers (uint32), template_range (rising; code
 * points that Python's repr writes as numbers), template_case (rising within a kind), bytes. A number of a constant is written as `constant`. */
typedef struct {
    char magic[8]; /* SATTPL01 */
    uint32_t size, crc;
    uint32_t n_variants, n_code, n_macros, n_constants, n_members, n_variables, n_escapes, n_markers, n_ranges, n_cases,
        n_bytes;
    uint32_t flags, mark; /* mark: the character that the escape writes before its own */
    /* Constants, texts with a zero byte behind them. refused: why there is no variant; thinking_: around reasoning; calls_format: a name;
     * a line each: calls_begin: what may begin calls; switches: variables that turn reasoning off. */
    uint32_t refused, thinking_begin, thinking_end, calls_format, calls_begin, switches, zero;
} template_head;
enum { TEMPLATE_THINKS = 1, TEMPLATE_EFFORTS = 2, TEMPLATE_TOOLS = 4, TEMPLATE_SPOKEN = 8, TEMPLATE_FALLBACK = 16 };
/* What a variant does with a conversation, as formats/template/probes.py found it. */
typedef struct {
    uint32_t name;           /* constant */
    uint32_t entry, n_slots; /* its first instruction */
    uint32_t source;         /* characters */
    uint32_t flags, tools_place, tools_name, call_arguments, call_content, zero;
} template_variant;
enum {
    VARIANT_WANTS_PARTS = 1,
    VARIANT_NAMES_DEVELOPER = 2,
    VARIANT_SHOWS_TOOLS = 4,
    VARIANT_SHOWS_RESULTS = 8,
    VARIANT_NAMES_BY_ID = 16,
    VARIANT_CALL_BESIDE_TEXT = 32,
    VARIANT_SHOWS_ROLE = 64,    /* << 0: system first, 1: system later, 2: developer first, 3: developer later */
    VARIANT_READS_PARTS = 1024, /* << the role's number */
    VARIANT_FLAGS = 1 << 15     /* more than all of them */
};
enum { PLACE_NONE, PLACE_VARIABLE, PLACE_SYSTEM, PLACE_BESIDE };    /* of tools that `tools` does not show */
enum { CALL_NONE, CALL_ANY, CALL_OBJECT, CALL_TEXT };               /* form of a call's arguments */
enum { CONTENT_UNKNOWN, CONTENT_ANY, CONTENT_NONE, CONTENT_EMPTY }; /* beside a call */
typedef struct {
    uint8_t op, count;
    uint16_t line; /* of the template */
    uint32_t a, b;
} template_code;
/* The machine has a stack of values. a: a constant, a slot, a place in the code or a number of values; count: arguments of a call, the
 * last ones named by the tuple b (NO_NAMES: none). KEEP adds a loop's item to those that KEPT gives instead of it. */
enum {
    TEMPLATE_CONST,
    TEMPLATE_LOCAL,
    TEMPLATE_STORE,
    TEMPLATE_ROOT, /* a slot of the template itself, in a macro */
    TEMPLATE_NAME, /* a variable or function */
    TEMPLATE_POP,
    TEMPLATE_DUP,
    TEMPLATE_JUMP,
    TEMPLATE_JUMP_FALSE,
    TEMPLATE_JUMP_FALSE_KEEP, /* the value stays where it jumps */
    TEMPLATE_JUMP_TRUE_KEEP,
    TEMPLATE_JUMP_GIVEN, /* where the argument in slot b was given */
    TEMPLATE_NOT,
    TEMPLATE_NEG,
    TEMPLATE_POS,
    TEMPLATE_ADD,
    TEMPLATE_SUB,
    TEMPLATE_MUL,
    TEMPLATE_DIV,
    TEMPLATE_FLOORDIV,
    TEMPLATE_MOD,
    TEMPLATE_POW,
    TEMPLATE_CONCAT,
    TEMPLATE_COMPARE, /* count comparisons of count + 1 values, 4 bits of a each */
    TEMPLATE_ATTRIBUTE,
    TEMPLATE_ITEM,
    TEMPLATE_SLICE,
    TEMPLATE_LIST,
    TEMPLATE_TUPLE,
    TEMPLATE_MAP,
    TEMPLATE_FILTER,
    TEMPLATE_TEST,
    TEMPLATE_CALL,
    TEMPLATE_METHOD,
    TEMPLATE_LOOP,
    TEMPLATE_NEXT, /* the next item, or a jump */
    TEMPLATE_KEEP,
    TEMPLATE_KEPT,
    TEMPLATE_LOOP_END, /* a jump where the loop had a pass */
    TEMPLATE_UNPACK,
    TEMPLATE_SET_ATTRIBUTE,
    TEMPLATE_TEXT,
    TEMPLATE_OUTPUT,
    TEMPLATE_CAPTURE,
    TEMPLATE_CAPTURED,
    TEMPLATE_MACRO,
    TEMPLATE_RETURN,
    TEMPLATE_END,
    TEMPLATE_OPS
};
enum {
    TEMPLATE_EQ,
    TEMPLATE_NE,
    TEMPLATE_GT,
    TEMPLATE_GTEQ,
    TEMPLATE_LT,
    TEMPLATE_LTEQ,
    TEMPLATE_IN,
    TEMPLATE_NOTIN,
    TEMPLATE_COMPARISONS
};
#define TEMPLATE_NO_NAMES 0xFFFFFFFFu
typedef struct {
    uint32_t entry, n_slots;
    uint32_t name, arguments; /* constants; arguments: names of the first slots */
    uint32_t flags, zero;
} template_macro;
enum {
    MACRO_CALLER = 1,
    MACRO_VARARGS = 2,
    MACRO_KWARGS = 4
}; /* that it reads: slots behind the arguments, in this order */
typedef struct {
    uint32_t kind, size; /* size: bytes, or members */
    int64_t value;       /* number, bits of a double, first byte, first member */
} template_constant;
enum {
    CONSTANT_NONE,
    CONSTANT_FALSE,
    CONSTANT_TRUE,
    CONSTANT_INTEGER,
    CONSTANT_FLOAT,
    CONSTANT_STRING,
    CONSTANT_TUPLE,
    CONSTANT_UNDEFINED,
    CONSTANT_OWN, /* a string that the template compares or writes as a value: no user wrote it */
    CONSTANT_KINDS
};
typedef struct {
    uint32_t name, value; /* constants: what every rendering has, such as bos_token */
} template_variable;
typedef struct {
    uint32_t from, to;
} template_escape;
typedef struct {
    uint32_t low, high;
} template_range;
/* Each `step`-th code point from low to high becomes the one `delta` behind it; CASE_REFUSED: what it becomes has no place here. */
typedef struct {
    uint32_t kind, step, low, high;
    int32_t delta;
} template_case;
enum { CASE_TO_LOWER, CASE_TO_UPPER, CASE_TO_TITLE /* where it is not the upper one */, CASE_KINDS };
#define CASE_REFUSED INT32_MIN

#endif
