// IEEE 754's binary64 in integers, rounded to nearest even, with subnormals, infinities and NaN: Metal has no double, and
// sampling is defined by doubles bit for bit. The operations are the textbook's (Knuth, The Art of Computer Programming,
// volume 2, 4.2.1; the root and the quotient digit by digit).
struct f64 {
    ulong bits;
    f64() = default;
    f64(float x);
    f64(int x);
    f64(uint x);
    f64(long x);
    f64(ulong x);
    explicit operator float() const;
    explicit operator int() const;
};

// An unpacked float: m * 2^e. `special`: an infinity (m == 0) or a NaN.
struct f64_parts {
    ulong sign, m;
    int e, special;
};

inline f64 f64_from_bits(ulong bits) {
    f64 x;
    x.bits = bits;
    return x;
}

inline ulong f64_bits(f64 x) {
    return x.bits;
}

constant ulong F64_SIGN = 1ul << 63, F64_INFINITY = 0x7FFul << 52, F64_NAN = 0x7FF8ul << 48;

// Shifts right by n >= 0; the lowest bit is sticky: it is set if a set bit was shifted out.
inline ulong f64_jam(ulong m, int n) {
    return n == 0 ? m : n < 64 ? m >> n | (ulong)(m << (64 - n) != 0) : (ulong)(m != 0);
}

// Rounds m * 2^e >= 0 to a float with so many fraction bits and gives its bits; the lowest bit of m may be sticky.
inline ulong f64_pack(ulong m, int e, int fraction, int bias) {
    int shift = (int)clz(m), exponent = e - shift + 63 + bias, drop = 63 - fraction;
    ulong kept, rest;
    if (m == 0)
        return 0;
    if (exponent > 2 * bias)
        return (ulong)(2 * bias + 1) << fraction;
    m <<= shift;
    if (exponent < 1) {
        drop = min(drop + 1 - exponent, 66);
        exponent = 1;
        m = f64_jam(m, drop - (63 - fraction));
        drop = 63 - fraction;
    }
    kept = m >> drop;
    rest = m << (64 - drop);
    kept += (ulong)(rest > F64_SIGN || (rest == F64_SIGN && (kept & 1)));
    return ((ulong)(exponent - 1) << fraction) + kept;
}

inline f64 f64_round(ulong sign, ulong m, int e) {
    return f64_from_bits(sign | f64_pack(m, e, 52, 1023));
}

inline f64_parts f64_unpack_bits(f64 x) {
    int exponent = (int)(x.bits >> 52 & 0x7FF);
    f64_parts p;
    p.sign = x.bits & F64_SIGN;
    p.m = (x.bits & 0xFFFFFFFFFFFFFul) | (ulong)(exponent > 0 && exponent < 0x7FF) << 52;
    p.e = max(exponent, 1) - 1075;
    p.special = exponent == 0x7FF;
    return p;
}

// Normalizes: shifts the highest bit of m to bit 63, unless m is 0.
inline f64_parts f64_normal(f64 x) {
    f64_parts p = f64_unpack_bits(x);
    int shift = p.m ? (int)clz(p.m) : 0;
    p.m <<= shift;
    p.e -= shift;
    return p;
}

inline bool f64_is_nan(f64 x) {
    return (x.bits & ~F64_SIGN) > F64_INFINITY;
}

inline f64::f64(float x) {
    uint b = as_type<uint>(x), exponent = b >> 23 & 0xFF, fraction = b & 0x7FFFFF;
    ulong sign = (ulong)(b >> 31) << 63;
    if (exponent == 0xFF)
        bits = sign | F64_INFINITY | (ulong)fraction << 29 | (ulong)(fraction != 0) << 51;
    else
        bits = f64_round(sign, fraction | (uint)(exponent > 0) << 23, (int)max(exponent, 1u) - 150).bits;
}

inline f64::f64(ulong x) {
    bits = f64_round(0, x, 0).bits;
}

inline f64::f64(long x) {
    bits = f64_round(x < 0 ? F64_SIGN : 0, x < 0 ? 0 - (ulong)x : (ulong)x, 0).bits;
}

inline f64::f64(int x) {
    bits = f64((long)x).bits;
}

inline f64::f64(uint x) {
    bits = f64((ulong)x).bits;
}

inline f64::operator float() const {
    f64_parts p = f64_unpack_bits(f64_from_bits(bits));
    uint sign = (uint)(p.sign >> 32);
    if (p.special)
        return as_type<float>(sign | 0x7F800000u | (uint)(p.m != 0) << 22);
    return as_type<float>(sign | (uint)f64_pack(p.m, p.e, 23, 127));
}

// Conversion to int, towards zero, of a number in int's range.
inline f64::operator int() const {
    f64_parts p = f64_unpack_bits(f64_from_bits(bits));
    int size = p.e >= 0 ? (int)(p.m << min(p.e, 63)) : p.e > -64 ? (int)(p.m >> -p.e) : 0;
    return p.sign ? -size : size;
}

inline f64 operator-(f64 a) {
    return f64_from_bits(a.bits ^ F64_SIGN);
}

