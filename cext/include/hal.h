/* hal.h: the C API between Satchel's Python and a backend. A backend is one shared library with one exported symbol.
 *
 * The C compilers and cffi read the same bytes, so this file holds declarations, enums and integer #defines only: no
 * #include, no #if. Python derives its numpy dtypes from the structs below; nothing is stated twice.
 *
 * Ownership. Handles (device, buffer, exec) belong to the caller, who ends each with its own call: exec, then buffers,
 * then device. compile() copies whatever it keeps of the plan's tables; the buffers it was given must outlive the exec.
 * Every function that returns int gives 0 or a negative HAL_E_ code and leaves the reason in error(), thread-local.
 * Entries marked optional may be NULL. run() allocates nothing.
 *
 * The part above the line "==== ops" and the list of sampling stages (kernels/sample_stages.k.h) are hashed into HAL_ABI_HASH:
 * a library built against others is refused by name. Ops and their argument structs match by name and size at compile(), so a new op breaks no drop-in library. */

/* ==== tables */

typedef struct hal_device hal_device;
typedef struct hal_buffer hal_buffer;
typedef struct hal_exec hal_exec;
typedef struct hal_group hal_group;

enum {
    HAL_E_UNSUPPORTED = -1,
    HAL_E_MEMORY = -2,
    HAL_E_INVALID = -3,
    HAL_E_DEVICE = -4,
    HAL_E_TIMEOUT = -5,
    HAL_E_LOST = -6 /* the device fails every further call of this process; the caller can only close it */
};

/* Use of a buffer. WEIGHT, CONST: written before the first run. STATE: persists between runs (KV cache, token table). ARENA:
 * intermediate values, undefined after a run. STEP: the device's copy of the step block. OUT: outputs that the host reads.
 * LINK: values that one exec passes to a later one of the same step, or that come from another device. PREFETCH: weights, and
 * states that travel with them, that are replaced while the device works: what write() and pack() send waits there for the runs
 * that have used the buffer so far, and the next run that uses it for what was sent. */
enum {
    HAL_WEIGHT = 0,
    HAL_CONST = 1,
    HAL_STATE = 2,
    HAL_ARENA = 3,
    HAL_STEP = 4,
    HAL_OUT = 5,
    HAL_LINK = 6,
    HAL_PREFETCH = 7
};

/* Flags of hal_info. EXPANDS: the expanded form of latent attention, which expanded_attention computes, is the faster one for
 * long stretches of a prompt. */
enum { HAL_HOST_MEMORY = 1, HAL_TEST_ONLY = 2, HAL_EXPANDS = 4 };

/* Flags of hal_options. FAST: products may requantize weights to 8 bits where that is faster. PROFILE: measures the time of
 * each step for times(). DETERMINISTIC (batch-invariant): uses only kernels that compute a row's bits from that row's inputs
 * alone, independent of the batch size and of tuning. */
enum { HAL_FAST = 1, HAL_PROFILE = 2, HAL_DETERMINISTIC = 4 };

/* Which peak rate measure() measures: memory bandwidth, or multiply-adds of a type. */
enum { HAL_MEASURE_READ = 0, HAL_MEASURE_INT8 = 1, HAL_MEASURE_BF16 = 2, HAL_MEASURE_F32 = 3 };

/* Or'ed into hal_view.format of a weight: the bytes are in the device's packed layout, as pack() wrote them; stride is 0. */
enum { HAL_PACKED = 1 << 24 };

/* A tensor: a shape and strides over a buffer. All dimensions but the first are dense. */
typedef struct {
    uint32_t buffer; /* index into the plan's buffers */
    uint32_t format; /* GGUF's type number of the element or block format */
    uint64_t offset; /* bytes */
    uint64_t stride; /* bytes from one index of the first dimension to the next */
    int32_t count;   /* >= 0: at run time the step block's counts[count] replaces shape[0], which is its maximum */
    uint32_t ndim;
    int32_t shape[4]; /* outermost first; unused entries are 1 */
} hal_view;

/* One op call. views[view] is the output; the n_in inputs follow it. */
typedef struct {
    uint16_t op; /* index into the plan's ops */
    uint16_t n_in;
    uint32_t view;
    uint32_t arg; /* byte offset of the op's argument struct in args */
} hal_step;

