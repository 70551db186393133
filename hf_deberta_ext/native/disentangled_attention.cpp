// SPDX-License-Identifier: Apache-2.0
// Fused disentangled attention (DeBERTa Eq. 4) for CPUs, forward and backward, float32 and bfloat16.
//
//   out_i = sum_j dropout(softmax_j(scale (q_i.k_j + q_i.K_r[delta(i - j)] + k_j.Q_r[delta(i - j)]) + bias(i - j))) v_j
//
// No [N, N] tensor is allocated. Sizes: N keys, d head size, D distinct rows of the relative table for all i - j (at most
// 512 for v3's table, at any sequence length).
//
//   1. P = K Q_r^T, [N, D]: p2c of all keys with each distinct row, once per head.
//   2. For each tile of TILE queries:
//        C = Q K_r^T, [TILE, D], the same for c2p;
//        for each block of BLOCK keys: S = Q K^T; S += expand(C) + expand(P)^T; online softmax; O += exp(S) V.
//
// "expand" maps distinct rows to distances. Tables are packed in the order of distances, where the row number increases by 0
// or 1 from one distance to the next. The rows of 8 adjacent distances are therefore among 8 adjacent rows, which need one
// unaligned load and one permutation that depends only on the distance. p2c is expanded along queries, then transposed 8 x 8
// in registers. Beyond `max_distance`, c2p is one number per query and p2c one per key. The padding mask is written into P.
//
// The backward pass recomputes everything from q, k, v and the log of the sum of exponentials.
//
// bfloat16 is computed in float32. On CPUs with fast products of pairs of bfloat16 numbers (AMX; AVX512-BF16 by AMD), the
// forward pass uses these products, with probabilities rounded to bfloat16 and sums in float32. Packed operands then have
// words of two numbers, in the same layout as float32 numbers; AMX's tiles also have this layout.
//
// The only requirement is a C++17 compiler with vector extensions (GCC, Clang). The source includes itself once for each
// instruction set, and the best one is chosen at run time. The kernel uses the OpenMP threads of the process (torch's) if it
// finds them, so that there is only one thread pool. Otherwise, it creates its own threads.
//
//   g++ -O3 -std=gnu++17 -ffp-contract=fast -fno-math-errno -fPIC -shared disentangled_attention.cpp -o LIBRARY -ldl

#ifndef ISA

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <type_traits>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__) || __GNUC__ >= 10
#define BF16_PRODUCTS  // the compiler knows them
#endif
#if defined(__linux__) && (__clang_major__ >= 12 || __GNUC__ >= 11)
#define TILE_PRODUCTS  // AMX, which a process must request from Linux
#include <cpuid.h>
#include <sys/syscall.h>
#endif
#endif

// ---- interface -------------------------------------------------------------------------------------------------------------

extern "C" struct Arguments {
    int64_t size;   // sizeof(Arguments)
    int64_t dtype;  // FLOAT32 or BFLOAT16, dtype of all tensors except those declared as float here
    int64_t isa;    // 0: the best of this CPU; else a value of Isa
    // Strides are in elements, for B, H and N; the last stride is 1. With `starts`, tensors are [1, H, T, d].
    const void *q, *k, *v;  // [B, H, M, d], [B, H, N, d], [B, H, N, d]
    void* out;              // [B, H, M, d]
    int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3];
    const void *K_r, *Q_r;  // [H, R, d]; null: no c2p, no p2c
    int64_t K_r_strides[2], Q_r_strides[2];
    const float* bias;     // [H, 2 middle + 1] p2p of i - j = -middle ... middle, scaled; or null
    const int64_t* delta;  // [2 middle + 1] row of i - j, constant for |i - j| >= max_distance on each side; or null
    int64_t middle, max_distance, R;
    const uint8_t* mask;       // bool, broadcast to [B, H, M, N] with strides of 0; or null
    int64_t mask_strides[4];
    const int32_t* starts;     // [B + 1] first token of each document in one stream; or null
    const int64_t* positions;  // [B, M] position of each query; null: query i is at i, M = N
    int64_t B, H, M, N, d;     // with `starts`: B documents, M = N = T
    float scale, dropout;
    uint64_t seed;
    int64_t threads;
    float* lse;  // [B, H, M] log2 of the sum of exponentials, written by forward unless null, read by backward
    // Only for backward.
    const void* d_out;
    int64_t d_out_strides[3];
    void *d_q, *d_k, *d_v;
    int64_t d_q_strides[3], d_k_strides[3], d_v_strides[3];
    float *d_K_r, *d_Q_r;  // [H, R, d], contiguous, added to
    float* d_bias;         // [H, 2 middle + 1], contiguous, added to
};

