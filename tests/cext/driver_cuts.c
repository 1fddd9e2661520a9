/* driver_cuts.c: how a GPU's products of few columns are cut into groups (cext/cuda/columns.h), for matrices of any size, and how
 * kernels of up to four columns and those without wgmma divide shared memory of any size: what the kernels count on, without a GPU. */
#include "harness.h"

#include "../../cext/cuda/columns_chunk.h"
#include "../../cext/cuda/columns_int8.h"
#include "../../cext/cuda/expert_warp.h"
#include "../../cext/cuda/rates.h"

enum { MULTIPROCESSORS = 132, SHARED = 227 << 10, BARRIERS = 128 /* bytes that a ring's barriers have */ };

static gpu_call product(int tokens, int k, int mode, const int *rows, const int *formats, int weights) {
    gpu_call c;
    memset(&c, 0, sizeof c);
    c.mode = (uint32_t)mode;
    c.n_in = (uint32_t)(1 + weights + (mode & (PRODUCT_ADD | PRODUCT_NORM) ? 1 : 0));
    c.v[0].shape[0] = c.v[1].shape[0] = tokens;
    c.v[1].shape[1] = k;
    for (int i = 0; i < weights; i++) {
        c.v[2 + i].shape[0] = rows[i];
        c.v[2 + i].shape[1] = k;
        c.v[2 + i].format =
            (uint32_t)formats[i] | (formats[i] == F16 || formats[i] == BF16 ? 0 : (uint32_t)PACKED_FLAG);
    }
    return c;
}

/* Every block of 64 rows has a team, a part has chunks, and all that a group keeps lies in its memory, ring by ring. */
static void one_cut(const gpu_call *c, int weights) {
    const int tokens = 8 << columns_kind(c->v[0].shape[0]), gated = c->mode & PRODUCT_GATED ? 1 : 0;
    const columns_cut cut = columns_cut_of(c, MULTIPROCESSORS);
    const columns_room r = columns_room_of(tokens, cut.teams, cut.parts, columns_bytes(c));
    const int sent = columns_sent_bytes(tokens, cut.teams, cut.parts);
    int blocks = 0, good;
    for (int i = 0; i < (gated ? 1 : weights); i++)
        blocks += columns_blocks(&c->v[2 + i]);
    good = tokens >= c->v[0].shape[0] && tokens <= COLUMNS_MOST && cut.teams > gated &&
           cut.teams <= COLUMNS_TEAMS_OF(tokens) && cut.parts > 0 && cut.parts <= COLUMNS_PARTS &&
           cut.parts <= packed_chunks(&c->v[1]);
    good = good && cut.groups * (cut.teams >> gated) >= blocks && (cut.groups - 1) * (cut.teams >> gated) < blocks;
    good = good && r.weight_stages > 1 && r.column_stages >= 4 && 16 * r.weight_stages <= BARRIERS &&
           16 * r.column_stages <= BARRIERS;
    good = good && r.weights >= r.column_stages * tokens * 128 && r.tables - r.weights >= r.weight_stages * r.weight;
    good = good && r.bars >= r.tables + 4 * cut.teams * COLUMNS_TABLE && r.teams >= r.bars + 2 * BARRIERS;
    good = good && r.teams >= tokens * columns_stride(cut.teams) * 4 && r.teams % 16 == 0 && r.bytes <= SHARED;
    good = good && r.arrived % 8 == 0 && r.sent >= r.arrived + 8 && r.sent % 16 == 0 && r.bytes >= r.sent + sent;
    good = good && !sent == !(cut.parts > 1 && tokens <= COLUMNS_SENT) &&
           sent >= (sent ? tokens * columns_stride(cut.teams) * 4 : 0);
    CHECK(good, "%d columns, K %d, mode %u, %d blocks of %d bytes: %d teams, %d parts, %d groups, %d bytes",
          c->v[0].shape[0], c->v[1].shape[1], c->mode, blocks, columns_bytes(c), cut.teams, cut.parts, cut.groups,
          r.bytes);
}

/* expert_warp.cu and expert_scaled.cu know their memory by the bytes that they are launched with, so these must give the division that the
 * host chose. Weights come in a step's group of copies a chunk ahead or more, so the groups that a step leaves under way must be fewer. */
