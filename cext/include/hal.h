/* hal.h: the contract between Satchel's Python and a backend, which is one shared library with one exported symbol.
 *
 * The C compilers and cffi read the same bytes, so this file holds declarations, enums and integer #defines only: no
 * #include, no #if. Python derives its numpy dtypes from the structs below; nothing is stated twice.
 *
 * Ownership. Handles (device, buffer, exec) belong to the caller, who ends each with its own call: exec, then buffers,
 * then device. compile() copies whatever it keeps of the plan's tables; the buffers it was given must outlive the exec.
 * Every function that returns int gives 0 or a negative HAL_E_ code and leaves the reason in error(), thread-local.
 * Entries marked optional may be NULL. run() allocates nothing.
 *
 * The part above the line "==== ops" is hashed into HAL_ABI_HASH: a library built against other tables is refused by
 * name. Ops and their argument structs match by name and size at compile(), so a new op breaks no drop-in library. */

/* ==== tables */

typedef struct hal_device hal_device;
typedef struct hal_buffer hal_buffer;
typedef struct hal_exec hal_exec;

enum { HAL_E_UNSUPPORTED = -1, HAL_E_MEMORY = -2, HAL_E_INVALID = -3, HAL_E_DEVICE = -4, HAL_E_TIMEOUT = -5,
       HAL_E_LOST = -6 /* the device will do nothing more for this process; all that can be done is to close it */ };

/* What a buffer is for. STEP is the copy of the step block; ARENA holds what lives within one run; OUT is read by the
 * host; LINK holds what one exec leaves for a later one of the same step, and what comes from another device. */
enum { HAL_WEIGHT = 0, HAL_CONST = 1, HAL_STATE = 2, HAL_ARENA = 3, HAL_STEP = 4, HAL_OUT = 5, HAL_LINK = 6 };

/* Flags of hal_info. */
enum { HAL_HOST_MEMORY = 1, HAL_TEST_ONLY = 2 };

/* Flags of hal_options: FAST lets products requantize weights to 8 bits where that is quicker; PROFILE counts the time of
 * each step; DETERMINISTIC keeps to kernels of which every bit of a row depends on that row's inputs alone, not on how many
 * rows a step has, nor on what was tuned. */
enum { HAL_FAST = 1, HAL_PROFILE = 2, HAL_DETERMINISTIC = 4 };

/* What measure() measures. */
enum { HAL_MEASURE_READ = 0, HAL_MEASURE_INT8 = 1, HAL_MEASURE_BF16 = 2, HAL_MEASURE_F32 = 3 };

/* Beside a weight's format in a view: it lies in the device's own order, as pack() wrote it; the view's stride is 0. */
enum { HAL_PACKED = 1 << 24 };

/* A tensor: shape is outermost first, unused places hold 1. Everything but the first dimension is dense; `stride` is the
 * bytes from one index of the first dimension to the next. Where count >= 0, the step block's counts[count] replaces
 * shape[0] at run time, and shape[0] is the most it can be. */
typedef struct {
    uint32_t buffer;  /* index into the plan's buffers */
    uint32_t format;  /* GGUF's number of the element or block format */
    uint64_t offset;  /* bytes */
    uint64_t stride;  /* bytes */
    int32_t count;
    uint32_t ndim;
    int32_t shape[4];
} hal_view;

/* One kernel call. views[view] is the output, the n_in inputs follow it. */
typedef struct {
    uint16_t op;      /* index into the plan's ops */
    uint16_t n_in;
    uint32_t view;
    uint32_t arg;     /* byte offset of the op's argument struct in args */
} hal_step;

typedef struct {
    char name[28];
    uint32_t arg_size;
} hal_op;

typedef struct {
    uint64_t size;    /* bytes */
    uint32_t usage;
    uint32_t align;   /* bytes; 0: the backend's own */
} hal_bufdesc;

enum { HAL_NAME = 128 }; /* characters of a kernel's name, the 0 behind it included */

