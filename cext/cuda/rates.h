/* rates.h: how fast the tensor cores of NVIDIA's cards multiply, by compute capability: what the choice between kernels in bf16 and in int8
 * is computed from. This is arithmetic on published numbers; the cards themselves were not measured.
 *
 * Multiply-adds a clock of a multiprocessor, dense, of the whitepapers' peak rates over multiprocessors and boost clock:
 *   8.0        A100 (108 at 1.41 GHz): 312 TFLOP/s of f16 and bf16 with float32 sums, 624 TOP/s of int8
 *   8.6        GA102 whitepaper, GeForce RTX 3090 (82 at 1.695 GHz): 71 and 284. An RTX A6000 has twice the 71
 *   8.7        Jetson AGX Orin (16 at 1.3 GHz): as 8.0, whose tensor cores it has
 *   8.9        Ada whitepaper, GeForce RTX 4090 (128 at 2.52 GHz): 165 and 661. An RTX 6000 Ada has twice the 165
 *   10.0       B200 (148 at 1.85 GHz): 2,250 and 4,500, by instructions that none of these kernels uses (tcgen05)
 *   12.0       Blackwell RTX whitepaper, GeForce RTX 5090 (170 at 2.41 GHz): 209.5 and 838. An RTX PRO 6000 has twice the 209.5
 * So of 8.6, 8.9 and 12.0 a GeForce adds f16 products up in float32 at half rate, and a professional card of the same capability does not:
 * the table has the GeForce, and `satchel tune` measures the card at hand.
 */
#ifndef SATCHEL_CUDA_RATES_H
#define SATCHEL_CUDA_RATES_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int arch, bf16, int8; /* bf16: with float32 sums; f16 is as fast */
} card_rates;

/* Zeros for a capability that is not in the table. */
static inline card_rates card_rates_of(int arch) {
    static const card_rates known[] = {{80, 1024, 2048}, {86, 256, 1024},   {87, 1024, 2048},
                                       {89, 256, 1024},  {100, 4096, 8192}, {120, 256, 1024}};
    card_rates none = {arch, 0, 0};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].arch == arch)
            return known[i];
    return none;
}

/* Whether the tensor cores take less time for two int8 products than for one in bf16. Where they take the same, the bf16 kernels have less
 * to do beside them. */
static inline int int8_is_faster(card_rates r) {
    return r.int8 > 2 * r.bf16;
}

/* Clocks of a multiprocessor for `products` multiply-adds at this rate, of which kernels reach eight ninths at best; 0: the rate is unknown. */
static inline int64_t tensor_clocks(int64_t products, int rate) {
    return rate ? products * 9 / (8 * (int64_t)rate) : 0;
}

#endif
