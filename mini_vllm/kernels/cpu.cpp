// What lies between a decoder's matrix products, for a CPU: one pass through memory for each function;
// products with packed weights: floats, bfloat16, and numbers of 8 and 4 bits; and a whole layer,
// or a whole model, as one call, where it is so narrow that calling takes longer than computing.
//
// Plain loops but for a few operations; the compiler turns them into vector instructions of its machine
// (16 floats at a time with AVX-512, 8 with AVX2, 4 with NEON). Numbers are float or bfloat16, and sums
// are floats. Where PyTorch rounds a result to bfloat16 in between, so does this, so
// that both give the same numbers.
//
// `native.py` builds this file and calls it. Shapes and meanings are those of `model/layers.py`,
// `model/rope.py` and `attention/__init__.py`.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <pthread.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

using i64 = std::int64_t;

struct bf16 {  // the upper half of a float
    std::uint16_t bits;
};

inline float get(float x) { return x; }
inline std::int16_t get(std::int16_t x) { return x; }
inline float get(bf16 x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline void put(float& to, float value) { to = value; }
inline void put(std::int16_t& to, std::int16_t value) { to = value; }
inline void put(bf16& to, float value) {  // to nearest, ties to even; NaN stays NaN
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to.bits = static_cast<std::uint16_t>(value != value ? 0x7fc0u : rounded);
}

template <class T>
inline float rounded(float value) {  // what is left of it in a T
    T kept;
    put(kept, value);
    return get(kept);
}

inline float exp_of(float x) {  // e^x with about 7 digits: 2^n * 2^f, f in [-1/2, 1/2]
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;  // NaN is neither, and stays
    const float turned = x * 1.44269504f;
    const float n = std::nearbyint(turned);
    const float f = turned - n;
    float power = 1.5403530e-4f;  // Taylor's series of 2^f
    power = power * f + 1.3333558e-3f;
    power = power * f + 9.6181291e-3f;
    power = power * f + 5.5504109e-2f;
    power = power * f + 2.4022651e-1f;
    power = power * f + 6.9314718e-1f;
    power = power * f + 1.0f;
    const std::uint32_t bits = (static_cast<std::uint32_t>(static_cast<std::int32_t>(n)) + 127u) << 23;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return power * scale;
}

// ---------------------------------------------------------------- loops that are shared
// The parts of a loop are taken by those threads that are free: its caller, and helpers. The caller waits
// only for parts that a helper has begun. A team of OpenMP's waits for all of its members at the end of every
// loop, some ten times a layer, also where another program has one of the cores. Here a helper without a core
// takes nothing, and the caller does the work.
//
// A forward pass is some hundred loops, microseconds apart. To wake a sleeping thread takes as long as a
// small product, so helpers stay awake through a pass, and sleep between passes. Awake they first look for
// the next loop without a pause; after a few microseconds they look and give their core to any thread that
// wants it, in turns: the loop's caller, or a busy neighbour, loses nothing to a helper that only waits.
class Helpers {
  public:
    using Part = void (*)(const void* loop, i64 part);

    // Calls run(loop, 0) .. run(loop, parts - 1), each once, on this thread and `most` helpers at most.
    // One loop at a time has helpers; those of other threads meanwhile run alone.
    void share(const void* loop, Part run, i64 parts, int most) {
        if (is_shared.exchange(true)) {
            for (i64 part = 0; part < parts; ++part) run(loop, part);
            return;
        }
        try {
            for (; started < most; ++started) std::thread(&Helpers::help, this, started).detach();
        } catch (const std::system_error&) {  // no more threads are allowed: those that are there will do
        }
        this->loop = loop;
        this->run = run;
        done = 0;
        limit = most;
        todo = static_cast<std::uint64_t>(parts) << 32;
        if (asleep > 0) {
            const std::lock_guard<std::mutex> hold(bed);
            bell.notify_all();
        }
        i64 own = 0;
        for (i64 part; (part = take()) >= 0; ++own) run(loop, part);
        for (int looks = 0; done + own < parts;)
            if (++looks > LOOKS) std::this_thread::yield();
        is_shared = false;
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr int LOOKS = 2000;  // for the next loop, which is near, before a helper gives way
    static constexpr std::chrono::microseconds AWAKE{400};  // longer than a pass is without a loop

    static bool has_parts(std::uint64_t todo) { return static_cast<std::uint32_t>(todo) < todo >> 32; }

    // A part that no thread has, or -1. `loop` and `run` stay as they are until its thread is done.
    i64 take() {
        std::uint64_t seen = todo;
        while (has_parts(seen))
            if (todo.compare_exchange_weak(seen, seen + 1)) return static_cast<std::uint32_t>(seen);
        return -1;
    }

    void help(int number) {
        Clock::time_point since;
        for (int looks = 0;;) {
            const i64 part = number < limit ? take() : -1;
            if (part >= 0) {
                run(loop, part);
                ++done;
                looks = 0;
            } else if (++looks < LOOKS) {
                continue;
            } else if (looks == LOOKS) {
                since = Clock::now();
            } else if (Clock::now() - since < AWAKE) {
                std::this_thread::yield();
            } else {
                std::unique_lock<std::mutex> hold(bed);
                ++asleep;
                bell.wait(hold, [&] { return number < limit && has_parts(todo); });
                --asleep;
                looks = 0;
            }
        }
    }

    const void* loop = nullptr;
    Part run = nullptr;
    std::atomic<std::uint64_t> todo{0};  // the number of parts, and in the lower half the next free one
    std::atomic<i64> done{0};            // by helpers
    std::atomic<int> limit{0}, asleep{0};
    std::atomic<bool> is_shared{false};
    int started = 0;
    std::mutex bed;
    std::condition_variable bell;
};

// Never destroyed, for helpers sleep in it until the process ends. A forked child has no helpers yet.
Helpers* helpers = new Helpers;
[[maybe_unused]] const int watched = pthread_atfork(nullptr, nullptr, [] { helpers = new Helpers; });

// How many threads a loop over so many numbers is worth: to share out a smaller one takes longer.
constexpr i64 LEAST_SHARED = 1 << 13;
inline int worth(i64 numbers, int threads) { return numbers < LEAST_SHARED ? 1 : threads; }

// body(begin, end) for ranges that make up 0 .. count. They are so many that one whose thread is held up
// is little to wait for.
template <class Body>
void in_ranges(i64 count, int threads, const Body& body) {
    const i64 parts = count < 8 * threads ? count : 8 * threads;
    if (threads <= 1 || parts < 2) return body(i64{0}, count);
    const auto range = [&](i64 part) { body(count * part / parts, count * (part + 1) / parts); };
    using Range = decltype(range);
    helpers->share(&range, [](const void* loop, i64 part) { (*static_cast<Range*>(loop))(part); }, parts,
                   threads - 1);
}

// body(0) .. body(count - 1), likewise.
template <class Body>
void each(i64 count, int threads, const Body& body) {
    in_ranges(count, threads, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) body(i);
    });
}

// -inf in row rows[i] of the logits for each token whose bit in row masks[i] of the words is 0, and behind them.
void forbid(float* logits, const std::uint32_t* words, const i64* rows, const i64* masks, i64 count, i64 vocab,
            i64 stride, i64 num_words) {
    const float never = -std::numeric_limits<float>::infinity();
    for (i64 i = 0; i < count; ++i) {
        float* row = logits + rows[i] * stride;
        const std::uint32_t* mask = words + masks[i] * num_words;
        for (i64 word = 0, token = 0; token < vocab; ++word, token += 32) {
            const std::uint32_t allowed = word < num_words ? mask[word] : 0;
            const i64 end = std::min<i64>(vocab - token, 32);
            if (allowed == ~0u) continue;
#pragma omp simd
            for (i64 bit = 0; bit < end; ++bit) row[token + bit] = allowed >> bit & 1 ? row[token + bit] : never;
        }
    }
}

// ---------------------------------------------------------------- what lies between products
// out = x / rms(x) * weight, row by row. With a residual: it becomes residual + x, and its norm is taken.
template <class T>
void rms_norm(T* out, const T* x, T* residual, const T* weight, i64 tokens, i64 heads, i64 size,
              i64 x_stride, float eps, int threads) {
    each(tokens * heads, threads, [&](i64 row) {
        const i64 head = row % heads;
        const T* from = x + (row / heads) * x_stride + head * size;
        T* to = out + row * size;
        float sum = 0;
        if (residual) {
            T* stream = residual + row * size;
#pragma omp simd
            for (i64 i = 0; i < size; ++i) put(stream[i], get(stream[i]) + get(from[i]));
            from = stream;
        }
#pragma omp simd reduction(+ : sum)
        for (i64 i = 0; i < size; ++i) sum += get(from[i]) * get(from[i]);
        const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + eps);
        const T* factor = weight + head * size;
#pragma omp simd
        for (i64 i = 0; i < size; ++i)
            put(to[i], rounded<T>(get(from[i]) * scale) * get(factor[i]));
    });
}

// Turn pairs (i, i + turning / 2) of each head by the token's angles, in place; sin has its sign.
template <class T>
void rope(T* x, const T* cos, const T* sin, i64 tokens, i64 heads, i64 size, i64 turning,
          i64 x_stride, int threads) {
    const i64 half = turning / 2;
    each(tokens * heads, threads, [&](i64 row) {
        const i64 token = row / heads;
        T* first = x + token * x_stride + (row % heads) * size;
        T* second = first + half;
        const T *c = cos + token * turning, *s = sin + token * turning;
#pragma omp simd
        for (i64 i = 0; i < half; ++i) {
            const float a = get(first[i]), b = get(second[i]);
            put(first[i], rounded<T>(a * get(c[i])) + b * get(s[i]));
            put(second[i], rounded<T>(b * get(c[half + i])) + a * get(s[half + i]));
        }
    });
}

// out = silu(gate) * up; gate is the first half of each row.
template <class T>
void silu_mul(T* out, const T* gate_up, i64 tokens, i64 size, int threads) {
    each(tokens, threads, [&](i64 token) {
        const T *gate = gate_up + token * 2 * size, *up = gate + size;
        T* to = out + token * size;
#pragma omp simd
        for (i64 i = 0; i < size; ++i) {
            const float x = get(gate[i]);
            put(to[i], rounded<T>(x / (1.0f + exp_of(-x))) * get(up[i]));
        }
    });
}

// Write each token's keys and values into its slot; a negative slot stores nothing. Returns the first
// token whose slot is outside the cache, or -1.
template <class T, class C>
i64 store(C* keys, C* values, const T* key, const T* value, const i64* slots, i64 num_slots, i64 tokens,
          i64 width, i64 key_stride, i64 value_stride) {
    for (i64 token = 0; token < tokens; ++token) {
        if (slots[token] < 0) continue;
        if (slots[token] >= num_slots) return token;
        C *k = keys + slots[token] * width, *v = values + slots[token] * width;
        const T *from_k = key + token * key_stride, *from_v = value + token * value_stride;
#pragma omp simd
        for (i64 i = 0; i < width; ++i) put(k[i], get(from_k[i]));
#pragma omp simd
        for (i64 i = 0; i < width; ++i) put(v[i], get(from_v[i]));
    }
    return -1;
}

// ---------------------------------------------------------------- attention
// Floats in one register. Of a wider type compilers keep the parts in memory, which is several times slower
// and as right: -DWIDTH=16 tries what other processors will run.
#if !defined(WIDTH)
#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#endif
constexpr i64 LANES = WIDTH;
#if WIDTH == 16 || defined(__aarch64__)
constexpr i64 REGISTERS = 32;
#else
constexpr i64 REGISTERS = 16;
#endif
typedef float floats __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef std::uint32_t words __attribute__((vector_size(LANES * 4)));
typedef std::uint16_t halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef std::uint32_t pairs __attribute__((vector_size(LANES * 4), aligned(2), may_alias));  // of bf16

inline floats as_floats(words bits) {
    floats values;
    std::memcpy(&values, &bits, sizeof values);
    return values;
}

inline floats load(const float* p) { return *reinterpret_cast<const floats*>(p); }
inline floats load(const bf16* p) {
    return as_floats(__builtin_convertvector(*reinterpret_cast<const halves*>(p), words) << 16);
}

// Place I of a register that takes, from two, the lower halves of their parts of W floats (UPPER: the upper
// halves): one of the first, one of the second, and so on.
template <int W, bool UPPER, int I>
constexpr int PLACE = (I / (W / 2) % 2 ? LANES : 0) + I / W * W + (UPPER ? W / 2 : 0) + I % (W / 2);
template <int W, bool UPPER, int... I>
inline floats halves_of(floats a, floats b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, PLACE<W, UPPER, I>...);
#else
    return __builtin_shuffle(a, b, words{PLACE<W, UPPER, I>...});
#endif
}

// The sums of the floats in each of LANES registers, as one: two halves fold onto each other, then quarters,
// and so on, of two registers at a time. N are left, with parts of N floats.
template <int N>
inline floats sums_of(const floats* v) {
    if constexpr (N == 1) {
        return *v;
    } else {
        constexpr auto places = std::make_integer_sequence<int, LANES>();
        floats folded[N / 2];
        for (int i = 0; i < N / 2; ++i)
            folded[i] = halves_of<N, false>(v[i], v[i + N / 2], places) +
                        halves_of<N, true>(v[i], v[i + N / 2], places);
        return sums_of<N / 2>(folded);
    }
}

