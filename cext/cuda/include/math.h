/* math.h: for NVRTC, which has the functions by itself. */
#define INFINITY __int_as_float(0x7F800000)
#define NAN __int_as_float(0x7FFFFFFF)
