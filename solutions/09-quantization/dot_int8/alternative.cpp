// Another solution: the compiler's vector types, without a single intrinsic, and a tail of the last numbers first.

#include <cstdint>

using i8 = std::int8_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

typedef i8 bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef std::int16_t shorts __attribute__((vector_size(32)));
typedef i32 ints __attribute__((vector_size(64)));

extern "C" {

i32 dot_scalar(const i8* a, const i8* b, i64 n) {
    i32 sum = 0;
    while (n-- > 0) sum += i32(*a++) * *b++;
    return sum;
}

i32 dot_unrolled(const i8* a, const i8* b, i64 n) {
    i32 sums[4] = {dot_scalar(a, b, n % 4), 0, 0, 0};
    a += n % 4, b += n % 4;
    for (const i8* end = a + n / 4 * 4; a != end; a += 4, b += 4) {
        sums[0] += a[0] * b[0];
        sums[1] += a[1] * b[1];
        sums[2] += a[2] * b[2];
        sums[3] += a[3] * b[3];
    }
    return sums[0] + sums[1] + (sums[2] + sums[3]);
}

i32 dot_vector(const i8* a, const i8* b, i64 n) {
    const i64 left = n % 16;
    i32 sum = dot_scalar(a, b, left);
    ints sums = {};
    for (i64 i = left; i < n; i += 16) {
        const auto x = __builtin_convertvector(*reinterpret_cast<const bytes*>(a + i), shorts);
        const auto y = __builtin_convertvector(*reinterpret_cast<const bytes*>(b + i), shorts);
        sums += __builtin_convertvector(x * y, ints);  // -128 * -128 is 16,384: it fits into 16 bits
    }
    for (int lane = 0; lane < 16; ++lane) sum += sums[lane];
    return sum;
}

}  // extern "C"
