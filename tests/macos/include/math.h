/* math.h: what our sources use of macOS's header, declared as POSIX and C say, to compile them where there is no macOS. */
#pragma once
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)
double sqrt(double);
float sqrtf(float);
double exp(double);
float expf(float);
double exp2(double);
float exp2f(float);
double log(double);
float logf(float);
double log2(double);
float log2f(float);
double sin(double);
float sinf(float);
double cos(double);
float cosf(float);
double tanh(double);
float tanhf(float);
double erf(double);
float erff(float);
double fabs(double);
float fabsf(float);
double floor(double);
float floorf(float);
double ceil(double);
float ceilf(float);
double rint(double);
float rintf(float);
double round(double);
float roundf(float);
double nearbyint(double);
float nearbyintf(float);
double copysign(double, double);
double log1p(double);
float log1pf(float);
double expm1(double);
float expm1f(float);
double fmax(double, double);
float fmaxf(float, float);
double fmin(double, double);
float fminf(float, float);
double pow(double, double);
float powf(float, float);
double fma(double, double, double);
float fmaf(float, float, float);
double ldexp(double, int);
float ldexpf(float, int);
double frexp(double, int *);
float copysignf(float, float);
long lrintf(float);
long lrint(double);
float nextafterf(float, float);
