/* walk.cu: a token's layers by the kernels one by one, with a layer's heads as one launch (attention_heads.cu), and as one kernel (the
 * walk, walk_kernel.cuh): the same calls, compared, then timed as graphs at several depths. Weights, caches and activations are random.
 *
 * nvcc -std=c++17 -O2 -gencode=arch=compute_90a,code=sm_90a -Icext/kernels -Icext/include -Icext/quant -I<generated headers> -o walk bench/gpu_kernels/walk.cu
 * walk check | walk token
 */
#define main decode_main
#define block_f16 plain_f16
#define block_bf16 plain_bf16
#include "decode.cu"
#undef main
#undef block_f16
#undef block_bf16
#ifdef STAMPS
__device__ long long stamps[3][128][8];
__device__ int stamped[3];
#define WALK_STAMP(p, i)                                                                                               \
    do {                                                                                                               \
        if (threadIdx.x == 0 && blockIdx.x % 60 == 0) {                                                                \
            int b_ = blockIdx.x / 60, p_ = (int)(p);                                                                   \
            if (p_ >= 0)                                                                                               \
                stamped[b_] = p_;                                                                                      \
            if (stamped[b_] < 128)                                                                                     \
                stamps[b_][stamped[b_]][i] = clock64();                                                                \
        }                                                                                                              \
    } while (0)
#endif
#include "../../cext/cuda/attention_split.cu"
#include "../../cext/cuda/small.cu"
#include <algorithm>
#include "../../cext/cuda/attention_heads.cu"
#include "walk_kernel.cuh"

struct layers {
    const shape &s;
    int head, block, width, format, most;
    std::vector<walk_phase> phases;
    std::vector<planned> products; /* of a phase of one; in order */
    std::vector<void *> owned;
    float *h, *first, *qkv, *rotated_q, *att, *ff, *logits, *norm, *cos_sin;
    int32_t *slot, *pos, *table;
    uint32_t *counters, *fault_word;
    void *scratch;
    int splits;

