/* stdint.h: C's names of integers for NVRTC, which has no headers of a C library. runtime/kernels/nvrtc.py gives custom kernels
 * the same.
 */
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef int64_t intptr_t;
typedef uint64_t uintptr_t;
#define INT32_MAX 0x7FFFFFFF
#define UINT32_MAX 0xFFFFFFFFu
#define INT64_MAX 0x7FFFFFFFFFFFFFFFll
#define UINT64_MAX 0xFFFFFFFFFFFFFFFFull
