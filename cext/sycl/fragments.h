/* fragments.h: fragments of matrix.k.h by joint_matrix (SYCL's extension sycl_ext_oneapi_matrix): XMX of Intel GPUs, AMX of
 * Intel CPUs. The extension does not define which lane holds which element, so operands and results go through local memory.
 * driver.cpp selects one of the device's shapes and defines it as PORT_UNIT_* when it compiles the source.
 *
 * Rows of weights are the second operand, in Intel's VNNI layout: pairs of adjacent k, then rows.
 */
#ifndef SATCHEL_SYCL_FRAGMENTS_H
#define SATCHEL_SYCL_FRAGMENTS_H

enum { UNIT_TOKENS = PORT_UNIT_TOKENS, UNIT_ROWS = PORT_UNIT_ROWS, UNIT_DEPTH = PORT_UNIT_DEPTH };
enum { PAIRS_PITCH = 2 * MATRIX_ROWS };

namespace port_matrix = sycl::ext::oneapi::experimental::matrix;
typedef sycl::ext::oneapi::bfloat16 port_bf16;
typedef port_matrix::joint_matrix<sycl::sub_group, port_bf16, port_matrix::use::a, UNIT_TOKENS, UNIT_DEPTH,
                                  port_matrix::layout::row_major>
    token_fragment;
typedef port_matrix::joint_matrix<sycl::sub_group, port_bf16, port_matrix::use::b, UNIT_DEPTH, UNIT_ROWS,
                                  port_matrix::layout::ext_intel_packed>
    row_fragment;
typedef port_matrix::joint_matrix<sycl::sub_group, float, port_matrix::use::accumulator, UNIT_TOKENS, UNIT_ROWS>
    sum_fragment;

/* Pointer to local memory in the type that the extension's functions take. */
template <typename T> FN auto port_place(T *at) {
    return sycl::address_space_cast<sycl::access::address_space::local_space, sycl::access::decorated::no>(at);
}

FN void clear_sums(self m, sum_fragment *s) {
    (void)m;
    port_matrix::joint_matrix_fill(port_here::get_sub_group(), *s, 0.0f);
}

FN void place_row(LOCAL uint16_t *rows, int slot, int k, const float *w) {
    for (int e = 0; e < MATRIX_PART; e++)
        rows[(k + e) / 2 * PAIRS_PITCH + 2 * slot + e % 2] = f32_to_bf16(w[e]);
}

FN void load_rows(self m, row_fragment *f, LOCAL const uint16_t *rows, int slot, int k) {
    (void)m;
    port_matrix::joint_matrix_load(port_here::get_sub_group(), *f,
                                   port_place((port_bf16 *)(rows + k / 2 * PAIRS_PITCH + 2 * slot)), PAIRS_PITCH);
}

FN void load_tokens(self m, token_fragment *f, LOCAL const uint16_t *tokens, int token, int k) {
    (void)m;
    port_matrix::joint_matrix_load(port_here::get_sub_group(), *f,
                                   port_place((port_bf16 *)(tokens + MATRIX_PITCH * token + k)), MATRIX_PITCH);
}

FN void multiply(self m, const token_fragment *x, const row_fragment *w, sum_fragment *s) {
    (void)m;
    port_matrix::joint_matrix_mad(port_here::get_sub_group(), *s, *x, *w, *s);
}

FN void store_sums(self m, sum_fragment *s, LOCAL float *to) {
    (void)m;
    port_matrix::joint_matrix_store(port_here::get_sub_group(), *s, port_place(to), SUMS_PITCH,
                                    port_matrix::layout::row_major);
}

#endif
