// Vectors of eight floats, exp, and memory.
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

}  // namespace malmoi
