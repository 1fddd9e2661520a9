/* search.h: the C API of the quantizer's loops: scale searches, searches over tables and codebooks, and GPTQ.
 *
 * The C compilers and cffi read the same bytes, so this file holds declarations only: no #include, no #if. Each entry has the
 * name and the arguments of the Python function that defines it (quant/search, quant/calibration) and gives the same bits,
 * whatever the compiler and the instruction set.
 *
 * Ownership. Arrays belong to the caller and are contiguous; a function writes only into arrays that its definition writes.
 * Entries return 0, or -1 where memory is short, and may be called from several threads at once. */

typedef struct {
    float *at;
    int64_t n[4]; /* the shape, outermost first; unused entries are 1 */
} search_f32;

typedef struct {
    double *at;
    int64_t n[4];
} search_f64;

typedef struct {
    uint8_t *at;
    int64_t n[4];
} search_u8;

typedef struct {
    int8_t *at;
    int64_t n[4];
} search_i8;

typedef struct {
    const char *set; /* the instruction set */

    /* quant/search/steps.py: steps of the scale searches. w may be NULL: all weigh the same. */
    int (*scale_groups)(const search_f32 *x, const search_f32 *w, double least, double most, const search_f32 *tries,
                        const search_f32 *scales);
    int (*affine_groups)(const search_f32 *x, const search_f32 *w, double top, int is_free, const search_f32 *tries,
                         const search_f32 *scales, const search_f32 *bases);
    int (*scale_refine)(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *units,
                        double least, double most);
    int (*scale_fit)(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *units,
                     double least, double most, const search_f32 *sums);
    int (*affine_refine)(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *dmin,
                         const search_f32 *units, const search_f32 *lows, double top);
    int (*affine_fit)(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *dmin,
                      const search_f32 *units, const search_f32 *lows, double top, const search_f32 *sums);
    int (*scale_units)(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *units);
    int (*affine_units)(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *dmin,
                        const search_f32 *units, const search_f32 *lows, int64_t reach);

    /* quant/search/searches.py: whole searches, from numbers to codes. share may be NULL: all weigh the same. */
    int (*symmetric)(const search_f32 *x, const search_f32 *share, int64_t zero, const search_f32 *tries,
                     const search_f64 *d, const search_u8 *q);
    int (*affine)(const search_f32 *x, const search_f32 *share, int64_t top, const search_f32 *tries,
                  const search_f64 *d, const search_f64 *m, const search_u8 *q);
    int (*affine_super)(const search_f32 *x, const search_f32 *share, int64_t top, const search_f32 *tries,
                        int64_t rounds, const search_f64 *d, const search_f64 *dmin, const search_u8 *scale,
                        const search_u8 *low, const search_u8 *q);
    int (*symmetric_super)(const search_f32 *x, const search_f32 *share, int64_t zero, const search_f32 *tries,
                           int64_t rounds, const search_f64 *d, const search_i8 *scale, const search_u8 *q);
    int (*affine_low)(const search_f32 *x, const search_f32 *share, const search_f32 *tries, int64_t rounds,
                      const search_f64 *d, const search_f64 *dmin, const search_u8 *scale, const search_u8 *low,
                      const search_u8 *q);
    int (*symmetric_low)(const search_f32 *x, const search_f32 *share, const search_f32 *tries, int64_t rounds,
                         const search_f64 *d, const search_i8 *scale, const search_u8 *q);

    /* quant/search/table_loops.py */
    int (*table_scales)(const search_f64 *x, const search_f64 *w, const search_f64 *targets, const search_f64 *nearest,
                        const search_f64 *scales);
    int (*table_choices)(const search_f64 *x, const search_f64 *w, const search_f64 *scales, const search_f64 *nearest,
                         const search_f64 *choices, const search_f64 *totals);
    int (*table_fit)(const search_f64 *x, const search_f64 *w, const search_f64 *d, const search_f64 *units,
                     const search_f64 *nearest, const search_f64 *better);

    /* quant/search/grid_loops.py */
    int (*signed_terms)(const search_f32 *size, const search_f32 *w, const search_f32 *grid, const search_u8 *odd,
                        const search_f32 *a, const search_f32 *b);
    int (*shifted_terms)(const search_f32 *x, const search_f32 *w, const search_f32 *grid, double shift,
                         const search_f32 *a, const search_f32 *b);
    int (*nearest)(const search_f32 *a, const search_f32 *b, const search_f32 *steps, const search_f32 *points);
    int (*minima)(const search_f32 *a, const search_f32 *b, const search_f32 *steps, const search_f32 *best);

    /* quant/calibration/gptq_loops.py */
    int (*feed_run)(const search_f32 *wanted, const search_f32 *w, const search_f32 *error, const search_f32 *code,
                    const search_f32 *feed, const search_f32 *step, const search_f32 *base, double least, double most);
    int (*move_run)(const search_f32 *slope, const search_f32 *w, const search_f32 *error, const search_f32 *code,
                    const search_f32 *matrix, const search_f32 *step, const search_f32 *base, double least,
                    double most);
    int (*dots)(const search_f32 *a, const search_f32 *b, const search_f32 *out);
} search_loops;

/* The loops for an instruction set, "" for the best one. NULL where the library has no such set or this machine does not run
 * it, and where hash is not that of the header which the library was built with. */
const search_loops *search_entry(uint64_t hash, const char *set);
