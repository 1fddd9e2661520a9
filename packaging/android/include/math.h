/* math.h: functions of Android's libm, as far as libsatchel calls them. */
#pragma once
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VAL __builtin_huge_val()
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)
double sqrt(double);
float sqrtf(float);
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
double trunc(double);
float truncf(float);
double nearbyint(double);
float nearbyintf(float);
long lrint(double);
long lrintf(float);
double copysign(double, double);
float copysignf(float, float);
double fmod(double, double);
double fmax(double, double);
float fmaxf(float, float);
double fmin(double, double);
float fminf(float, float);
double fma(double, double, double);
float fmaf(float, float, float);
double pow(double, double);
double ldexp(double, int);
float ldexpf(float, int);
double frexp(double, int *);
float nextafterf(float, float);
