// Vectors of eight floats, exp, and products of rows with packed weights, in fp32 and in int8.
//
// A sum over the inputs is made in the same order for every output, whatever other rows are computed with it: in fp32
// one accumulator per output goes through the inputs from the first to the last; in int8 sums are whole numbers and
// exact. So a row's result never depends on its neighbours, to the last bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace malmoi {

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));

inline f8 load(const float* from) {
  f8 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, f8 value) { std::memcpy(to, &value, sizeof value); }

inline f8 every(float value) { return f8{value, value, value, value, value, value, value, value}; }

inline f8 larger(f8 a, f8 b) { return a > b ? a : b; }

inline float sum(f8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

inline float largest(f8 v) {
  return std::max(std::max(std::max(v[0], v[4]), std::max(v[2], v[6])),
                  std::max(std::max(v[1], v[5]), std::max(v[3], v[7])));
}

// The sums of four vectors, each in one order whatever the others are.
inline void sum_four(f8 a, f8 b, f8 c, f8 d, float* out) {
#if defined(__AVX2__)
  __m256 ab = _mm256_hadd_ps((__m256)a, (__m256)b);
  __m256 cd = _mm256_hadd_ps((__m256)c, (__m256)d);
  __m256 all = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  for (f8 v : {a, b, c, d})
    *out++ = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
#endif
}

// e^x for x <= 0 (and somewhat above), relative error below 3e-7: 2^n by the exponent's bits, 2^f by a polynomial.
inline f8 exp8(f8 x) {
  x = larger(x, every(-87.0f));
  const f8 magic = every(12582912.0f);
  const f8 log2e = every(1.44269504088896f);
  f8 rounded = x * log2e + magic;
  f8 f = x * log2e - (rounded - magic);
  f8 p = every(1.5403530393e-4f);
  p = p * f + every(1.3333558146e-3f);
  p = p * f + every(9.6181291076e-3f);
  p = p * f + every(5.5504108665e-2f);
  p = p * f + every(0.24022650696f);
  p = p * f + every(0.69314718056f);
  p = p * f + every(1.0f);
  return (f8)((i8)p + (((i8)rounded) << 23));
}

// Memory on cache lines, freed with its owner, as all of the engine's.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  // At least so many places; what was in it is lost when it grows.
  T* room(size_t size) {
    if (size > size_) {
      std::free(data_);
      data_ = nullptr;
      size_ = 0;
      size_t bytes = (size * sizeof(T) + 127) / 64 * 64;
      void* memory = nullptr;
      if (posix_memalign(&memory, 64, bytes)) throw std::bad_alloc();
      data_ = static_cast<T*>(memory);
      size_ = size;
    }
    return data_;
  }
  T* data() const { return data_; }
  T& operator[](size_t place) const { return data_[place]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

inline int round_up(int value, int step) { return (value + step - 1) / step * step; }

constexpr int kPanel = 16;     // outputs that lie together: two vectors of fp32, two panels of int8
constexpr int kGroup = 16;     // int8 inputs whose products are summed in 16 bits
constexpr int kMiddle = 64;    // what is added to signed activations to make them unsigned
constexpr float kLeastWeight = 1e-30f;  // an output whose int8 weights are all smaller gets its bias alone
constexpr int kMostSum = 258;  // 127 * 258 < 2^15: most of one sign that weights summed in 16 bits may come to

// Rows of activations in 7 bits with one scale per row, which is all that a row's result depends on.
struct Quantized {
  Buffer<uint8_t> values;
  Buffer<float> scales;
  int depth = 0;
  bool is_signed = true;

  void fill(const float* x, int stride, int rows, int size, bool with_sign) {
    depth = round_up(size, kGroup);
    is_signed = with_sign;
    uint8_t* to = values.room(size_t(rows) * depth);
    float* scale = scales.room(rows);
    for (int row = 0; row < rows; ++row, x += stride, to += depth) {
      f8 most8 = every(0.0f), zeros8 = every(0.0f);
      int i = 0;
      for (; i + 8 <= size; i += 8) {
        f8 v = load(x + i);
        most8 = larger(most8, larger(v, -v));
        zeros8 += v * every(0.0f);
      }
      float most = largest(most8), zeros = sum(zeros8);
      for (; i < size; ++i) most = std::max(most, std::fabs(x[i])), zeros += x[i] * 0.0f;
      const float levels = with_sign ? 63.0f : 127.0f;
      // A row that holds what is no number has no scale, so that nothing which is made of it looks sound.
      scale[row] = (most > 0.0f ? most / levels : 1.0f) + zeros;
      const float inverse = most > 0.0f ? levels / most : 0.0f;
      const float magic = 12582912.0f + (with_sign ? kMiddle : 0);
      for (i = 0; i < size; ++i) {
        float shifted = x[i] * inverse + magic;
        int32_t bits;
        std::memcpy(&bits, &shifted, 4);
        to[i] = uint8_t(bits & 127);
      }
      for (; i < depth; ++i) to[i] = 0;
    }
  }
};

struct Linear {
  int in = 0, out = 0, depth = 0, panels = 0;
  bool in_int8 = false;
  Buffer<float> weight;      // [panel][in][16]
  Buffer<int8_t> weight8;    // [half panel][group][4][8 outputs][4 inputs]
  std::vector<float> bias, scale;
  std::vector<int32_t> middle;  // what the shift of signed activations adds to each sum

  bool empty() const { return out == 0; }
  int stride() const { return panels * kPanel; }

  void pack(const float* w, const float* b, int num_out, int num_in, bool int8) {
    in = num_in, out = num_out, in_int8 = int8;
    panels = round_up(out, kPanel) / kPanel;
    depth = round_up(in, kGroup);
    bias.assign(stride(), 0.0f);
    if (b) std::copy(b, b + out, bias.begin());
    if (int8) return pack_int8(w);
    float* to = weight.room(size_t(panels) * in * kPanel);
    for (int panel = 0; panel < panels; ++panel)
      for (int k = 0; k < in; ++k)
        for (int j = 0; j < kPanel; ++j) {
          int o = panel * kPanel + j;
          *to++ = o < out ? w[size_t(o) * in + k] : 0.0f;
        }
  }

  // The scale of an output is the least by which its weights fit into 8 bits and their partial sums into 16.
  void pack_int8(const float* w) {
    scale.assign(stride(), 1.0f);
    middle.assign(stride(), 0);
    int8_t* to = weight8.room(size_t(stride()) * depth);
    std::memset(to, 0, size_t(stride()) * depth);
    Buffer<float> room, rounded;
    float *row = room.room(depth), *whole = rounded.room(depth);
    const f8 magic = every(12582912.0f);  // makes a float round to a whole number, ties to the even one
    for (int o = 0; o < out; ++o) {
      std::copy(w + size_t(o) * in, w + size_t(o + 1) * in, row);
      std::fill(row + in, row + depth, 0.0f);
      f8 most8 = every(0.0f);
      for (int k = 0; k < depth; k += 8) most8 = larger(most8, larger(load(row + k), -load(row + k)));
      const float most = largest(most8);
      // Nothing, or so little that scales would be no ordinary numbers.
      if (most < kLeastWeight) continue;
      float s = std::max(most / 127.0f, largest_sum(row, depth) / float(kMostSum - 1));
      for (;; s *= 1.005f) {
        for (int k = 0; k < depth; k += 8) store(whole + k, load(row + k) / every(s) + magic - magic);
        if (largest_sum(whole, depth) <= float(kMostSum)) break;
      }
      scale[o] = s;
      int32_t total = 0;
      for (int k = 0; k < in; ++k) {
        total += int32_t(whole[k]);
        size_t group = size_t(o / 8) * (depth / kGroup) + k / kGroup;
        to[group * 128 + (k % kGroup) / 4 * 32 + (o % 8) * 4 + k % 4] = int8_t(whole[k]);
      }
      middle[o] = kMiddle * total;
    }
  }

  // The largest sum of one sign among the weights that meet in one place of 16 bits; whole groups.
  static float largest_sum(const float* row, int depth) {
    const f8 zero = every(0.0f);
    float most_above = 0.0f, most_below = 0.0f;
    for (int start = 0; start < depth; start += kGroup) {
      // Inputs 4 v and 4 v + 1 meet, and so do 4 v + 2 and 4 v + 3.
      const f8 first = load(row + start), second = load(row + start + 8);
      const f8 above = larger(zero, first) + larger(zero, second), below = larger(zero, -first) + larger(zero, -second);
      for (int half = 0; half < 4; half += 2) {
        most_above = std::max(most_above, (above[half] + above[half + 1]) + (above[half + 4] + above[half + 5]));
        most_below = std::max(most_below, (below[half] + below[half + 1]) + (below[half + 4] + below[half + 5]));
      }
    }
    return std::max(most_above, most_below);
  }
};

// M rows times P panels in fp32: y = x W^T + b, with max(0, .) if asked.
template <int M, int P>
inline void tile_fp32(const Linear& linear, const float* x, int x_stride, int panel, float* y, int y_stride, bool relu) {
  f8 sums[M][2 * P];
  const float* w = linear.weight.data() + size_t(panel) * linear.in * kPanel;
  const size_t next = size_t(linear.in) * kPanel;
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < 2 * P; ++p) sums[m][p] = every(0.0f);
  for (int k = 0; k < linear.in; ++k, w += kPanel) {
    f8 of_w[2 * P];
    for (int p = 0; p < 2 * P; ++p) of_w[p] = load(w + p / 2 * next + p % 2 * 8);
    for (int m = 0; m < M; ++m) {
      f8 of_x = every(x[size_t(m) * x_stride + k]);
      for (int p = 0; p < 2 * P; ++p) sums[m][p] += of_x * of_w[p];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < 2 * P; ++p) {
      f8 value = sums[m][p] + load(linear.bias.data() + panel * kPanel + p * 8);
      if (relu) value = larger(every(0.0f), value);  // what is no number stays so
      store(y + size_t(m) * y_stride + panel * kPanel + p * 8, value);
    }
}

#if defined(__AVX2__)
// Four inputs, for each output of a vector. Read as floats: several of them read as whole numbers would become one
// load that is taken apart again by slow operations.
inline __m256i four_of(const uint8_t* from) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(from)));
}
#endif