// sums + what the pairs of bf16 in each word give, multiplied and added. A processor that multiplies bf16
// takes them as they lie in memory: twice as many at a time as of floats, and nothing is unpacked.
#if WIDTH == 16 && defined(__AVX512BF16__)
constexpr bool MULTIPLIES_BF16 = true;
inline floats add_pairs(floats sums, words a, words b) {
    return reinterpret_cast<floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums),
                                                     reinterpret_cast<__m512bh>(a),
                                                     reinterpret_cast<__m512bh>(b)));
}
inline floats add_dot(floats sums, const bf16* a, const bf16* b, i64 left) {  // of 32 numbers, or `left`
    const __mmask32 kept = left < 2 * LANES ? (1u << left) - 1 : ~0u;
    return add_pairs(sums, reinterpret_cast<words>(_mm512_maskz_loadu_epi16(kept, a)),
                     reinterpret_cast<words>(_mm512_maskz_loadu_epi16(kept, b)));
}
#else
constexpr bool MULTIPLIES_BF16 = false;
inline floats add_pairs(floats sums, words a, words b) {
    const words high = words{} + 0xffff0000u;
    return sums + as_floats(a << 16) * as_floats(b << 16) + as_floats(a & high) * as_floats(b & high);
}
#endif
template <class C>
inline floats add_dot(floats sums, const float* a, const C* b, i64) {  // of LANES numbers
    return sums + load(a) * load(b);
}

constexpr int DOTS = REGISTERS / 2;  // sums at a time, of G queries and DOTS / G tokens

// What meets numbers of kind C in a product. It is rounded to bf16, if they are bf16 and the processor
// multiplies it: that is what a model of bf16 means.
template <class C>
using Partner = std::conditional_t<MULTIPLIES_BF16, C, float>;

// score[g, t] = q[g] . k[t] * scale, for N tokens and the G queries that share the key head.
template <int G, int N, class Q, class C>
inline void dot_products(float* score, i64 score_stride, const Q* q, const C* k, i64 size, i64 width,
                         float scale) {
    floats sums[DOTS] = {};
    for (i64 i = 0; i < size; i += LANES * 4 / static_cast<i64>(sizeof(Q)))
        for (int t = 0; t < N; ++t)
            for (int g = 0; g < G; ++g)
                sums[g * N + t] = add_dot(sums[g * N + t], q + g * size + i, k + t * width + i, size - i);
    float scores[DOTS];
    for (int s = 0; s < DOTS; s += LANES)
        *reinterpret_cast<floats*>(scores + s) = sums_of<LANES>(sums + s) * scale;
    for (int g = 0; g < G; ++g) std::memcpy(score + g * score_stride, scores + g * N, N * sizeof(float));
}

// sum_v[g] += sum over t of weight[g, t] * v[t], for N tokens.
template <int G, int N, class C>
inline void add_values(float* sum_v, const float* weight, i64 stride, const C* v, i64 size, i64 width) {
    for (i64 i = 0; i < size; i += LANES) {
        floats value[N];
        for (int t = 0; t < N; ++t) value[t] = load(v + t * width + i);
        for (int g = 0; g < G; ++g) {
            floats sum = load(sum_v + g * size + i);
            for (int t = 0; t < N; ++t) sum += weight[g * stride + t] * value[t];
            *reinterpret_cast<floats*>(sum_v + g * size + i) = sum;
        }
    }
}

// What one task remembers of the tokens it has seen, for G queries: the largest score so far, the sum of
// weights, and the weighted sum of values. A larger score scales the rest down ("online softmax"). Tokens
// come in spans of a few pages, so that this is not asked at each page.
template <int G, class C>
struct Softmax {
    float* sum_v;  // [G, size]
    float* score;  // [G, span]
    i64 size, width, block_size, span;
    float scale, best[G], total[G];

    static i64 pages_of_span(i64 block_size) { return block_size < 256 ? 256 / block_size : 1; }

    void start() {
        std::memset(sum_v, 0, static_cast<std::size_t>(G * size) * sizeof(float));
        for (int g = 0; g < G; ++g) {
            best[g] = -std::numeric_limits<float>::infinity();
            total[g] = 0;
        }
    }

    // Rows of one head lie far apart, where the processor expects nothing. So each page is asked for, a few
    // rows at a time, while the one that is read before it is computed.
    void expect(const C* rows, i64 count) const {
        for (i64 t = 0; t < count; ++t)
            for (i64 i = 0; i < size; i += 64 / static_cast<i64>(sizeof(C)))
                __builtin_prefetch(rows + t * width + i);
    }

    // The scores of a page, whose first token is number `at` of the span. Those that its query does not
    // see are computed along, and not read.
    void score_page(const Partner<C>* q, const C* k, i64 at, const C* ahead) {
        constexpr int N = DOTS / G;
        i64 t = 0;
        for (; t + N <= block_size; t += N) {
            expect(ahead + t * width, N);
            dot_products<G, N>(score + at + t, span, q, k + t * width, size, width, scale);
        }
        for (; t < block_size; ++t)
            dot_products<G, 1>(score + at + t, span, q, k + t * width, size, width, scale);
    }

    // Of a page, the tokens that are among lo .. hi of the span.
    void add_page(const C* v, i64 at, i64 lo, i64 hi, const C* ahead) {
        constexpr int N = 4;
        i64 t = lo > at ? lo - at : 0;
        hi = hi - at < block_size ? hi - at : block_size;
        for (; t + N <= hi; t += N) {
            expect(ahead + t * width, N);
            add_values<G, N>(sum_v, score + at + t, span, v + t * width, size, width);
        }
        for (; t < hi; ++t) add_values<G, 1>(sum_v, score + at + t, span, v + t * width, size, width);
    }

    void weigh(i64 lo, i64 hi) {  // tokens lo .. hi of the span: scores become weights
        for (int g = 0; g < G; ++g) {
            float* s = score + g * span;
            float top = best[g], sum = 0;
#pragma omp simd reduction(max : top)
            for (i64 t = lo; t < hi; ++t) top = s[t] > top ? s[t] : top;
#pragma omp simd reduction(+ : sum)
            for (i64 t = lo; t < hi; ++t) sum += s[t] = exp_of(s[t] - top);
            if (top != best[g]) {
                const float shrink = exp_of(best[g] - top);
                for (i64 i = 0; i < size; ++i) sum_v[g * size + i] *= shrink;
                total[g] *= shrink;
                best[g] = top;
            }
            total[g] += sum;
        }
    }
};

inline bool are_pages(const std::int32_t* pages, i64 count, i64 num_blocks) {
    for (i64 i = 0; i < count; ++i)
        if (pages[i] < 0 || pages[i] >= num_blocks) return false;
    return true;
}

// One token and one key head: where their numbers lie, and what is seen.
struct Task {
    i64 token, offset, query;  // offset: of the head in a row of the cache; query: the first of its queries
    const std::int32_t* pages;
    i64 begin, end, from, behind;  // the tokens that it sees, and their pages
};

// Attention of single tokens over their requests' pages, read where they lie. One task is one token and
// one key head, with G of the `group` query heads that share it. `size` is a multiple of LANES. Returns
// a token that has a page outside the cache, or -1.
template <int G, class T, class C>
i64 paged_attention(T* out, const T* query, const C* keys, const C* values, const std::int32_t* table,
                    const std::int32_t* rows, const std::int32_t* ends, i64 tokens, i64 kv_heads,
                    i64 group, i64 size, i64 num_blocks, i64 block_size, i64 table_stride,
                    i64 query_stride, i64 window, float scale, int threads) {
    const i64 width = kv_heads * size, step = block_size * width, parts = group / G;
    const i64 num_tasks = tokens * kv_heads * parts;
    const i64 at_once = Softmax<G, C>::pages_of_span(block_size), span = at_once * block_size;
    const auto task_of = [&](i64 number) {
        const i64 token = number / (kv_heads * parts), rest = number % (kv_heads * parts);
        const i64 end = ends[token], begin = end > window ? end - window : 0;
        return Task{token, rest / parts * size, rest / parts * group + rest % parts * G,
                    table + rows[token] * table_stride, begin, end, begin / block_size,
                    (end + block_size - 1) / block_size};
    };
    const auto place = [&](const Task& task, i64 page) { return task.pages[page] * step + task.offset; };
    std::atomic<i64> bad{-1};
    in_ranges(num_tasks, threads, [&](i64 first, i64 last) {
        std::vector<float> buffer(static_cast<std::size_t>(G * (size + span)));
        std::vector<Partner<C>> q(static_cast<std::size_t>(G * size));
        Softmax<G, C> softmax{buffer.data(), buffer.data() + G * size, size, width, block_size, span, scale,
                              {}, {}};
        i64 expected = 0;  // the first page whose keys are not asked for yet
        for (i64 number = first; number < last; ++number) {
            const Task task = task_of(number), next = task_of(number + 1 < last ? number + 1 : number);
            if (!are_pages(task.pages + task.from, task.behind - task.from, num_blocks)) {
                bad = task.token;
                continue;
            }
            const T* own = query + task.token * query_stride + task.query * size;
            for (i64 i = 0; i < G * size; ++i) put(q[static_cast<std::size_t>(i)], get(own[i]));
            softmax.start();
            for (i64 page = task.from; page < task.behind; page += at_once) {
                const i64 stop = page + at_once < task.behind ? page + at_once : task.behind;
                const i64 start = page * block_size, hi = task.end - start < span ? task.end - start : span;
                const i64 lo = task.begin > start ? task.begin - start : 0;
                for (i64 i = page; i < stop; ++i) {
                    if (i + 1 >= expected && i + 1 < stop)
                        softmax.expect(keys + place(task, i + 1), block_size);
                    softmax.score_page(q.data(), keys + place(task, i), (i - page) * block_size,
                                       values + place(task, i));
                }
                softmax.weigh(lo, hi);
                const Task& then = stop < task.behind ? task : next;
                expected = stop < task.behind ? stop : next.from;
                for (i64 i = page; i < stop; ++i) {
                    softmax.add_page(values + place(task, i), (i - page) * block_size, lo, hi,
                                     keys + place(then, expected));
                    if (expected + 1 < then.behind) ++expected;
                }
            }
            T* to = out + (task.token * kv_heads * group + task.query) * size;
            for (int g = 0; g < G; ++g)
                for (i64 i = 0; i < size; ++i)
                    put(to[g * size + i], softmax.sum_v[g * size + i] / softmax.total[g]);
        }
    });
    return bad;
}

constexpr i64 ROWS = 32;  // of a weight, that lie together

// ---------------------------------------------------------------- tiles
// Intel's AMX multiplies up to 16 tokens by 16 rows of a weight at once, 64 bytes of each: 32 numbers of
// bf16, or 64 of 8 bits. What it wants of the weight is the order that blocks have: columns that share a word,
// row by row. A process asks the kernel for the tiles' registers once.
#if defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && WIDTH == 16
bool may_use_tiles() {
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
const bool HAS_TILES = may_use_tiles();

// The registers of one thread, for some tokens and the 16 behind them, while this object lives. Sums are in
// tiles 0 .. 3, tokens in 4 and 5, and a weight's rows in 6 and 7.
class Tiles {
  public:
    Tiles(i64 tokens, i64 more_tokens) {
        for (int tile = 0; tile < 8; ++tile) {
            const bool has_more = tile == 2 || tile == 3 || tile == 5;
            const i64 lines = tile > 5 ? 16 : has_more ? more_tokens : tokens;
            shape.line_bytes[tile] = lines ? 64 : 0;
            shape.lines[tile] = static_cast<std::uint8_t>(lines);
        }
        _tile_loadconfig(&shape);
        fence();
    }
    ~Tiles() {
        fence();
        _tile_release();
    }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

  private:
    // Compilers do not know which memory a tile is loaded from.
    static void fence() { asm volatile("" ::: "memory"); }
    struct alignas(64) {
        std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
        std::uint16_t line_bytes[16] = {};
        std::uint8_t lines[16] = {};
    } shape;
};

inline void multiply_tiles(const bf16*, bool has_more) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!has_more) return;
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}
inline void multiply_tiles(const std::int8_t*, bool has_more) {  // by weights without a sign
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if (!has_more) return;
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
}

// sums[t, :ROWS] += x[t] . block for all tokens, of as many columns as make up whole tiles; returns those. Sums
// have 4 bytes: floats of bf16, whole numbers of 8 bits.
template <class Sum, class X>
i64 add_tiles(Sum* sums, const X* x, const void* block, i64 tokens, i64 columns, i64 stride, i64 x_stride) {
    constexpr i64 STEP = 64 / sizeof(X), LINE = ROWS * 4, AHEAD_LINES = 64;
    constexpr i64 SLAB = 16 * STEP;  // columns that stay in the fastest cache while all tokens meet them: 32 KB
    const i64 whole = HAS_TILES ? columns / STEP * STEP : 0, size = sizeof(X), parties = (tokens + 31) / 32;
    for (i64 number = 0; number < parties * ((whole + SLAB - 1) / SLAB); ++number) {
        const i64 begin = number / parties * SLAB, end = begin + SLAB < whole ? begin + SLAB : whole;
        const i64 t = number % parties * 32;
        const i64 first = tokens - t < 16 ? tokens - t : 16, rest = tokens - t - first;
        const i64 second = rest < 16 ? rest : 16;
        const Tiles tiles(first, second);
        Sum *to = sums + t * stride, *next = to + 16 * stride;
        const X *from = x + t * x_stride, *beyond = from + 16 * x_stride;
        const char* weights = static_cast<const char*>(block) + begin / STEP * 16 * LINE;
        _tile_loadd(0, to, stride * 4);
        _tile_loadd(1, to + 16, stride * 4);
        if (second) {
            _tile_loadd(2, next, stride * 4);
            _tile_loadd(3, next + 16, stride * 4);
        }
        for (i64 c = begin; c < end; c += STEP, weights += 16 * LINE) {
            if (t == 0)
                for (i64 i = 0; i < 16 * LINE; i += 64) __builtin_prefetch(weights + AHEAD_LINES * LINE + i);
            _tile_loadd(4, from + c, x_stride * size);
            _tile_loadd(6, weights, LINE);
            _tile_loadd(7, weights + 64, LINE);
            if (second) _tile_loadd(5, beyond + c, x_stride * size);
            multiply_tiles(from, second > 0);
        }
        _tile_stored(0, to, stride * 4);
        _tile_stored(1, to + 16, stride * 4);
        if (second) {
            _tile_stored(2, next, stride * 4);
            _tile_stored(3, next + 16, stride * 4);
        }
    }
    return whole;
}
#else
constexpr bool HAS_TILES = false;
template <class Sum, class X>
i64 add_tiles(Sum*, const X*, const void*, i64, i64, i64, i64) {
    return 0;
}
#endif