/* A kernel override: the step takes this kernel instead of the backend's default: one of the backend's own by `name`, as
 * kernels() gives it, or a custom kernel, which add_kernel() took, with its grid. A backend without kernels() ignores names. */
typedef struct {
    uint32_t step;
    uint32_t kernel;     /* the number that add_kernel() gave; 0: `name` counts */
    uint32_t groups[3];  /* from here on for kernel > 0: groups of the grid, threads of a group, bytes of its local memory */
    uint32_t threads, local;
    uint64_t scratch;    /* bytes of device memory that the kernel wants for itself during the step */
    char name[HAL_NAME];
} hal_kernel_override;

typedef struct {
    uint32_t n_steps, n_views, n_buffers, n_ops, n_args, n_overrides;
    uint32_t step_buffer;  /* which buffer run() copies the step block to */
    const hal_step *steps;
    const hal_view *views;
    const hal_bufdesc *buffers;
    const hal_op *ops;
    const uint8_t *args;
    const hal_kernel_override *overrides; /* in the order of their steps, at most one a step */
} hal_plan;

typedef struct {
    int32_t threads;         /* 0: the backend's choice */
    int32_t threads_decode;  /* for steps of one token a slot; 0: as many as threads */
    uint32_t flags;
} hal_options;

typedef struct {
    char name[64];          /* what a person calls the device */
    char variant[32];       /* the kernel set in use, "avx512" for one */
    uint64_t memory_total, memory_free;  /* bytes */
    uint64_t allocations;   /* how many alloc, wrap and compile calls reserved memory since open */
    uint32_t threads, flags;
} hal_info;

typedef struct {
    uint64_t hash;          /* HAL_ABI_HASH of the hal.h that the library was built with */
    const char *name;
    int (*score)(void);     /* 0: cannot run here; below 0: nor can it, for a driver that is there is broken, as error() says;
                             * else higher is preferred among libraries of the same name */
    int (*count)(void);     /* devices */
    int (*open)(int index, const hal_options *, hal_device **);
    void (*close)(hal_device *);
    void (*info)(hal_device *, hal_info *);
    int (*alloc)(hal_device *, const hal_bufdesc *, hal_buffer **);                  /* zeroed */
    int (*wrap)(hal_device *, const void *host, uint64_t size, hal_buffer **);       /* optional: use host memory in place */
    void (*free)(hal_buffer *);
    int (*write)(hal_buffer *, uint64_t offset, const void *from, uint64_t size);
    int (*read)(hal_buffer *, uint64_t offset, void *to, uint64_t size);
    int (*copy)(hal_buffer *to, uint64_t to_offset, hal_buffer *from, uint64_t from_offset, uint64_t size); /* optional */
    int (*supports)(hal_device *, const hal_plan *, uint32_t step);                  /* 1: yes */
    int (*compile)(hal_device *, const hal_plan *, hal_buffer *const *buffers, hal_exec **);
    int (*run)(hal_exec *, const void *step_block, uint64_t size);                   /* may return before the work is done */
    int (*wait)(hal_exec *, uint32_t timeout_ms);                                    /* until the last run is done */
    void (*release)(hal_exec *);
    const char *(*error)(void);
    /* optional: weights in the device's own order. packed(): the bytes that a (rows, columns) matrix, or a stack of such,
     * takes, 0 where it stays as it is; pack() writes it from the file's bytes. Where packed() of parts that are multiples of
     * 256 rows adds up to that of the whole, a matrix may be packed part by part. */
    uint64_t (*packed)(hal_device *, uint32_t format, int64_t stack, int64_t rows, int64_t columns);
    int (*pack)(hal_buffer *to, uint64_t offset, uint32_t format, int64_t stack, int64_t rows, int64_t columns,
                const void *from);
    /* optional: nanoseconds spent in each step since compile(), where the device was opened with HAL_PROFILE */
    int (*times)(hal_exec *, uint64_t *ns, uint32_t n_steps);
    /* optional: what the device can do at most in a second, measured now, with all of its threads: HAL_MEASURE_READ: bytes
     * read from `bytes` of its memory again and again (or read and written, in all); the others: multiply-adds of such numbers by the instructions that its
     * kernels use, HAL_E_UNSUPPORTED where it has none */
    int (*measure)(hal_device *, uint32_t what, uint64_t bytes, double *per_second);
    /* optional: names of the own kernels that can do a step, the one that it takes unasked first; gives how many there are, and
     * writes at most `most` of them, each with room for HAL_NAME characters; a code below 0 where the step is wrong */
    int (*kernels)(hal_device *, const hal_plan *, uint32_t step, char *names, uint32_t most);
    /* optional: takes a kernel of the caller's; `image` ends with a 0 and is what docs/user-kernels.md says of the backend;
     * `entry`: the function's name. *kernel becomes its number, which is good until the device is closed. */
    int (*add_kernel)(hal_device *, const char *image, const char *entry, uint32_t *kernel);
    /* optional: order work between devices on a counter, and collectives over a group of devices */
    int (*signal)(hal_device *, uint64_t value);
    int (*await)(hal_device *, uint64_t value);
    int (*all_reduce)(hal_device *, hal_buffer *, uint64_t offset, uint64_t elements);
    int (*all_gather)(hal_device *, hal_buffer *, uint64_t offset, uint64_t elements);
    int (*send)(hal_device *, int peer, hal_buffer *, uint64_t offset, uint64_t size);
    int (*recv)(hal_device *, int peer, hal_buffer *, uint64_t offset, uint64_t size);
} hal_backend;

