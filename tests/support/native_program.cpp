// SPDX-License-Identifier: Apache-2.0
// Runs the kernel over random shapes and options, for sanitizers and emulators: every tensor lies at the end of memory of exactly
// its size. Exit status 0: all calls returned 0, all results are finite, two runs give the same bits, and every instruction set
// of this CPU the results of the generic code but for rounding. A second argument prints the size of each result and its
// projection on fixed weights, to compare with another machine.

#include KERNEL

#include <cstdio>
#include <memory>
#include <random>

static std::mt19937 random_numbers(0);

static long draw(long low, long high) { return std::uniform_int_distribution<long>(low, high)(random_numbers); }

template <class T> struct Tensor {
    std::unique_ptr<T[]> x;
    size_t n;
    explicit Tensor(size_t n) : x(new T[n]()), n(n) {}
    Tensor& normal(bool half) {
        std::normal_distribution<float> normal;
        for (size_t i = 0; i < n; i++) {
            const float y = normal(random_numbers);
            if (half) x[i] = (T)to_bfloat16(y);
            else memcpy(&x[i], &y, sizeof(T));
        }
        return *this;
    }
};

template <class T> static bool once(int64_t isa, bool half, bool prints) {
    const bool packed = draw(0, 3) == 0, decoded = !packed && draw(0, 3) == 0;
    const long B = draw(1, 3), H = draw(1, 3), d = draw(0, 1) ? draw(16, 128) : 16 * draw(1, 8), N = draw(0, 3) ? draw(1, 130) : draw(131, 700);
    const long max_distance = draw(1, N + 1), middle = N - 1 + draw(0, 9), R = draw(1, 2 * max_distance + 1);
    std::vector<int32_t> starts{0};
    for (long b = 0; b < B; b++) starts.push_back(starts.back() + draw(1, N));
    const long M = decoded ? draw(1, N) : packed ? starts[B] : N, keys = packed ? starts[B] : N, rows = packed ? 1 : B;
    Tensor<T> q(rows * H * M * d), k(rows * H * keys * d), v(k.n), out(q.n), d_out(q.n), d_q(q.n), d_k(k.n), d_v(k.n), K_r(H * R * d), Q_r(K_r.n);
    for (Tensor<T>* x : {&q, &k, &v, &d_out, &K_r, &Q_r}) x->normal(half);
    Tensor<float> bias(H * (2 * middle + 1)), d_bias(bias.n), d_K_r(K_r.n), d_Q_r(K_r.n), lse(rows * H * M);
    bias.normal(false);
    Tensor<int64_t> delta(2 * middle + 1), positions(B * M);
    for (long u = -middle; u <= middle; u++) delta.x[middle + u] = (std::clamp(u, -max_distance, max_distance) + max_distance) * (R - 1) / (2 * max_distance);
    for (size_t i = 0; i < positions.n; i++) positions.x[i] = draw(0, N - 1);
    const long mask_kind = packed ? 0 : draw(0, 3), mask_rows = mask_kind == 2 ? M : 1, mask_heads = mask_kind == 3 ? H : 1;
    Tensor<uint8_t> mask(B * mask_heads * mask_rows * N);
    for (size_t i = 0; i < mask.n; i++) mask.x[i] = draw(0, 3) > 0;

    Arguments a{};
    a.size = sizeof a, a.dtype = half, a.isa = isa;
    // As [B, M, H, d] transposed, as projections are.
    const auto strides = [&](int64_t* s, long length) { s[0] = length * H * d, s[1] = d, s[2] = H * d; };
    a.q = q.x.get(), a.k = k.x.get(), a.v = v.x.get(), a.out = out.x.get(), a.d_out = d_out.x.get();
    a.d_q = d_q.x.get(), a.d_k = d_k.x.get(), a.d_v = d_v.x.get();
    for (int64_t* s : {a.q_strides, a.out_strides, a.d_out_strides, a.d_q_strides}) strides(s, M);
    for (int64_t* s : {a.k_strides, a.v_strides, a.d_k_strides, a.d_v_strides}) strides(s, keys);
    const long terms = draw(0, 7);
    for (int64_t* s : {a.K_r_strides, a.Q_r_strides}) s[0] = R * d, s[1] = d;
    if (terms & 1) a.K_r = K_r.x.get(), a.d_K_r = draw(0, 3) ? d_K_r.x.get() : nullptr;
    if (terms & 2) a.Q_r = Q_r.x.get(), a.d_Q_r = draw(0, 3) ? d_Q_r.x.get() : nullptr;
    if (terms & 4) a.bias = bias.x.get(), a.d_bias = d_bias.x.get();
    if (terms) a.delta = delta.x.get(), a.middle = middle, a.max_distance = std::min(max_distance, middle + 1), a.R = terms & 3 ? R : 0;
    if (mask_kind) {
        a.mask = mask.x.get();
        const int64_t s[4] = {mask_heads * mask_rows * N, mask_heads > 1 ? mask_rows * N : 0, mask_rows > 1 ? N : 0, 1};
        memcpy(a.mask_strides, s, sizeof s);
    }
    std::unique_ptr<int32_t[]> exact(new int32_t[B + 1]);
    std::copy(starts.begin(), starts.end(), exact.get());
    if (packed) a.starts = exact.get();
    if (decoded) a.positions = positions.x.get();
    a.B = B, a.H = H, a.M = M, a.N = keys, a.d = d, a.scale = 0.1f, a.dropout = draw(0, 1) ? 0.2f : 0.0f, a.seed = draw(0, 1 << 30);
    a.threads = draw(1, 3), a.lse = lse.x.get();

    std::vector<std::vector<float>> results[3];
    const int runs = disentangled_supports(GENERIC) ? 3 : 2;
    for (int run = 0; run < runs; run++) {
        if (run == 2) a.isa = GENERIC;
        for (Tensor<float>* x : {&d_K_r, &d_Q_r, &d_bias}) std::fill(x->x.get(), x->x.get() + x->n, 0.0f);
        if (disentangled_forward(&a) || disentangled_backward(&a)) return false;
        for (Tensor<T>* x : {&out, &d_q, &d_k, &d_v}) {
            results[run].emplace_back();
            for (size_t i = 0; i < x->n; i++) results[run].back().push_back(half ? to_float(x->x[i]) : x->x[i]);
        }
        for (Tensor<float>* x : {&d_K_r, &d_Q_r, &d_bias}) results[run].emplace_back(x->x.get(), x->x.get() + x->n);
    }
    const auto size_of = [](const std::vector<float>& x) {
        float size = 0;
        for (float y : x) size = std::max(size, std::fabs(y));
        return size;
    };
    for (size_t t = 0; t < results[0].size(); t++) {
        const std::vector<float>&x = results[0][t], &generic = results[runs - 1][t];
        // Gradients of scores are differences, of which sums may cancel to zero: rounding to bfloat16 stays, by the size of dV.
        const float part = t == 1 || t == 2 ? a.scale : t > 3 ? 1.0f : 0.0f;
        const float largest = std::max(size_of(generic), half * part * size_of(results[0][3]));
        float difference = 0;
        double squares = 0, projection = 0;
        for (size_t i = 0; i < x.size(); i++) {
            if (!std::isfinite(x[i]) || x[i] != results[1][t][i]) return false;
            difference = std::max(difference, std::fabs(x[i] - generic[i]));
            squares += double(x[i]) * x[i], projection += x[i] * ((i * 2654435761u >> 16 & 1023) / 512.0 - 1);
        }
        if (prints) printf("%d %.6e %.6e\n", half, std::sqrt(squares), projection);
        if (difference > (half ? 2e-2f : 1e-4f) * largest + 1e-5f) {
            fprintf(stderr, "tensor %zu differs by %g of %g\n", t, difference, largest);
            return false;
        }
    }
    return true;
}

int main(int count, char** arguments) {
    const long cases = atol(arguments[1]);
    for (int64_t isa : {GENERIC, AVX2, AVX512, AVX512_BF16, AMX, NEON}) {
        if (!disentangled_supports(isa)) continue;
        for (long i = 0; i < cases; i++)
            if (!once<float>(isa, false, count > 2) || !once<uint16_t>(isa, true, count > 2)) return fprintf(stderr, "isa %d, case %ld\n", int(isa), i), 1;
        printf("isa %d: %ld cases\n", int(isa), 2 * cases);
    }
}