static void expert_memory(int most, int scaled, int chunk_bytes, int limit) {
    const expert_warp_shape s = expert_warp_shape_of(most, scaled, chunk_bytes, limit);
    const expert_warp_room r =
        expert_warp_room_of(most, scaled, s.warps ? s.warps : EXPERT_WARPS, chunk_bytes, s.bytes);
    const int steps = scaled ? CHUNK / SCALED_K : CHUNK / COLUMNS_K;
    int good = 1;
    if (!s.warps) {
        CHECK(expert_warp_room_of(most, scaled, EXPERT_WARPS_FEW, chunk_bytes, limit).bytes > limit,
              "experts, tiles of %d, chunks of %d bytes: no group, though there is room in %d", most, chunk_bytes,
              limit);
        return;
    }
    good = good && r.bytes == s.bytes && s.bytes <= limit && s.groups * (s.bytes + 1024) <= limit + 1024;
    good = good && r.weight == 2 * s.warps * chunk_bytes && r.column == most * (scaled ? 132 : 128);
    good = good && r.weight_stages >= 2 && r.weight_stages <= EXPERT_WARP_CHUNKS && r.column_stages >= 2 &&
           r.column_stages <= EXPERT_WARP_STEPS && r.column_stages - 2 < steps * (r.weight_stages - 1);
    good = good && r.weights >= r.column_stages * r.column && r.tables >= r.weights + r.weight_stages * r.weight &&
           r.bytes >= r.tables + (scaled ? 0 : 2 * s.warps * COLUMNS_TABLE) && r.weights % 128 == 0 &&
           r.tables % 16 == 0;
    CHECK(good, "experts, tiles of %d, chunks of %d bytes, %d bytes: %d groups of %d warps and %d bytes, stages %d %d",
          most, chunk_bytes, limit, s.groups, s.warps, s.bytes, r.weight_stages, r.column_stages);
}

/* Waves of gemv.cu have a third chunk on Hopper for one column where it has room, and a plan's parts lie one behind the other. */
static void gemv_memory(int waves, int hopper, int chunk_bytes, int columns, int chunks) {
    const gemv_plan p = gemv_plan_of(waves, hopper, chunk_bytes, columns, chunks);
    const int few = waves == GEMV_FEW_WAVES, deep = few || (hopper && columns == 1),
              limit = few ? GEMV_FEW_SHARED : GEMV_SHARED;
    const gemv_plan three = gemv_plan_staged(waves, 3, chunk_bytes, columns, chunks);
    int good = p.stages == (deep && three.bytes <= limit ? 3 : 2);
    good = good && p.part >= waves * p.stages * chunk_bytes && p.acts >= p.part + 2 * p.batch * waves * 64 * columns;
    good = good && p.bars >= p.acts + chunks * p.act_bytes && p.bars % 8 == 0 && p.act_bytes >= 548 * columns;
    good = good && p.squares >= p.bars + waves * p.stages * 8 && p.bytes >= p.squares + 2 * waves * 16;
    CHECK(good, "%d waves, Hopper %d, chunks of %d bytes, %d columns, %d chunks: %d stages, %d bytes", waves, hopper,
          chunk_bytes, columns, chunks, p.stages, p.bytes);
}

/* columns_chunk.cu tells two stages from three by its bytes, and its sums lie where activations did. */
static void chunk_memory(int columns, int chunk_bytes) {
    const chunk_room two = chunk_room_of(2, columns, chunk_bytes), three = chunk_room_of(3, columns, chunk_bytes);
    const int sums = columns * (WARP_WARPS * TILE_ROWS + 4) * 4;
    CHECK(two.bytes < three.bytes && sums <= two.weights && two.weights == 2 * columns * CHUNK * 2 &&
              three.tables >= three.weights + 3 * WARP_WARPS * chunk_bytes && three.tables % 16 == 0,
          "chunks of %d bytes, %d columns: %d and %d bytes", chunk_bytes, columns, two.bytes, three.bytes);
}