// M rows times half a panel in int8; `x` holds `depth` places per row.
template <int M>
inline void tile_int8(const Linear& linear, const uint8_t* x, const float* scales, bool is_signed, int half, float* y,
                      int y_stride, bool relu) {
  const int depth = linear.depth, groups = depth / kGroup;
  const int8_t* w = linear.weight8.data() + size_t(half) * groups * 128;
  i8 result[M];
#if defined(__AVX512VNNI__) && defined(__AVX512VL__) || defined(__AVXVNNI__)
  __m256i sums[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sums[m] = _mm256_setzero_si256();
  for (int g = 0; g < groups; ++g, w += 128)
    for (int v = 0; v < 4; ++v) {
      __m256i of_w = _mm256_load_si256((const __m256i*)(w + 32 * v));
      for (int m = 0; m < M; ++m) {
        int32_t four;
        std::memcpy(&four, x + size_t(m) * depth + g * kGroup + 4 * v, 4);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
        sums[m] = _mm256_dpbusd_epi32(sums[m], _mm256_set1_epi32(four), of_w);
#else
        sums[m] = _mm256_dpbusd_avx_epi32(sums[m], _mm256_set1_epi32(four), of_w);
#endif
      }
    }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) result[m] = (i8)sums[m];
#elif defined(__AVX2__)
  __m256i sums[M];
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sums[m] = _mm256_setzero_si256();
  for (int g = 0; g < groups; ++g, w += 128) {
    const __m256i w0 = _mm256_load_si256((const __m256i*)w), w1 = _mm256_load_si256((const __m256i*)(w + 32));
    const __m256i w2 = _mm256_load_si256((const __m256i*)(w + 64)), w3 = _mm256_load_si256((const __m256i*)(w + 96));
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const uint8_t* from = x + size_t(m) * depth + g * kGroup;
      __m256i sum = _mm256_maddubs_epi16(four_of(from), w0);
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(four_of(from + 4), w1));
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(four_of(from + 8), w2));
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(four_of(from + 12), w3));
      sums[m] = _mm256_add_epi32(sums[m], _mm256_madd_epi16(sum, ones));
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) result[m] = (i8)sums[m];
#else
  for (int m = 0; m < M; ++m) {
    int32_t sums[8] = {0};
    for (int g = 0; g < groups * 4; ++g)
      for (int j = 0; j < 8; ++j)
        for (int k = 0; k < 4; ++k) sums[j] += int32_t(x[size_t(m) * depth + 4 * g + k]) * w[size_t(g) * 32 + 4 * j + k];
    std::memcpy(&result[m], sums, 32);
  }
