// Integrals over balls with a small kernel network, on processors: nothing per edge is stored but its weight rho.
//
//     sums    A(x)_k = sum_y rho h(x, y)_k (v(y) - t(x)),    s(x) = sum_y rho v(y)
//     slopes  gradients of the hidden layers, given dA
//
//     h = silu(weight silu(p(x) + q(y)) + bias)
//
// gkn/ops/near.py says what rho and t are. Edges are taken in tiles of EDGES, small enough for the first cache. Vectors hold
// columns of v or hidden features, so that sums seldom run across a vector. Targets are taken in
// groups; threads fetch the next group when they are free, so a thread that has to share its core delays nobody. Every sum is
// over the same numbers in the same order for any number of threads.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int L = 16;  // floats in a vector
constexpr int WIDE = 2;  // vectors of a row of A in registers
#else
constexpr int L = 8;
constexpr int WIDE = 1;
#endif
constexpr int EDGES = 32;
constexpr int ROWS = 9;  // of A in registers

typedef float Vec __attribute__((vector_size(4 * L)));
typedef int32_t Ints __attribute__((vector_size(4 * L)));
typedef int64_t Longs __attribute__((vector_size(4 * L)));
typedef float Half __attribute__((vector_size(32)));

template <class V = Vec>
inline V load(const float* from) {
    V x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <class V>
inline void store(float* to, V x) { std::memcpy(to, &x, sizeof x); }

template <class V = Vec>
inline V all(float x) { return x - V{}; }
inline int padded(int n, int to = L) { return (n + to - 1) / to * to; }

inline Vec load(const float* from, int count) {
    if (count >= L) return load(from);
    Vec x{};
    std::memcpy(&x, from, sizeof(float) * count);
    return x;
}

// sigmoid(x) = 1 / (1 + 2^n e^r) with n an integer and |r| <= log(2) / 2, to two units in the last place. NaN stays NaN.
inline Vec sigmoid(Vec x) {
    const Vec one = all(1.0f), turn = all(-1.44269504088896341f);
#if defined(__AVX512F__)
    // of a number and NaN, NaN
    x = (Vec)_mm512_min_ps((__m512)all(80.0f), _mm512_max_ps((__m512)all(-80.0f), (__m512)x));
    const Vec n = (Vec)_mm512_roundscale_ps((__m512)(x * turn), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    x = x > all(80.0f) ? all(80.0f) : x;
    x = x < all(-80.0f) ? all(-80.0f) : x;
    const Vec magic = all(12582912.0f);  // 1.5 * 2^23: its last bits count units
    Vec n = x * turn + magic;
    const Ints power = (Ints)n << 23;
    n -= magic;
#endif
    const Vec high = all(0.693359375f), low = all(-2.12194440e-4f);  // log(2): n * high is exact
    const Vec r = -((n * high + x) + n * low);
    Vec y = all(1.9875691500e-4f);
    y = y * r + all(1.3981999507e-3f);
    y = y * r + all(8.3334519073e-3f);
    y = y * r + all(4.1665795894e-2f);
    y = y * r + all(1.6666665459e-1f);
    y = y * r + all(5.0000001201e-1f);
    y = y * r + one;
    y = y * r + one;
#if defined(__AVX512F__)
    const Vec below = one + (Vec)_mm512_scalef_ps((__m512)y, (__m512)n), near = (Vec)_mm512_rcp14_ps((__m512)below);
    return near + near * (one - below * near);
#else
    const Vec found = one / (one + (Vec)((Ints)y + power));
    return x == x ? found : x;
#endif
}

// to[r, j] += sum_e by[e, r] from[e][j] for R rows. `from` are rows of n numbers, from which `less` is subtracted.
template <int R, bool LESS>
inline void add_rows(float* to, int stride, const float* by, int by_stride, const float* const* from, const float* less, int n,
                     int edges) {
    int j = 0;
    for (; j + WIDE * L <= n; j += WIDE * L) {
        Vec sum[R][WIDE];
        Vec t[WIDE];
        for (int r = 0; r < R; r++)
            for (int w = 0; w < WIDE; w++) sum[r][w] = load(to + r * stride + j + w * L);
        if (LESS)
            for (int w = 0; w < WIDE; w++) t[w] = load(less + j + w * L);
        for (int e = 0; e < edges; e++) {
            Vec x[WIDE];
            for (int w = 0; w < WIDE; w++) {
                x[w] = load(from[e] + j + w * L);
                if (LESS) x[w] -= t[w];
            }
            for (int r = 0; r < R; r++) {
                Vec factor = all(by[e * by_stride + r]);
                for (int w = 0; w < WIDE; w++) sum[r][w] += factor * x[w];
            }
        }
        for (int r = 0; r < R; r++)
            for (int w = 0; w < WIDE; w++) store(to + r * stride + j + w * L, sum[r][w]);
    }
    for (; j < n; j += L) {
        const int count = n - j < L ? n - j : L;
        Vec t = LESS ? load(less + j, count) : Vec{};
        Vec sum[R];
        for (int r = 0; r < R; r++) sum[r] = load(to + r * stride + j, count);
        for (int e = 0; e < edges; e++) {
            Vec x = load(from[e] + j, count) - t;
            for (int r = 0; r < R; r++) sum[r] += all(by[e * by_stride + r]) * x;
        }
        for (int r = 0; r < R; r++) std::memcpy(to + r * stride + j, &sum[r], sizeof(float) * count);
    }
}

template <bool LESS>
void add_all_rows(float* to, int stride, const float* by, int by_stride, const float* const* from, const float* less, int n,
                  int edges, int rows) {
    for (int r = 0; r < rows; r += ROWS) {
        float* here = to + r * stride;
#define CASE(R) \
    case R: add_rows<R, LESS>(here, stride, by + r, by_stride, from, less, n, edges); break
        switch (rows - r < ROWS ? rows - r : ROWS) {
            CASE(1); CASE(2); CASE(3); CASE(4); CASE(5); CASE(6); CASE(7); CASE(8); CASE(9);
        }
#undef CASE
    }
}

struct Network {
    int c, k, C, K;  // sizes of the two layers; the same, padded to whole vectors and to multiples of 8
    const float *p, *q;
    std::vector<float> bias, across;  // (K) and (c, K): weight, transposed

    Network(const float* p, const float* q, const float* weight, const float* bias, int c, int k)
        : c(c), k(k), C(padded(c)), K(padded(k, 8)), p(p), q(q), bias(padded(k, 8)), across(size_t(c) * padded(k, 8)) {
        std::memcpy(this->bias.data(), bias, sizeof(float) * k);
        for (int j = 0; j < c; j++)
            for (int i = 0; i < k; i++) across[j * K + i] = weight[i * c + j];
    }
};

// Hidden features of a tile of edges: (EDGES, C) and (EDGES, K). In `open_z` and `open_h` are the sigmoids.
struct Tile {
    std::vector<float> z, Z, open_z, h, H, open_h, rho;
    std::vector<float> room;
    const float* rows[EDGES];

    explicit Tile(const Network& net) {
        for (auto* x : {&z, &Z, &open_z}) x->assign(size_t(EDGES) * net.C, 0.0f);
        for (auto* x : {&h, &H, &open_h}) x->assign(size_t(EDGES) * net.K, 0.0f);
        rho.assign(EDGES, 0.0f);
    }
};

// h before its SiLU, for the components i to i + size(V) of a tile.
template <class V>
inline void second_layer(const Network& net, const float* Z, float* h, int i, int edges) {
    constexpr int GROUP = 8;
    const int C = net.C, K = net.K, c = net.c;
    const float *across = net.across.data() + i, *bias = net.bias.data() + i;
    for (int first = 0; first < edges; first += GROUP) {
        V sum[GROUP];
        for (int g = 0; g < GROUP; g++) sum[g] = load<V>(bias);
        for (int j = 0; j < c; j++) {
            const V column = load<V>(across + j * K);
            for (int g = 0; g < GROUP; g++) sum[g] += all<V>(Z[(first + g) * C + j]) * column;
        }
        for (int g = 0; g < GROUP; g++) store(h + (first + g) * K + i, sum[g]);
    }
}

// Z and H of a tile; if SLOPES also z, h and the sigmoids.
template <bool SLOPES>
void hidden(const Network& net, Tile& tile, int64_t x, const int32_t* src, int edges) {
    const int c = net.c, C = net.C, K = net.K;
    const float* p = net.p + x * c;
    float *z = tile.z.data(), *Z = tile.Z.data(), *open_z = tile.open_z.data();
    float *h = tile.h.data(), *H = tile.H.data(), *open_h = tile.open_h.data();
    for (int j = 0; j < c; j += L) {
        const Vec of_x = load(p + j, c - j);
        for (int e = 0; e < edges; e++) {
            const Vec sum = of_x + load(net.q + int64_t(src[e]) * c + j, c - j), open = sigmoid(sum);
            store(Z + e * C + j, sum * open);
            if (SLOPES) store(z + e * C + j, sum), store(open_z + e * C + j, open);
        }
    }
    int i = 0;
    for (; i + L <= K; i += L) second_layer<Vec>(net, Z, h, i, edges);
    for (; i < K; i += 8) second_layer<Half>(net, Z, h, i, edges);
    for (int at = 0; at < edges * K; at += L) {
        const Vec sum = load(h + at), open = sigmoid(sum);
        store(H + at, sum * open);
        if (SLOPES) store(open_h + at, open);
    }
}

// Calls work(group) for all groups, on several threads.
template <class Work>
void in_parallel(int64_t groups, int threads, Work work) {
    std::atomic<int64_t> next{0};
    auto run = [&] {
        for (int64_t group; (group = next.fetch_add(1)) < groups;) work(group);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads && i < groups; i++) {
        try {
            others.emplace_back(run);
        } catch (...) {  // no thread to be had: the work is done by those there are
            break;
        }
    }
    run();
    for (auto& each : others) each.join();
}

void sums_of(const Network& net, const float* v, const float* t, const float* rho, const int64_t* ptr, const int32_t* src, float* A,
             int64_t targets, int n, int threads) {
    constexpr int64_t GROUP = 16;
    const int rows = net.k + 1, stride = net.K + 8;
    in_parallel((targets + GROUP - 1) / GROUP, threads, [&](int64_t group) {
        Tile tile(net);
        std::vector<float> by(size_t(EDGES) * stride, 0.0f);
        for (int64_t x = group * GROUP; x < targets && x < (group + 1) * GROUP; x++) {
            float* to = A + x * rows * n;
            std::memset(to, 0, sizeof(float) * rows * n);
            float mass = 0.0f;
            for (int64_t first = ptr[x]; first < ptr[x + 1]; first += EDGES) {
                const int edges = ptr[x + 1] - first < EDGES ? ptr[x + 1] - first : EDGES;
                for (int e = 0; e < edges; e++) tile.rows[e] = v + int64_t(src[first + e]) * n;
                hidden<false>(net, tile, x, src + first, edges);
                for (int e = 0; e < edges; e++) {
                    const float weight = rho[first + e];
                    for (int i = 0; i < net.K; i += 8) store(&by[e * stride + i], load<Half>(&tile.H[e * net.K + i]) * weight);
                    by[e * stride + net.k] = weight;
                    mass += weight;
                }
                if (t) add_all_rows<true>(to, n, by.data(), stride, tile.rows, t + x * n, n, edges, rows);
                else add_all_rows<false>(to, n, by.data(), stride, tile.rows, nullptr, n, edges, rows);
            }
            if (t)
                for (int j = 0; j < n; j++) to[net.k * n + j] += mass * t[x * n + j];
        }
    });
}

// dA of a target (k, n), so that two columns of PAIRS rows are one vector, and its products with t.
struct Turned {
    static constexpr int PAIRS = L / 2;
    int k, n;
    std::vector<float> pairs, last, less;  // (k / PAIRS, n / 2, L); the last column, if n is odd; (K)

    Turned(int k, int n, int K) : k(k), n(n), pairs(size_t(padded(k, PAIRS)) * n), last(K), less(K) {}

    void take(const float* dA, const float* t) {
        for (int i = 0; i < k; i++) {
            float* to = &pairs[size_t(i / PAIRS) * (n / 2) * L + i % PAIRS * 2];
            float sum = 0.0f;
            for (int j = 0; j + 1 < n; j += 2) std::memcpy(to + j / 2 * L, dA + i * n + j, 8);
            if (n % 2) last[i] = dA[i * n + n - 1];
            if (t)
                for (int j = 0; j < n; j++) sum += dA[i * n + j] * t[j];
            less[i] = sum;
        }
    }
};

inline Vec pair(const float* from) {
    int64_t both;
    std::memcpy(&both, from, 8);
    return (Vec)(both - Longs{});
}

template <int... I>
inline Vec added_pairs(Vec a, Vec b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (2 * I)...) + __builtin_shufflevector(a, b, (2 * I + 1)...);
#else  // older versions of GCC have only this one
    return __builtin_shuffle(a, b, Ints{(2 * I)...}) + __builtin_shuffle(a, b, Ints{(2 * I + 1)...});
#endif
}

// g[e, i] = sum_j dA[i, j] (v(y_e)_j - t_j). `rows` may be read past `edges`, and g is written there.
void products(float* g, int K, const Turned& dA, const float* const* rows, int edges) {
    constexpr int GROUP = 8, PAIRS = Turned::PAIRS;
    const int n = dA.n;
    for (int i = 0; i < dA.k; i += PAIRS)
        for (int e = 0; e < edges; e += GROUP) {
            const float* d = &dA.pairs[size_t(i / PAIRS) * (n / 2) * L];
            Vec sum[GROUP] = {};
            for (int j = 0; j < n / 2; j++, d += L) {
                const Vec both = load(d);
                for (int m = 0; m < GROUP; m++) sum[m] += pair(rows[e + m] + 2 * j) * both;
            }
            for (int m = 0; m < GROUP; m += 2) {
                const Vec found = added_pairs(sum[m], sum[m + 1], std::make_integer_sequence<int, L>());
                std::memcpy(g + (e + m) * K + i, &found, 4 * PAIRS);
                std::memcpy(g + (e + m + 1) * K + i, reinterpret_cast<const float*>(&found) + PAIRS, 4 * PAIRS);
            }
        }
    for (int e = 0; e < edges; e++)
        for (int i = 0; i < K; i++) g[e * K + i] += (n % 2 ? dA.last[i] * rows[e][n - 1] : 0.0f) - dA.less[i];
}

// dz = slope of the SiLU times sum_i g[e, i] down[i], for one vector of columns and the rows i to i + 8 of K.
inline void first_layer(float* dz, const float* g, const float* down, const float* z, const float* open_z, int C, int K, int i,
                        int edges) {
    Vec row[8];
    for (int r = 0; r < 8; r++) row[r] = load(down + r * C);
    for (int e = 0; e < edges; e++) {
        Vec sum = i ? load(dz + e * C) : Vec{};
        for (int r = 0; r < 8; r++) sum += all(g[e * K + r]) * row[r];
        if (i + 8 >= K) {
            const Vec open = load(open_z + e * C);
            sum *= open * (all(1.0f) + load(z + e * C) * (all(1.0f) - open));
        }
        store(dz + e * C, sum);
    }
}

// The gradients that the targets of one group add up: of weight (k, C), bias (K), and moved (f, C).
struct Slopes {
    std::vector<float> weight, bias, moved;
    Slopes(const Network& net, int f) : weight(size_t(net.k) * net.C), bias(net.K), moved(size_t(f + 1) * net.C) {}
};

void slopes_of(const Network& net, const float* weight, const float* dA, const float* fx, const float* fy, const float* v,
               const float* t, const float* rho, const int64_t* ptr, const int32_t* src, float* dp, float* means, float* dweight,
               float* dbias, float* dmoved, int64_t targets, int64_t group_size, int n, int f, int threads) {
    const int c = net.c, k = net.k, C = net.C, K = net.K;
    std::vector<float> down(size_t(K) * C);  // weight, padded
    for (int i = 0; i < k; i++) std::memcpy(&down[size_t(i) * C], weight + i * c, sizeof(float) * c);
    in_parallel((targets + group_size - 1) / group_size, threads, [&](int64_t group) {
        Tile tile(net);
        Slopes own(net, f);
        Turned turned(k, n, K);
        std::vector<float> g(size_t(EDGES) * K, 0.0f), dz(size_t(EDGES) * C, 0.0f), step(size_t(EDGES) * (f + 1)), of_x(size_t(f + 1) * C);
        const float *Zs[EDGES], *dzs[EDGES];
        for (int e = 0; e < EDGES; e++) Zs[e] = &tile.Z[e * C], dzs[e] = &dz[e * C];
        for (int64_t x = group * group_size; x < targets && x < (group + 1) * group_size; x++) {
            std::vector<float> held(K, 0.0f);
            turned.take(dA + x * k * n, t ? t + x * n : nullptr);
            std::fill(of_x.begin(), of_x.end(), 0.0f);
            for (int64_t first = ptr[x]; first < ptr[x + 1]; first += EDGES) {
                const int edges = ptr[x + 1] - first < EDGES ? ptr[x + 1] - first : EDGES;
                for (int e = 0; e < EDGES; e++) tile.rows[e] = v + int64_t(src[first + (e < edges ? e : 0)]) * n;
                hidden<true>(net, tile, x, src + first, edges);
                products(g.data(), K, turned, tile.rows, edges);
                for (int i = 0; i < K; i += 8) {
                    Half bias = load<Half>(&own.bias[i]), mean = load<Half>(&held[i]);
                    for (int e = 0; e < edges; e++) {
                        const int at = e * K + i;
                        const Half by = all<Half>(rho[first + e]), open = load<Half>(&tile.open_h[at]), one = all<Half>(1.0f);
                        const Half slope = load<Half>(&g[at]) * by * open * (one + load<Half>(&tile.h[at]) * (one - open));
                        store(&g[at], slope);
                        bias += slope;
                        mean += by * load<Half>(&tile.H[at]);
                    }
                    store(&own.bias[i], bias);
                    store(&held[i], mean);
                }
                for (int e = 0; e < edges; e++) {
                    const float* there = fy + int64_t(src[first + e]) * f;
                    for (int i = 0; i < f; i++) step[e * (f + 1) + i] = there[i] - fx[x * f + i];
                    step[e * (f + 1) + f] = 1.0f;
                }
                add_all_rows<false>(own.weight.data(), C, g.data(), K, Zs, nullptr, C, edges, k);
                for (int j = 0; j < C; j += L)
                    for (int i = 0; i < K; i += 8) first_layer(&dz[j], &g[i], &down[i * C + j], &tile.z[j], &tile.open_z[j], C, K, i, edges);
                add_all_rows<false>(of_x.data(), C, step.data(), f + 1, dzs, nullptr, C, edges, f + 1);
            }
            std::memcpy(dp + x * c, &of_x[size_t(f) * C], sizeof(float) * c);
            for (size_t i = 0; i < size_t(f) * C; i++) own.moved[i] += of_x[i];
            std::memcpy(means + x * k, held.data(), sizeof(float) * k);
        }
        for (int i = 0; i < k; i++) std::memcpy(dweight + (group * k + i) * c, &own.weight[size_t(i) * C], sizeof(float) * c);
        std::memcpy(dbias + group * k, own.bias.data(), sizeof(float) * k);
        for (int j = 0; j < c; j++)
            for (int i = 0; i < f; i++) dmoved[(group * c + j) * f + i] = own.moved[size_t(i) * C + j];
    });
}

}  // namespace