typedef struct {
    char name[28];
    uint32_t arg_size;
} hal_op;

typedef struct {
    uint64_t size; /* bytes */
    uint32_t usage;
    uint32_t align; /* bytes; 0: the backend's default */
} hal_bufdesc;

enum { HAL_NAME = 128 }; /* bytes of a kernel's name, with its terminating 0 */

/* A kernel override: a step runs this kernel instead of the backend's default. It is either a built-in kernel, by `name`, or a
 * custom kernel that add_kernel() took, with its launch grid. A backend without kernels() ignores names. */
typedef struct {
    uint32_t step;
    uint32_t kernel; /* number of a custom kernel from add_kernel(); 0: the built-in kernel called `name` */
    /* for a custom kernel only: */
    uint32_t groups[3];      /* thread groups (CUDA: blocks) of the grid in each dimension */
    uint32_t threads, local; /* threads of a group; bytes of its local (CUDA: shared) memory */
    uint64_t scratch;        /* bytes of device memory that the kernel uses during the step */
    /* for a built-in kernel only: */
    char name[HAL_NAME]; /* as kernels() gives it */
} hal_kernel_override;

typedef struct {
    uint32_t n_steps, n_views, n_buffers, n_ops, n_args, n_overrides;
    uint32_t step_buffer; /* index of the buffer that run() copies the step block to */
    const hal_step *steps;
    const hal_view *views;
    const hal_bufdesc *buffers;
    const hal_op *ops;
    const uint8_t *args;
    const hal_kernel_override *overrides; /* sorted by step, at most one per step */
} hal_plan;

typedef struct {
    int32_t threads;        /* 0: the backend's default */
    int32_t threads_decode; /* for decode steps (one token per slot); 0: the same as threads */
    uint32_t flags;
} hal_options;

typedef struct {
    char name[64];                      /* the device's product name */
    char variant[32];                   /* the kernel set in use, e.g. "avx512" */
    char image[96];                     /* the compiled kernels in use, e.g. "sm_90a"; "": there are no others */
    uint64_t memory_total, memory_free; /* bytes */
    uint64_t allocations;               /* number of alloc, wrap and compile calls since open that reserved memory */
    uint32_t threads, flags;
} hal_info;

/* A group of devices (tensor parallelism): each runs a plan of its own, and they meet at the plans' collectives. */
enum { HAL_MEMBERS = 16 };
/* How members reach each other's memory: through host memory, or directly over PCIe or NVLink. join() finds it by writing a pattern
 * to each member and reading it back; where that fails, the group goes through host memory. */
enum { HAL_LINK_HOST = 0, HAL_LINK_PCIE = 1, HAL_LINK_NVLINK = 2 };
/* Flags of hal_group_options. NO_PEER: through host memory, whatever join() would find. EXACT: sums are sent as float32. */
enum { HAL_GROUP_NO_PEER = 1, HAL_GROUP_EXACT = 2 };
typedef struct {
    uint32_t timeout_ms; /* the longest that a member waits for the others at a collective */
    uint32_t flags;
    const char
        *library; /* path of a vendor's library of collectives (NCCL), found by the caller; NULL: none was found */
} hal_group_options;
typedef struct {
    uint32_t members;
    int32_t missing;            /* the member for which the group broke: it failed, or did not come in time; -1: none */
    uint32_t link;              /* HAL_LINK_ of the slowest pair of members */
    uint32_t unread;            /* pairs of members that claim direct access and did not read back what was written */
    uint64_t meetings;          /* collectives since join() */
    double waited[HAL_MEMBERS]; /* seconds that each member waited for others */
    char library[64];           /* the vendor's library in use, "NCCL 2.27.5"; "": none */
} hal_group_info;