#endif
  i8 shift = i8{0, 0, 0, 0, 0, 0, 0, 0};
  if (is_signed) std::memcpy(&shift, linear.middle.data() + half * 8, 32);
  const f8 scale = load(linear.scale.data() + half * 8), bias = load(linear.bias.data() + half * 8);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    f8 value = __builtin_convertvector(result[m] - shift, f8) * (scale * every(scales[m])) + bias;
    if (relu) value = larger(every(0.0f), value);  // what is no number stays so
    store(y + size_t(m) * y_stride + half * 8, value);
  }
}

template <int M>
inline void rows_int8(const Linear& linear, const Quantized& x, int row, int from, int to, float* y, int stride, bool relu) {
  const uint8_t* values = x.values.data() + size_t(row) * linear.depth;
  for (int half = 2 * from; half < 2 * to; ++half)
    tile_int8<M>(linear, values, x.scales.data() + row, x.is_signed, half, y, stride, relu);
}

template <int M, int P>
inline void rows_fp32(const Linear& linear, const float* x, int x_stride, int from, int to, float* y, int stride, bool relu) {
  int panel = from;
  for (; panel + P <= to; panel += P) tile_fp32<M, P>(linear, x, x_stride, panel, y, stride, relu);
  for (; panel < to; ++panel) tile_fp32<M, 1>(linear, x, x_stride, panel, y, stride, relu);
}

