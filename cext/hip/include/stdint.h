/* stdint.h: for kernels: C's names of integers, by types of our own names, for hipRTC has these names already and means other
 * types of the same size.
 */
typedef signed char port_i8;
typedef unsigned char port_u8;
typedef short port_i16;
typedef unsigned short port_u16;
typedef int port_i32;
typedef unsigned port_u32;
typedef long long port_i64;
typedef unsigned long long port_u64;
#define int8_t port_i8
#define uint8_t port_u8
#define int16_t port_i16
#define uint16_t port_u16
#define int32_t port_i32
#define uint32_t port_u32
#define int64_t port_i64
#define uint64_t port_u64
#define uintptr_t port_u64
#define INT32_MAX 0x7FFFFFFF
#define UINT32_MAX 0xFFFFFFFFu
#define INT64_MAX 0x7FFFFFFFFFFFFFFFll