namespace {

enum Dtype { FLOAT32, BFLOAT16 };
enum Isa { BEST, GENERIC, AVX2, AVX512, NEON, AVX512_BF16, AMX };
// NOT_SERVED: unsupported dtype, head size or instruction set, or an index out of range
enum Status { DONE, WRONG_SIZE, NOT_SERVED, NO_MEMORY };

constexpr long VERSION = 1;
constexpr float MASKED = -1e30f;              // finite, because inf - inf is NaN
constexpr float LOG2E = 1.4426950408889634f;  // the softmax is computed in base 2

template <class T> inline T load(const void* p) { T x; memcpy(&x, p, sizeof x); return x; }
template <class T> inline void store(void* p, T x) { memcpy(p, &x, sizeof x); }
inline long round_up(long x, long m) { return (x + m - 1) / m * m; }
inline long floor_to(long x, long m) { return x / m * m; }

struct Buffer {  // 64-byte aligned floats; only grows, because new memory costs page faults
    float* p = nullptr;
    size_t n = 0;
    float* get(size_t count) {
        if (count > n) {
            free(p), n = 0;
            p = static_cast<float*>(aligned_alloc(64, (count * 4 + 63) / 64 * 64));
            if (!p) throw std::bad_alloc();
            n = count;
        }
        return p;
    }
    float* zeros(size_t count) {
        float* x = get(count);
        memset(x, 0, count * 4);
        return x;
    }
    ~Buffer() { free(p); }
};

// Scratch buffers of each thread, kept between calls
enum Name {
    KT, VT, KROWS, VROWS, KALL, PS, FAR, QT, ST, CT, OT, TAIL, QN, GT, DKV, DPS, DFAR, DCS, DQS, DST, KTAB, QTAB,
    SUMS, BIAS, DBIAS, NAMES
};
thread_local Buffer scratch[NAMES];
thread_local Buffer shared_tables, shared_sums, shared_keys;  // of the calling thread

// ---- threads ---------------------------------------------------------------------------------------------------------------

template <class Run> void call_run(void* run) { (*static_cast<Run*>(run))(); }

// Run body(task) for each task on up to `threads` threads; return false if memory ran out
template <class Body> bool parallel(long tasks, long threads, const Body& body) {
    std::atomic<long> next{0};
    std::atomic<bool> failed{false};
    const auto run = [&] {
        try {
            for (long task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(task);
        } catch (const std::bad_alloc&) {
            failed = true;
        }
    };
    threads = std::min(threads, tasks);
    if (threads <= 1) {
        run();
        return !failed;
    }
    using Start = void (*)(void (*)(void*), void*, unsigned, unsigned);
    static const Start openmp = [] {
        const char* wanted = getenv("DEBERTA_EXT_NATIVE_OPENMP");
        if (wanted && wanted[0] == '0') return Start(nullptr);
        void* found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
        if (!found)
            if (void* library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD)) found = dlsym(library, "GOMP_parallel");
        return reinterpret_cast<Start>(found);
    }();
    // The threads of an OpenMP pool do not survive a fork.
    static const pid_t process = getpid();
    if (openmp && getpid() == process) {
        openmp(call_run<const decltype(run)>, const_cast<void*>(static_cast<const void*>(&run)), threads, 0);
        return !failed;
    }
    std::vector<std::thread> others;
    try {
        for (long i = 1; i < threads; i++) others.emplace_back(run);
    } catch (const std::exception&) {  // fewer threads than requested do the same work
    }
    run();
    for (auto& thread : others) thread.join();
    return !failed;
}

// ---- dropout: a hash of (seed, head, query, key) ---------------------------------------------------------------------------

inline uint64_t mix(uint64_t x) {  // SplitMix64 (Steele, Lea and Flood 2014)
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

inline float to_float(uint16_t x) {
    const uint32_t bits = uint32_t(x) << 16;
    return load<float>(&bits);
}
inline uint16_t to_bfloat16(float x) {
    const uint32_t bits = load<uint32_t>(&x);
    if (x != x) return 0x7FC0;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

}  // namespace

// ---- one instruction set after the other -----------------------------------------------------------------------------------

#define ISA generic
#define VW 4  // floats in a vector
#define MR 6  // rows of a micro-kernel
#define NV 2  // vectors in a row of a micro-kernel
#if defined(__aarch64__)
#undef NV
#define NV 4
#endif
#include "disentangled_attention.cpp"
#undef ISA
#undef VW
#undef MR
#undef NV

#if defined(__x86_64__)
#define SELECT(x, p) (v8) _mm256_permutevar8x32_ps((__m256)(x), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p))))
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define ISA avx2
#define VW 8
#define MR 6
#define NV 2
#include "disentangled_attention.cpp"
#undef ISA
#undef VW
#undef MR
#undef NV
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")
#endif
#define ISA avx512
#define VW 16
#define MR 12
#define NV 2
#include "disentangled_attention.cpp"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

namespace {

bool has(int64_t isa) {
#if defined(__x86_64__)
    if (isa == AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == AVX512)
        return has(AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#if defined(BF16_PRODUCTS)
    if (isa == AVX512_BF16) return has(AVX512) && __builtin_cpu_supports("avx512bf16");
#endif
#if defined(TILE_PRODUCTS)
    if (isa == AMX) {
        unsigned a, b, c, features = 0;
        constexpr unsigned TILE = 1u << 24, TILE_BF16 = 1u << 22;
        constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        return has(AVX512_BF16) && __get_cpuid_count(7, 0, &a, &b, &c, &features) && (features & TILE) &&
               (features & TILE_BF16) && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    }
#endif
    return isa == GENERIC;
#elif defined(__aarch64__)
    return isa == NEON;
#else
    return isa == GENERIC;
#endif
}

int64_t best() {
    for (int64_t isa : {NEON, AMX, AVX512_BF16, AVX512, AVX2}) {
#if defined(__x86_64__)
        // On Intel's CPUs, these take longer than float32 products.
        if (isa == AVX512_BF16 && !__builtin_cpu_is("amd")) continue;
#endif
        if (has(isa)) return isa;
    }
    return GENERIC;
}

}  // namespace

extern "C" {

int64_t disentangled_version(void) { return VERSION; }
int64_t disentangled_supports(int64_t isa) { return isa == BEST ? best() : has(isa); }

static int64_t call(const Arguments* a, bool backward) {
    if (a->size != sizeof(Arguments)) return WRONG_SIZE;
    static const int64_t taken = best();
    const int64_t isa = a->isa == BEST ? taken : a->isa;
    const bool square = a->M == a->N && !a->positions;
    if (!has(isa) || a->d < 16 || a->d > 128 || (a->dtype != FLOAT32 && a->dtype != BFLOAT16)) return NOT_SERVED;
    if ((!square && !a->positions) || (a->starts && (a->positions || a->mask))) return NOT_SERVED;
    try {
#if defined(__x86_64__)
        const bool amx = isa == AMX;
#if defined(BF16_PRODUCTS)
        if ((isa == AVX512_BF16 || amx) && a->dtype == BFLOAT16 && !backward && a->scale > 0)
            return avx512::run<true>(*a, false, amx);
#endif
        if (isa == AVX512 || isa == AVX512_BF16 || amx) return avx512::run<false>(*a, backward);
        if (isa == AVX2) return avx2::run<false>(*a, backward);
#endif
        return generic::run<false>(*a, backward);
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    }
}

// 0, or a value of Status
int64_t disentangled_forward(const Arguments* a) { return call(a, false); }
int64_t disentangled_backward(const Arguments* a) { return call(a, true); }
}

#else  // ISA

namespace {
namespace ISA {

// Defined again for each instruction set, because Clang rejects calls that pass wider vectors to functions of another set.
template <class T> inline T load(const void* p) { T x; memcpy(&x, p, sizeof x); return x; }
template <class T> inline void store(void* p, T x) { memcpy(p, &x, sizeof x); }

constexpr long NR = VW * NV;      // columns of a micro-kernel
constexpr long TILE = 48;         // queries; a multiple of MR and 8
constexpr long BLOCK = 288;       // keys; a multiple of MR, 2 VW and NR
constexpr long LDS = BLOCK + 16;  // row stride of S; not a power of two
constexpr long CHUNK = 43 * TILE; // queries that share P
static_assert(TILE % MR == 0 && BLOCK % MR == 0 && BLOCK % NR == 0 && BLOCK % (2 * VW) == 0 && NR % 8 == 0);

typedef float vf __attribute__((vector_size(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef uint32_t vu __attribute__((vector_size(VW * 4)));
typedef uint16_t vh __attribute__((vector_size(VW * 2)));
typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));

// ---- arithmetic ------------------------------------------------------------------------------------------------------------

// c[MR, NR] (+)= a[MR, k] b[k, NR]; a[r, t] = a[r * lda + t * step], so that a may be a transpose
template <bool ADD>
inline __attribute__((always_inline)) void micro(const float* a, long lda, const float* b, long ldb, long k, float* c, long ldc,
                                                 long step = 1) {
    vf acc[MR][NV];
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) acc[r][v] = ADD ? load<vf>(c + r * ldc + v * VW) : vf{};
#pragma GCC unroll 4
    for (long t = 0; t < k; t++) {
        vf row[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) row[v] = load<vf>(b + t * ldb + v * VW);
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++) {
            const float x = a[r * lda + t * step];
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) acc[r][v] += x * row[v];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) store(c + r * ldc + v * VW, acc[r][v]);
}

#if VW == 16 && defined(BF16_PRODUCTS)
// As micro, for words of two bfloat16 numbers: word t of a row has the numbers 2 t and 2 t + 1
template <bool ADD>
__attribute__((target("avx512bf16"))) void micro_pairs(const float* a, long lda, const float* b, long k, float* c, long ldc) {
    __m512 acc[MR][NV];
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) acc[r][v] = (__m512)(ADD ? load<vf>(c + r * ldc + v * VW) : vf{});
#pragma GCC unroll 4
    for (long t = 0; t < k; t++) {
        __m512bh row[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) row[v] = (__m512bh)_mm512_loadu_si512(b + t * NR + v * VW);
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++) {
            const __m512bh x = (__m512bh)_mm512_set1_epi32(load<int32_t>(a + r * lda + t));
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], row[v], x);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) store(c + r * ldc + v * VW, (vf)acc[r][v]);
}
#endif

#if VW == 16 && defined(TILE_PRODUCTS)
// Compilers do not know which memory AMX instructions read and write.
#define FENCE __asm__ volatile("" ::: "memory")

// AMX tiles of a thread during its lifetime: c in 0 and 1, a in 2, b in 3 and 4
struct Tiles {
    __attribute__((target("amx-tile"))) Tiles() {
        uint8_t config[64] = {1};  // the palette
        for (int tile = 0; tile < 5; tile++) config[16 + 2 * tile] = 64, config[48 + tile] = tile < 3 ? MR : 16;
        FENCE;
        _tile_loadconfig(config);
        FENCE;
    }
    __attribute__((target("amx-tile"))) ~Tiles() { _tile_release(); }
};

// As micro_pairs, with AMX; k must be a multiple of 16 words
template <bool ADD>
__attribute__((target("amx-tile,amx-bf16"))) void micro_tiles(const float* a, long lda, const float* b, long k, float* c,
                                                              long ldc) {
    static_assert(NR == 32 && MR <= 16);
    FENCE;
    if (ADD) {
        _tile_loadd(0, c, ldc * 4);
        _tile_loadd(1, c + 16, ldc * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (long t = 0; t < k; t += 16) {
        _tile_loadd(2, a + t, lda * 4);
        _tile_loadd(3, b + t * NR, NR * 4);
        _tile_dpbf16ps(0, 2, 3);
        _tile_loadd(4, b + t * NR + 16, NR * 4);
        _tile_dpbf16ps(1, 2, 4);
    }
    _tile_stored(0, c, ldc * 4);
    _tile_stored(1, c + 16, ldc * 4);
    FENCE;
}
#endif

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, i8{__VA_ARGS__})
#endif

// x[p[e]] for 8 bytes p
inline __attribute__((always_inline)) v8 select(v8 x, const uint8_t* p) {
#ifdef SELECT
    return SELECT(x, p);
#else
    v8 y;
    for (int e = 0; e < 8; e++) y[e] = x[p[e]];
    return y;
#endif
}

inline void transpose8(v8 x[8]) {
    v8 t[8], u[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2)
        t[i] = SHUFFLE(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13), t[i + 1] = SHUFFLE(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4) {
        u[i] = SHUFFLE(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13), u[i + 1] = SHUFFLE(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        u[i + 2] = SHUFFLE(t[i + 1], t[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        u[i + 3] = SHUFFLE(t[i + 1], t[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        x[i] = SHUFFLE(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        x[i + 4] = SHUFFLE(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

template <class V> inline float sum_of(V x) {
    float sum = 0;
    for (size_t e = 0; e < sizeof(V) / 4; e++) sum += x[e];
    return sum;
}

// 2^x for x <= 0, relative error about 2e-7, or 8e-5 before rounding to bfloat16; 0 below 2^-100 (subnormals are slow)
template <bool rough = false> inline vf exp2v(vf x) {
    const vf magic = vf{} + 12582912.0f;
    const vf shifted = x + magic;
    const vf f = x - (shifted - magic);  // [-0.5, 0.5]
    vf y;
    if (rough) {
        y = vf{} + 5.5171418e-2f;
        y = y * f + 2.4261117e-1f;
        y = y * f + 6.9326106e-1f;
        y = y * f + 9.9992807e-1f;
    } else {
        y = vf{} + 1.5403530e-4f;
        y = y * f + 1.3333558e-3f;
        y = y * f + 9.6181291e-3f;
        y = y * f + 5.5504109e-2f;
        y = y * f + 2.4022651e-1f;
        y = y * f + 6.9314718e-1f;
        y = y * f + 1.0f;
    }
    y = (vf)((vu)y + ((vu)shifted << 23));
    return x < -100.0f ? vf{} : y;
}

// Pack rows x[n, d] with stride ldx as panels [n / NR][d][NR], the right operand of a product with x^T
void pack_transposed(const float* x, long ldx, long n, long d, float factor, float* out) {
    for (long j = 0; j < round_up(n, NR); j += 8) {
        float* panel = out + j / NR * NR * d + j % NR;
        for (int e = 8; e < 16; e++)
            for (long t = 0; t < d; t += 16) __builtin_prefetch(x + std::min(j + e, n - 1) * ldx + t);
        for (long t = 0; t < d; t += 8) {
            v8 y[8];
            for (int e = 0; e < 8; e++) y[e] = j + e < n ? load<v8>(x + (j + e) * ldx + t) : v8{};
            // Words with two numbers are not floats, so they are not multiplied, even by 1.
            if (factor != 1.0f)
                for (int e = 0; e < 8; e++) y[e] *= factor;
            transpose8(y);
            for (int e = 0; e < 8; e++) store(panel + (t + e) * NR, y[e]);
        }
    }
}

// ---- which distances share a row -------------------------------------------------------------------------------------------

struct Plan {
    // Row of distance u, constant beyond -max_distance and max_distance. Rows are numbered in the order of distances.
    long max_distance, rows = 0;
    std::vector<int32_t> order;    // [rows] row of the caller's table
    std::vector<int32_t> base;     // row of distance u
    std::vector<uint8_t> pattern;  // row of u + e minus row of u, for e = 0 ... 7
    std::vector<uint8_t> last;     // for r = 0 ... 7: largest e for which the row of u + e is at most the row of u plus r
    static constexpr long MARGIN = TILE + 16;  // distances beyond max_distance in a tile with near keys

    Plan(const int64_t* delta, long middle, long max_distance, int sign) : max_distance(max_distance) {
        if (!delta) return;
        const long size = 2 * (max_distance + MARGIN) + 1;
        base.resize(size + 8), pattern.resize(8 * size), last.resize(8 * size);
        for (long at = 0; at < size + 8; at++) {
            const long u = sign * std::clamp(at - max_distance - MARGIN, -max_distance, max_distance);
            const int64_t r = delta[middle + std::clamp(u, -middle, middle)];
            if (order.empty() || r != order.back()) order.push_back(r);
            base[at] = order.size() - 1;
        }
        rows = order.size();
        for (long at = 0; at < size; at++)
            for (int e = 0; e < 8; e++) {
                pattern[8 * at + e] = base[at + e] - base[at];
                for (int row = base[at + e] - base[at]; row < 8; row++) last[8 * at + row] = e;
            }
    }
    long row(long u) const { return base[std::clamp(u, -max_distance, max_distance) + max_distance + MARGIN]; }
    // x[row of u ... u + 7], |u| <= max_distance + MARGIN
    inline __attribute__((always_inline)) v8 expand(const float* x, long u) const {
        const long at = u + max_distance + MARGIN;
        return select(load<v8>(x + base[at]), pattern.data() + 8 * at);
    }
    // The transpose of `expand`: x[row of u ... u + 7] += y, by differences of the sums up to the last distance of each row
    inline __attribute__((always_inline)) void collect(float* x, long u, v8 y) const {
        const long at = u + max_distance + MARGIN;
        x += base[at];
        if (pattern[8 * at + 7] == 7) return store(x, load<v8>(x) + y);
        const v8 zero{};
        y += SHUFFLE(zero, y, 0, 8, 9, 10, 11, 12, 13, 14);
        y += SHUFFLE(zero, y, 0, 0, 8, 9, 10, 11, 12, 13);
        y += SHUFFLE(zero, y, 0, 0, 0, 0, 8, 9, 10, 11);
        y = select(y, last.data() + 8 * at);
        store(x, load<v8>(x) + (y - SHUFFLE(zero, y, 0, 8, 9, 10, 11, 12, 13, 14)));
    }
    long clamped(long u) const { return std::clamp(u, -max_distance - MARGIN, max_distance + MARGIN); }
    long width() const { return rows ? round_up(rows, NR) + 16 : 0; }
};

// ---- one head of one sequence ----------------------------------------------------------------------------------------------

// With `pairs`, bfloat16 numbers are multiplied in pairs, and logits are scaled in the softmax instead of in Q and Q_r.
template <bool pairs> struct Worker {
    const Arguments& a;
    const Plan c_plan, p_plan;  // c2p by key - query, p2c by query - key
    const long d;               // the head size with its padding
    const long words;           // words in a row of d numbers: d, or d / 2 for pairs
    const bool amx;             // pairs are multiplied by AMX tiles
    const float factor;         // factor of logits, times log2(e)
    long table_size;            // words of a packed table of one head
    float *K_x = nullptr, *Q_x = nullptr;  // packed tables of all heads

    Worker(const Arguments& a, long longest, bool amx)
        : a(a), c_plan(a.K_r ? a.delta : nullptr, a.middle, std::min<long>(a.max_distance, longest), -1),
          p_plan(a.Q_r ? a.delta : nullptr, a.middle, std::min<long>(a.max_distance, longest), 1), d(round_up(a.d, NR)),
          words(pairs ? d / 2 : d), amx(amx), factor(a.scale * LOG2E) {
        table_size = round_up(std::max(c_plan.rows, p_plan.rows), NR) * words;
        float* packed = shared_tables.get(2 * a.H * table_size + 1);
        if (a.K_r) K_x = packed;
        if (a.Q_r) Q_x = packed + a.H * table_size;
    }

    // -- input tensors

    template <class T> auto at(T* x, const int64_t* strides, long b, long h, long row) const {
        using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
        return static_cast<Byte*>(x) + (b * strides[0] + h * strides[1] + row * strides[2]) * (a.dtype == FLOAT32 ? 4 : 2);
    }
    void read(const void* x, float* to) const {  // one row, padded
        if (pairs) {
            memset(to, 0, words * 4), memcpy(to, x, a.d * 2);
            return;
        }
        if (a.dtype == FLOAT32) memcpy(to, x, a.d * 4);
        else for (long t = 0; t < a.d; t++) to[t] = to_float(static_cast<const uint16_t*>(x)[t]);
        for (long t = a.d; t < d; t++) to[t] = 0.0f;
    }
    void write(const float* x, void* to, float factor = 1.0f) const {
        if (a.dtype == FLOAT32) for (long t = 0; t < a.d; t++) static_cast<float*>(to)[t] = x[t] * factor;
        else for (long t = 0; t < a.d; t++) static_cast<uint16_t*>(to)[t] = to_bfloat16(x[t] * factor);
    }
    // Rows [n, d] in float32 or pairs, without a copy if they already have this form; `ld` is the stride in words
    const float* rows_of(const char* x, long stride, long n, Buffer& copy, long& ld) const {
        if (a.d == d && (a.dtype == FLOAT32 || (pairs && stride % 2 == 0))) {
            ld = pairs ? stride / 2 : stride;
            return reinterpret_cast<const float*>(x);
        }
        ld = words;
        float* to = copy.get(n * words + 1);
        for (long j = 0; j < n; j++) read(x + j * stride * (a.dtype == FLOAT32 ? 4 : 2), to + j * words);
        return to;
    }
    // The rows plan.order of a table, [rows, d]
    float* table_rows(const void* x, const int64_t* strides, long h, const Plan& plan, Buffer& copy) const {
        float* to = copy.get((plan.width() + 1) * words);
        const int64_t full[3] = {0, strides[0], strides[1]};
        for (long r = 0; r < plan.rows; r++) read(at(x, full, 0, h, plan.order[r]), to + r * words);
        return to;
    }
    void pack_tables(long h) const {
        const auto pack = [&](const float* rows, long n, float factor, float* to) {
            pack_transposed(rows, words, n, words, factor, to + h * table_size);
        };
        if (K_x) pack(table_rows(a.K_r, a.K_r_strides, h, c_plan, scratch[KTAB]), c_plan.rows, 1.0f, K_x);
        if (Q_x) pack(table_rows(a.Q_r, a.Q_r_strides, h, p_plan, scratch[QTAB]), p_plan.rows, pairs ? 1.0f : factor, Q_x);
    }

    // c[MR, NR] (+)= x[MR, k] y[k, NR] of words, y packed
    template <bool ADD>
    inline __attribute__((always_inline)) void multiply(const float* x, long ldx, const float* y, long k, float* c, long ldc) const {
#if VW == 16 && defined(TILE_PRODUCTS)
        if (amx) return micro_tiles<ADD>(x, ldx, y, k, c, ldc);
#endif
#if VW == 16 && defined(BF16_PRODUCTS)
        if (pairs) return micro_pairs<ADD>(x, ldx, y, k, c, ldc);
#endif
        micro<ADD>(x, ldx, y, NR, k, c, ldc);
    }

    // -- data shared by all tiles of a head

    struct Head {
        long b, h, batch, first;  // sequence, head, row of the batch, first token of the sequence in that row
        long queries, keys, n;    // n: keys without the padding at the end
        long width;               // n rounded up
        const float *k, *v;       // [n, words]
        long ldk, ldv;
        const uint8_t *mask, *key_mask;  // mask of this head by query and key, or only by key
        const int64_t* positions;
        const float *c_table, *p_table;
        float *kt, *bias;
        uint64_t key;  // key of dropout
        // p2c: P for keys near the queries of a chunk; low, high for queries far before, far after a key; includes masks
        float *P, *low, *high;
        long near0, near1, ldp;
        float *d_low, *d_high;  // gradients of low and high
        // c2p of a tile
        float* C;
        long ldc;
    };

    Head head(long b, long h) const {
        Head x{};
        x.b = b, x.h = h, x.batch = a.starts ? 0 : b, x.first = a.starts ? a.starts[b] : 0;
        x.keys = a.starts ? a.starts[b + 1] - x.first : a.N, x.queries = a.starts ? x.keys : a.M;
        x.n = x.keys;
        if (a.mask) {
            const uint8_t* mask = a.mask + b * a.mask_strides[0] + h * a.mask_strides[1];
            // A contiguous mask that is equal for all queries
            if (a.mask_strides[2] == 0 && a.mask_strides[3] == 1) {
                x.key_mask = mask;
                while (x.n > 0 && !mask[x.n - 1]) x.n--;
            } else {
                x.mask = mask;
            }
        }
        x.width = round_up(x.n, NR);
        x.k = rows_of(at(a.k, a.k_strides, x.batch, h, x.first), a.k_strides[2], x.n, scratch[KROWS], x.ldk);
        x.v = rows_of(at(a.v, a.v_strides, x.batch, h, x.first), a.v_strides[2], x.n, scratch[VROWS], x.ldv);
        x.positions = a.positions ? a.positions + b * a.M : nullptr;
        x.c_table = K_x ? K_x + h * table_size : nullptr, x.p_table = Q_x ? Q_x + h * table_size : nullptr;
        pack_transposed(x.k, x.ldk, x.n, words, 1.0f, x.kt = scratch[KT].get(x.width * words + 1));
        if (a.bias) {  // by key - query, with room for the padding of tiles
            const long max_distance = x.keys + TILE + 8;
            x.bias = scratch[BIAS].get(2 * max_distance + 1) + max_distance;
            const float* bias = a.bias + h * (2 * a.middle + 1) + a.middle;
            for (long u = -max_distance; u <= max_distance; u++)
                x.bias[u] = LOG2E / softmax_factor() * bias[std::clamp<long>(-u, -a.middle, a.middle)];
        }
        x.key = mix(a.seed ^ mix(b * a.H + h));
        x.ldp = p_plan.width(), x.ldc = c_plan.width();
        x.C = scratch[CT].get(TILE * x.ldc + 16);
        x.low = scratch[FAR].get(2 * x.width + 16), x.high = x.low + x.width + 8;
        return x;
    }

    bool hidden(const Head& x, long j) const { return j >= x.n || (x.key_mask && !x.key_mask[j]); }

    // Compute P for keys near any of the queries i0 ... i1 - 1, and one number for each key that is far from some of them
    void p2c(Head& x, long i0, long i1) const {
        const long max_distance = p_plan.max_distance, n = x.n;
        if (!x.p_table) {
            for (long j = 0; j < x.width; j++) x.low[j] = x.high[j] = hidden(x, j) ? MASKED : 0.0f;
            return;
        }
        long q0 = i0, q1 = i1;
        x.near0 = 0, x.near1 = x.width;
        if (x.positions) {
            q0 = 0, q1 = x.keys;
        } else {
            x.near0 = floor_to(std::max(0l, i0 - max_distance - 8), MR * 8);
            x.near1 = std::min(x.width, round_up(i1 + TILE + max_distance + 8, 8));
        }
        x.near0 = std::min(x.near0, x.near1);
        x.P = scratch[PS].get((x.near1 - x.near0 + MR + 8) * x.ldp + 16);
        float* tail = scratch[TAIL].get(MR * words);
        for (long j0 = x.near0; j0 < std::min(x.near1, n); j0 += 8 * MR) {
            const long j1 = std::min(j0 + 8 * MR, round_up(std::min(x.near1, n), MR));
            const long first = p_plan.row(q0 - (j1 - 1)) / NR, last = p_plan.row(q1 - 1 - j0) / NR;
            for (long panel = first; panel <= last; panel++)
                for (long j = j0; j < j1; j += MR) {
                    if (p_plan.row(q1 - 1 - j) < panel * NR || p_plan.row(q0 - (j + MR - 1)) >= (panel + 1) * NR) continue;
                    const float* rows = x.k + j * x.ldk;
                    long ld = x.ldk;
                    if (j + MR > n) {
                        memset(tail, 0, MR * words * 4);
                        for (long r = 0; r < n - j; r++) memcpy(tail + r * words, rows + r * x.ldk, words * 4);
                        rows = tail, ld = words;
                    }
                    float* to = x.P + (j - x.near0) * x.ldp + panel * NR;
                    multiply<false>(rows, ld, x.p_table + panel * NR * words, words, to, x.ldp);
                }
        }
        if (!x.positions && x.keys > max_distance) {
            // One row of the table with each key: a product of a column of the packed table with the packed keys
            const auto far = [&](long row, long j0, long j1, float* to) {
                const float* column = x.p_table + row / NR * NR * words + row % NR;
                for (long j = floor_to(std::max(j0, 0l), NR); j < std::min(j1, x.width); j += VW) {
                    const float* keys = x.kt + j / NR * NR * words + j % NR;
                    vf sum{};
                    for (long t = 0; t < words; t++) {
                        if (pairs) {
                            const vu y = vu{} + load<uint32_t>(column + t * NR), z = load<vu>(keys + t * NR);
                            sum += (vf)(y << 16) * (vf)(z << 16) + (vf)(y & 0xFFFF0000u) * (vf)(z & 0xFFFF0000u);
                        } else {
                            sum += column[t * NR] * load<vf>(keys + t * NR);
                        }
                    }
                    store(to + j, sum);
                }
            };
            far(0, i0 + max_distance - 8, x.width, x.low);
            far(p_plan.rows - 1, 0, i1 + TILE - max_distance + 8, x.high);
        }
        for (long j = 0; j < x.width; j++)
            if (hidden(x, j)) {
                x.low[j] = x.high[j] = MASKED;
                if (j >= x.near0 && j < x.near1) std::fill_n(x.P + (j - x.near0) * x.ldp, x.ldp, MASKED);
            }
    }

    // First and last distance key - query of a tile
    void distances(const Head& x, long i0, long rows, long& first, long& last) const {
        long low = i0, high = i0 + rows - 1;
        if (x.positions) {
            low = *std::min_element(x.positions + i0, x.positions + i0 + rows);
            high = *std::max_element(x.positions + i0, x.positions + i0 + rows);
        }
        first = -high, last = x.width - 1 - low;
    }

    // C[rows, D] = Q K_r^T, only for rows of the table that the tile reads; returns the computed columns
    void c2p(const Head& x, const float* Q, long i0, long rows, long padded, long& c0, long& c1) const {
        c0 = c1 = 0;
        if (!x.c_table) return;
        long first, last;
        distances(x, i0, rows, first, last);
        c0 = c_plan.row(first - (padded - rows)) / NR * NR, c1 = round_up(c_plan.row(last) + 1, NR);
        for (long c = c0; c < c1; c += NR)
            for (long r = 0; r < padded; r += MR) {
                if (!x.positions && (c_plan.row(last - r) < c || c_plan.row(-(i0 + r + MR - 1)) >= c + NR)) continue;
                multiply<false>(Q + r * words, words, x.c_table + c * words, words, x.C + r * x.ldc + c, x.ldc);
            }
    }

    bool is_far(long u0, long rows) const { return u0 - (rows - 1) >= c_plan.max_distance || u0 + 7 <= -c_plan.max_distance; }

    // S[rows, columns] += c2p + p2c + p2p for queries i0 ... and keys j0 ..., 8 x 8 at a time, so that few rows of P stay in L1
    void add_positions(const Head& x, float* S, long i0, long rows, long j0, long columns) const {
        if (x.positions) add_at_positions(x, S, i0, rows, j0, columns);
        else if (x.c_table && x.p_table) add_terms<true, true>(x, S, i0, round_up(rows, 8), j0, columns);
        else if (x.c_table) add_terms<true, false>(x, S, i0, round_up(rows, 8), j0, columns);
        else if (x.p_table) add_terms<false, true>(x, S, i0, round_up(rows, 8), j0, columns);
        else if (x.key_mask || j0 + columns > x.n)
            for (long r = 0; r < rows; r++)
                for (long j = 0; j < columns; j += 8)
                    store(S + r * LDS + j, load<v8>(S + r * LDS + j) + load<v8>(x.low + j0 + j));
        if (x.bias)
            for (long r = 0; r < rows; r++) {
                const float* bias = x.bias + j0 - (x.positions ? x.positions[i0 + r] : i0 + r);
                for (long j = 0; j < columns; j += 8) store(S + r * LDS + j, load<v8>(S + r * LDS + j) + load<v8>(bias + j));
            }
        if (x.mask)
            for (long r = 0; r < rows; r++) {
                const uint8_t* mask = x.mask + (i0 + r) * a.mask_strides[2] + j0 * a.mask_strides[3];
                const long step = a.mask_strides[3];
                for (long j = 0; j < std::min(columns, x.n - j0); j++) S[r * LDS + j] = mask[j * step] ? S[r * LDS + j] : MASKED;
            }
    }

    template <bool C2P, bool P2C>
    void add_terms(const Head& x, float* S, long i0, long rows, long j0, long columns) const {
        const long max_distance = p_plan.max_distance + Plan::MARGIN;
        for (long j = 0; j < columns; j += 8) {
            const long u0 = j0 + j - i0;  // first key - first query
            if (is_far(u0, rows)) {
                const v8 far = load<v8>((u0 > 0 ? x.low : x.high) + j0 + j);
                const float* c = x.C + (u0 > 0 ? c_plan.rows - 1 : 0);
                for (long r = 0; r < rows; r++)
                    store(S + r * LDS + j, load<v8>(S + r * LDS + j) + (C2P ? far + c[r * x.ldc] : far));
                continue;
            }
            for (long r = 0; r < rows; r += 8) {
                const long u = u0 - r;
                v8 y[8];
                if (P2C) {
                    const float* P = x.P + (j0 + j - x.near0) * x.ldp;
#pragma GCC unroll 8
                    for (int e = 0; e < 8; e++) {
                        y[e] = p_plan.expand(P + e * x.ldp, -(u + e));
                        __builtin_prefetch(P + (8 + e) * x.ldp + p_plan.base[max_distance - (u + e)]);
                    }
                    transpose8(y);
                } else {
#pragma GCC unroll 8
                    for (int e = 0; e < 8; e++) y[e] = load<v8>(x.low + j0 + j);
                }
                float* s = S + r * LDS + j;
                if (C2P)
#pragma GCC unroll 8
                    for (int e = 0; e < 8; e++) y[e] += c_plan.expand(x.C + (r + e) * x.ldc, u - e);
#pragma GCC unroll 8
                for (int e = 0; e < 8; e++) store(s + e * LDS, load<v8>(s + e * LDS) + y[e]);
            }
        }
    }

    // As add_positions, for queries at any positions: the p2c terms of adjacent keys are in different rows of P
    void add_at_positions(const Head& x, float* S, long i0, long rows, long j0, long columns) const {
        for (long r = 0; r < rows; r++) {
            const long i = x.positions[i0 + r];
            float* s = S + r * LDS;
            for (long j = 0; j < columns; j += 8) {
                v8 y = x.p_table ? v8{} : load<v8>(x.low + j0 + j);
                if (x.p_table)
                    for (int e = 0; e < 8; e++) y[e] = x.P[(j0 + j + e) * x.ldp + p_plan.row(i - (j0 + j + e))];
                if (x.c_table) y += c_plan.expand(x.C + r * x.ldc, c_plan.clamped(j0 + j - i));
                store(s + j, load<v8>(s + j) + y);
            }
        }
    }

    // -- dropout

    uint64_t row_key(const Head& x, long i) const { return mix(x.key + i); }
    int32_t threshold() const { return int32_t(std::min<double>(a.dropout, 1) * 2147483647); }
    float kept() const { return a.dropout < 1.0f ? 1.0f / (1.0f - a.dropout) : 0.0f; }
    // All bits are ones where keys j, j + 1, ... are kept
    static vi keeps(uint64_t key, long j, int32_t threshold) {
        vu x;
        for (int e = 0; e < VW; e++) x[e] = e;
        x = (x + uint32_t(j)) * 0x9E3779B1u + uint32_t(key);
        x = (x ^ (x >> 16)) * 0x7FEB352Du;
        x ^= uint32_t(key >> 32);
        x = (x ^ (x >> 15)) * 0x846CA68Bu;
        return (vi)((x ^ (x >> 16)) >> 1) >= threshold;
    }

    // -- forward

    // To bfloat16, a half away from zero; NaN stays NaN
    static vh rounded(vf x) { return __builtin_convertvector(((vu)x + 0x8000u) >> 16, vh); }

    float softmax_factor() const { return pairs ? factor : 1.0f; }

    // S -> 2^(factor (S - max)), in pairs at the beginning of the row, with the running maximum, sum and output of a row
    void softmax(float* S, long columns, float& top, float& sum, float* O, uint64_t key, long j0) const {
        vf m0 = load<vf>(S), m1 = m0;
        for (long j = 0; j < columns; j += 2 * VW) {
            const vf x = load<vf>(S + j), y = load<vf>(S + j + VW);
            m0 = x > m0 ? x : m0, m1 = y > m1 ? y : m1;
        }
        m0 = m0 > m1 ? m0 : m1;
        float best = top;
        for (int e = 0; e < VW; e++) best = std::max(best, m0[e]);
        vf s0{}, s1{};
        const int32_t limit = threshold();
        for (long j = 0; j < columns; j += 2 * VW) {
            vf x = load<vf>(S + j) - best, y = load<vf>(S + j + VW) - best;
            if (pairs) x *= factor, y *= factor;
            x = exp2v<pairs>(x), y = exp2v<pairs>(y);
            s0 += x, s1 += y;
            if (a.dropout > 0) {
                x = (vf)((vi)x & keeps(key, j0 + j, limit)), y = (vf)((vi)y & keeps(key, j0 + j + VW, limit));
            }
            if (pairs) {
                auto* weights = reinterpret_cast<uint16_t*>(S) + j;
                store(weights, rounded(x)), store(weights + VW, rounded(y));
            } else {
                store(S + j, x), store(S + j + VW, y);
            }
        }
        const float total = sum_of(s0 + s1);
        if (best > top && sum > 0) {
            const float factor = std::exp2(softmax_factor() * (top - best));
            sum *= factor;
            for (long t = 0; t < d; t += VW) store(O + t, load<vf>(O + t) * factor);
        }
        top = best, sum += total;
    }

    // Compute queries first ... last - 1 of a head; both are multiples of TILE or the end
    void forward(long b, long h, long first, long last) const {
        Head x = head(b, h);
        last = std::min(last, x.queries);
        if (first >= last) return;
        const long step = pairs ? 2 : 1, height = x.width / step;
        float* vp = scratch[VT].get(height * d + 1);  // [d / NR][height][NR]; for pairs, a word has two keys
        const auto values = [&](long j, long t) {
            const auto* row = reinterpret_cast<const char*>(x.v + j * x.ldv);
            return j < x.n ? __builtin_convertvector(load<vh>(row + 2 * t), vu) : vu{};
        };
        for (long t = 0; t < d; t += NR)
            for (long j = 0; j < x.width; j += step) {
                float* to = vp + t * height + j / step * NR;
                if (pairs)
                    for (long e = 0; e < NR; e += VW) store(to + e, values(j, t + e) | values(j + 1, t + e) << 16);
                else
                    for (long e = 0; e < NR; e += VW) store(to + e, j < x.n ? load<vf>(x.v + j * x.ldv + t + e) : vf{});
            }
        float *Q = scratch[QT].get(TILE * d), *S = scratch[ST].get(TILE * LDS), *O = scratch[OT].get(TILE * d);
        for (long i0 = first; i0 < last; i0 += TILE) {
            if ((i0 - first) % CHUNK == 0) p2c(x, i0, std::min(i0 + CHUNK, last));
            const long rows = std::min(TILE, last - i0), padded = round_up(rows, MR);
            load_tile(at(a.q, a.q_strides, x.batch, h, x.first + i0), a.q_strides[2], rows, Q, factor);
            long c0, c1;
            c2p(x, Q, i0, rows, padded, c0, c1);
            memset(O, 0, TILE * d * 4);
            float top[TILE], sum[TILE];
            std::fill_n(top, TILE, MASKED), std::fill_n(sum, TILE, 0.0f);
            for (long j0 = 0; j0 < x.width; j0 += BLOCK) {
                const long columns = std::min(BLOCK, x.width - j0);
                for (long j = 0; j < columns; j += NR)
                    for (long r = 0; r < padded; r += MR)
                        multiply<false>(Q + r * words, words, x.kt + (j0 + j) * words, words, S + r * LDS + j, LDS);
                add_positions(x, S, i0, rows, j0, columns);
                for (long r = 0; r < rows; r++)
                    softmax(S + r * LDS, columns, top[r], sum[r], O + r * d, row_key(x, i0 + r), j0);
                for (long t = 0; t < d; t += NR)
                    for (long r = 0; r < padded; r += MR) {
                        const float* panel = vp + t * height + j0 / step * NR;
                        multiply<true>(S + r * LDS, LDS, panel, columns / step, O + r * d + t, d);
                    }
            }
            for (long r = 0; r < rows; r++) {
                const float factor = a.dropout > 0 ? kept() : 1.0f;
                // A fully masked row gives zeros; NaN stays NaN.
                const bool blind = top[r] <= 0.5f * MASKED && sum[r] == sum[r];
                if (blind) memset(O + r * d, 0, d * 4);
                write(O + r * d, at(a.out, a.out_strides, x.batch, h, x.first + i0 + r), blind ? 0.0f : factor / sum[r]);
                if (a.lse) a.lse[lse_index(x) + i0 + r] = blind ? -INFINITY : softmax_factor() * top[r] + std::log2(sum[r]);
            }
        }
    }

    long lse_index(const Head& x) const { return a.starts ? x.h * a.M + x.first : (x.b * a.H + x.h) * a.M; }

    // Copy rows of a tile in float32, times a factor, or in pairs without the factor; pad with zeros
    void load_tile(const char* from, long stride, long rows, float* to, float factor) const {
        for (long r = 0; r < TILE; r++) {
            if (r >= rows) {
                memset(to + r * words, 0, words * 4);
                continue;
            }
            read(from + r * stride * (a.dtype == FLOAT32 ? 4 : 2), to + r * words);
            if (factor != 1.0f && !pairs)
                for (long t = 0; t < d; t += VW) store(to + r * d + t, load<vf>(to + r * d + t) * factor);
        }
    }

    // -- backward
    //
    // With W the probabilities and M their dropout: dV = (W M)^T dO, dS = scale W (M dO V^T - rowsum(dO out)), dQ = dS K,
    // dK = dS^T Q; dS is collected by distinct rows into dC (c2p) and dP (p2c), then dQ += dC K_r, dK_r = dC^T Q, dK += dP Q_r,
    // dQ_r = dP^T K.

    // c[m, d] += a[m, k] b[k, d], b and c with rows of d; rows m up to the next multiple of MR are written too
    void product(const float* x, long lda, long step, const float* y, long m, long k, float* c) const {
        for (long t = 0; t < d; t += NR)
            for (long r = 0; r < m; r += MR) micro<true>(x + r * lda, lda, y + t, d, k, c + r * d + t, d, step);
    }

    // Rows of the tables' gradients that one task sums
    long sum_rows() const { return std::max(c_plan.width(), p_plan.width()) + MR; }
    long sum_size() const { return 2 * sum_rows() * d + (a.d_bias ? 2 * a.middle + 1 : 0); }

    // Compute queries first ... last - 1 of a head; add to dk and dv [keys, d] and to the sums of the tables' gradients.
    void backward(long b, long h, long first, long last, float* dk, float* dv, float* sums) const {
        Head x = head(b, h);
        last = std::min(last, x.queries);
        if (first >= last) return;
        float *d_K_x = sums, *d_Q_x = sums + sum_rows() * d, *d_bias = d_Q_x + sum_rows() * d;
        const long tall = round_up(x.width, MR) + MR;
        float* vt = scratch[VT].get(x.width * d + 1);
        pack_transposed(x.v, x.ldv, x.n, d, 1.0f, vt);
        float* kr = scratch[KALL].get(tall * d);  // contiguous keys, padded with zeros
        for (long j = 0; j < x.n; j++) memcpy(kr + j * d, x.k + j * x.ldk, d * 4);
        memset(kr + x.n * d, 0, (tall - x.n) * d * 4);
        // The tables in the order of the plans
        const float* K_rows = x.c_table ? table_rows(a.K_r, a.K_r_strides, h, c_plan, scratch[KTAB]) : nullptr;
        const float* Q_rows = x.p_table ? table_rows(a.Q_r, a.Q_r_strides, h, p_plan, scratch[QTAB]) : nullptr;
        float* dC = scratch[DCS].get(TILE * x.ldc + 16);
        float *Q = scratch[QT].get(TILE * d), *Qn = scratch[QN].get(TILE * d), *G = scratch[GT].get(TILE * d);
        float *dQ = scratch[DQS].get(TILE * d), *O = scratch[OT].get(TILE * d);
        float *S = scratch[ST].get(TILE * LDS), *dS = scratch[DST].get(TILE * LDS), *dP = nullptr;
        float* db = nullptr;
        const long bias_reach = x.keys + TILE + 8;
        if (a.d_bias) db = scratch[DBIAS].zeros(2 * bias_reach + 1) + bias_reach;
        const int32_t limit = threshold();
        const float kept = this->kept();
        for (long i0 = first; i0 < last; i0 += TILE) {
            const bool begins = (i0 - first) % CHUNK == 0, ends = (i0 + TILE - first) % CHUNK == 0 || i0 + TILE >= last;
            if (begins) {
                p2c(x, i0, std::min(i0 + CHUNK, last));
                if (x.p_table) {
                    dP = scratch[DPS].zeros((x.near1 - x.near0 + MR + 8) * x.ldp + 16);
                    x.d_low = scratch[DFAR].zeros(2 * x.width + 16), x.d_high = x.d_low + x.width + 8;
                }
            }
            const long rows = std::min(TILE, last - i0), padded = round_up(rows, MR);
            load_tile(at(a.q, a.q_strides, x.batch, h, x.first + i0), a.q_strides[2], rows, Qn, 1.0f);
            load_tile(at(a.d_out, a.d_out_strides, x.batch, h, x.first + i0), a.d_out_strides[2], rows, G, 1.0f);
            load_tile(at(a.out, a.out_strides, x.batch, h, x.first + i0), a.out_strides[2], rows, O, 1.0f);
            float inner[TILE], lse[TILE];
            for (long r = 0; r < TILE; r++) {
                vf sum{};
                for (long t = 0; t < d; t += VW) {
                    store(Q + r * d + t, load<vf>(Qn + r * d + t) * factor);
                    sum += load<vf>(G + r * d + t) * load<vf>(O + r * d + t);
                }
                inner[r] = sum_of(sum);
                lse[r] = r < rows ? a.lse[lse_index(x) + i0 + r] : -INFINITY;
                if (lse[r] == -INFINITY) lse[r] = INFINITY;  // fully masked
            }
            long c0, c1;
            c2p(x, Q, i0, rows, padded, c0, c1);
            if (x.c_table) memset(dC, 0, (TILE * x.ldc + 16) * 4);
            memset(dQ, 0, TILE * d * 4);
            for (long j0 = 0; j0 < x.width; j0 += BLOCK) {
                const long columns = std::min(BLOCK, x.width - j0);
                for (long j = 0; j < columns; j += NR)
                    for (long r = 0; r < padded; r += MR) {
                        micro<false>(Q + r * d, d, x.kt + (j0 + j) * d, NR, d, S + r * LDS + j, LDS);
                        micro<false>(G + r * d, d, vt + (j0 + j) * d, NR, d, dS + r * LDS + j, LDS);
                    }
                add_positions(x, S, i0, rows, j0, columns);
                for (long r = 0; r < padded; r++) {
                    float *s = S + r * LDS, *g = dS + r * LDS;
                    if (lse[r] == INFINITY) {
                        memset(s, 0, columns * 4), memset(g, 0, columns * 4);
                        continue;
                    }
                    const uint64_t key = row_key(x, i0 + r);
                    for (long j = 0; j < columns; j += VW) {
                        const vf w = exp2v(load<vf>(s + j) - lse[r]);
                        vf dropped = w, back = load<vf>(g + j);
                        if (a.dropout > 0) {
                            const vi keep = keeps(key, j0 + j, limit);
                            dropped = (vf)((vi)(w * kept) & keep), back = (vf)((vi)(back * kept) & keep);
                        }
                        store(s + j, dropped), store(g + j, w * ((back - inner[r]) * a.scale));
                    }
                }
                for (long r = padded; r < TILE; r++) memset(S + r * LDS, 0, columns * 4), memset(dS + r * LDS, 0, columns * 4);
                product(S, 1, LDS, G, columns, padded, dv + j0 * d);
                product(dS, 1, LDS, Qn, columns, padded, dk + j0 * d);
                product(dS, LDS, 1, kr + j0 * d, padded, columns, dQ);
                collect_positions(x, dS, dC, dP, db, i0, rows, j0, columns);
            }
            if (x.c_table) {
                product(dC + c0, x.ldc, 1, K_rows + c0 * d, padded, std::min(c1, c_plan.rows) - c0, dQ);
                product(dC + c0, 1, x.ldc, Qn, c1 - c0, padded, d_K_x + c0 * d);
            }
            for (long r = 0; r < rows; r++)
                write(dQ + r * d, at(a.d_q, a.d_q_strides, x.batch, h, x.first + i0 + r));
            if (!ends || !x.p_table) continue;
            const long chunk = floor_to(i0 - first, CHUNK) + first;  // where the chunk begins
            const long q0 = x.positions ? 0 : chunk, q1 = x.positions ? x.keys : i0 + rows;
            for (long j0 = x.near0; j0 < std::min(x.near1, x.n); j0 += 8 * MR) {  // table rows that these keys read
                const long j1 = std::min({j0 + 8 * MR, x.near1, x.n});
                const long p0 = p_plan.row(q0 - (j1 - 1)) / NR * NR, p1 = round_up(p_plan.row(q1 - 1 - j0) + 1, NR);
                const float* from = dP + (j0 - x.near0) * x.ldp + p0;
                product(from, x.ldp, 1, Q_rows + p0 * d, j1 - j0, std::min(p1, p_plan.rows) - p0, dk + j0 * d);
                product(from, 1, x.ldp, kr + j0 * d, p1 - p0, j1 - j0, d_Q_x + p0 * d);
            }
            if (x.positions || x.keys <= p_plan.max_distance) continue;
            const auto far = [&](const float* gradient, long row, long j0, long j1) {
                for (long j = std::max(j0, 0l); j < std::min(j1, x.n); j++)
                    for (long t = 0; t < d; t += VW) {
                        float *key = dk + j * d + t, *table = d_Q_x + row * d + t;
                        store(key, load<vf>(key) + gradient[j] * load<vf>(Q_rows + row * d + t));
                        store(table, load<vf>(table) + gradient[j] * load<vf>(kr + j * d + t));
                    }
            };
            far(x.d_low, 0, chunk + p_plan.max_distance - 8, x.n);
            far(x.d_high, p_plan.rows - 1, 0, i0 + TILE - p_plan.max_distance + 8);
        }
        // Products write up to MR additional rows.
        memset(dk + x.n * d, 0, (tall - x.n) * d * 4), memset(dv + x.n * d, 0, (tall - x.n) * d * 4);
        if (db)
            for (long u = -bias_reach; u <= bias_reach; u++)
                if (u >= -a.middle && u <= a.middle) d_bias[a.middle - u] += db[u] / a.scale;
    }

    void write_keys(long b, long h, const float* dk, const float* dv) const {
        const long first = a.starts ? a.starts[b] : 0, keys = a.starts ? a.starts[b + 1] - first : a.N, batch = a.starts ? 0 : b;
        for (long j = 0; j < keys; j++) {
            write(dk + j * d, at(a.d_k, a.d_k_strides, batch, h, first + j));
            write(dv + j * d, at(a.d_v, a.d_v_strides, batch, h, first + j));
        }
    }
    void write_tables(long h, const float* sums) const {
        const auto add = [&](float* to, const Plan& plan, const float* from) {
            if (!to) return;
            for (long r = 0; r < plan.rows; r++)
                for (long t = 0; t < a.d; t++) to[(h * a.R + plan.order[r]) * a.d + t] += from[r * d + t];
        };
        add(a.d_K_r, c_plan, sums), add(a.d_Q_r, p_plan, sums + sum_rows() * d);
        if (a.d_bias)
            for (long u = 0; u < 2 * a.middle + 1; u++) a.d_bias[h * (2 * a.middle + 1) + u] += sums[2 * sum_rows() * d + u];
    }

    // The transpose of add_positions
    void collect_positions(const Head& x, const float* dS, float* dC, float* dP, float* db, long i0, long rows, long j0,
                           long columns) const {
        if (db)
            for (long r = 0; r < rows; r++) {
                float* bias = db + j0 - (x.positions ? x.positions[i0 + r] : i0 + r);
                for (long j = 0; j < columns; j += 8) store(bias + j, load<v8>(bias + j) + load<v8>(dS + r * LDS + j));
            }
        if (!x.c_table && !x.p_table) return;
        if (x.positions) {
            for (long r = 0; r < rows; r++)
                for (long j = 0; j < columns; j += 8) {
                    const v8 y = load<v8>(dS + r * LDS + j);
                    const long i = x.positions[i0 + r];
                    if (x.c_table) c_plan.collect(dC + r * x.ldc, c_plan.clamped(j0 + j - i), y);
                    if (x.p_table)
                        for (int e = 0; e < 8; e++) dP[(j0 + j + e) * x.ldp + p_plan.row(i - (j0 + j + e))] += y[e];
                }
            return;
        }
        rows = round_up(rows, 8);
        v8 sums[2][TILE];  // sums over far keys before and after
        bool any[2] = {false, false};
        for (long j = 0; j < columns; j += 8) {
            const long u0 = j0 + j - i0;
            if (is_far(u0, rows)) {
                v8 keys{}, *sum = sums[u0 > 0];
                if (!any[u0 > 0]) std::fill_n(sum, rows, keys);
                any[u0 > 0] = true;
                for (long r = 0; r < rows; r++) {
                    const v8 y = load<v8>(dS + r * LDS + j);
                    keys += y, sum[r] += y;
                }
                float* far = (u0 > 0 ? x.d_low : x.d_high) + j0 + j;
                if (x.p_table) store(far, load<v8>(far) + keys);
                continue;
            }
            for (long r = 0; r < rows; r += 8) {
                const long u = u0 - r;
                v8 y[8];
                for (int e = 0; e < 8; e++) y[e] = load<v8>(dS + (r + e) * LDS + j);
                if (x.c_table)
                    for (int e = 0; e < 8; e++) c_plan.collect(dC + (r + e) * x.ldc, u - e, y[e]);
                if (!x.p_table) continue;
                transpose8(y);
                for (int e = 0; e < 8; e++) p_plan.collect(dP + (j0 + j + e - x.near0) * x.ldp, -(u + e), y[e]);
            }
        }
        for (int side = 0; side < 2; side++)
            if (x.c_table && any[side])
                for (long r = 0; r < rows; r++) dC[r * x.ldc + (side ? c_plan.rows - 1 : 0)] += sum_of(sums[side][r]);
    }
};

// ---- a call ----------------------------------------------------------------------------------------------------------------

template <bool pairs> int64_t run(const Arguments& a, bool backward, bool amx = false) {
    long longest = a.N;
    if (a.starts) {
        longest = 0;
        for (long b = 0; b < a.B; b++) {
            if (a.starts[b] < 0 || a.starts[b + 1] < a.starts[b] || a.starts[b + 1] > a.N) return NOT_SERVED;
            longest = std::max<long>(longest, a.starts[b + 1] - a.starts[b]);
        }
    }
    const long queries = a.starts ? longest : a.M;
    if (a.B * a.H == 0 || queries == 0) return DONE;
    if (a.delta && longest > a.middle + 1) return NOT_SERVED;
    for (long i = 0; a.positions && i < a.B * a.M; i++)
        if (a.positions[i] < 0 || a.positions[i] >= a.N) return NOT_SERVED;
    const Worker<pairs> worker(a, longest, amx);
    for (const Plan* plan : {&worker.c_plan, &worker.p_plan})
        for (long row : plan->order)
            if (row < 0 || row >= a.R) return NOT_SERVED;
    // One thread finishes a small amount of work before other threads would wake up.
    const double products = double(a.B) * a.H * queries * longest * a.d;
    const long threads = products < 3e5 ? 1 : std::max<int64_t>(1, a.threads);
    // The queries of a head are split into parts if there are fewer than two heads (of any sequence) per thread.
    const long heads = a.B * a.H, tiles = (queries + TILE - 1) / TILE;
    const long splits = heads >= 2 * threads ? 1 : std::min((2 * threads + heads - 1) / heads, tiles);
    const long part = round_up((queries + splits - 1) / splits, TILE);
    bool done = parallel(a.H, threads, [&](long h) { worker.pack_tables(h); });
    if (pairs || !backward) {
        done = done && parallel(heads * splits, threads, [&](long task) {
            const long split = task % splits, b = task / splits % a.B, h = task / splits / a.B;
#if VW == 16 && defined(TILE_PRODUCTS)
            std::optional<Tiles> configured;
            if (amx) configured.emplace();
#endif
            worker.forward(b, h, split * part, (split + 1) * part);
        });
        return done ? DONE : NO_MEMORY;
    }

    // A task processes sequences, or parts of sequences, of one head. Sums over tasks have a fixed order, so that results
    // depend only on the number of threads.
    const long units = a.B * splits, groups = std::min<long>(units, a.H >= 2 * threads ? 1 : (2 * threads + a.H - 1) / a.H);
    const long sum_size = worker.sum_size(), rows = round_up(round_up(longest, NR), MR) + MR, keys_size = 2 * rows * worker.d;
    float* sums = groups > 1 ? shared_sums.zeros(a.H * groups * sum_size) : nullptr;
    float* keys = splits > 1 ? shared_keys.zeros(heads * splits * keys_size) : nullptr;
    done = done && parallel(a.H * groups, threads, [&](long task) {
        const long h = task / groups, group = task % groups;
        float* sum = sums ? sums + task * sum_size : scratch[SUMS].zeros(sum_size);
        for (long unit = group * units / groups; unit < (group + 1) * units / groups; unit++) {
            const long b = unit / splits, split = unit % splits;
            float* dk = keys ? keys + ((b * a.H + h) * splits + split) * keys_size : scratch[DKV].zeros(keys_size);
            worker.backward(b, h, split * part, (split + 1) * part, dk, dk + rows * worker.d, sum);
            if (!keys) worker.write_keys(b, h, dk, dk + rows * worker.d);
        }
        if (!sums) worker.write_tables(h, sum);
    });
    if (sums)
        done = done && parallel(a.H, threads, [&](long h) {
            for (long group = 0; group < groups; group++) worker.write_tables(h, sums + (h * groups + group) * sum_size);
        });
    if (keys)
        done = done && parallel(heads, threads, [&](long head) {
            float* first = keys + head * splits * keys_size;
            for (long split = 1; split < splits; split++)
                for (long t = 0; t < keys_size; t++) first[t] += first[split * keys_size + t];
            worker.write_keys(head / a.H, head % a.H, first, first + rows * worker.d);
        });
    return done ? DONE : NO_MEMORY;
}

}  // namespace ISA
}  // namespace

#endif  // ISA