    void *hold(size_t n) {
        owned.push_back(take(n));
        return owned.back();
    }
    float *floats(int n, uint64_t seed, float scale) {
        float *p = (float *)hold((size_t)n * 4);
        fill_floats<<<64, 256>>>(p, n, seed, scale, 0);
        return p;
    }
    int32_t *numbers(const std::vector<int32_t> &v) {
        int32_t *p = (int32_t *)hold(v.size() * 4);
        OK(cudaMemcpy(p, v.data(), v.size() * 4, cudaMemcpyHostToDevice));
        return p;
    }
    static gpu_view heads_of(const void *p, int heads, int d) {
        gpu_view v = view(p, 1, heads, (size_t)heads * d * 4, 0);
        v.shape[2] = d;
        return v;
    }
    gpu_view cache() {
        int kv = s.kv / head;
        size_t row = format == 8 ? head / 32 * 34 : format == 1008 ? head : 2 * head, stride = row * kv * block;
        void *p = hold(stride * width);
        if (format == 1008)
            OK(cudaMemset(p, 0x31, stride * width));
        else
            fill_blocks<<<1056, 128>>>((uint8_t *)p, stride * width / (format == 8 ? 34 : 2), format == 8 ? 34 : 2,
                                       format, owned.size() * 77777, 0);
        gpu_view v = view(p, width, kv, stride, format);
        v.shape[2] = block, v.shape[3] = head;
        return v;
    }
    void product(const std::vector<weight> &ws, int mode, const float *x, const float *residual, float *out) {
        for (const weight &w : ws)
            owned.push_back(w.packed);
        planned p = plan(ws, mode, x, norm, residual, out, 1);
        walk_phase f = {};
        f.kind = ws[0].f->chunk ? WALK_PACKED : WALK_DENSE, f.calls = 1, f.call[0] = p.c;
        phases.push_back(f), products.push_back(p);
    }
    void attention() {
        int heads = s.q / head, kv = s.kv / head;
        walk_phase f = {};
        gpu_call &r = f.call[0], &k = f.call[1], &v = f.call[2], &a = f.call[3];
        gpu_view turn = view(cos_sin, 1, head, head * 4, 0), sl = view(slot, 1, 1, 4, 26), po = view(pos, 1, 1, 4, 26),
                 ta = view(table, 1, width, (size_t)width * 4, 26);
        f.kind = WALK_ATTENTION, f.calls = 4;
        r.v[0] = heads_of(rotated_q, heads, head), r.v[1] = heads_of(qkv, heads, head), r.v[2] = turn, r.n_in = 2;
        k.v[0] = k.v[1] = cache(), k.v[2] = heads_of(qkv + s.q, kv, head), k.v[3] = turn, k.v[4] = sl, k.v[5] = po,
        k.v[6] = ta, k.n_in = 6, k.mode = KV_ROPE;
        v.v[0] = v.v[1] = cache(), v.v[2] = heads_of(qkv + s.q + s.kv, kv, head), v.v[3] = sl, v.v[4] = po, v.v[5] = ta,
        v.n_in = 5, v.mode = KV_PLAIN;
        ((arg_rope *)r.arg)->style = 1, ((arg_rope_kv_write *)k.arg)->style = 1;
        a.v[0] = view(att, 1, s.q, s.q * 4, 0), a.v[1] = r.v[0], a.v[2] = k.v[0], a.v[3] = v.v[0], a.v[4] = sl,
        a.v[5] = po, a.v[6] = ta, a.n_in = 6;
        ((arg_attention *)a.arg)->scale = 1.0f / sqrtf((float)head);
        a.scratch = (uint64_t)scratch;
        for (gpu_call &c : f.call)
            c.fault = (uint64_t)fault_word;
        phases.push_back(f);
    }
    layers(const shape &s, const char *kind, int head, int depth, int format)
        : s(s), head(head), block(32), format(format) {
        bool m = !strcmp(kind, "q4_k_m");
        const ::format &f = format_named(m ? "q4_k" : kind), &six = format_named(m ? "q6_k" : kind);
        void *file = take((size_t)std::max(s.vocab, s.ff) * (std::max(s.d, s.ff) / six.columns) * six.block);
        width = depth / block + 2;
        std::vector<int32_t> order(width);
        for (int i = 0; i < width; i++)
            order[i] = (i * 7 + 3) % width;
        if (width % 7 == 0)
            for (int i = 0; i < width; i++)
                order[i] = width - 1 - i;
        h = floats(s.d, 1, 1.0f), first = floats(s.d, 1, 1.0f), norm = floats(32768, 2, 1.0f),
        cos_sin = floats(head, 5, 1.0f);
        qkv = floats(s.q + 2 * s.kv, 3, 1.0f), rotated_q = floats(s.q, 4, 1.0f), att = floats(s.q, 4, 1.0f),
        ff = floats(s.ff, 4, 1.0f), logits = floats(s.vocab, 4, 1.0f);
        slot = numbers({0}), pos = numbers({depth}), table = numbers(order);
        counters = (uint32_t *)hold(1024), fault_word = (uint32_t *)hold(4), scratch = hold(64 << 20);
        OK(cudaMemset(counters, 0, 1024));
        OK(cudaMemset(fault_word, 0, 4));
        auto make = [&](const ::format &g, int rows, int k) {
            return make_weight(g, rows, k, owned.size() + 1, false, false, g.chunk ? file : nullptr);
        };
        for (int i = 0; i < s.layers; i++) {
            bool more = i < s.layers / 8 || i >= 7 * s.layers / 8 || (i - s.layers / 8) % 3 == 2;
            const ::format &v = more ? six : f;
            product({make(f, s.q, s.d), make(f, s.kv, s.d), make(v, s.kv, s.d)}, NORM, h, nullptr, qkv);
            attention();
            product({make(f, s.d, s.q)}, ADD, att, h, h);
            product({make(f, s.ff, s.d), make(f, s.ff, s.d)}, GATED | NORM, h, nullptr, ff);
            product({make(v, s.d, s.ff)}, ADD, ff, h, h);
        }
        product({make(six, s.vocab, s.d)}, NORM, h, nullptr, logits);
        OK(cudaDeviceSynchronize());
        cudaFree(file);
    }
    ~layers() {
        for (void *p : owned)
            cudaFree(p);
    }
    void again() {
        OK(cudaMemcpy(h, first, s.d * 4, cudaMemcpyDeviceToDevice));
    }

    kernel heads_kernel() const {
        bool wide = head == 128;
        return format == 8      ? wide ? (kernel)attention_heads_128_q8_0 : (kernel)attention_heads_64_q8_0
               : format == 1008 ? wide ? (kernel)attention_heads_128_fp8 : (kernel)attention_heads_64_fp8
               : wide           ? (kernel)attention_heads_128_f16
                                : (kernel)attention_heads_64_f16;
    }