typedef struct {
    uint64_t hash; /* HAL_ABI_HASH of the hal.h that the library was built with */
    const char *name;
    /* > 0: the backend runs on this machine; of several libraries with one name, the highest score is used. 0: it cannot run
     * here. < 0: it cannot, because an installed driver does not work; error() says why. */
    int (*score)(void);
    int (*count)(void); /* number of devices */
    int (*open)(int index, const hal_options *, hal_device **);
    void (*close)(hal_device *);
    void (*info)(hal_device *, hal_info *);
    int (*alloc)(hal_device *, const hal_bufdesc *, hal_buffer **);            /* zeroed */
    int (*wrap)(hal_device *, const void *host, uint64_t size, hal_buffer **); /* optional: use host memory in place */
    void (*free)(hal_buffer *);
    int (*write)(hal_buffer *, uint64_t offset, const void *from, uint64_t size);
    int (*read)(hal_buffer *, uint64_t offset, void *to, uint64_t size);
    int (*copy)(hal_buffer *to, uint64_t to_offset, hal_buffer *from, uint64_t from_offset,
                uint64_t size); /* optional */
    /* optional: where the buffer's bytes lie in host memory, until free() */
    void *(*host)(hal_buffer *);
    int (*supports)(hal_device *, const hal_plan *, uint32_t step); /* 1: yes */
    int (*compile)(hal_device *, const hal_plan *, hal_buffer *const *buffers, hal_exec **);
    int (*run)(hal_exec *, const void *step_block, uint64_t size); /* may return before the work is done */
    int (*wait)(hal_exec *, uint32_t timeout_ms);                  /* blocks until the last run is done */
    void (*release)(hal_exec *);
    const char *(*error)(void);
    /* optional: weights in the device's packed layout. packed(): bytes of a packed (stack, rows, columns) weight; 0: the device
     * uses the file's layout. pack() writes the packed bytes from the file's. If packed() of parts of a multiple of 256 rows
     * sums to packed() of the whole matrix, the caller may pack it part by part. */
    uint64_t (*packed)(hal_device *, uint32_t format, int64_t stack, int64_t rows, int64_t columns);
    int (*pack)(hal_buffer *to, uint64_t offset, uint32_t format, int64_t stack, int64_t rows, int64_t columns,
                const void *from);
    /* optional, both or none: page-locks whole pages of host memory; writable 0: those that this process may not write, too. write()
     * and pack() send what lies there without copying it first; of WEIGHT and PREFETCH buffers they may return before it is read:
     * the memory must stay mapped until unpin(), which waits for that. read() brings bytes to writable ones directly.
     * HAL_E_DEVICE, HAL_E_MEMORY: the driver does not lock these pages. */
    int (*pin)(hal_device *, const void *host, uint64_t size, int writable);
    int (*unpin)(hal_device *, const void *host);
    /* optional: nanoseconds of each step, summed since compile(); the device must be opened with HAL_PROFILE */
    int (*times)(hal_exec *, uint64_t *ns, uint32_t n_steps);
    /* optional: measures a peak rate of the device, with all its threads. HAL_MEASURE_READ: bytes per second of repeated passes
     * over `bytes` of its memory (GPUs copy: bytes read plus bytes written). The others: multiply-adds per second of that type
     * by the instructions that the kernels use; HAL_E_UNSUPPORTED where the device has none. */
    int (*measure)(hal_device *, uint32_t what, uint64_t bytes, double *per_second);
    /* optional: writes the names of the built-in kernels that can compute a step, the default first: at most `most` names of
     * HAL_NAME bytes each. Gives the number of such kernels, or a HAL_E_ code where the step is invalid. */
    int (*kernels)(hal_device *, const hal_plan *, uint32_t step, char *names, uint32_t most);
    /* optional: loads a custom kernel. `image` is zero-terminated code in the form that docs/user-kernels.md gives for the
     * backend; `entry` is the function's name. *kernel becomes its number (> 0), valid until the device is closed. */
    int (*add_kernel)(hal_device *, const char *image, const char *entry, uint32_t *kernel);
    /* optional, all or none: groups. The members of join() are different open devices of this backend; they stay the caller's,
     * who calls part() before it closes them, and after it released the group's execs. A group breaks when a member fails in
     * run_group() or does not come to a collective within timeout_ms: then every wait of the group ends with an error that names
     * the member, and so does every later run. */
    int (*join)(hal_device *const *members, uint32_t n, const hal_group_options *, hal_group **);
    void (*part)(hal_group *);
    void (*group_info)(hal_group *, hal_group_info *);
    /* One plan and one list of buffers for each member, in their order; gives as many execs. None is made where one is refused
     * or where their collectives differ. */
    int (*compile_group)(hal_group *, const hal_plan *const *plans, hal_buffer *const *const *buffers,
                         hal_exec **execs);
    /* As run() for every member. wait() of each exec and read() of a member's buffer tell the group's fault. */
    int (*run_group)(hal_group *, hal_exec *const *execs, const void *step_block, uint64_t size);
} hal_backend;