// ---------------------------------------------------------------- products
// Of a tile of the weight, the numbers of a column lie together: each number of x meets whole registers,
// and what a sum adds in which order does not depend on how many tokens there are.
constexpr i64 SUMS = REGISTERS * 3 / 4 * LANES;  // the other registers hold x and tile
template <int R>
constexpr int AT_ONCE = R < SUMS ? SUMS / R : 1;  // tokens

// Columns that lie together: of bf16 two, row by row, so that a word holds both of a row. One operation on
// a whole register unpacks either; and where the processor multiplies pairs, it takes them as they are.
template <class W>
constexpr int TOGETHER = std::is_same_v<W, bf16> ? 2 : 1;

// LANES numbers, from row p * LANES on, of column i of those that lie together.
inline floats part(const float* columns, int, int p) { return load(columns + p * LANES); }
inline floats part(const bf16* columns, int i, int p) {
    const pairs both = *reinterpret_cast<const pairs*>(columns + p * 2 * LANES);
    return as_floats(i ? both & 0xffff0000u : both << 16);
}

// Memory is slower than the products of a dozen tokens, and faster than those of more: so that neither waits
// for the other, what lies so far ahead is asked for, `bytes` of it. It may lie in the next block, or in none.
// A processor guesses ahead itself, but not across a page, and not far enough for a core that is alone. It
// waits for more lines at a time on their way to the second cache than to the first: LEVEL says to which.
constexpr i64 AHEAD = 1 << 14;
template <int LEVEL = 2>
inline void expect(const void* at, i64 bytes) {
    for (i64 i = 0; i < bytes; i += 64)
        __builtin_prefetch(static_cast<const char*>(at) + AHEAD + i, 0, LEVEL == 1 ? 3 : 2);
}

// out[t, r] += x[t] . tile[:, r], for N tokens whose sums fill the registers; columns are STRIDE apart.
template <int R, int N, int STRIDE, class W>
inline void add_products(float* out, const float* x, const W* tile, i64 columns, i64 out_stride,
                         i64 x_stride) {
    constexpr int PARTS = R / LANES;
    floats sums[N][PARTS];
    for (int t = 0; t < N; ++t)
        for (int p = 0; p < PARTS; ++p) sums[t][p] = load(out + t * out_stride + p * LANES);
    for (i64 c = 0; c < columns; c += TOGETHER<W>) {
        if constexpr (R == ROWS) expect(tile + c * ROWS, TOGETHER<W> * ROWS * sizeof(W));
        for (int i = 0; i < TOGETHER<W>; ++i)
            for (int t = 0; t < N; ++t)
                for (int p = 0; p < PARTS; ++p)
                    sums[t][p] += x[t * x_stride + c + i] * part(tile + c * STRIDE, i, p);
    }
    for (int t = 0; t < N; ++t)
        for (int p = 0; p < PARTS; ++p)
            *reinterpret_cast<floats*>(out + t * out_stride + p * LANES) = sums[t][p];
}

// Calls run(N, t) for tokens t .. t + N - 1, until none are left: N at a time, and what is left over at
// once. One token alone leaves the processor waiting for its own sums, so N + 1 are not N and one.
template <int N, class Run>
void in_parties(i64 tokens, const Run& run, i64 t = 0) {
    for (; tokens - t >= N && (tokens - t != N + 1 || N <= 2); t += N)
        run(std::integral_constant<int, N>(), t);
    if constexpr (N > 1) in_parties<N - 1>(tokens, run, t);
}

template <int R, int STRIDE = R, class W>
void add_all_products(float* out, const float* x, const W* tile, i64 tokens, i64 columns,
                      i64 out_stride, i64 x_stride) {
    in_parties<AT_ONCE<R>>(tokens, [&](auto n, i64 t) {
        add_products<R, n, STRIDE>(out + t * out_stride, x + t * x_stride, tile, columns, out_stride,
                                   x_stride);
    });
}

// Each token's sums begin with the bias, or with nothing.
inline void start_sums(float* out, const float* bias, i64 tokens, i64 width, i64 out_stride) {
    for (i64 t = 0; t < tokens; ++t)
        for (i64 r = 0; r < width; ++r) out[t * out_stride + r] = bias ? bias[r] : 0.0f;
}

// A weight [N, K], as blocks of ROWS rows; `native.Matrix` makes them, and has the same structure.
//
//     kind               a block                       besides
//     FLOAT32            [K, ROWS]
//     BFLOAT16           [K / 2, ROWS, 2]
//     INT8               [K / 2, ROWS, 2] or quads     scales: float [N]; x_scale: of all x, or 0
//     GROUPS_OF_4_BITS   [K / 8, ROWS] words           scales, shifts: f16 [K / group, N]; middle
//     GROUPS_OF_8_BITS   [K / 2, ROWS, 2]              the same
enum Kind : i64 { FLOAT32, BFLOAT16, INT8, GROUPS_OF_4_BITS, GROUPS_OF_8_BITS };
struct Matrix {
    const void *blocks, *scales, *shifts;  // null: there are none
    const float* bias;                     // sums begin with it
    i64 rows, columns, kind, group, middle;
    float x_scale;
};
// Many tokens go through a tile in narrow strips: each number of the strip then meets more of them
// in registers. Few go through it once, from its beginning to its end, as memory likes it. And so
// many that their own numbers outgrow the caches go one part after another.
constexpr i64 STRIP = 2 * LANES, MANY_TOKENS = 32, MOST_TOKENS = 256;

void add_tile(float* sums, const float* x, const float* tile, i64 tokens, i64 columns, i64 stride,
              i64 x_stride) {
    if (tokens < MANY_TOKENS)
        return add_all_products<ROWS>(sums, x, tile, tokens, columns, stride, x_stride);
    for (i64 r = 0; r < ROWS; r += STRIP)
        add_all_products<STRIP, ROWS>(sums + r, x, tile + r, tokens, columns, stride, x_stride);
}

// What follows is called for whole blocks. It is not inlined, so that it is compiled once, not for each caller.

// sums[t, :ROWS] += x[t] . block, for all tokens. Floats are used where they lie. Bf16 that many tokens
// meet is unpacked into a tile, which stays in the fastest caches meanwhile; few unpack it in registers.
[[gnu::noinline]] void add_block(float* sums, const float* x, const float* block, i64 tokens, i64 columns,
                                 i64 stride, i64 x_stride) {
    add_tile(sums, x, block, tokens, columns, stride, x_stride);
}
[[gnu::noinline]] void add_block(float* sums, const float* x, const bf16* block, i64 tokens, i64 columns,
                                 i64 stride, i64 x_stride) {
    if (tokens <= 2 * AT_ONCE<ROWS>)
        return add_all_products<ROWS>(sums, x, block, tokens, columns, stride, x_stride);
    constexpr i64 STEP = 256;  // columns; with ROWS rows they are 32 KB
    float tile[STEP * ROWS];
    for (i64 c = 0; c < columns; c += STEP) {
        const i64 some = columns - c < STEP ? columns - c : STEP;
        for (i64 i = 0; i < some; ++i)
            for (int p = 0; p < ROWS / LANES; ++p)
                *reinterpret_cast<floats*>(tile + i * ROWS + p * LANES) =
                    part(block + (c + i / 2 * 2) * ROWS, i % 2, p);
        add_tile(sums, x + c, tile, tokens, some, stride, x_stride);
    }
}

template <int N>
inline void add_bf16_products(float* out, const bf16* x, const bf16* block, i64 columns, i64 out_stride,
                              i64 x_stride) {
    constexpr int PARTS = ROWS / LANES;
    floats sums[N][PARTS];
    for (int t = 0; t < N; ++t)
        for (int p = 0; p < PARTS; ++p) sums[t][p] = load(out + t * out_stride + p * LANES);
    for (i64 c = 0; c < columns; c += 2) {
        expect(block + c * ROWS, 2 * ROWS * sizeof *block);
        for (int t = 0; t < N; ++t) {
            std::uint32_t pair;
            std::memcpy(&pair, x + t * x_stride + c, sizeof pair);
            for (int p = 0; p < PARTS; ++p) {
                const words weights = *reinterpret_cast<const pairs*>(block + c * ROWS + p * 2 * LANES);
                sums[t][p] = add_pairs(sums[t][p], pair + words{}, weights);
            }
        }
    }
    for (int t = 0; t < N; ++t)
        for (int p = 0; p < PARTS; ++p)
            *reinterpret_cast<floats*>(out + t * out_stride + p * LANES) = sums[t][p];
}
// Tiles take all tokens, also one alone: a token's sums are then the same whatever comes with it.
[[gnu::noinline]] void add_block(float* sums, const bf16* x, const bf16* block, i64 tokens, i64 columns,
                                 i64 stride, i64 x_stride) {
    const i64 done = add_tiles(sums, x, block, tokens, columns, stride, x_stride);
    in_parties<AT_ONCE<ROWS>>(done < columns ? tokens : 0, [&](auto n, i64 t) {
        add_bf16_products<n>(sums + t * stride, x + t * x_stride + done, block + done * ROWS, columns - done,
                             stride, x_stride);
    });
}

// The x [T, K] of a product, as it reads it: numbers of kind X, in rows that do not lie a multiple of 4,096
// bytes apart. Such rows share a few lines of the fastest cache, and a dozen of them push each other out.
template <class X>
struct Rows {
    const X* x;
    i64 stride;
};
template <class X, class T>
Rows<X> rows_of(const T* x, i64 tokens, i64 columns, int threads) {
    constexpr i64 SIZE = sizeof(X), LINE = 64;
    if constexpr (std::is_same_v<X, T>)
        if (tokens == 1 || columns * SIZE % 4096) return {x, columns};
    static thread_local std::vector<X> room;  // kept: a call is too short to ask for memory
    const i64 stride = columns + LINE / SIZE;
    const auto needed = static_cast<std::size_t>(tokens * stride);
    if (room.size() < needed) room.resize(needed);
    X* to = room.data();
    each(tokens, tokens * columns > 1 << 15 ? threads : 1, [&](i64 t) {
#pragma omp simd
        for (i64 i = 0; i < columns; ++i) put(to[t * stride + i], get(x[t * columns + i]));
    });
    return {to, stride};
}

// run(row, t, n) for blocks of rows from `row` on, and for tokens t .. t + n - 1, until all have met.
template <class Run>
void by_parts(i64 tokens, i64 rows, int threads, const Run& run, i64 most = MOST_TOKENS) {
    const i64 blocks = rows / ROWS, parties = (tokens + most - 1) / most;
    each(parties * blocks, threads, [&](i64 number) {
        const i64 t = number / blocks * most;
        run(number % blocks * ROWS, t, tokens - t < most ? tokens - t : most);
    });
}

// out [T, N], block by block: add(sums, stride, row, t, n) adds the products of a part to sums, which begin
// with the bias. Sums lie in `out`, if it holds floats.
template <class Y, class Add>
void by_blocks(Y* out, const float* bias, i64 tokens, i64 rows, int threads, const Add& add,
               i64 most = MOST_TOKENS) {
    const auto run = [&](i64 row, i64 t, i64 some) {
        Y* to = out + t * rows + row;
        if constexpr (std::is_same_v<Y, float>) {
            start_sums(to, bias ? bias + row : nullptr, some, ROWS, rows);
            add(to, rows, row, t, some);
        } else {
            static thread_local std::vector<float> kept;
            kept.resize(static_cast<std::size_t>(some * ROWS));
            start_sums(kept.data(), bias ? bias + row : nullptr, some, ROWS, ROWS);
            add(kept.data(), ROWS, row, t, some);
            for (i64 i = 0; i < some; ++i)
#pragma omp simd
                for (i64 r = 0; r < ROWS; ++r) put(to[i * rows + r], kept.data()[i * ROWS + r]);
        }
    };
    by_parts(tokens, rows, threads, run, most);
}

// out = x . weight + bias, where the weight holds W.
template <class W, class Y, class X>
void product_of(Y* out, const X* rows, const Matrix& m, i64 tokens, int threads) {
    const auto x = rows_of<Partner<W>>(rows, tokens, m.columns, threads);
    by_blocks(out, m.bias, tokens, m.rows, threads, [&](float* sums, i64 stride, i64 row, i64 t, i64 some) {
        add_block(sums, x.x + t * x.stride, static_cast<const W*>(m.blocks) + row * m.columns, some,
                  m.columns, stride, x.stride);
    });
}

// ---------------------------------------------------------------- products of whole numbers
// A weight of 8 or 4 bits meets x as whole numbers, too: then one instruction multiplies two or four columns of
// a row and adds the products, and nothing of the weight becomes a float. How fine x is rounded differs:
//
//     kind INT8        weight * scale of its row        x to 8 bits a token, as W8A8 says
//     kinds GROUPS_*   (weight - middle) * scale + shift of its group of columns
//                                                       x to 16 bits a group, which is finer than bf16
typedef std::int32_t ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

// x [T, K] as whole numbers: x = number * scale. Each token has K / group scales, and as many sums of numbers.
template <class X>
struct Whole {
    const X* x;
    i64 stride, groups;
    const float *scale, *scaled_sum;  // scaled_sum = sum * scale
    const std::int32_t* sum;
};

