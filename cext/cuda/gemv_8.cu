/* gemv_8.cu: gemv.cu with groups of eight waves, for devices whose groups have too little shared memory for the rings of sixteen. */
#define GROUP_WAVES 8
#define GEMV_NAME(f) gemv_8_##f
#include "gemv.cu"
