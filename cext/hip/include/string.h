/* string.h: for kernels: memcpy and memset are port_hip.h's. */
