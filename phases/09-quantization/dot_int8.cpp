// A stretch task of phase 09: the sum of a[i] * b[i] over n numbers of 8 bits, three times faster and faster.
// 05-a-dot-product.md tells what each step is for; `python -m labkit dot-product` judges this file.
//
// a and b begin at any address. Nothing before their first and behind their last number may be read. n is 0 to
// 131,070, so that the sum fits into 32 bits even where every number is -128.

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

extern "C" {

// Step 1: a loop.
std::int32_t dot_scalar(const std::int8_t* a, const std::int8_t* b, std::int64_t n) {
    return 0;  // TODO
}

// Step 2: four numbers a turn, and four sums that do not wait for each other. Up to three numbers are left over.
std::int32_t dot_unrolled(const std::int8_t* a, const std::int8_t* b, std::int64_t n) {
    return 0;  // TODO
}

// Step 3: a whole register of numbers a turn, with intrinsics or with the compiler's vector types.
std::int32_t dot_vector(const std::int8_t* a, const std::int8_t* b, std::int64_t n) {
    return 0;  // TODO
}

}  // extern "C"