    /* fused: heads, attention and join as one launch */
    void one_by_one(cudaStream_t st, bool pdl, bool fused) {
        size_t n = 0;
        for (walk_phase &f : phases) {
            if (f.kind != WALK_ATTENTION) {
                planned &p = products[n++];
                launch(p.k, p.grid, p.threads, p.shared, p.c, st, pdl);
                continue;
            }
            cudaLaunchConfig_t config = {};
            cudaLaunchAttribute at[1] = {{cudaLaunchAttributeProgrammaticStreamSerialization}};
            at[0].val.programmaticStreamSerializationAllowed = 1;
            config.gridDim = dim3(std::max((s.q / 2 + HEADS_THREADS - 1) / HEADS_THREADS, s.kv / head), 1, 3),
            config.blockDim = dim3(HEADS_THREADS), config.stream = st;
            config.attrs = at, config.numAttrs = pdl;
            int group = s.q / s.kv, kv = s.kv / head;
            if (fused) {
                heads_calls four;
                memcpy(four.call, f.call, sizeof four);
                four.call[3].v[HEADS_COUNTERS].data = (uint64_t)counters;
                void *k = (void *)heads_kernel(), *arguments[] = {&four};
                config.gridDim = dim3(most_splits(&f.call[3]), kv, 1), config.blockDim = dim3(32 * WARPS),
                config.dynamicSmemBytes = heads_shared(head, group);
                OK(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)config.dynamicSmemBytes));
                OK(cudaLaunchKernelExC(&config, k, arguments));
                continue;
            }
            gpu_calls three = {{f.call[0], f.call[1], f.call[2]}};
            OK(cudaLaunchKernelEx(&config, heads_fused, three));
            bool q8 = format == 8, f8 = format == 1008;
            kernel split = head == 64 ? q8   ? attention_split_64_8_q8_0
                                        : f8 ? attention_split_64_8_fp8
                                             : attention_split_64_8_f16
                           : q8       ? attention_split_128_8_q8_0
                           : f8       ? attention_split_128_8_fp8
                                      : attention_split_128_8_f16;
            launch(split, dim3(most_splits(&f.call[3]), kv, 1), 32 * WARPS, split_shared(head, group), f.call[3], st,
                   pdl);
            launch(head == 64 ? attention_join_64_f16 : attention_join_128_f16, dim3(s.q / head, 1), head, 0, f.call[3],
                   st, pdl);
        }
    }
    gpu_call call(const char *kind) {
        gpu_call c = {};
        walk_shape w = {};
        int group = s.q / s.kv, kv = s.kv / head, allowed = 227 * 1024;
        w.phases = (uint32_t)phases.size();
        w.room = walk_room_attention(head, group);
        for (walk_phase &f : phases)
            if (f.kind != WALK_ATTENTION) {
                uint32_t room = f.kind == WALK_PACKED ? walk_room_packed(packed_chunks(&f.call[0].v[1]))
                                                      : walk_room_dense(f.call[0].v[1].shape[1]);
                w.room = room > w.room ? room : w.room;
            }
        w.room = (w.room + 127) / 128 * 128;
        w.ring = walk_ring(w.room, allowed), w.block = (uint16_t)block;
        w.most = (uint16_t)std::min(units / kv, most_splits(&phases[1].call[3]));
        void *p = hold(phases.size() * sizeof(walk_phase));
        OK(cudaMemcpy(p, phases.data(), phases.size() * sizeof(walk_phase), cudaMemcpyHostToDevice));
        memcpy(c.arg, &w, sizeof w);
        c.v[0] = view(p, 1, 1, 0, 0), c.v[1] = view(counters, 1, 1, 0, 0), c.v[2] = c.v[4] = view(pos, 1, 1, 4, 26),
        c.v[3] = view(slot, 1, 1, 4, 26), c.v[5] = view(table, 1, width, (size_t)width * 4, 26);
        static int said;
        if (!said++)
            printf("room %u ring %u phases %u splits %u shared %d\n", w.room, w.ring, w.phases, w.most,
                   (int)(WALK_WAVES * w.ring + w.room + WALK_TAIL));
        return c;
    }
    kernel of(const char *kind) {
        if (!strcmp(kind, "q4_k_m"))
            return head == 64 ? walk_k_64 : walk_k_128;
        if (!strcmp(kind, "q8_0"))
            return head == 64 ? walk_q8_0_64 : walk_q8_0_128;
        return head == 64 ? walk_dense_64 : walk_dense_128;
    }
};

static int walk_shared(const gpu_call &c) {
    const walk_shape &w = *(const walk_shape *)c.arg;
    return (int)(WALK_WAVES * w.ring + w.room + WALK_TAIL);
}

