/* stdint.h: for kernels that are compiled at run time: what it says comes from SYCL's headers there. */