/* The ring, a chunk of all rows and, behind them, the sums fit 99 KB. */
static void int8_memory(int chunk_bytes) {
    const int8_room r = int8_room_of(chunk_bytes);
    const int sums = INT8_COLUMNS * (16 * TILE_ROWS + 4) * 4;
    CHECK(INT8_STAGES > INT8_AHEAD && r.weights % 16 == 0 && r.weights == INT8_STAGES * BATCH_ACTS &&
              r.bytes >= r.weights + 16 * chunk_bytes && r.bytes >= sums && r.bytes <= (99 << 10) - 256,
          "int8, chunks of %d bytes: %d bytes", chunk_bytes, r.bytes);
}

/* Both kernels for prompts as the table of rates has them: int8 where float32 sums have half rate, and nowhere else. */
static void rates_of_cards(void) {
    static const struct {
        int arch, int8, known;
    } cards[] = {{80, 0, 1}, {86, 1, 1},  {87, 0, 1},  {89, 1, 1},  {100, 0, 1},
                 {90, 0, 0}, {120, 1, 1}, {103, 0, 0}, {110, 0, 0}, {121, 0, 0}};
    static const int formats[3] = {12, 14, 8}, rows[3] = {256, 256, 256};
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        const card_rates r = card_rates_of(cards[i].arch);
        CHECK(r.arch == cards[i].arch && (r.bf16 > 0) == cards[i].known && r.int8 % (r.bf16 ? r.bf16 : 1) == 0 &&
                  int8_is_faster(r) == cards[i].int8,
              "%d: %d and %d", r.arch, r.bf16, r.int8);
        for (int f = 0; f < 3; f++) {
            const gpu_call c = product(512, 4096, 0, rows, formats + f, 1);
            const int64_t bf16 = tensor_clocks(256 * 64 * 256, r.bf16),
                          int8 = tensor_clocks(2 * 256 * 64 * 256, r.int8);
            const warp_clocks clocks = int8_clocks_of(&c, int8, bf16 / 16);
            CHECK(clocks.chunk >= int8 && clocks.chunk >= int8_chunk_clocks(c.v[2].format) &&
                      (!cards[i].int8 || clocks.chunk < bf16),
                  "%d, format %d: %d clocks of a chunk, bf16 %d", r.arch, formats[f], clocks.chunk, (int)bf16);
        }
    }
}

static void memory_of_rings(void) {
    static const int chunks[] = {2176, 2304, 2816, 3360, 4224, 4352};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        for (int limit = 16 << 10; limit <= 228 << 10; limit += 1000) {
            expert_memory(EXPERT_NARROW, 0, chunks[i], limit);
            expert_memory(EXPERT_WARP_WIDE, 0, chunks[i], limit);
            expert_memory(EXPERT_NARROW, 1, chunks[i], limit);
            expert_memory(EXPERT_WARP_WIDE, 1, chunks[i], limit);
        }
        int8_memory(chunks[i]);
        for (int columns = 1; columns <= GEMV_COLUMNS; columns++)
            for (int k = 1; k <= 256; k += 1 + k / 4) {
                gemv_memory(GEMV_WAVES, 1, chunks[i], columns, k);
                gemv_memory(GEMV_WAVES, 0, chunks[i], columns, k);
                gemv_memory(GEMV_FEW_WAVES, 0, chunks[i], columns, k);
            }
        for (int columns = 8; columns <= WARP_COLUMNS; columns *= 2)
            chunk_memory(columns, chunks[i]);
    }
}

void test_cuts(void) {
    static const int widths[] = {32, 256, 896, 2048, 4096, 14336, 53248},
                     heights[] = {1, 64, 1000, 4096, 28672, 256000};
    static const int formats[] = {12, 13, 14, 8, 2, 39, 2003, F16, BF16};
    for (int tokens = 5; tokens <= COLUMNS_MOST; tokens += 1 + tokens / 8)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (size_t h = 0; h < sizeof heights / sizeof *heights; h++)
                for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
                    const int rows[3] = {heights[h], heights[h], heights[h] / 4 + 1},
                              same[3] = {formats[f], formats[f], formats[f]};
                    gpu_call c = product(tokens, widths[w], PRODUCT_ADD, rows, same, 1);
                    one_cut(&c, 1);
                    c = product(tokens, widths[w], PRODUCT_GATED | PRODUCT_NORM, rows, same, 2);
                    one_cut(&c, 2);
                    c = product(tokens, widths[w], 0, rows, same, 3);
                    one_cut(&c, 3);
                }
    memory_of_rings();
    rates_of_cards();
}
