/* absent.c: fused ops that GPUs alone have. A plan for the CPU keeps their parts. */
#include "cpu.h"

static const char *check(const cpu_call *c) {
    (void)c;
    return "this backend has no kernel for the op";
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)c, (void)from, (void)to, (void)thread;
}

CPU_KERNEL(norm_linear) = {check, .run = run, .takes_packed = 1};
CPU_KERNEL(norm_linear_swiglu) = {check, .run = run, .takes_packed = 1};
CPU_KERNEL(norm_linear_geglu) = {check, .run = run, .takes_packed = 1};
CPU_KERNEL(rms_norm_add) = {check, .run = run};
CPU_KERNEL(geglu) = {check, .run = run};
CPU_KERNEL(expert_gate_limited) = {check, .run = run};
CPU_KERNEL(rope_qkv_write) = {check, .run = run};
CPU_KERNEL(rope_qkv_attention) = {check, .run = run};