const hal_backend *hal_backend_entry(void);

/* The step block begins with eight int32 counts: tokens, output rows; the rest is zero. What follows is the plan's inputs. */
enum { HAL_COUNT_TOKENS = 0, HAL_COUNT_ROWS = 1, HAL_COUNTS = 8 };

/* Stages of a sampling chain, as runtime/sampling/chain.py defines them. */
enum {
    HAL_STAGE_END, HAL_STAGE_PENALTIES, HAL_STAGE_DRY, HAL_STAGE_TOP_N_SIGMA, HAL_STAGE_TOP_K, HAL_STAGE_TYPICAL,
    HAL_STAGE_TOP_P, HAL_STAGE_MIN_P, HAL_STAGE_XTC, HAL_STAGE_TEMPERATURE, HAL_STAGE_MIROSTAT_1, HAL_STAGE_MIROSTAT_2,
    HAL_STAGES = 12
};

/* How one output row is sampled; a row of the step block's `params`. A number is looked at by its stage alone. */
typedef struct {
    float temperature, dynatemp_range, dynatemp_exponent;       /* temperature <= 0: take the most likely token */
    float top_p, min_p, typical_p, top_n_sigma;
    float xtc_probability, xtc_threshold;
    float repeat_penalty, presence_penalty, frequency_penalty;
    float mirostat_mu;       /* most nll_bits that a token may have */
    int32_t top_k;
    int32_t repeat_last_n;   /* how many last tokens the penalties look at */
    int32_t masked;          /* 1: only tokens whose bits are set in the row's token bitmask */
    int32_t biases, dry_penalties; /* of the row's edits: how many are added first, how many more in the stage DRY */
    int32_t report;          /* 1: the row's logprobs are wanted */
    uint8_t chain[HAL_STAGES]; /* HAL_STAGE_ in order, ended by HAL_STAGE_END */
    uint64_t seed;
} hal_sampling;

/* ==== ops: one entry here, one argument struct where it takes arguments (none: no struct), one function in runtime/ops/__init__.py */

