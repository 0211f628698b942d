// Calls the three functions of a learner's dot product. labkit/practice/dot_product.py builds and runs it:
//
//     dot check FILE    the answer to each case, a line each; reading past an array ends the program
//     dot count         instructions of a call on 1,024 and on 2,048 numbers, of a plain loop and of the three
//     dot time N        GB/s at N bytes in each array, of a loop that only reads, and of the three

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#if defined(__linux__)
#include <sys/ptrace.h>
#endif

using i8 = std::int8_t;
using i64 = std::int64_t;
using Dot = std::int32_t(const i8*, const i8*, i64);

extern "C" Dot dot_scalar, dot_unrolled, dot_vector;

static std::int32_t plain(const i8* a, const i8* b, i64 n) {
    std::int32_t sum = 0;
    for (i64 i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

static std::int32_t only_read(const i8* a, const i8* b, i64 n) {
    typedef i64 words __attribute__((vector_size(64), aligned(1), may_alias));
    words x = {}, y = {};
    for (i64 i = 0; i + 64 <= n; i += 64) {
        x ^= *reinterpret_cast<const words*>(a + i);
        y ^= *reinterpret_cast<const words*>(b + i);
    }
    x ^= y;
    return static_cast<std::int32_t>(x[0] ^ x[1] ^ x[2] ^ x[3] ^ x[4] ^ x[5] ^ x[6] ^ x[7]);
}

// Memory whose last page may not be touched: what ends before it, and is read further, ends the program.
class Guarded {
public:
    explicit Guarded(i64 size) {
        page_ = sysconf(_SC_PAGESIZE);
        room_ = (size + 64 + page_ - 1) / page_ * page_;
        void* p = mmap(nullptr, room_ + 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) std::abort();
        begin_ = static_cast<char*>(p) + page_;
        mprotect(begin_ - page_, page_, PROT_NONE);
        mprotect(begin_ + room_, page_, PROT_NONE);
        std::memset(begin_, 0x55, room_);
    }
    i8* ending(i64 size, i64 gap) { return reinterpret_cast<i8*>(begin_ + room_ - gap - size); }

private:
    char* begin_;
    i64 page_, room_;
};

static int check(const char* name) {
    Dot* const steps[] = {dot_scalar, dot_unrolled, dot_vector};
    std::FILE* file = std::fopen(name, "rb");
    if (!file) return 2;
    Guarded left(1 << 17), right(1 << 17);
    for (i64 head[4]; std::fread(head, sizeof head, 1, file) == 1;) {  // step, n, gaps behind a and b
        const i64 n = head[1];
        i8 *a = left.ending(n, head[2]), *b = right.ending(n, head[3]);
        const auto bytes = static_cast<std::size_t>(n);
        if (std::fread(a, 1, bytes, file) != bytes || std::fread(b, 1, bytes, file) != bytes) return 2;
        std::printf("%d\n", steps[head[0] - 1](a, b, n));
        std::fflush(stdout);
    }
    return 0;
}

// Instructions of one call: a child calls, and its parent lets it go on one instruction at a time. -1: not here,
// or the call went wrong.
static long instructions(Dot* call, i64 n) {
#if defined(__linux__)
    std::vector<i8> a(n, 3), b(n, -5);
    const pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr)) _exit(3);
        raise(SIGSTOP);
        volatile std::int32_t answer = call(a.data(), b.data(), n);
        (void)answer;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    long steps = 0;
    for (int expected = SIGSTOP; WIFSTOPPED(status); expected = SIGTRAP) {
        if (WSTOPSIG(status) != expected || ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr)) {
            kill(child, SIGKILL), waitpid(child, &status, 0);
            return -1;
        }
        waitpid(child, &status, 0);
        ++steps;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? steps : -1;
#else
    (void)call, (void)n;
    return -1;
#endif
}

static int count() {
    for (Dot* call : {plain, dot_scalar, dot_unrolled, dot_vector})
        std::printf("%ld %ld\n", instructions(call, 1024), instructions(call, 2048));
    return 0;
}

static double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

static int time_of(i64 n) {
    std::vector<i8> a(n), b(n);
    for (i64 i = 0; i < n; ++i) a[i] = static_cast<i8>(i * 7), b[i] = static_cast<i8>(i * 13);
    Dot* const calls[] = {only_read, dot_scalar, dot_unrolled, dot_vector};
    double best[4] = {};
    const i64 piece = std::min<i64>(n, 1 << 16);  // of a call: the sum fits into 32 bits
    const i64 rounds = std::max<i64>(1, (1 << 22) / n);
    volatile std::int32_t sink = 0;
    for (int turn = 0; turn < 60; ++turn)  // in turns, so that none has a quieter time of the machine
        for (int c = 0; c < 4; ++c) {
            const double start = seconds();
            for (i64 round = 0; round < rounds; ++round)
                for (i64 at = 0; at + piece <= n; at += piece) sink = sink ^ calls[c](&a[at], &b[at], piece);
            best[c] = std::max(best[c], 2e-9 * static_cast<double>(n / piece * piece * rounds) / (seconds() - start));
        }
    for (double rate : best) std::printf("%.2f\n", rate);
    return 0;
}

int main(int argc, char** argv) {
    const auto is = [&](const char* mode, int words) { return argc == words && !std::strcmp(argv[1], mode); };
    if (is("check", 3)) return check(argv[2]);
    if (is("count", 2)) return count();
    if (is("time", 3)) return time_of(std::atoll(argv[2]));
    return 2;
}