// Rounds half to even, at most `most` from 0. With a `fixed` scale, which is not 0, numbers may be too large:
// they become the largest. One that is not finite makes its scale NaN, and so all that the token becomes.
template <class X, class T>
void round_group(X* to, float& scale, std::int32_t& sum, const T* x, i64 size, float fixed, float most) {
    constexpr float LEAST = 1e-10f / 127.0f;  // the scale of zeros: nothing to divide by
    constexpr float INFINITE = std::numeric_limits<float>::infinity();
    float largest = 0;
    std::int32_t bad = 0;
#pragma omp simd reduction(max : largest) reduction(| : bad)
    for (i64 i = 0; i < size; ++i) {
        const float magnitude = std::fabs(get(x[i]));
        largest = magnitude > largest ? magnitude : largest;
        bad |= !(magnitude < INFINITE);
    }
    scale = largest / most;
    scale = fixed != 0 ? fixed : bad ? std::numeric_limits<float>::quiet_NaN() : scale < LEAST ? LEAST : scale;
    std::int32_t total = 0;
#pragma omp simd reduction(+ : total)
    for (i64 i = 0; i < size; ++i) {
        float number = std::nearbyint(get(x[i]) / scale);
        number = number > most ? most : number < -most - 1 ? -most - 1 : number;
        to[i] = static_cast<X>(static_cast<std::int32_t>(number));
        total += to[i];
    }
    sum = total;
}

// Each has `padded` columns, of which those behind K are 0. The next call on this thread overwrites them.
template <class X, class T>
Whole<X> whole_numbers(const T* x, i64 tokens, i64 columns, i64 padded, i64 group, float fixed, float most,
                       int threads) {
    static thread_local std::vector<X> room;  // kept: a call is too short to ask for memory
    static thread_local std::vector<float> scales, scaled_sums;
    static thread_local std::vector<std::int32_t> sums;
    const i64 groups = columns / group, stride = padded + 64 / static_cast<i64>(sizeof(X));  // see Rows
    const auto needed = static_cast<std::size_t>(tokens * stride);
    const auto parts = static_cast<std::size_t>(tokens * groups);
    if (room.size() < needed) room.resize(needed);
    if (scales.size() < parts) scales.resize(parts), scaled_sums.resize(parts), sums.resize(parts);
    X* to = room.data();
    float *scale = scales.data(), *scaled_sum = scaled_sums.data();
    std::int32_t* sum = sums.data();
    each(tokens, worth(tokens * columns, threads), [&](i64 t) {
        for (i64 g = 0; g < groups; ++g) {
            const i64 at = t * groups + g;
            round_group(to + t * stride + g * group, scale[at], sum[at], x + t * columns + g * group, group,
                        fixed, most);
            scaled_sum[at] = static_cast<float>(sum[at]) * scale[at];
        }
        for (i64 c = columns; c < padded; ++c) to[t * stride + c] = 0;
    });
    return {to, stride, groups, scale, scaled_sum, sum};
}

// sums + the products of two columns of 16 bits in each word.
inline ints add_pairs(ints sums, ints a, ints b) {
#if WIDTH == 16 && defined(__AVX512VNNI__)
    return reinterpret_cast<ints>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sums),
                                                      reinterpret_cast<__m512i>(a),
                                                      reinterpret_cast<__m512i>(b)));
#elif WIDTH == 16 && defined(__AVX512BW__)
    return sums + reinterpret_cast<ints>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a),
                                                           reinterpret_cast<__m512i>(b)));
#elif WIDTH == 8 && defined(__AVX2__)
    return sums + reinterpret_cast<ints>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a),
                                                           reinterpret_cast<__m256i>(b)));
#else
    return sums + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// sums + the products of four columns of 8 bits in each word, where one instruction has them. Weights are kept
// with ZERO added to them: the instruction of x86 takes one factor without a sign.
#if (WIDTH == 16 && defined(__AVX512VNNI__)) || (WIDTH == 8 && defined(__AVX512VNNI__) && defined(__AVX512VL__))
constexpr bool HAS_QUADS = true;
constexpr std::int32_t ZERO = 128;
inline ints add_quads(ints sums, ints weights, ints x) {
#if WIDTH == 16
    return reinterpret_cast<ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums),
                                                      reinterpret_cast<__m512i>(weights),
                                                      reinterpret_cast<__m512i>(x)));
#else
    return reinterpret_cast<ints>(_mm256_dpbusd_epi32(reinterpret_cast<__m256i>(sums),
                                                      reinterpret_cast<__m256i>(weights),
                                                      reinterpret_cast<__m256i>(x)));
#endif
}
#elif WIDTH == 8 && defined(__AVXVNNI__)
constexpr bool HAS_QUADS = true;
constexpr std::int32_t ZERO = 128;
inline ints add_quads(ints sums, ints weights, ints x) {
    return reinterpret_cast<ints>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sums),
                                                          reinterpret_cast<__m256i>(weights),
                                                          reinterpret_cast<__m256i>(x)));
}
#elif WIDTH == 4 && defined(__ARM_FEATURE_DOTPROD)
constexpr bool HAS_QUADS = true;
constexpr std::int32_t ZERO = 0;
inline ints add_quads(ints sums, ints weights, ints x) {
    return reinterpret_cast<ints>(vdotq_s32(reinterpret_cast<int32x4_t>(sums),
                                            reinterpret_cast<int8x16_t>(weights),
                                            reinterpret_cast<int8x16_t>(x)));
}
#else
constexpr bool HAS_QUADS = false;
constexpr std::int32_t ZERO = 0;
inline ints add_quads(ints sums, ints, ints) { return sums; }
#endif

// The words of LANES rows for columns c .. of a block; `part` counts such parts of it. Of quads a word has four
// columns, else two of 16 bits each.
inline ints words_at(const std::int8_t* block, i64 c, int part) {  // pairs [K / 2, ROWS, 2]
    const std::int8_t* p = block + c * ROWS + part * 2 * LANES;
#if WIDTH == 16 && defined(__AVX512BW__)
    const auto numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return reinterpret_cast<ints>(_mm512_cvtepi8_epi16(numbers));
#elif WIDTH == 8 && defined(__AVX2__)
    const auto numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<ints>(_mm256_cvtepi8_epi16(numbers));
#else
    typedef std::int8_t small __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
    typedef std::int16_t shorts __attribute__((vector_size(LANES * 4)));
    return reinterpret_cast<ints>(__builtin_convertvector(*reinterpret_cast<const small*>(p), shorts));
#endif
}
inline ints words_at(const std::uint32_t* block, i64 c, int part) {  // of 4 bits: [K / 8, ROWS] words of eight
    const ints eight = *reinterpret_cast<const ints*>(block + c / 8 * ROWS + part * LANES);
    return eight >> static_cast<int>(c % 8 * 2) & 0x000f000f;
}
inline ints words_at(const std::int16_t* block, i64 c, int part) {  // unpacked: pairs [K / 2, ROWS, 2]
    return *reinterpret_cast<const ints*>(block + c * ROWS + part * 2 * LANES);
}
struct Quads {  // [K / 4, ROWS, 4]
    std::int8_t bits;
};
inline ints words_at(const Quads* block, i64 c, int part) {
    return *reinterpret_cast<const ints*>(block + c * ROWS + part * 4 * LANES);
}

// Bits that a number of a block has; of 16 it is unpacked, and in the fastest cache.
template <class W>
constexpr i64 BITS = std::is_same_v<W, std::uint32_t> ? 4 : 8 * sizeof(W);

// take(t, p, x[t] . block[r] for LANES rows r of part p), for N tokens and PARTS parts from `first` on, whose sums
// fill the registers, and whole words of columns. A few tokens have so few sums that each would wait for the one
// before it: theirs are added in WAYS sums, if there are registers for them.
template <int N, int PARTS, class X, class W, class Take>
inline void add_whole(const X* x, const W* block, int first, i64 columns, i64 x_stride, const Take& take) {
    constexpr int FREE = SUMS / LANES / (N * PARTS), WORD = 4 / sizeof(X);
    constexpr int WAYS = N >= 4 || FREE < 2 ? 1 : FREE < 4 ? 2 : 4;
    constexpr bool ARE_QUADS = sizeof(X) == 1;
    constexpr i64 COLUMN = ROWS * BITS<W> / 8;  // bytes
    ints all[N][PARTS][WAYS];
    for (auto& of_token : all)  // not `= {}`, which the compiler would do in memory
        for (auto& of_part : of_token)
            for (ints& sum : of_part) sum = ints{};
    const auto own = [&](i64 c, int t) {
        std::int32_t word;
        std::memcpy(&word, x + t * x_stride + c, sizeof word);
        return word + ints{};
    };
    const auto add_word = [&](ints& sum, ints weights, ints word) {
        sum = ARE_QUADS ? add_quads(sum, weights, word) : add_pairs(sum, weights, word);
    };
    const auto add = [&](i64 c, int way) {  // the factor with fewer words stays in registers
        if constexpr (N < PARTS) {
            ints words[N];
            for (int t = 0; t < N; ++t) words[t] = own(c, t);
            for (int p = 0; p < PARTS; ++p) {
                const ints weights = words_at(block, c, first + p);
                for (int t = 0; t < N; ++t) add_word(all[t][p][way], weights, words[t]);
            }
        } else {
            ints weights[PARTS];
            for (int p = 0; p < PARTS; ++p) weights[p] = words_at(block, c, first + p);
            for (int t = 0; t < N; ++t) {
                const ints word = own(c, t);
                for (int p = 0; p < PARTS; ++p) add_word(all[t][p][way], weights[p], word);
            }
        }
    };
    i64 c = 0;
    for (; c + 4 * WORD <= columns; c += 4 * WORD) {
        if constexpr (BITS<W> < 16)  // what 4 bits take is so little that memory does not wait for it
            expect<BITS<W> == 4 ? 1 : 2>(reinterpret_cast<const char*>(block) + c * COLUMN, 4 * WORD * COLUMN);
#pragma GCC unroll 1  // of several words in a row the compiler would keep products, and put sums into memory
        for (int i = 0; i < 4; i += WAYS)
#pragma GCC unroll 4
            for (int way = 0; way < WAYS; ++way) add(c + (i + way) * WORD, way);
    }
    for (; c < columns; c += WORD) add(c, 0);
    for (int t = 0; t < N; ++t)
        for (int p = 0; p < PARTS; ++p) {
            for (int way = 1; way < WAYS; ++way) all[t][p][0] += all[t][p][way];
            take(t, p, all[t][p][0]);
        }
}

// Calls run(N, PARTS, t, first) until all tokens have met all parts of a block. A tile of registers that is
// about as high as wide loads the fewest words for each product, so more tokens than fill the registers go
// through strips of the block. Fewer go through it once, as memory likes it. Each sum takes SUMS_EACH registers.
template <int SUMS_EACH = 1, class Run>
void in_tiles(i64 tokens, const Run& run) {
    using Strip = std::integral_constant<int, STRIP / LANES>;
    using All = std::integral_constant<int, ROWS / LANES>;
    if (STRIP == ROWS || tokens <= AT_ONCE<ROWS>)
        return in_parties<AT_ONCE<SUMS_EACH * ROWS>>(tokens, [&](auto n, i64 t) { run(n, All(), t, 0); });
    for (int first = 0; first < All(); first += Strip())
        in_parties<AT_ONCE<SUMS_EACH * STRIP>>(tokens, [&](auto n, i64 t) { run(n, Strip(), t, first); });
}

// ---------------------------------------------------------------- weights of 8 bits, x of 8 bits
// Every sum is exact: it has 32 bits, and x and weight 8. What ZERO adds leaves again with the sum of x.
using Number8 = std::conditional_t<HAS_QUADS, std::int8_t, std::int16_t>;  // of x
using Block8 = std::conditional_t<HAS_QUADS, Quads, std::int8_t>;
constexpr i64 WORD8 = HAS_QUADS ? 4 : 2;  // columns of a word: a block has whole words
constexpr i64 LEAST_TILE = 5;             // tokens from which a tile is faster than they are one by one

// sums[t, r] = x[t] . block[r], of whole numbers.
[[gnu::noinline]] void add_int8(std::int32_t* sums, const Number8* x, const Block8* block, i64 tokens,
                                i64 columns, i64 x_stride) {
    std::memset(sums, 0, static_cast<std::size_t>(tokens * ROWS) * sizeof *sums);
    i64 done = 0;
    if constexpr (HAS_QUADS)
        if (tokens >= LEAST_TILE) done = add_tiles(sums, x, block, tokens, columns, ROWS, x_stride);
    in_tiles(done < columns ? tokens : 0, [&](auto n, auto parts, i64 t, int first) {
        const auto add = [&](int i, int p, ints sum) {
            *reinterpret_cast<ints*>(sums + (t + i) * ROWS + (first + p) * LANES) += sum;
        };
        add_whole<n, parts>(x + t * x_stride + done, block + done * ROWS, first, columns - done, x_stride, add);
    });
}

template <class T>
void int8_product(T* out, const T* x, const Matrix& m, i64 tokens, int threads) {
    const i64 padded = (m.columns + WORD8 - 1) / WORD8 * WORD8;
    const auto whole = whole_numbers<Number8>(x, tokens, m.columns, padded, m.columns, m.x_scale, 127, threads);
    const float* scales = static_cast<const float*>(m.scales);
    by_parts(tokens, m.rows, threads, [&](i64 row, i64 first, i64 some) {
        alignas(64) std::int32_t sums[MOST_TOKENS * ROWS];
        const auto* block = static_cast<const Block8*>(m.blocks) + row * padded;
        add_int8(sums, whole.x + first * whole.stride, block, some, padded, whole.stride);
        for (i64 t = 0; t < some; ++t) {
            const std::int32_t excess = ZERO * whole.sum[first + t];
            const float scale = whole.scale[first + t];
            T* to = out + (first + t) * m.rows + row;
#pragma omp simd
            for (i64 r = 0; r < ROWS; ++r) {
                const auto exact = static_cast<std::int32_t>(static_cast<std::uint32_t>(sums[t * ROWS + r]) -
                                                             static_cast<std::uint32_t>(excess));
                const float bias = m.bias ? m.bias[row + r] : 0.0f;
                put(to[r], static_cast<float>(exact) * scales[row + r] * scale + bias);
            }
        }
    });
}

