/* math.h: for kernels, whose words are port_hip.h's: a host's functions are not called on a device. */
#define INFINITY __builtin_inff()