const hal_backend *hal_backend_entry(void);

/* The step block: HAL_COUNTS int32 counts (tokens, output rows, zeros), then the plan's inputs. COUNT_OWN: the number of a member's
 * own rows, of T tokens on N members those from T rank / N up to T (rank + 1) / N, rounded down; run_group() writes it for each
 * member. */
enum { HAL_COUNT_TOKENS = 0, HAL_COUNT_ROWS = 1, HAL_COUNT_OWN = 2, HAL_COUNTS = 8 };

/* One stage of a sampling chain and its numbers. kernels/sample_stages.k.h numbers the stages and says what their numbers are;
 * runtime/sampling/chain.py defines them. Whole numbers are exact up to 2^24. */
enum { HAL_STAGES = 16, HAL_STAGE_NUMBERS = 4 };
typedef struct {
    int32_t stage; /* 0 ends the chain */
    float numbers[HAL_STAGE_NUMBERS];
} hal_stage;

/* Sampling parameters of one output row; a row of the step block's `params`. A row's edits are first logit biases, then
 * penalties of the stage dry. */
typedef struct {
    uint64_t seed;
    float mirostat_mu;             /* highest negative log-probability, in bits, of a token that Mirostat keeps */
    int32_t masked;                /* 1: only tokens whose bits are set in the row's token bitmask are allowed */
    int32_t biases, dry_penalties; /* numbers of the row's edits */
    int32_t report;                /* 1: the row's logprobs are requested */
    hal_stage chain[HAL_STAGES];   /* in the order in which they run */
} hal_sampling;

/* ==== ops: one entry here, one argument struct where it takes arguments (none: no struct), one function in runtime/ops/__init__.py */