static void compare(const shape &s, const char *kind, int head, int depth, int format) {
    layers l(s, kind, head, depth, format);
    gpu_call c = l.call(kind);
    std::vector<float> a(s.vocab), b(s.vocab), b2(s.vocab);
    l.one_by_one(0, false, false);
    OK(cudaMemcpy(a.data(), l.logits, s.vocab * 4, cudaMemcpyDeviceToHost));
    double worst = 0, norm2 = 0;
    int same = 1, good = 1;
    for (int turn = 0; turn < 4; turn++) { /* fused twice, then the walk */
        l.again();
        OK(cudaMemset(l.logits, 0xFF, s.vocab * 4));
        if (turn < 2)
            l.one_by_one(0, turn, true);
        else
            launch(l.of(kind), dim3(units), WALK_THREADS, walk_shared(c), c, 0, false);
        OK(cudaDeviceSynchronize());
        OK(cudaMemcpy(b.data(), l.logits, s.vocab * 4, cudaMemcpyDeviceToHost));
        same &= turn % 2 == 0 || !memcmp(b.data(), b2.data(), s.vocab * 4);
        b2 = b;
        double sum = 0;
        norm2 = 0;
        for (int i = 0; i < s.vocab; i++)
            sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), norm2 += (double)a[i] * a[i];
        worst = std::max(worst, sum / norm2);
        good &= sum / norm2 < 1e-5; /* a NaN is not */
    }
    bool ok = good && same;
    failures += !ok;
    printf("  %s %s D %d depth %d cache %d: nmse %.2e of %.2e, %s %s\n", s.name, kind, head, depth, format, worst,
           norm2 / s.vocab, same ? "same again" : "NOT THE SAME", ok ? "ok" : "FAIL");
}

static void clock_of(const shape &s, const char *kind, int head, int depth, int format) {
    layers l(s, kind, head, depth, format);
    gpu_call c = l.call(kind);
    cudaStream_t st;
    OK(cudaStreamCreate(&st));
    for (int way = 0; way < 3; way++) {
        cudaGraph_t g;
        cudaGraphExec_t e;
        cudaEvent_t a, b;
        float best = 1e9f, sum = 0, ms;
        OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeGlobal));
        if (way == 2)
            launch(l.of(kind), dim3(units), WALK_THREADS, walk_shared(c), c, st, false);
        else
            l.one_by_one(st, true, way);
        OK(cudaStreamEndCapture(st, &g));
        OK(cudaGraphInstantiate(&e, g, 0));
        cudaEventCreate(&a), cudaEventCreate(&b);
        for (int r = 0; r < 10; r++) {
            OK(cudaEventRecord(a, st));
            for (int k = 0; k < 4; k++)
                OK(cudaGraphLaunch(e, st));
            OK(cudaEventRecord(b, st));
            OK(cudaEventSynchronize(b));
            cudaEventElapsedTime(&ms, a, b);
            if (r >= 2)
                sum += ms / 4, best = ms / 4 < best ? ms / 4 : best;
        }
        printf("%-13s %-7s depth %5d cache %4d %-11s %8.1f us/token (best %.1f)\n", s.name, kind, depth, format,
               way == 2 ? "walk"
               : way    ? "fused"
                        : "one by one",
               sum / 8 * 1000, best * 1000);
        OK(cudaGraphExecDestroy(e));
        OK(cudaGraphDestroy(g));
    }
    cudaStreamDestroy(st);
}

int main(int argc, char **argv) {
    static const shape tiny = {"tiny", 2, 512, 512, 256, 1024, 1000}, odd = {"odd", 3, 768, 1536, 256, 1536, 777};
    OK(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0));
    if (argc < 2 || !strcmp(argv[1], "check")) {
        for (int format : {1, 8, 1008})
            for (int depth : {0, 1, 15, 16, 100, 700, 5000}) {
                compare(tiny, "q4_k_m", 64, depth, format);
                compare(odd, "q4_k_m", 128, depth, format);
            }
        for (const char *kind : {"q8_0", "bf16", "f16"})
            compare(tiny, kind, 64, 77, 1), compare(odd, kind, 128, 77, 1), compare(l1, kind, 64, 300, 1);
        compare(l1, "q4_k_m", 64, 300, 1);
        compare(l8, "q4_k_m", 128, 3000, 1);
        printf("check: %d failures\n", failures);
        return failures != 0;
    }
#ifdef STAMPS
    static long long h[3][128][8];
    for (int depth : {128, 4096}) {
        clock_of(l8, "q4_k_m", 128, depth, 1);
        OK(cudaMemcpyFromSymbol(h, stamps, sizeof h));
        for (int p = 60; p < 66; p++)
            for (int b = 0; b < 3; b++)
                printf("phase %d group %3d: wait %6lld acts %6lld loop %6lld end %6lld meet %6lld to next %6lld\n",
                       p % 5, b * 60, h[b][p][1] - h[b][p][0], h[b][p][2] - h[b][p][1], h[b][p][3] - h[b][p][2],
                       h[b][p][4] - h[b][p][3], h[b][p][5] - h[b][p][4], h[b][p + 1][0] - h[b][p][5]);
    }
#endif
    for (const char *kind : {"q4_k_m", "bf16", "q8_0"})
        clock_of(l1, kind, 64, 128, 1);
    for (int depth : {128, 1024, 4096, 16384})
        for (int format : {1, 8, 1008})
            clock_of(l8, "q4_k_m", 128, depth, format);
    clock_of(l8, "q8_0", 128, 128, 1);
}