enum {
    HAL_OP_GET_ROWS, HAL_OP_LINEAR, HAL_OP_LINEAR_ADD, HAL_OP_QUANTIZE, HAL_OP_RMS_NORM, HAL_OP_NORM_QUANTIZE,
    HAL_OP_SWIGLU, HAL_OP_SWIGLU_QUANTIZE, HAL_OP_ADD, HAL_OP_MUL, HAL_OP_ROPE, HAL_OP_KV_WRITE, HAL_OP_ATTENTION,
    HAL_OP_HADAMARD, HAL_OP_GATHER_ROWS, HAL_OP_TOKENS_PUT, HAL_OP_TOKENS_GET, HAL_OP_SAMPLE,
    HAL_OP_TOP_EXPERTS, HAL_OP_EXPERT_WEIGHTS, HAL_OP_EXPERT_LINEAR, HAL_OP_EXPERT_SWIGLU, HAL_OP_EXPERT_SUM,
    HAL_OP_ROPE_TABLE, HAL_OP_ROPE_KV_WRITE, HAL_OP_LINEAR_SWIGLU, HAL_OP_LINEAR_SWIGLU_QUANTIZE,
    HAL_OP_SAMPLE_MASKED, HAL_OP_LOGPROBS,
    HAL_OP_LAYER_NORM, HAL_OP_GELU, HAL_OP_SOFT_CAP,
    HAL_OP_TAKE, HAL_OP_CONCAT, HAL_OP_HEAD_LINEAR, HAL_OP_EXPERT_ADD, HAL_OP_SWIGLU_LIMITED,
    HAL_OP_POSITION_SCALE,
    HAL_OP_SIGMOID, HAL_OP_SOFTPLUS, HAL_OP_SHORT_CONV, HAL_OP_CONV_WRITE, HAL_OP_GATED_SCAN, HAL_OP_SCAN_WRITE,
    HAL_OP_ABSORBED_ATTENTION, HAL_OP_EXPANDED_ATTENTION, HAL_OP_INDEX_POSITIONS, HAL_OP_SPARSE_ATTENTION, HAL_OP_EXPERT_SLOTS,
    HAL_N_OPS
};

/* RoPE pairs: INTERLEAVED rotates (2i, 2i+1) as Llama does, HALVES (i, i + n_rot/2) as NeoX does. */
enum { HAL_ROPE_INTERLEAVED = 0, HAL_ROPE_HALVES = 1 };

typedef struct { float eps; } arg_rms_norm;
typedef struct { float eps; } arg_norm_quantize;
typedef struct { float scale; } arg_rope_table;
typedef struct { int32_t style; } arg_rope;
typedef struct { int32_t style; } arg_rope_kv_write;
/* window, chunk 0: the whole past; cap: of scores, 0: none; value: so many numbers of a key's head are its value, 0: v is a
 * cache of its own; causal 0: a query sees what comes after it in the step; alibi 1: the last input is slopes of heads */
typedef struct { float scale; int32_t window; float cap; int32_t value, chunk, causal, alibi; } arg_attention;
typedef struct { int32_t shift; } arg_tokens_put;               /* 1: the token after each position */
typedef struct { int32_t k, groups, kept, sigmoid; } arg_top_experts;
typedef struct { int32_t k; } arg_logprobs;                     /* how many of the likeliest tokens are listed */
typedef struct { int32_t norm, sigmoid; float scale; } arg_expert_weights; /* norm 1: they sum to scale, 2: see ops.py */
typedef struct { float eps; } arg_layer_norm;
typedef struct { int32_t style; } arg_gelu;                     /* 0: by tanh, 1: by the error function */
typedef struct { float cap; } arg_soft_cap;
typedef struct { int32_t start, size; } arg_take;
typedef struct { float limit, alpha; } arg_swiglu_limited;
typedef struct { int32_t step; float slope; } arg_position_scale;
/* block: positions that a page of the state stands for; delta 1: by the delta rule; tiled 1: head h has the keys of group
 * h % G, else of h / (H / G) */
typedef struct { int32_t block; } arg_short_conv;
typedef struct { int32_t block; } arg_conv_write;
typedef struct { int32_t block, delta, tiled; } arg_gated_scan;
typedef struct { int32_t block, tiled; } arg_scan_write;
typedef struct { float scale; int32_t value, least; } arg_absorbed_attention; /* runs of `least` tokens and more are left out */
typedef struct { float scale; int32_t least; } arg_expanded_attention;      /* only runs of `least` tokens and more */
typedef struct { int32_t k; } arg_index_positions;
typedef struct { float scale; int32_t value; } arg_sparse_attention;
