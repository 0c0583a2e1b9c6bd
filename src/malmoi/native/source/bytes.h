// Rows and weights of bytes, and the whole sums of their products.
//
// What a processor offers decides how weights lie and how they are multiplied, never what comes out: sums of whole
// numbers are exact. Where products are summed in 16 bits (AVX2), scales keep such sums small enough; other processors
// take the same scales, so that all say the same.
#pragma once

#include "vectors.h"

namespace malmoi {

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

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
constexpr int kTogether = 16;  // outputs whose weights for four inputs lie together
#else
constexpr int kTogether = 8;
#endif

// Where the weight of an output for an input lies: [outputs together][four inputs][output][input].
inline size_t place_of(int output, int input, int depth) {
  return (size_t(output / kTogether) * depth + input / 4 * 4) * kTogether + output % kTogether * 4 + input % 4;
}

// Four inputs of a row, for each output of a vector. Read as one number: several that are read at once are taken apart
// again by slow operations.
inline int32_t four_of(const uint8_t* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

#if defined(__AVX512VNNI__) && defined(__AVX512F__)

// Sums of M rows times P panels; `next` bytes from one panel's weights to those of the next.
template <int M, int P>
inline void sums_of_bytes(const int8_t* w, size_t next, const uint8_t* x, int depth, int32_t (&result)[P][M][kPanel]) {
  __m512i sums[M][P];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sums[m][p] = _mm512_setzero_si512();
  for (int k = 0; k < depth; k += 4, w += 4 * kPanel) {
    __m512i of_w[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      of_w[p] = _mm512_load_si512(w + p * next);
      _mm_prefetch(w + (p + P) * next, _MM_HINT_T0);  // what the next panels need may lie in the third cache
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const __m512i of_x = _mm512_set1_epi32(four_of(x + size_t(m) * depth + k));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sums[m][p] = _mm512_dpbusd_epi32(sums[m][p], of_x, of_w[p]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) _mm512_storeu_si512(result[p][m], sums[m][p]);
}

#else

#if defined(__AVX2__)
inline __m256i vector_of(const uint8_t* from) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(from)));
}
#endif

// Sums of M rows times half a panel.
template <int M>
inline void sums_of_half(const int8_t* w, const uint8_t* x, int depth, i8* result) {
#if defined(__AVXVNNI__)
  __m256i sums[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sums[m] = _mm256_setzero_si256();
  for (int k = 0; k < depth; k += 4, w += 32) {
    const __m256i of_w = _mm256_load_si256((const __m256i*)w);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) sums[m] = _mm256_dpbusd_avx_epi32(sums[m], vector_of(x + size_t(m) * depth + k), of_w);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) result[m] = (i8)sums[m];
#elif defined(__AVX2__)
  __m256i sums[M];
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sums[m] = _mm256_setzero_si256();
  for (int k = 0; k < depth; k += kGroup, w += 128) {
    const __m256i w0 = _mm256_load_si256((const __m256i*)w), w1 = _mm256_load_si256((const __m256i*)(w + 32));
    const __m256i w2 = _mm256_load_si256((const __m256i*)(w + 64)), w3 = _mm256_load_si256((const __m256i*)(w + 96));
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const uint8_t* from = x + size_t(m) * depth + k;
      __m256i sum = _mm256_maddubs_epi16(vector_of(from), w0);
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(vector_of(from + 4), w1));
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(vector_of(from + 8), w2));
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(vector_of(from + 12), w3));
      sums[m] = _mm256_add_epi32(sums[m], _mm256_madd_epi16(sum, ones));
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) result[m] = (i8)sums[m];
#else
  for (int m = 0; m < M; ++m) {
    int32_t sums[8] = {0};
    for (int k = 0; k < depth; k += 4)
      for (int j = 0; j < 8; ++j)
        for (int i = 0; i < 4; ++i) sums[j] += int32_t(x[size_t(m) * depth + k + i]) * w[size_t(k) * 8 + 4 * j + i];
    std::memcpy(&result[m], sums, 32);
  }
#endif
}

template <int M, int P>
inline void sums_of_bytes(const int8_t* w, size_t next, const uint8_t* x, int depth, int32_t (&result)[P][M][kPanel]) {
  for (int p = 0; p < P; ++p)
    for (int half = 0; half < 2; ++half) {
      i8 sums[M];
      sums_of_half<M>(w + p * next + size_t(half) * depth * 8, x, depth, sums);
      for (int m = 0; m < M; ++m) std::memcpy(result[p][m] + 8 * half, &sums[m], sizeof sums[m]);
    }
}

#endif

}  // namespace malmoi