enum {
    HAL_OP_GET_ROWS,
    HAL_OP_LINEAR,
    HAL_OP_LINEAR_ADD,
    HAL_OP_QUANTIZE,
    HAL_OP_RMS_NORM,
    HAL_OP_NORM_QUANTIZE,
    HAL_OP_SWIGLU,
    HAL_OP_SWIGLU_QUANTIZE,
    HAL_OP_ADD,
    HAL_OP_MUL,
    HAL_OP_ROPE,
    HAL_OP_KV_WRITE,
    HAL_OP_ATTENTION,
    HAL_OP_HADAMARD,
    HAL_OP_GATHER_ROWS,
    HAL_OP_TOKENS_PUT,
    HAL_OP_TOKENS_GET,
    HAL_OP_SAMPLE,
    HAL_OP_TOP_EXPERTS,
    HAL_OP_EXPERT_WEIGHTS,
    HAL_OP_EXPERT_LINEAR,
    HAL_OP_EXPERT_SWIGLU,
    HAL_OP_EXPERT_SUM,
    HAL_OP_ROPE_TABLE,
    HAL_OP_ROPE_KV_WRITE,
    HAL_OP_LINEAR_SWIGLU,
    HAL_OP_LINEAR_SWIGLU_QUANTIZE,
    HAL_OP_SAMPLE_MASKED,
    HAL_OP_LOGPROBS,
    HAL_OP_LAYER_NORM,
    HAL_OP_GELU,
    HAL_OP_SOFT_CAP,
    HAL_OP_TAKE,
    HAL_OP_CONCAT,
    HAL_OP_HEAD_LINEAR,
    HAL_OP_EXPERT_ADD,
    HAL_OP_SWIGLU_LIMITED,
    HAL_OP_POSITION_SCALE,
    HAL_OP_SIGMOID,
    HAL_OP_SOFTPLUS,
    HAL_OP_SHORT_CONV,
    HAL_OP_CONV_WRITE,
    HAL_OP_GATED_SCAN,
    HAL_OP_SCAN_WRITE,
    HAL_OP_GATED_SCAN_WRITE,
    HAL_OP_ABSORBED_ATTENTION,
    HAL_OP_EXPANDED_ATTENTION,
    HAL_OP_INDEX_POSITIONS,
    HAL_OP_SPARSE_ATTENTION,
    HAL_OP_GATHER,
    HAL_OP_NORM_LINEAR,
    HAL_OP_NORM_LINEAR_SWIGLU,
    HAL_OP_NORM_LINEAR_GEGLU,
    HAL_OP_POST_NORM_LINEAR,
    HAL_OP_POST_NORM_LINEAR_SWIGLU,
    HAL_OP_POST_NORM_LINEAR_GEGLU,
    HAL_OP_RMS_NORM_ADD,
    HAL_OP_GEGLU,
    HAL_OP_EXPERT_GATE_LIMITED,
    HAL_OP_ROPE_QKV_WRITE,
    HAL_OP_ROPE_QKV_ATTENTION,
    HAL_OP_REDUCE_ADD,
    HAL_OP_GATHER_COLUMNS,
    HAL_OP_GET_ROWS_PART,
    HAL_OP_PAD,
    HAL_OP_FIRST,
    HAL_OP_NORM_EXPERT_SWIGLU,
    HAL_OP_EXPERT_LINEAR_SUM,
    HAL_OP_EXPERT_SUM_ADD,
    HAL_OP_ROPE_LATENT_WRITE,
    HAL_OP_REDUCE_SCATTER,
    HAL_OP_ALL_GATHER,
    HAL_OP_NORM_ALL_GATHER,
    HAL_OP_KV_WRITE_PART,
    HAL_OP_ATTENTION_PARTS,
    HAL_OP_MERGE_PARTS,
    HAL_N_OPS
};

/* RoPE pairs: INTERLEAVED rotates (2i, 2i+1) as Llama does, HALVES (i, i + n_rot/2) as NeoX does. */
enum { HAL_ROPE_INTERLEAVED = 0, HAL_ROPE_HALVES = 1 };

typedef struct {
    float eps;
} arg_rms_norm;
typedef struct {
    float eps;
} arg_norm_quantize;
typedef struct {
    float eps;
} arg_norm_linear;
typedef struct {
    float eps;
} arg_norm_linear_swiglu;
typedef struct {
    float eps;
    int32_t style; /* of gelu */
} arg_norm_linear_geglu;
typedef struct {
    float eps;
} arg_post_norm_linear;
typedef struct {
    float eps;
} arg_post_norm_linear_swiglu;
typedef struct {
    float eps;
    int32_t style; /* of gelu */
} arg_post_norm_linear_geglu;
typedef struct {
    float eps;
} arg_rms_norm_add;
typedef struct {
    float scale;
} arg_rope_table;
typedef struct {
    int32_t style;
} arg_rope;
typedef struct {
    int32_t style;
} arg_rope_kv_write;
/* biases 1: the last inputs are the biases of queries, keys and values; norms 1: the weights of the rms_norm (with eps) of each
 * head of queries and keys. At most one of the two is 1. */
typedef struct {
    int32_t style, biases, norms;
    float eps;
} arg_rope_qkv_write;
typedef struct {
    float eps; /* of the latent's norm */
    int32_t style;
} arg_rope_latent_write;
/* scale to chunk are those of arg_attention, the others those of arg_rope_qkv_write. One input more is attention sinks. */
typedef struct {
    float scale;
    int32_t window;
    float cap;
    int32_t chunk, style, biases, norms;
    float eps;
} arg_rope_qkv_attention;
/* window: sliding window in positions, 0: none. chunk: chunked attention, positions of a chunk, 0: none. cap: soft cap of the
 * scaled scores, 0: none. value (MLA): the first `value` numbers of a cached key head are its value; 0: v has its own cache.
 * causal 0: a query also attends to later positions of the step. alibi 1: the last input is the heads' ALiBi slopes. */
