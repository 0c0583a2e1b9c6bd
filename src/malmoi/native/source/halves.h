// Numbers of bf16, the upper halves of fp32, and products of rows with packed weights of them.
//
// Both sides of a product are rounded to bf16, to the nearest and then to the even one; sums are made in fp32, from the
// first pair of inputs to the last, so that a row's result never depends on its neighbours.
#pragma once

#include "products.h"

namespace malmoi {

typedef uint16_t half;  // the bits of a bf16
typedef uint16_t h8 __attribute__((vector_size(16)));
typedef uint32_t u8x32 __attribute__((vector_size(32)));

inline float widened(half value) {
  const uint32_t bits = uint32_t(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline half narrowed(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return half((bits >> 16) | 0x40);
  return half((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline f8 load(const half* from) {
  h8 eight;
  std::memcpy(&eight, from, sizeof eight);
  return (f8)(__builtin_convertvector(eight, u8x32) << 16);
}

inline void store(half* to, f8 value) {
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
  const __m128bh eight = _mm256_cvtneps_pbh((__m256)value);
  std::memcpy(to, &eight, sizeof eight);
#else
  for (int i = 0; i < 8; ++i) to[i] = narrowed(value[i]);
#endif
}

constexpr int kHalfRows = 14;  // rows of one tile: with two panels of 16 outputs, 28 sums in registers

struct HalfLinear {
  int in = 0, out = 0, pairs = 0, panels = 0;
  Buffer<half> weight;  // [panel][pair][16 outputs][2 inputs]
  std::vector<float> bias;

  int stride() const { return panels * kPanel; }

  // Weights (out, in), rounded already.
  void pack(const half* w, const float* b, int num_out, int num_in) {
    in = num_in, out = num_out, pairs = (in + 1) / 2;
    panels = round_up(out, 2 * kPanel) / kPanel;
    bias.assign(stride(), 0.0f);
    if (b) std::copy(b, b + out, bias.begin());
    half* to = weight.room(size_t(panels) * pairs * 2 * kPanel);
    for (int panel = 0; panel < panels; ++panel)
      for (int k = 0; k < 2 * pairs; k += 2)
        for (int j = 0; j < kPanel; ++j) {
          const int o = panel * kPanel + j;
          const half* row = w + size_t(o) * in;
          *to++ = o < out ? row[k] : half(0);
          *to++ = o < out && k + 1 < in ? row[k + 1] : half(0);
        }
  }
};

// Two inputs of a row as they lie; behind the last one 0, for rows of an odd length.
inline uint32_t pair_of(const half* x, int pair, int in) {
  uint32_t two = 0;
  std::memcpy(&two, x + 2 * pair, 2 * pair + 1 < in ? 4 : 2);
  return two;
}

// M rows times two panels: y = x W^T + b.
template <int M>
inline void tile_halves(const HalfLinear& linear, const half* x, int panel, float* y, int64_t y_stride) {
  const size_t next = size_t(linear.pairs) * 2 * kPanel;
  const half* w = linear.weight.data() + panel * next;
  const float* bias = linear.bias.data() + panel * kPanel;
#if defined(__AVX512BF16__)
  __m512 sums[M][2];
#pragma GCC unroll 14
  for (int m = 0; m < M; ++m) sums[m][0] = sums[m][1] = _mm512_setzero_ps();
  const auto add = [&](auto two_of) __attribute__((always_inline)) {
    const __m512bh first = (__m512bh)_mm512_load_si512(w), second = (__m512bh)_mm512_load_si512(w + next);
    _mm_prefetch(w + 2 * next, _MM_HINT_T0);  // what the next two panels need, which comes from the third cache
    _mm_prefetch(w + 3 * next, _MM_HINT_T0);
    w += 2 * kPanel;
#pragma GCC unroll 14
    for (int m = 0; m < M; ++m) {
      const __m512bh of_x = (__m512bh)_mm512_set1_epi32(two_of(x + size_t(m) * linear.in));
      sums[m][0] = _mm512_dpbf16_ps(sums[m][0], of_x, first);
      sums[m][1] = _mm512_dpbf16_ps(sums[m][1], of_x, second);
    }
  };
  const int whole = linear.in / 2;
  for (int k = 0; k < whole; ++k)
    add([k](const half* row) {
      int32_t two;
      std::memcpy(&two, row + 2 * k, 4);
      return two;
    });
  if (whole < linear.pairs) add([whole](const half* row) { return int32_t(row[2 * whole]); });
#pragma GCC unroll 14
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < 2; ++p)
      _mm512_storeu_ps(y + m * y_stride + (panel + p) * kPanel,
                       _mm512_add_ps(sums[m][p], _mm512_loadu_ps(bias + p * kPanel)));
#else
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < 2; ++p) {
      float sums[kPanel] = {0.0f};
      for (int k = 0; k < linear.pairs; ++k) {
        const uint32_t two = pair_of(x + size_t(m) * linear.in, k, linear.in);
        const float even = widened(half(two)), odd = widened(half(two >> 16));
        const half* of_w = w + p * next + size_t(k) * 2 * kPanel;
        for (int j = 0; j < kPanel; ++j) sums[j] += even * widened(of_w[2 * j]) + odd * widened(of_w[2 * j + 1]);
      }
      for (int j = 0; j < kPanel; ++j) y[m * y_stride + (panel + p) * kPanel + j] = sums[j] + bias[p * kPanel + j];
    }
#endif
}

// y = x W^T + b for `rows` rows that lie one behind the other; rows of `y` hold whole panels.
inline void product(const HalfLinear& linear, const half* x, int rows, float* y, int64_t y_stride) {
  for (int panel = 0; panel < linear.panels; panel += 2) {
    int row = 0;
    for (; row + kHalfRows <= rows; row += kHalfRows)
      tile_halves<kHalfRows>(linear, x + size_t(row) * linear.in, panel, y + row * y_stride, y_stride);
    for (; row + 4 <= rows; row += 4)
      tile_halves<4>(linear, x + size_t(row) * linear.in, panel, y + row * y_stride, y_stride);
    for (; row < rows; ++row)
      tile_halves<1>(linear, x + size_t(row) * linear.in, panel, y + row * y_stride, y_stride);
  }
}

}  // namespace malmoi