// ---------------------------------------------------------------- weights in groups, x of 16 bits
// Of f16, which GGUF files and most checkpoints scale groups with.
struct f16 {
    std::uint16_t bits;
};
inline floats load(const f16* p) {
#if WIDTH == 16 && defined(__AVX512F__)
    return reinterpret_cast<floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif WIDTH == 8 && defined(__F16C__)
    return reinterpret_cast<floats>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
    const words bits = __builtin_convertvector(*reinterpret_cast<const halves*>(p), words);
    const floats magnitude = as_floats((bits & 0x7fffu) << 13) * 0x1p112f;  // another bias of exponents
    words whole;
    std::memcpy(&whole, &magnitude, sizeof whole);
    return as_floats(whole | (bits & 0x8000u) << 16);
#endif
}

// What LANES rows of a group stand for, of a product `dot` of numbers and the `sum` of x, both times the scale
// of x: dot * scale + sum * low, where low = shift - middle * scale.
struct Scaling {
    floats scale, low;
    Scaling() = default;
    Scaling(const Matrix& m, i64 group, i64 row) {
        const i64 at = group * m.rows + row;
        scale = load(static_cast<const f16*>(m.scales) + at);
        low = static_cast<float>(-m.middle) * scale;
        if (m.shifts) low += load(static_cast<const f16*>(m.shifts) + at);
    }
    floats added(floats now, floats dot, float sum, bool has_low = true) const {
        now += dot * scale;
        return has_low ? now + sum * low : now;
    }
    void add(float* to, floats dot, float sum, bool has_low = true) const {
        *reinterpret_cast<floats*>(to) = added(load(to), dot, sum, has_low);
    }
};

constexpr i64 LEAST_GROUP = 8, MOST_GROUP = 256;  // columns, see `native.can_multiply_groups`

// The columns of group g: of 4 bits eight share a word, of 8 bits each has a byte.
inline const std::uint32_t* group_at(const std::uint32_t* block, const Matrix& m, i64 g) {
    return block + g * m.group / 8 * ROWS;
}
inline const std::int8_t* group_at(const std::int8_t* block, const Matrix& m, i64 g) {
    return block + g * m.group * ROWS;
}

// Groups of a block that follow each other, with the scales of its rows.
struct Groups {
    i64 begin, count;
    Scaling scalings[MOST_GROUP / LEAST_GROUP][ROWS / LANES];
    Groups(const Matrix& m, i64 begin, i64 row) : begin(begin) {
        const i64 left = m.columns / m.group - begin, most = MOST_GROUP / m.group;
        count = left < most ? left : most;
        for (i64 g = 0; g < count; ++g) {
            __builtin_prefetch(static_cast<const f16*>(m.scales) + (begin + g) * m.rows + row + ROWS);
            for (int p = 0; p < ROWS / LANES; ++p) scalings[g][p] = Scaling(m, begin + g, row + p * LANES);
        }
    }
};

// to[i, r] += the products of token + i with these groups, for N tokens and PARTS parts of the rows. The columns of
// the g-th of them are columns_of(g).
template <int N, int PARTS, class Columns>
inline void add_of_groups(float* to, i64 stride, const Whole<std::int16_t>& x, i64 token, int part,
                          const Groups& groups, const Matrix& m, const Columns& columns_of) {
    const bool has_low = m.middle || m.shifts;
    floats all[N][PARTS];
    for (int i = 0; i < N; ++i)
        for (int p = 0; p < PARTS; ++p) all[i][p] = load(to + i * stride + p * LANES);
    for (i64 g = 0; g < groups.count; ++g) {
        const i64 at = token * x.groups + groups.begin + g;
        const auto add_scaled = [&](int i, int p, ints sum) {
            const floats dot = __builtin_convertvector(sum, floats) * x.scale[at + i * x.groups];
            const float scaled_sum = has_low ? x.scaled_sum[at + i * x.groups] : 0;
            all[i][p] = groups.scalings[g][part + p].added(all[i][p], dot, scaled_sum, has_low);
        };
        add_whole<N, PARTS>(x.x + token * x.stride + (groups.begin + g) * m.group, columns_of(g), part, m.group,
                            x.stride, add_scaled);
    }
    for (int i = 0; i < N; ++i)
        for (int p = 0; p < PARTS; ++p) *reinterpret_cast<floats*>(to + i * stride + p * LANES) = all[i][p];
}

// sums[t, :ROWS] += x[first + t] . block, for `some` tokens. All of them meet as many groups as the fastest cache
// holds before the next ones. Where there are registers for it, a token's sums stay in them meanwhile, beside those
// of a group. Numbers of 4 bits are unpacked once for more tokens than fill the registers; else each tile of
// registers takes them out of their words as it goes.
template <class W>
[[gnu::noinline]] void add_groups(float* sums, i64 stride, const Whole<std::int16_t>& x, const W* block,
                                  const Matrix& m, i64 row, i64 first, i64 some) {
    constexpr int SUMS_EACH = REGISTERS < 32 ? 1 : 2;
    alignas(64) std::int16_t tile[MOST_GROUP * ROWS];
    for (i64 begin = 0; begin < x.groups; begin += MOST_GROUP / m.group) {
        const Groups groups(m, begin, row);
        const auto add = [&](const auto& columns_of) {
            in_tiles<SUMS_EACH>(some, [&](auto n, auto parts, i64 t, int part) {
                add_of_groups<n, parts>(sums + t * stride + part * LANES, stride, x, first + t, part, groups, m,
                                        columns_of);
            });
        };
        if (BITS<W> == 8 || some <= AT_ONCE<ROWS>) {
            add([&](i64 g) { return group_at(block, m, begin + g); });
            continue;
        }
        const W* columns = group_at(block, m, begin);
        expect(columns, groups.count * m.group * ROWS * BITS<W> / 8);
        for (i64 c = 0; c < groups.count * m.group; c += 2)
            for (int p = 0; p < ROWS / LANES; ++p) {
                const ints two = words_at(columns, c, p);
                std::memcpy(tile + c * ROWS + p * 2 * LANES, &two, sizeof two);
            }
        add([&](i64 g) { return tile + g * m.group * ROWS; });
    }
}

// Pairs of bf16 from pairs of whole numbers, of which bf16 holds all up to 256. Those of 4 bits are looked up.
inline words bf16_pairs(ints two, const std::int8_t*) {
    const auto bits_of = [](ints numbers) {
        const floats values = __builtin_convertvector(numbers, floats);
        words bits;
        std::memcpy(&bits, &values, sizeof bits);
        return bits;
    };
    return bits_of(two << 16 >> 16) >> 16 | bits_of(two >> 16);
}
inline words bf16_pairs(ints two, const std::uint32_t*) {
#if WIDTH == 16 && defined(__AVX512BW__)
    alignas(64) static constexpr std::uint16_t NUMBERS[32] = {
        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
        0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    return reinterpret_cast<words>(
        _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(two), _mm512_load_si512(NUMBERS)));
#else
    return bf16_pairs(two, static_cast<const std::int8_t*>(nullptr));
#endif
}

// The same for more tokens than fill the registers, where tiles of bf16 are faster.
template <class W>
[[gnu::noinline]] void add_groups_in_tiles(float* sums, i64 stride, Rows<bf16> x, const float* x_sum,
                                          const W* block, const Matrix& m, i64 row, i64 some) {
    alignas(64) bf16 tile[MOST_GROUP * ROWS];
    alignas(64) float dots[MOST_TOKENS * ROWS];
    const i64 groups = m.columns / m.group;
    for (i64 g = 0; g < groups; ++g) {
        const W* columns = group_at(block, m, g);
        for (i64 c = 0; c < m.group; c += 2)
            for (int p = 0; p < ROWS / LANES; ++p) {
                const words two = bf16_pairs(words_at(columns, c, p), columns);
                std::memcpy(tile + c * ROWS + p * 2 * LANES, &two, sizeof two);
            }
        start_sums(dots, nullptr, some, ROWS, ROWS);
        add_block(dots, x.x + g * m.group, tile, some, m.group, ROWS, x.stride);
        for (int p = 0; p < ROWS / LANES; ++p) {
            const Scaling scaling(m, g, row + p * LANES);
            for (i64 t = 0; t < some; ++t)
                scaling.add(sums + t * stride + p * LANES, load(dots + t * ROWS + p * LANES),
                            x_sum[t * groups + g]);
        }
    }
}

// For so many tokens scaling their sums group by group takes longer than their products. They meet the weight in
// bf16, as the model would have it that is not quantised: each number is rounded once more, to 8 bits of its own.
constexpr i64 MANY_IN_TILES = 32;

inline words rounded_bits(floats values) {  // to bf16, ties to even; of finite numbers
    words bits;
    std::memcpy(&bits, &values, sizeof bits);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

template <class W>
[[gnu::noinline]] void add_unpacked(float* sums, i64 stride, Rows<bf16> x, const W* block, const Matrix& m,
                                    i64 row, i64 some) {
    static thread_local std::vector<bf16> room;  // kept: a call is too short to ask for memory
    const auto needed = static_cast<std::size_t>(m.columns * ROWS);
    if (room.size() < needed) room.resize(needed);
    for (i64 g = 0; g < m.columns / m.group; ++g)
        for (int p = 0; p < ROWS / LANES; ++p) {
            const Scaling scaling(m, g, row + p * LANES);
            const auto weight = [&](ints numbers) {
                return rounded_bits(__builtin_convertvector(numbers, floats) * scaling.scale + scaling.low);
            };
            bf16* to = room.data() + g * m.group * ROWS + p * 2 * LANES;
            for (i64 c = 0; c < m.group; c += 2) {
                const ints two = words_at(group_at(block, m, g), c, p);
                const words both = weight(two << 16 >> 16) >> 16 | (weight(two >> 16) & 0xffff0000u);
                std::memcpy(to + c * ROWS, &both, sizeof both);
            }
        }
    add_block(sums, x.x, room.data(), some, m.columns, stride, x.stride);
}

// [T, G]: what the columns of each group add up to.
template <class X>
std::vector<float> sums_of_groups(Rows<X> x, i64 tokens, i64 groups, i64 group) {
    std::vector<float> sums(static_cast<std::size_t>(tokens * groups));
    for (i64 i = 0; i < tokens * groups; ++i) {
        const X* from = x.x + i / groups * x.stride + i % groups * group;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 c = 0; c < group; ++c) sum += get(from[c]);
        sums[static_cast<std::size_t>(i)] = sum;
    }
    return sums;
}

template <class W, class T>
void group_product(T* out, const T* x, const Matrix& m, i64 tokens, int threads) {
    const auto block_at = [&](i64 row) {
        return static_cast<const W*>(m.blocks) + row * m.columns / (std::is_same_v<W, std::uint32_t> ? 8 : 1);
    };
    if (HAS_TILES && tokens > AT_ONCE<ROWS>) {
        const auto own = rows_of<bf16>(x, tokens, m.columns, threads);
        const i64 groups = m.columns / m.group;
        const bool are_many = tokens > MANY_IN_TILES;
        const auto x_sums = sums_of_groups(own, are_many ? 0 : tokens, groups, m.group);
        const auto add = [&](float* sums, i64 stride, i64 row, i64 t, i64 some) {
            const Rows<bf16> part{own.x + t * own.stride, own.stride};
            if (are_many) return add_unpacked(sums, stride, part, block_at(row), m, row, some);
            add_groups_in_tiles(sums, stride, part, x_sums.data() + t * groups, block_at(row), m, row, some);
        };
        return by_blocks(out, m.bias, tokens, m.rows, threads, add);
    }
    const auto own = whole_numbers<std::int16_t>(x, tokens, m.columns, m.columns, m.group, 0, 32767, threads);
    const auto add = [&](float* sums, i64 stride, i64 row, i64 t, i64 some) {
        add_groups(sums, stride, own, block_at(row), m, row, t, some);
    };
    by_blocks(out, m.bias, tokens, m.rows, threads, add, MOST_TOKENS / 2);  // sums are loaded more than once
}

// ---------------------------------------------------------------- a product with any weight
template <class T>
void product(T* out, const T* x, const Matrix& m, i64 tokens, int threads) {  // [T, K] -> [T, N]
    switch (m.kind) {
        case FLOAT32: return product_of<float>(out, x, m, tokens, threads);
        case BFLOAT16: return product_of<bf16>(out, x, m, tokens, threads);
        case INT8: return int8_product(out, x, m, tokens, threads);
        case GROUPS_OF_4_BITS: return group_product<std::uint32_t>(out, x, m, tokens, threads);
        case GROUPS_OF_8_BITS: return group_product<std::int8_t>(out, x, m, tokens, threads);
    }
}

// ---------------------------------------------------------------- adapters
// The slots of adapters of a product x [T, K] -> y [T, N]: slot s adds B[s] (A[s] x) to its tokens. Rows of y
// from `starts[i]` to `starts[i + 1]` are slice i (of q, k and v, say), and each slice has an A of its own.
template <class T>
struct Adapters {
    const T *a, *b;                      // [slots, slices, rank, K], [slots, rank, N]; null: no slots
    const std::int32_t *starts, *slots;  // [slices + 1]; [T], negative: a token without an adapter
    const std::int32_t* ranks;           // [slots]: rows of A and B behind them are zero
    i64 slices, rank;
};