inline f64 operator+(f64 a, f64 b) {
    f64 large = (a.bits & ~F64_SIGN) >= (b.bits & ~F64_SIGN) ? a : b, small = f64_from_bits(a.bits ^ b.bits ^ large.bits);
    f64_parts x = f64_unpack_bits(large), y = f64_unpack_bits(small);
    ulong m, other;
    if (f64_is_nan(a) || f64_is_nan(b) || (x.special && y.special && x.sign != y.sign))
        return f64_from_bits(F64_NAN);
    if (x.special)
        return large;
    other = f64_jam(y.m << 10, x.e - y.e);
    m = x.sign == y.sign ? (x.m << 10) + other : (x.m << 10) - other;
    return f64_round(m || x.sign == y.sign ? x.sign : 0, m, x.e - 10);
}

inline f64 operator-(f64 a, f64 b) {
    return a + -b;
}

// The upper half of a 128-bit product; its lowest bit is sticky for the lower half.
inline ulong f64_high(ulong a, ulong b) {
    ulong al = a & 0xFFFFFFFFul, ah = a >> 32, bl = b & 0xFFFFFFFFul, bh = b >> 32;
    ulong low = al * bl, middle = ah * bl + (low >> 32), other = al * bh + (middle & 0xFFFFFFFFul);
    return (ah * bh + (middle >> 32) + (other >> 32)) | (ulong)((other << 32 | (low & 0xFFFFFFFFul)) != 0);
}

inline f64 operator*(f64 a, f64 b) {
    f64_parts x = f64_normal(a), y = f64_normal(b);
    ulong sign = x.sign ^ y.sign;
    if (f64_is_nan(a) || f64_is_nan(b) || (x.special && !y.special && y.m == 0) || (y.special && !x.special && x.m == 0))
        return f64_from_bits(F64_NAN);
    if (x.special || y.special)
        return f64_from_bits(sign | F64_INFINITY);
    return f64_round(sign, f64_high(x.m, y.m), x.e + y.e + 64);
}

inline f64 operator/(f64 a, f64 b) {
    f64_parts x = f64_normal(a), y = f64_normal(b);
    ulong sign = x.sign ^ y.sign, rest = x.m >> 1, by = y.m >> 1, q = 0;
    if (f64_is_nan(a) || f64_is_nan(b) || (x.special && y.special) || (!x.special && !y.special && x.m == 0 && y.m == 0))
        return f64_from_bits(F64_NAN);
    if (x.special || (!y.special && y.m == 0))
        return f64_from_bits(sign | F64_INFINITY);
    if (y.special)
        return f64_from_bits(sign);
    for (int i = 0; i < 58; i++) {
        bool fits = rest >= by;
        rest = (fits ? rest - by : rest) << 1;
        q = q << 1 | (ulong)fits;
    }
    return f64_round(sign, q | (ulong)(rest != 0), x.e - y.e - 57);
}

inline f64 sqrt(f64 a) {
    f64_parts x = f64_normal(a);
    ulong root = 0, rest = 0;
    if (f64_is_nan(a) || (x.sign && (x.m || x.special)))
        return f64_from_bits(F64_NAN);
    if (x.special || x.m == 0)
        return a;
    if (x.e & 1) {
        x.m >>= 1;
        x.e++;
    }
    for (int i = 0; i < 58; i++) {
        ulong by;
        rest = rest << 2 | x.m >> 62;
        x.m <<= 2;
        root <<= 1;
        by = root << 1 | 1;
        if (rest >= by) {
            rest -= by;
            root |= 1;
        }
    }
    return f64_round(0, root | (ulong)(rest != 0), x.e / 2 - 26);
}

// Maps to an integer that sorts like the float; both zeros are 0.
inline long f64_order(f64 x) {
    long size = (long)(x.bits & ~F64_SIGN);
    return x.bits & F64_SIGN ? -size : size;
}

inline bool operator<(f64 a, f64 b) {
    return !f64_is_nan(a) && !f64_is_nan(b) && f64_order(a) < f64_order(b);
}

inline bool operator==(f64 a, f64 b) {
    return !f64_is_nan(a) && !f64_is_nan(b) && f64_order(a) == f64_order(b);
}

inline bool operator>(f64 a, f64 b) {
    return b < a;
}

inline bool operator<=(f64 a, f64 b) {
    return a < b || a == b;
}

inline bool operator>=(f64 a, f64 b) {
    return b <= a;
}

inline bool operator!=(f64 a, f64 b) {
    return !(a == b);
}

inline thread f64 &operator+=(thread f64 &a, f64 b) {
    a = a + b;
    return a;
}

inline thread f64 &operator*=(thread f64 &a, f64 b) {
    a = a * b;
    return a;
}

inline f64 fabs(f64 x) {
    return f64_from_bits(x.bits & ~F64_SIGN);
}

inline f64 ldexp(f64 x, int n) {
    f64_parts p = f64_unpack_bits(x);
    return p.special ? x : f64_round(p.sign, p.m, p.e + clamp(n, -4096, 4096));
}

// x = result * 2^*e with 1/2 <= |result| < 1.
inline f64 frexp(f64 x, thread int *e) {
    f64_parts p = f64_normal(x);
    *e = p.special || p.m == 0 ? 0 : p.e + 64;
    return p.special || p.m == 0 ? x : f64_round(p.sign, p.m, -64);
}

inline f64 rint(f64 x) {
    f64_parts p = f64_unpack_bits(x);
    ulong kept, rest;
    if (p.special || p.e >= 0)
        return x;
    p.m = f64_jam(p.m << 2, min(-p.e, 60));
    kept = p.m >> 2;
    rest = p.m & 3;
    kept += (ulong)(rest == 3 || (rest == 2 && (kept & 1)));
    return f64_round(p.sign, kept, 0);
}
