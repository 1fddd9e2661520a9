/* builtins.h: multiply() of fragments.h by clang's builtins of MFMA and WMMA. */
#ifndef SATCHEL_HIP_BUILTINS_H
#define SATCHEL_HIP_BUILTINS_H

FN void multiply(self m, const token_fragment *x, const row_fragment *w, sum_fragment *s) {
    (void)m;
#if defined(MATRIX_MFMA)
    eight a = x->part[0], b = w->part[0];
    *s = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_shufflevector(a, a, 0, 1, 2, 3),
                                                  __builtin_shufflevector(b, b, 0, 1, 2, 3), *s, 0, 0, 0);
    *s = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_shufflevector(a, a, 4, 5, 6, 7),
                                                  __builtin_shufflevector(b, b, 4, 5, 6, 7), *s, 0, 0, 0);
#elif defined(MATRIX_WMMA_11)
#define BOTH(f)                                                                                                        \
    __builtin_shufflevector((f)->part[0], (f)->part[1], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    *s = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(BOTH(x), BOTH(w), *s);
#undef BOTH
#else
    *s = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x->part[0], w->part[0], *s);
#endif
}

#endif