// out[g, r] = x[g] . a[r], the first `whole` of `size` columns, for G tokens: N rows at a time, then fewer.
template <int G, int N, class T>
void dots(float* out, i64 stride, const float* x, const T* a, i64 rows, i64 whole, i64 size) {
    for (; rows >= N; rows -= N, out += N, a += N * size)
        dot_products<G, N>(out, stride, x, a, whole, size, 1.0f);
    if constexpr (N > 1) dots<G, N / 2>(out, stride, x, a, rows, whole, size);
}

// sums[g] += sum of h[g, r] b[r], for G tokens: N rows at a time, then fewer.
template <int G, int N, class T>
void expand(float* sums, const float* h, i64 stride, const T* b, i64 rank, i64 width, i64 b_stride) {
    i64 r = 0;
    for (; r + N <= rank; r += N) add_values<G, N>(sums, h + r, stride, b + r * b_stride, width, b_stride);
    if constexpr (N > 1) expand<G, N / 2>(sums, h + r, stride, b + r * b_stride, rank - r, width, b_stride);
}

// What one slot adds to G of its tokens: each of its weights is read once for all of them.
template <int G, class T>
void add_slot(T* y, const T* x, const Adapters<T>& adapters, const Matrix& m, const i64* own) {
    constexpr i64 WIDE = 256;
    const i64 slot = adapters.slots[*own], rank = adapters.ranks[slot];
    const i64 size = m.columns, whole = size / LANES * LANES;
    static thread_local std::vector<float> room;
    room.resize(static_cast<std::size_t>(G * (whole + rank)));
    float *from = room.data(), *h = from + G * whole, sums[G * WIDE];
    for (i64 g = 0; g < G; ++g)
        for (i64 c = 0; c < whole; ++c) from[g * whole + c] = get(x[own[g] * size + c]);
    for (i64 slice = 0; slice < adapters.slices; ++slice) {
        const T* a = adapters.a + (slot * adapters.slices + slice) * adapters.rank * size;
        dots<G, DOTS / G>(h, rank, from, a, rank, whole, size);
        for (i64 g = 0; g < G; ++g)
            for (i64 r = 0; r < rank; ++r) {
                float sum = h[g * rank + r];
                for (i64 c = whole; c < size; ++c) sum += get(x[own[g] * size + c]) * get(a[r * size + c]);
                h[g * rank + r] = rounded<T>(sum);
            }
        const i64 end = adapters.starts[slice + 1];
        for (i64 first = adapters.starts[slice]; first < end; first += WIDE) {
            const i64 width = end - first < WIDE ? end - first : WIDE, even = width / LANES * LANES;
            const T* b = adapters.b + slot * adapters.rank * m.rows + first;
            std::memset(sums, 0, sizeof sums);
            expand<G, 8>(sums, h, rank, b, rank, even, m.rows);
            for (i64 g = 0; g < G; ++g) {
                T* to = y + own[g] * m.rows + first;
                for (i64 i = 0; i < even; ++i) put(to[i], get(to[i]) + sums[g * even + i]);
                for (i64 i = even; i < width; ++i) {
                    float sum = 0;
                    for (i64 r = 0; r < rank; ++r) sum += h[g * rank + r] * get(b[r * m.rows + i]);
                    put(to[i], get(to[i]) + sum);
                }
            }
        }
    }
}

// Each token is computed to the bit alike, whichever others its slot has.
template <class T>
void add_adapters(T* y, const T* x, const Adapters<T>& adapters, const Matrix& m, i64 tokens, int threads) {
    if (!adapters.a) return;
    constexpr i64 MANY = 4;
    std::vector<i64> own, begins;  // tokens by slot, and where those begin that are done together
    for (i64 t = 0; t < tokens; ++t)
        if (adapters.slots[t] >= 0 && adapters.ranks[adapters.slots[t]] > 0) own.push_back(t);
    const auto slot_of = [&](i64 i) { return adapters.slots[own[static_cast<std::size_t>(i)]]; };
    std::stable_sort(own.begin(), own.end(), [&](i64 s, i64 t) { return adapters.slots[s] < adapters.slots[t]; });
    const i64 count = static_cast<i64>(own.size());
    for (i64 i = 0; i < count; i += i + MANY <= count && slot_of(i) == slot_of(i + MANY - 1) ? MANY : 1)
        begins.push_back(i);
    begins.push_back(count);
    each(static_cast<i64>(begins.size()) - 1, threads, [&](i64 k) {
        const i64 begin = begins[static_cast<std::size_t>(k)], end = begins[static_cast<std::size_t>(k) + 1];
        const i64* first = own.data() + begin;
        end - begin == MANY ? add_slot<MANY>(y, x, adapters, m, first) : add_slot<1>(y, x, adapters, m, first);
    });
}

// ---------------------------------------------------------------- attention of prompts
// Many tokens of one request see the same keys: their scores are a product, and so are their sums of values.
// So the keys and values of a head are packed once, as weights are, and a tile of queries at a time goes
// through them, a span of keys after another:
//
//     scores [rows, SPAN]  = q . keys^T
//     weights              = exp(scores - best)
//     sums [rows, size]   += weights . values
//
// A row is one token and one of the `group` heads that share the key head. A span begins at a multiple of
// SPAN, whichever token is first, so that a token's numbers do not depend on where a prompt was cut into runs
// of more than MANY_QUERIES tokens.
constexpr i64 MANY_QUERIES = 16, MOST_ROWS = 96, SPAN = 256;

inline i64 within(i64 place, i64 count) { return place < 0 ? 0 : place > count ? count : place; }
inline i64 whole_blocks(i64 count) { return (count + ROWS - 1) / ROWS * ROWS; }

// Some consecutive tokens of one request, whose pages are `pages`: the first sees `first_end` of its tokens,
// each that follows one more.
template <class T>
struct Prompt {
    const T* query;
    T* out;
    const std::int32_t* pages;
    i64 tokens, first_end, kv_heads, group, size, block_size, query_stride, window;
    float scale;

    i64 length() const { return first_end + tokens - 1; }
    i64 begin(i64 token) const { return first_end + token > window ? first_end + token - window : 0; }
};

// The keys and values of one head, as two weights: [length, size], and [size, length]. What no query sees,
// before the window and behind the last key, is zero, and so is what a head lacks to whole blocks.
template <class T, class C>
void pack_head(C* packed_k, C* packed_v, const C* keys, const C* values, const Prompt<T>& prompt) {
    constexpr i64 N = TOGETHER<C>;
    const i64 begin = prompt.begin(0), end = prompt.length(), rows = whole_blocks(end), size = prompt.size;
    const std::vector<C> nothing(static_cast<std::size_t>(size));
    const auto row_of = [&](const C* from, i64 t) {
        if (t < begin || t >= end) return nothing.data();
        const i64 slot = prompt.pages[t / prompt.block_size] * prompt.block_size + t % prompt.block_size;
        return from + slot * prompt.kv_heads * size;
    };
    for (i64 t = begin / SPAN * SPAN; t < rows; t += N) {
        const C* v[N];
        for (i64 n = 0; n < N; ++n) {
            const C* k = row_of(keys, t + n);
            C* to = packed_k + t / ROWS * ROWS * size + (t + n) % ROWS * N;
            for (i64 i = 0; i < size; i += N) std::memcpy(to + i * ROWS, k + i, N * sizeof(C));
            v[n] = row_of(values, t + n);
        }
        for (i64 i = 0; i < size; i += ROWS) {
            C* to = packed_v + i * rows + t * ROWS;
            const i64 some = size - i < ROWS ? size - i : ROWS;
            for (i64 r = 0; r < some; ++r)
                for (i64 n = 0; n < N; ++n) to[r * N + n] = v[n][i + r];
            for (i64 r = some * N; r < ROWS * N; ++r) to[r] = C{};
        }
    }
}

// What a thread needs for a tile of queries: X is what meets keys and values in a product.
template <class X>
struct Tile {
    i64 dims;                     // of a row's sums: the size of a head in whole blocks
    std::vector<X> q, weight;     // [rows, size]; [rows, SPAN]
    std::vector<float> score, sum, best, total;  // [rows, SPAN]; [rows, dims]; [rows] each

    Tile(std::size_t rows, i64 size)
        : dims(whole_blocks(size)), q(rows * static_cast<std::size_t>(size)), weight(rows * SPAN),
          score(rows * SPAN), sum(rows * static_cast<std::size_t>(dims)), best(rows), total(rows) {}

    void start() {
        best.assign(best.size(), -std::numeric_limits<float>::infinity());
        total.assign(total.size(), 0.0f);
        sum.assign(sum.size(), 0.0f);
    }

    // The scores of a row become weights. It sees lo .. hi of a span, of which `count` are there.
    void weigh(i64 row, i64 lo, i64 hi, i64 count, float scale) {
        float *s = score.data() + row * SPAN, &best_yet = best.data()[row];
        X* w = weight.data() + row * SPAN;
        float top = best_yet, all = 0;
#pragma omp simd reduction(max : top)
        for (i64 t = lo; t < hi; ++t) top = s[t] * scale > top ? s[t] * scale : top;
#pragma omp simd reduction(+ : all)
        for (i64 t = lo; t < hi; ++t) all += s[t] = exp_of(s[t] * scale - top);
        for (i64 t = 0; t < lo; ++t) s[t] = 0;
        for (i64 t = hi; t < count; ++t) s[t] = 0;
#pragma omp simd
        for (i64 t = 0; t < count; ++t) put(w[t], s[t]);
        if (top != best_yet) {
            const float shrink = exp_of(best_yet - top);
            for (i64 i = 0; i < dims; ++i) sum.data()[row * dims + i] *= shrink;
            total.data()[row] *= shrink;
            best_yet = top;
        }
        total.data()[row] += all;
    }
};

// Tokens first .. first + tokens of a prompt, for one key head.
template <class T, class C>
void attend_tile(Tile<Partner<C>>& tile, const Prompt<T>& prompt, i64 head, i64 first, i64 tokens,
                 const C* packed_k, const C* packed_v) {
    const i64 group = prompt.group, rows = tokens * group, size = prompt.size, dims = tile.dims;
    const i64 length = whole_blocks(prompt.length()), end = prompt.first_end + first + tokens - 1;
    for (i64 t = 0; t < tokens; ++t) {
        const T* from = prompt.query + (first + t) * prompt.query_stride + head * group * size;
        for (i64 i = 0; i < group * size; ++i) put(tile.q.data()[t * group * size + i], get(from[i]));
    }
    tile.start();
    for (i64 at = prompt.begin(first) / SPAN * SPAN; at < end; at += SPAN) {
        const i64 count = whole_blocks(end - at < SPAN ? end - at : SPAN);
        start_sums(tile.score.data(), nullptr, rows, count, SPAN);
        for (i64 t = 0; t < count; t += ROWS)
            add_block(tile.score.data() + t, tile.q.data(), packed_k + (at + t) * size, rows, size, SPAN, size);
        for (i64 row = 0; row < rows; ++row) {
            const i64 token = first + row / group, behind = prompt.first_end + token;
            tile.weigh(row, within(prompt.begin(token) - at, count), within(behind - at, count), count,
                       prompt.scale);
        }
        for (i64 i = 0; i < dims; i += ROWS)
            add_block(tile.sum.data() + i, tile.weight.data(), packed_v + i * length + at * ROWS, rows, count,
                      dims, SPAN);
    }
    for (i64 row = 0; row < rows; ++row) {
        const i64 token = first + row / group, query = head * group + row % group;
        T* to = prompt.out + (token * prompt.kv_heads * group + query) * size;
        for (i64 i = 0; i < size; ++i) put(to[i], tile.sum.data()[row * dims + i] / tile.total.data()[row]);
    }
}

template <class T, class C>
void prompt_attention(const Prompt<T>& prompt, const C* keys, const C* values, int threads) {
    const i64 size = prompt.size, length = whole_blocks(prompt.length());
    const i64 a_head = length * (size + whole_blocks(size));
    static thread_local std::vector<C> room;  // kept: a call is too short to ask for memory
    const auto needed = static_cast<std::size_t>(prompt.kv_heads * a_head);
    if (room.size() < needed) room.resize(needed);
    C* packed = room.data();
    const i64 at_once = prompt.group < MOST_ROWS ? MOST_ROWS / prompt.group : 1;
    const i64 tiles = (prompt.tokens + at_once - 1) / at_once;
    each(prompt.kv_heads, threads, [&](i64 head) {
        C* own = packed + head * a_head;
        pack_head(own, own + length * size, keys + head * size, values + head * size, prompt);
    });
    in_ranges(prompt.kv_heads * tiles, threads, [&](i64 begin, i64 end) {
        Tile<Partner<C>> tile(static_cast<std::size_t>(at_once * prompt.group), size);
        for (i64 number = begin; number < end; ++number) {
            const i64 head = number / tiles, first = number % tiles * at_once;
            const i64 some = prompt.tokens - first < at_once ? prompt.tokens - first : at_once;
            const C* own = packed + head * a_head;
            attend_tile(tile, prompt, head, first, some, own, own + length * size);
        }
    });
}

