// One solution of the dot product of 05-a-dot-product.md.

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

extern "C" {

std::int32_t dot_scalar(const std::int8_t* a, const std::int8_t* b, std::int64_t n) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

std::int32_t dot_unrolled(const std::int8_t* a, const std::int8_t* b, std::int64_t n) {
    std::int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    std::int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        s0 += a[i] * b[i];
        s1 += a[i + 1] * b[i + 1];
        s2 += a[i + 2] * b[i + 2];
        s3 += a[i + 3] * b[i + 3];
    }
    for (; i < n; ++i) s0 += a[i] * b[i];
    return s0 + s1 + s2 + s3;
}

// --- step 3 ---
std::int32_t dot_vector(const std::int8_t* a, const std::int8_t* b, std::int64_t n) {
    std::int64_t i = 0;
    std::uint32_t sum = 0;  // sums on the way may leave 32 bits and come back: without a sign that is defined
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    // One factor of the instruction has no sign, so it takes a + 128: (a + 128) b - 128 b.
    __m512i sums = _mm512_setzero_si512(), of_b = sums;
    const __m512i flip = _mm512_set1_epi8(-128), one = _mm512_set1_epi8(1);
    for (; i + 64 <= n; i += 64) {
        const __m512i x = _mm512_loadu_si512(a + i), y = _mm512_loadu_si512(b + i);
        sums = _mm512_dpbusd_epi32(sums, _mm512_xor_si512(x, flip), y);
        of_b = _mm512_dpbusd_epi32(of_b, one, y);
    }
    alignas(64) std::uint32_t lanes[16], whole[16];
    _mm512_store_si512(lanes, sums);
    _mm512_store_si512(whole, of_b);
    for (int lane = 0; lane < 16; ++lane) sum += lanes[lane] - 128u * whole[lane];
#elif defined(__AVX2__)
    // Widened to 16 bits: a pair of products, at most 2 * 128 * 128, goes into 32.
    __m256i sums = _mm256_setzero_si256();
    for (; i + 16 <= n; i += 16) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i));
        const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_cvtepi8_epi16(x), _mm256_cvtepi8_epi16(y)));
    }
    alignas(32) std::uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
    for (std::uint32_t lane : lanes) sum += lane;
#elif defined(__ARM_NEON)
    int32x4_t sums = vdupq_n_s32(0);
    for (; i + 16 <= n; i += 16) {
        const int8x16_t x = vld1q_s8(a + i), y = vld1q_s8(b + i);
#if defined(__ARM_FEATURE_DOTPROD)
        sums = vdotq_s32(sums, x, y);
#else
        sums = vpadalq_s16(sums, vmull_s8(vget_low_s8(x), vget_low_s8(y)));
        sums = vpadalq_s16(sums, vmull_s8(vget_high_s8(x), vget_high_s8(y)));
#endif
    }
    sum = static_cast<std::uint32_t>(vaddvq_s32(sums));
#endif
    for (; i < n; ++i) sum += static_cast<std::uint32_t>(a[i] * b[i]);
    return static_cast<std::int32_t>(sum);
}

}  // extern "C"