constexpr int kPanelsAtOnce = 4;  // a run of weights that stays in the first cache while all rows pass

// Panels `from` to `to` of y = x W^T + b for `rows` rows; `y` holds whole panels, its column 0 is that of panel 0.
inline void product(const Linear& linear, const float* x, int x_stride, const Quantized& quantized, int rows, float* y,
                    int y_stride, int from, int to, bool relu) {
  for (int panel = from; panel < to; panel += kPanelsAtOnce) {
    const int end = std::min(to, panel + kPanelsAtOnce);
    int row = 0;
    while (row < rows) {
      float* to_y = y + size_t(row) * y_stride;
      const int left = rows - row;
      if (linear.in_int8) {
        const int taken = std::min(left, 8);
        switch (taken) {
          case 8: rows_int8<8>(linear, quantized, row, panel, end, to_y, y_stride, relu); break;
          case 7: rows_int8<7>(linear, quantized, row, panel, end, to_y, y_stride, relu); break;
          case 6: rows_int8<6>(linear, quantized, row, panel, end, to_y, y_stride, relu); break;
          case 5: rows_int8<5>(linear, quantized, row, panel, end, to_y, y_stride, relu); break;
          case 4: rows_int8<4>(linear, quantized, row, panel, end, to_y, y_stride, relu); break;
          case 3: rows_int8<3>(linear, quantized, row, panel, end, to_y, y_stride, relu); break;
          case 2: rows_int8<2>(linear, quantized, row, panel, end, to_y, y_stride, relu); break;
          default: rows_int8<1>(linear, quantized, row, panel, end, to_y, y_stride, relu); break;
        }
        row += taken;
        continue;
      }
      const float* from_x = x + size_t(row) * x_stride;
      const int taken = std::min(left, 6);
      switch (taken) {
        case 6: rows_fp32<6, 1>(linear, from_x, x_stride, panel, end, to_y, y_stride, relu); break;
        case 5: rows_fp32<5, 1>(linear, from_x, x_stride, panel, end, to_y, y_stride, relu); break;
        case 4: rows_fp32<4, 1>(linear, from_x, x_stride, panel, end, to_y, y_stride, relu); break;
        case 3: rows_fp32<3, 2>(linear, from_x, x_stride, panel, end, to_y, y_stride, relu); break;
        case 2: rows_fp32<2, 2>(linear, from_x, x_stride, panel, end, to_y, y_stride, relu); break;
        default: rows_fp32<1, 4>(linear, from_x, x_stride, panel, end, to_y, y_stride, relu); break;
      }
      row += taken;
    }
  }
}

}  // namespace malmoi