extern "C" {

// rho(e) = w(y) window(x, y) / sum_y w(y) window(x, y), with the window (1 - |x - y|^2)^2 in the unit ball and 0 outside, or with
// the windows that rho holds already. 0 where the sum is tiny. w may be null.
void gkn_near_measure(const float* at, const float* of, const float* weights, const int64_t* ptr, const int32_t* src, float* rho,
                      int64_t targets, int64_t dim, int64_t given, int64_t threads) {
    constexpr int64_t GROUP = 256;
    in_parallel((targets + GROUP - 1) / GROUP, threads, [&](int64_t group) {
        for (int64_t x = group * GROUP; x < targets && x < (group + 1) * GROUP; x++) {
            double mass = 0;
            for (int64_t e = ptr[x]; e < ptr[x + 1]; e++) {
                float left = 1.0f;
                for (int64_t i = 0; i < dim; i++) {
                    const float step = at[x * dim + i] - of[src[e] * dim + i];
                    left -= step * step;
                }
                if (!given) rho[e] = left < 0 ? 0.0f : left * left;
                if (weights) rho[e] *= weights[src[e]];
                mass += rho[e];
            }
            const float by = mass > 1.17549435e-38f ? 1 / mass : mass == mass ? 0.0f : mass;
            for (int64_t e = ptr[x]; e < ptr[x + 1]; e++) rho[e] *= by;
        }
    });
}

void gkn_near_sums(const float* p, const float* q, const float* weight, const float* bias, const float* v, const float* t,
                   const float* rho, const int64_t* ptr, const int32_t* src, float* A, int64_t targets, int64_t c, int64_t k, int64_t n,
                   int64_t threads) {
    sums_of(Network(p, q, weight, bias, c, k), v, t, rho, ptr, src, A, targets, n, threads);
}

void gkn_near_slopes(const float* dA, const float* p, const float* q, const float* fx, const float* fy, const float* weight,
                     const float* bias, const float* v, const float* t, const float* rho, const int64_t* ptr, const int32_t* src,
                     float* dp, float* means, float* dweight, float* dbias, float* dmoved, int64_t targets, int64_t group, int64_t c,
                     int64_t k, int64_t n, int64_t f, int64_t threads) {
    slopes_of(Network(p, q, weight, bias, c, k), weight, dA, fx, fy, v, t, rho, ptr, src, dp, means, dweight, dbias, dmoved,
              targets, group, n, f, threads);
}
}