// Attention of all tokens of a step. A run of more than MANY_QUERIES of one request is a prompt; others go
// one by one, and query heads that share a key head four, three or two at a time: each time keys and values are
// read. Returns a token that has a page outside the cache, or -1.
template <class T, class C>
i64 attention(T* out, const T* query, const C* keys, const C* values, const std::int32_t* table,
              const std::int32_t* rows, const std::int32_t* ends, i64 tokens, i64 kv_heads, i64 group,
              i64 size, i64 num_blocks, i64 block_size, i64 table_stride, i64 query_stride, i64 window,
              float scale, int threads) {
    const auto one_by_one = group % 4 == 0   ? paged_attention<4, T, C>
                            : group % 3 == 0 ? paged_attention<3, T, C>
                            : group % 2 == 0 ? paged_attention<2, T, C>
                                             : paged_attention<1, T, C>;
    const auto run_from = [&](i64 first) {  // the token behind those that follow one another
        i64 t = first + 1;
        while (t < tokens && rows[t] == rows[first] && ends[t] == ends[t - 1] + 1) ++t;
        return t;
    };
    for (i64 first = 0, behind, last; first < tokens; first = last) {
        for (last = first; last < tokens && (behind = run_from(last)) - last <= MANY_QUERIES;) last = behind;
        T* to = out + first * kv_heads * group * size;
        const T* from = query + first * query_stride;
        if (last > first) {
            const i64 bad = one_by_one(to, from, keys, values, table, rows + first, ends + first, last - first,
                                       kv_heads, group, size, num_blocks, block_size, table_stride,
                                       query_stride, window, scale, threads);
            if (bad >= 0) return first + bad;
            continue;
        }
        const std::int32_t* pages = table + rows[first] * table_stride;
        const Prompt<T> prompt{from, to, pages, behind - first, ends[first], kv_heads, group, size, block_size,
                               query_stride, window, scale};
        const i64 page = prompt.begin(0) / block_size;
        if (!are_pages(pages + page, (prompt.length() + block_size - 1) / block_size - page, num_blocks))
            return first;
        prompt_attention(prompt, keys, values, threads);
        last = behind;
    }
    return -1;
}

// ---------------------------------------------------------------- gated delta rule
// Prompts through the matrices of their heads; the formulas and their letters are at the head of
// `model/mixers/gated_delta.py`. ROWS tokens are a chunk, and ROWS columns of a matrix a strip. What the tokens
// of a chunk correct of each other is the same in all strips; besides, strips know nothing of each other.
struct Delta {
    const float *q, *k, *v, *g, *beta;  // [T, heads, keys] twice; [T, heads, values]; [T, heads] twice
    float *out, *states;                // [T, heads, values]; [R, heads, keys, values], which move on
    i64 heads, keys, values;
};

inline void add_strip(float* sums, const float* x, const float* tile, i64 rows, i64 columns, i64 x_stride) {
    for (i64 r = 0; r < ROWS; r += STRIP)
        add_all_products<STRIP, ROWS>(sums + r, x, tile + r, rows, columns, ROWS, x_stride);
}

// A chunk of one head, and the room for it; a thread keeps one.
struct DeltaChunk {
    static constexpr i64 PARTY = 8;  // tokens whose corrections are solved together

    i64 first, tokens, stride;
    std::vector<float> rows;       // -beta e^G k, and behind them e^G q: [2 tokens, keys], `stride` apart
    std::vector<float> turned;     // k^T [keys, ROWS]
    float among[2 * ROWS * ROWS];  // -A, and behind it tril(Q K^T e^{G_i - G_j}): [tokens, ROWS] each
    float sums[2 * ROWS * ROWS];   // N of a strip, and behind it O: [tokens, ROWS] each
    float total[ROWS], left[ROWS], beta[ROWS];  // G, e^{G_C - G}, beta

    void take(const Delta& d, i64 head, i64 from, i64 count) {
        first = from, tokens = count, stride = d.keys + LANES;  // not a multiple of a page, see `rows_of`
        rows.resize(static_cast<std::size_t>(2 * ROWS * stride));
        turned.resize(static_cast<std::size_t>(d.keys * ROWS));
        float sum = 0;
        for (i64 t = 0; t < tokens; ++t) {
            const i64 at = (first + t) * d.heads + head;
            std::memcpy(rows.data() + t * stride, d.k + at * d.keys, d.keys * sizeof(float));
            std::memcpy(rows.data() + (tokens + t) * stride, d.q + at * d.keys, d.keys * sizeof(float));
            total[t] = sum += d.g[at];
            beta[t] = d.beta[at];
        }
        for (i64 i = 0; i < d.keys; ++i)
            for (i64 t = 0; t < ROWS; ++t) turned.data()[i * ROWS + t] = t < tokens ? rows.data()[t * stride + i] : 0;
        compare(d.keys);
        for (i64 t = 0; t < tokens; ++t) {
            float *k = rows.data() + t * stride, *q = rows.data() + (tokens + t) * stride;
            const float kept = exp_of(total[t]), wrong = -beta[t] * kept;
            left[t] = exp_of(sum - total[t]);
#pragma omp simd
            for (i64 i = 0; i < d.keys; ++i) k[i] *= wrong, q[i] *= kept;
        }
    }

    // What each token sees of those before it. No exponent is above 0, so none overflows.
    void compare(i64 keys) {
        start_sums(among, nullptr, 2 * tokens, ROWS, ROWS);
        add_strip(among, rows.data(), turned.data(), 2 * tokens, keys, stride);
        const int count = static_cast<int>(tokens), width = static_cast<int>(ROWS);  // as wide as a float
        for (int t = 0; t < count; ++t) {
            float *wrong = among + t * width, *scores = among + (count + t) * width, decay[ROWS];
            const float now = total[t], strength = -beta[t];
#pragma omp simd
            for (int j = 0; j < width; ++j) decay[j] = exp_of(j < t ? now - total[j] : 0.0f);
#pragma omp simd
            for (int j = 0; j < width; ++j) wrong[j] = j < t ? strength * decay[j] * wrong[j] : 0.0f;
#pragma omp simd
            for (int j = 0; j < width; ++j) scores[j] = j <= t ? decay[j] * scores[j] : 0.0f;
        }
    }

    // All tokens through a strip [keys, ROWS] of the matrix, which moves on; `v` and `out` are the strip's
    // columns of the first token, whose next is `width` further. Of zeros nothing is read.
    void move(float* strip, bool is_zero, const float* v, float* out, i64 keys, i64 width) {
        for (i64 t = 0; t < tokens; ++t)
#pragma omp simd
            for (i64 r = 0; r < ROWS; ++r)
                sums[t * ROWS + r] = beta[t] * v[t * width + r], sums[(tokens + t) * ROWS + r] = 0;
        if (!is_zero) add_strip(sums, rows.data(), strip, 2 * tokens, keys, stride);
        for (i64 t = 0; t < tokens; t += PARTY) solve(t, tokens - t < PARTY ? tokens - t : PARTY);
        for (i64 t = 0; t < tokens; ++t) {
            std::memcpy(out + t * width, sums + (tokens + t) * ROWS, ROWS * sizeof(float));
#pragma omp simd
            for (i64 r = 0; r < ROWS; ++r) sums[t * ROWS + r] *= left[t];
        }
        const float kept = exp_of(total[tokens - 1]);
        if (!is_zero)
#pragma omp simd
            for (i64 i = 0; i < keys * ROWS; ++i) strip[i] *= kept;
        add_strip(strip, turned.data(), sums, keys, tokens, ROWS);
    }

    // N and O of tokens t .. t + count - 1, when N of all before them are there.
    void solve(i64 t, i64 count) {
        float *n = sums + t * ROWS, *o = sums + (tokens + t) * ROWS;
        const float *wrong = among + t * ROWS, *scores = among + (tokens + t) * ROWS;
        add_strip(n, wrong, sums, count, t, ROWS);
        for (i64 i = 1; i < count; ++i)
            for (i64 j = 0; j < i; ++j)
#pragma omp simd
                for (i64 r = 0; r < ROWS; ++r) n[i * ROWS + r] += wrong[i * ROWS + t + j] * n[j * ROWS + r];
        add_strip(o, scores, sums, count, t + count, ROWS);
    }
};

// What a token has of a head lies far from what the next has: it is asked for a chunk ahead.
inline void expect_chunk(const Delta& d, i64 head, i64 first, i64 behind) {
    for (i64 t = first; t < std::min(behind, first + ROWS); ++t) {
        const i64 at = t * d.heads + head;
        for (i64 i = 0; i < d.keys; i += 16) __builtin_prefetch(d.k + at * d.keys + i, 0, 2);
        for (i64 i = 0; i < d.keys; i += 16) __builtin_prefetch(d.q + at * d.keys + i, 0, 2);
        for (i64 i = 0; i < d.values; i += 16) __builtin_prefetch(d.v + at * d.values + i, 0, 2);
    }
}

// Request r has tokens starts[r] .. starts[r + 1] - 1. `keys` and `values` are multiples of ROWS.
void gated_delta(const Delta& d, const i64* starts, i64 requests, int threads) {
    each(requests * d.heads, threads, [&](i64 task) {
        const i64 head = task % d.heads, behind = starts[task / d.heads + 1], width = d.heads * d.values;
        static thread_local DeltaChunk chunk;
        static thread_local std::vector<float> strips;  // [values / ROWS, keys, ROWS]
        strips.resize(static_cast<std::size_t>(d.keys * d.values));
        float* state = d.states + task * d.keys * d.values;
        bool is_zero = std::all_of(state, state + d.keys * d.values, [](float x) { return x == 0; });
        const auto copy = [&](auto run) {
            for (i64 column = 0; column < d.values; column += ROWS)
                for (i64 key = 0; key < d.keys; ++key)
                    run(strips.data() + column * d.keys + key * ROWS, state + key * d.values + column);
        };
        copy([](float* strip, const float* plain) { std::memcpy(strip, plain, ROWS * sizeof *strip); });
        for (i64 t = starts[task / d.heads]; t < behind; t += ROWS, is_zero = false) {
            chunk.take(d, head, t, std::min<i64>(ROWS, behind - t));
            expect_chunk(d, head, t + ROWS, behind);
            for (i64 column = 0; column < d.values; column += ROWS) {
                const i64 at = t * width + head * d.values + column;
                chunk.move(strips.data() + column * d.keys, is_zero, d.v + at, d.out + at, d.keys, width);
            }
        }
        copy([](const float* strip, float* plain) { std::memcpy(plain, strip, ROWS * sizeof *strip); });
    });
}

// ---------------------------------------------------------------- a layer
// What a layer of the Llama family is made of, whose activations are T; `native.py` has the same structure.
template <class T>
struct Layer {
    Matrix qkv, o, gate_up, down;
    const T *input_norm, *qk_norm, *post_norm;  // without `qk_norm`, queries and keys stay as they are
    i64 heads, kv_heads, size, window;
    float eps, scale;
};

// Where the tokens of a step stand: their rotations, their slots, and the pages that each sees.
template <class T>
struct Places {
    const T *cos, *sin;
    const i64* slots;
    const std::int32_t *table, *rows, *ends;
    i64 turning, table_stride;
};

// What a layer adds to the residual stream: [T, H] -> out [T, H]. First the stream takes in `x`, what the
// layer before has added; the first layer has none. `adapters` are those of the four products; null: none.
// Returns -1; or a token whose slot is outside the cache; or one that has a page outside it, plus T.
template <class T, class C>
i64 decoder_layer(T* out, const T* x, T* stream, const Layer<T>& layer, const Adapters<T>* adapters,
                  const Places<T>& at, C* keys, C* values, i64 num_blocks, i64 block_size, i64 tokens,
                  int threads) {
    const i64 hidden = layer.qkv.columns, qkv_width = layer.qkv.rows, mlp = layer.down.columns;
    const i64 qk_heads = layer.heads + layer.kv_heads, width = layer.kv_heads * layer.size;
    const i64 wide = 2 * qkv_width > 3 * mlp ? 2 * qkv_width : 3 * mlp;
    const auto needed = static_cast<std::size_t>(tokens * (hidden + wide));
    static thread_local std::vector<T> room;  // kept: a call is too short to ask for memory
    if (room.size() < needed) room.resize(needed);
    T *normed = room.data(), *qkv = normed + tokens * hidden, *attended = qkv + tokens * qkv_width;

    const auto multiply = [&](T* to, const T* from, const Matrix& weight, int number) {
        product(to, from, weight, tokens, threads);
        if (adapters) add_adapters(to, from, adapters[number], weight, tokens, threads);
    };

    rms_norm(normed, x ? x : stream, x ? stream : nullptr, layer.input_norm, tokens, 1, hidden, hidden,
             layer.eps, threads);
    multiply(qkv, normed, layer.qkv, 0);
    if (layer.qk_norm) {
        each(tokens, worth(tokens * qkv_width, threads), [&](i64 t) {
            T* heads = qkv + t * qkv_width;
            rms_norm(heads, heads, static_cast<T*>(nullptr), layer.qk_norm, 1, qk_heads, layer.size,
                     qkv_width, layer.eps, 1);
        });
    }
    rope(qkv, at.cos, at.sin, tokens, qk_heads, layer.size, at.turning, qkv_width,
         worth(tokens * qkv_width, threads));
    const T *key = qkv + layer.heads * layer.size, *value = key + width;
    const i64 lost = store(keys, values, key, value, at.slots, num_blocks * block_size, tokens, width,
                           qkv_width, qkv_width);
    if (lost >= 0) return lost;
    const i64 blind = attention(attended, qkv, keys, values, at.table, at.rows, at.ends, tokens,
                                layer.kv_heads, layer.heads / layer.kv_heads, layer.size, num_blocks,
                                block_size, at.table_stride, qkv_width, layer.window, layer.scale, threads);
    if (blind >= 0) return tokens + blind;
    multiply(out, attended, layer.o, 1);

    T *gate_up = qkv, *activated = qkv + tokens * 2 * mlp;
    rms_norm(normed, static_cast<const T*>(out), stream, layer.post_norm, tokens, 1, hidden, hidden,
             layer.eps, threads);
    multiply(gate_up, normed, layer.gate_up, 2);
    silu_mul(activated, gate_up, tokens, mlp, threads);
    multiply(out, activated, layer.down, 3);
    return -1;
}