typedef struct {
    float scale;
    int32_t window;
    float cap;
    int32_t value, chunk, causal, alibi;
} arg_attention;
typedef struct {
    int32_t shift;
} arg_tokens_put; /* 1: stored for the position after each token's own */
/* Grouped top-k routing (DeepSeek-V3): the experts form `groups` groups, and the top k are taken from the `kept` best groups.
 * sigmoid 1: scores are sigmoids of the logits, else the logits themselves. */
typedef struct {
    int32_t k, groups, kept, sigmoid;
} arg_top_experts;
typedef struct {
    int32_t k;
} arg_logprobs; /* the k likeliest tokens are listed */
/* norm 1: a token's weights are normalized to sum to scale; norm 2: SparseMixer's weights, see expert_weights in ops.py */
typedef struct {
    int32_t norm, sigmoid;
    float scale;
} arg_expert_weights;
/* k and sigmoid are those of arg_top_experts, whose groups are 1; norm and scale those of arg_expert_weights. */
typedef struct {
    float eps;
    int32_t k, sigmoid;
} arg_norm_expert_swiglu;
typedef struct {
    int32_t k, sigmoid, norm;
    float scale;
} arg_expert_linear_sum;
typedef struct {
    int32_t norm, sigmoid;
    float scale;
} arg_expert_sum_add;
typedef struct {
    float eps;
} arg_layer_norm;
typedef struct {
    int32_t style;
} arg_gelu; /* 0: tanh approximation, 1: exact, by erf */
typedef struct {
    int32_t style;
} arg_geglu;
typedef struct {
    float cap;
} arg_soft_cap;
typedef struct {
    int32_t start, size;
} arg_take;
typedef struct {
    float limit, alpha;
} arg_swiglu_limited;
typedef struct {
    float limit, alpha;
} arg_expert_gate_limited;
typedef struct {
    int32_t step;
    float slope;
} arg_position_scale;
/* block: positions per page of the recurrent state. delta 1: gated delta rule, 0: selective scan (SSM). tiled 1: head h of H
 * uses the keys of group h % G, 0: of group h / (H / G). */
typedef struct {
    int32_t block;
} arg_short_conv;
typedef struct {
    int32_t block;
} arg_conv_write;
typedef struct {
    int32_t block, delta, tiled;
} arg_gated_scan;
typedef struct {
    int32_t block, tiled;
} arg_scan_write;
/* the members of arg_gated_scan */
typedef struct {
    int32_t block, delta, tiled;
} arg_gated_scan_write;
/* A run is a slot's consecutive tokens in a step. Absorbed MLA attention computes runs shorter than `least` tokens, expanded
 * MLA attention the others. */
typedef struct {
    float scale;
    int32_t value, least;
} arg_absorbed_attention;
typedef struct {
    float scale;
    int32_t least;
} arg_expanded_attention;
typedef struct {
    int32_t k;
} arg_index_positions;
typedef struct {
    float scale;
    int32_t value;
} arg_sparse_attention;
/* Collectives: reduce_add and first have no arguments. The columns of this member begin at `start` of `total`. */
typedef struct {
    int32_t start, total;
} arg_gather_columns;
/* Sequence parallelism. ranks: the members of the group. rounds 1: rows may be bfloat16 on the wire. */
typedef struct {
    int32_t ranks;
} arg_reduce_scatter;
typedef struct {
    int32_t ranks, rounds;
} arg_all_gather;
typedef struct {
    float eps;
    int32_t ranks, rounds;
} arg_norm_all_gather;
typedef struct {
    int32_t first; /* id of the table's first row */
} arg_get_rows_part;
typedef struct {
    int32_t before, after; /* zeros around the last dimension */
} arg_pad;
/* Context parallelism: block b of the pool is block b / ranks of the cache of rank b % ranks. */
typedef struct {
    int32_t ranks, rank;
} arg_kv_write_part;
/* scale to alibi are those of arg_attention, which is causal and has no window. */
typedef struct {
    float scale, cap;
    int32_t value, alibi, ranks, rank;
} arg_attention_parts;
typedef struct {
    int32_t heads, rank;
} arg_merge_parts;