// Layers one after another: `x` -> out [T, H], what the last of them adds. `adapters` are four a layer, or null.
// Returns what the first layer says that does not say -1.
template <class T, class C>
i64 decoder_layers(T* out, const T* x, T* stream, const Layer<T>* layers, const Adapters<T>* adapters,
                   const Places<T>& at, void* const* keys, void* const* values, i64 num_layers,
                   i64 num_blocks, i64 block_size, i64 tokens, int threads) {
    for (i64 l = 0; l < num_layers; ++l, x = out) {
        const i64 bad = decoder_layer(out, x, stream, layers[l], adapters ? adapters + 4 * l : nullptr, at,
                                      static_cast<C*>(keys[l]), static_cast<C*>(values[l]), num_blocks,
                                      block_size, tokens, threads);
        if (bad >= 0) return bad;
    }
    return -1;
}

// ---------------------------------------------------------------- a model
// What a decoder of such layers is made of, and its cache; `native.py` has the same structures.
struct Decoder {
    const Layer<float>* layers;
    void *const *keys, *const *values;          // of each layer's cache
    const float *embedding, *cos, *sin, *norm;  // [V, H]; of all positions [P, turning] each; [H]
    Matrix head;                                // V rows
    i64 num_layers, positions, turning, num_blocks, block_size;
    float eps;
};

// The rows of a batch, see `worker/input_batch.py`.
struct Batch {
    const i64* token_ids;       // [num_rows, max_tokens]
    const std::int32_t* table;  // [num_rows, max_blocks]
    i64 num_rows, max_tokens, max_blocks;
};

// The tokens of one pass, and where they stand.
struct Pass {
    std::vector<float> stream, added, cos, sin;
    std::vector<i64> slots;
    std::vector<std::int32_t> rows, ends;

    void clear() {
        for (auto* floats : {&stream, &added, &cos, &sin}) floats->clear();
        slots.clear(), rows.clear(), ends.clear();
    }

    // False if there is no such token, or no such position.
    bool add(const Decoder& model, const Batch& batch, i64 row, i64 position, const i64* fed) {
        const i64 page = position / model.block_size, hidden = model.head.columns;
        if (row < 0 || row >= batch.num_rows || position < 0 || position >= model.positions ||
            position >= batch.max_tokens || page >= batch.max_blocks)
            return false;
        const i64 id = fed ? *fed : batch.token_ids[row * batch.max_tokens + position];
        if (id < 0 || id >= model.head.rows) return false;
        auto append = [](std::vector<float>& to, const float* from, i64 row, i64 width) {
            to.insert(to.end(), from + row * width, from + (row + 1) * width);
        };
        append(stream, model.embedding, id, hidden);
        append(cos, model.cos, position, model.turning);
        append(sin, model.sin, position, model.turning);
        slots.push_back(batch.table[row * batch.max_blocks + page] * model.block_size +
                        position % model.block_size);
        rows.push_back(static_cast<std::int32_t>(row));
        ends.push_back(static_cast<std::int32_t>(position + 1));
        return true;
    }
};

// What comes behind the tokens that R requests read: logits [R, V]. Request r reads `counts[r]` tokens of
// row `rows[r]`, from position `starts[r]` on; or `fed[r]`, one token, in their place. Returns -1, or a
// request that reads what is not there, or whose slots or pages are not.
template <class C>
i64 next_logits(float* logits, const Decoder& model, const Batch& batch, const i64* rows, const i64* starts,
                const i64* counts, const i64* fed, i64 requests, int threads) {
    static thread_local Pass pass;
    pass.clear();
    for (i64 r = 0; r < requests; ++r) {
        if (counts[r] < 1 || (fed && counts[r] != 1)) return r;
        for (i64 i = 0; i < counts[r]; ++i)
            if (!pass.add(model, batch, rows[r], starts[r] + i, fed ? fed + r : nullptr)) return r;
    }
    const i64 tokens = static_cast<i64>(pass.slots.size()), hidden = model.head.columns;
    pass.added.resize(pass.stream.size());
    float *stream = pass.stream.data(), *added = pass.added.data();
    const Places<float> at{pass.cos.data(),  pass.sin.data(),  pass.slots.data(), batch.table,
                           pass.rows.data(), pass.ends.data(), model.turning,     batch.max_blocks};
    const i64 bad = decoder_layers<float, C>(added, nullptr, stream, model.layers, nullptr, at, model.keys,
                                             model.values, model.num_layers, model.num_blocks,
                                             model.block_size, tokens, threads);
    if (bad >= 0) {
        i64 r = 0;
        for (i64 token = bad % tokens; token >= counts[r]; ++r) token -= counts[r];
        return r;
    }
    i64 last = -1;  // only each request's last token is asked
    for (i64 r = 0; r < requests; ++r) {
        last += counts[r];
        for (float* x : {stream, added}) std::memmove(x + r * hidden, x + last * hidden, hidden * sizeof *x);
    }
    rms_norm(added, static_cast<const float*>(added), stream, model.norm, requests, 1, hidden, hidden,
             model.eps, threads);
    product(logits, added, model.head, requests, threads);
    return -1;
}

// ---------------------------------------------------------------- weights, packed once, when they are loaded
// Rows of `columns` numbers in the order of blocks. A number is a float32, or two shorter ones that stay
// neighbours. `to` may be `from`.
template <class T>
void pack(T* to, const T* from, i64 rows, i64 columns, int threads) {
    const i64 size = ROWS * columns;
    in_ranges(rows / ROWS, threads, [&](i64 begin, i64 end) {
        std::vector<T> seen(size);
        for (i64 block = begin; block < end; ++block) {
            T* out = to + block * size;
            std::copy_n(from + block * size, size, seen.data());
            for (i64 c = 0; c < columns; ++c)
                for (i64 r = 0; r < ROWS; ++r) out[c * ROWS + r] = seen[r * columns + c];
        }
    });
}

// Eight columns of four bits, a byte each, as a word of GROUPS_OF_4_BITS: 0 2 4 6 1 3 5 7 from its lowest bits on.
inline std::uint32_t word_of(std::uint64_t columns) {
    const std::uint64_t x = columns | columns >> 12;  // 02 13 .. .. 46 57 .. ..
    return static_cast<std::uint32_t>((x & 0xff) | (x & 0xff00) << 8 | (x >> 24 & 0xff00) | (x >> 16 & 0xff000000));
}

// Blocks of a GGUF file, [rows, groups], in the order of a weight's blocks, in the same memory; their floats
// [number of floats, groups, rows]. A row's packed numbers are shorter than its blocks, so what is written lies
// before what is still to be read.
void pack_blocks_of_file(std::uint8_t* memory, std::uint16_t* floats, i64 rows, i64 groups, i64 bytes, int bits,
                         int num_floats) {
    std::vector<std::uint8_t> seen(ROWS * groups * bytes);
    std::uint8_t* out = memory;
    for (i64 first = 0; first < rows; first += ROWS) {
        std::memcpy(seen.data(), memory + first * groups * bytes, seen.size());
        for (i64 g = 0; g < groups; ++g, out += ROWS * 4 * bits) {
            for (i64 r = 0; r < ROWS; ++r) {
                const std::uint8_t* block = seen.data() + (r * groups + g) * bytes;
                for (int i = 0; i < num_floats; ++i)
                    std::memcpy(floats + (i * groups + g) * rows + first + r, block + 2 * i, 2);
                const std::uint8_t* numbers = block + 2 * num_floats;
                for (i64 i = 0; bits == 4 && i < 4; ++i) {  // the lower halves of all bytes come first
                    std::uint64_t columns;
                    std::memcpy(&columns, numbers + i % 2 * 8, 8);
                    const std::uint32_t word = word_of(columns >> i / 2 * 4 & 0x0f0f0f0f0f0f0f0f);
                    std::memcpy(out + (i * ROWS + r) * 4, &word, 4);
                }
                for (i64 i = 0; bits == 8 && i < 16; ++i) std::memcpy(out + (i * ROWS + r) * 2, numbers + i * 2, 2);
            }
        }
    }
}

}  // namespace

// What `native.py` calls: each function for each kind of number.
#define FOR_ACTIVATIONS(T, name)                                                                     \
    extern "C" void rms_norm_##name(T* out, const T* x, T* residual, const T* weight, i64 tokens,    \
                                    i64 heads, i64 size, i64 x_stride, float eps, int threads) {     \
        rms_norm(out, x, residual, weight, tokens, heads, size, x_stride, eps, threads);             \
    }                                                                                                \
    extern "C" void rope_##name(T* x, const T* cos, const T* sin, i64 tokens, i64 heads, i64 size,   \
                                i64 turning, i64 x_stride, int threads) {                            \
        rope(x, cos, sin, tokens, heads, size, turning, x_stride, threads);                          \
    }                                                                                                \
    extern "C" void silu_mul_##name(T* out, const T* gate_up, i64 tokens, i64 size, int threads) {   \
        silu_mul(out, gate_up, tokens, size, threads);                                               \
    }                                                                                                \
    extern "C" void multiply_##name(T* out, const T* x, const Matrix* m, i64 tokens, int threads) {  \
        product(out, x, *m, tokens, threads);                                                        \
    }                                                                                                \
    extern "C" void grouped_multiply_##name(T* out, const T* x, const Matrix* weights,               \
                                            const i64* counts, i64 number, int threads) {            \
        for (i64 e = 0; e < number; ++e) { /* counts[e] rows of x are weight e's */                  \
            if (counts[e]) product(out, x, weights[e], counts[e], threads);                          \
            out += counts[e] * weights[e].rows, x += counts[e] * weights[e].columns;                 \
        }                                                                                            \
    }

#define FOR_CACHE(T, C, name)                                                                        \
    extern "C" i64 store_##name(C* keys, C* values, const T* key, const T* value, const i64* slots,  \
                                i64 num_slots, i64 tokens, i64 width, i64 key_stride,                \
                                i64 value_stride) {                                                  \
        return store(keys, values, key, value, slots, num_slots, tokens, width, key_stride,          \
                     value_stride);                                                                  \
    }                                                                                                \
    extern "C" i64 paged_attention_##name(                                                           \
        T* out, const T* query, const C* keys, const C* values, const std::int32_t* table,           \
        const std::int32_t* rows, const std::int32_t* ends, i64 tokens, i64 kv_heads, i64 group,     \
        i64 size, i64 num_blocks, i64 block_size, i64 table_stride, i64 query_stride, i64 window,    \
        float scale, int threads) {                                                                  \
        return attention(out, query, keys, values, table, rows, ends, tokens, kv_heads, group, size, \
                         num_blocks, block_size, table_stride, query_stride, window, scale, threads);\
    }

FOR_ACTIVATIONS(float, f32)
FOR_ACTIVATIONS(bf16, bf16)
FOR_CACHE(float, float, f32_f32)
FOR_CACHE(float, bf16, f32_bf16)
FOR_CACHE(bf16, float, bf16_f32)
FOR_CACHE(bf16, bf16, bf16_bf16)

#define FOR_LAYERS(T, C, name)                                                                       \
    extern "C" i64 decoder_layers_##name(T* out, const T* x, T* stream, const Layer<T>* layers,      \
                                         const Adapters<T>* adapters, const Places<T>* at,           \
                                         void* const* keys, void* const* values, i64 num_layers,     \
                                         i64 num_blocks, i64 block_size, i64 tokens, int threads) {  \
        return decoder_layers<T, C>(out, x, stream, layers, adapters, *at, keys, values, num_layers, \
                                    num_blocks, block_size, tokens, threads);                        \
    }

#define FOR_DECODERS(C, name)                                                                        \
    extern "C" i64 next_logits_##name(float* logits, const Decoder* model, const Batch* batch,       \
                                      const i64* rows, const i64* starts, const i64* counts,         \
                                      const i64* fed, i64 requests, int threads) {                   \
        return next_logits<C>(logits, *model, *batch, rows, starts, counts, fed, requests, threads); \
    }

FOR_LAYERS(float, float, f32_f32)
FOR_LAYERS(float, bf16, f32_bf16)
FOR_LAYERS(bf16, float, bf16_f32)
FOR_LAYERS(bf16, bf16, bf16_bf16)
FOR_DECODERS(float, f32)
FOR_DECODERS(bf16, bf16)

extern "C" void forbid_f32(float* logits, const std::uint32_t* words, const i64* rows, const i64* masks, i64 count,
                           i64 vocab, i64 stride, i64 num_words) {
    forbid(logits, words, rows, masks, count, vocab, stride, num_words);
}

extern "C" void gated_delta_f32(float* out, float* states, const float* q, const float* k, const float* v,
                                const float* g, const float* beta, const i64* starts, i64 requests, i64 heads,
                                i64 keys, i64 values, int threads) {
    gated_delta({q, k, v, g, beta, out, states, heads, keys, values}, starts, requests, threads);
}

extern "C" void pack_2(std::uint16_t* to, const std::uint16_t* from, i64 rows, i64 columns, int threads) {
    pack(to, from, rows, columns, threads);
}

extern "C" void pack_4(std::uint32_t* to, const std::uint32_t* from, i64 rows, i64 columns, int threads) {
    pack(to, from, rows, columns, threads);
}

extern "C" void pack_blocks(std::uint8_t* memory, std::uint16_t* floats, i64 rows, i64 groups, i64 bytes, int bits,
                            int num_floats) {
    pack_blocks_of_file(memory, floats, rows, groups, bytes, bits, num_floats);
}

extern "C" int multiplies_bf16() { return MULTIPLIES_BF16; }

extern "C" int has_tiles() { return HAS_TILES; }

extern "C" int has_narrow_mkl() {
#ifdef __AVX512F__
    __builtin_cpu_init();
    return !__builtin_cpu_is("intel");
#else
    return 0;
#endif
}

extern "C" int multiplies_pairs() {
#if WIDTH == 16 && defined(__AVX512VNNI__)
    return 1;
#else
    return 0;
#endif
}

extern "C" int int8_word() { return WORD8; }

extern "C" int int8_zero() { return ZERO; }
