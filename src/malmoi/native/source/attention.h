// Attention of short sentences for training: a head's products over a few places, forth and back, without copies.
//
// Queries, keys and values lie where the linear layers left them; each (sentence, head) is computed by itself, so that
// nothing depends on its neighbours, to the last bit.
#pragma once

#include <limits>

#include "halves.h"
#include "share.h"

namespace malmoi {

// `AttentionCall` of training.py. Strides in numbers. A head's numbers lie together, heads of a place side by side.
struct AttentionCall {
  int64_t in_halves;          // what is `void` is bf16, else fp32
  int64_t first, last;        // sentences
  int64_t heads, size;        // numbers of a head: a multiple of 8
  int64_t queries, keys;      // places
  int64_t query_sentence, query_place;
  int64_t key_sentence, key_place;
  int64_t added_sentence, added_query;
  int64_t padded;             // keys rounded up to whole vectors: a row of `weights`
  double scale;
  const void* query;
  const void* key;
  const void* value;
  const float* added;         // (sentence, query, key), or null
  float* weights;             // (sentence, head, query, padded)
  void* attended;             // (sentence, query, head, size); backwards its gradient, read
  void* d_query;             // backwards: gradients, with the strides of query and key
  void* d_key;
  void* d_value;
};

// C (m, n) = A (m, k) B (k, n), with B and C row by row and n a multiple of 8; A has any strides.
template <int M, int N>
inline void small_tile(int inner, const float* a, int64_t a_row, int64_t a_inner, const float* b, int64_t b_row, float* c,
                       int64_t c_row) {
  f8 sums[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sums[m][n] = every(0.0f);
  for (int k = 0; k < inner; ++k, a += a_inner, b += b_row) {
    f8 of_b[N];
    for (int n = 0; n < N; ++n) of_b[n] = load(b + 8 * n);
    for (int m = 0; m < M; ++m) {
      const f8 of_a = every(a[m * a_row]);
      for (int n = 0; n < N; ++n) sums[m][n] += of_a * of_b[n];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) store(c + m * c_row + 8 * n, sums[m][n]);
}

template <int M>
inline void small_rows(int columns, int inner, const float* a, int64_t a_row, int64_t a_inner, const float* b,
                       int64_t b_row, float* c, int64_t c_row) {
  int n = 0;
  for (; n + 16 <= columns; n += 16) small_tile<M, 2>(inner, a, a_row, a_inner, b + n, b_row, c + n, c_row);
  if (n < columns) small_tile<M, 1>(inner, a, a_row, a_inner, b + n, b_row, c + n, c_row);
}

inline void small_product(int rows, int columns, int inner, const float* a, int64_t a_row, int64_t a_inner,
                          const float* b, int64_t b_row, float* c, int64_t c_row) {
  int m = 0;
  for (; m + 4 <= rows; m += 4)
    small_rows<4>(columns, inner, a + m * a_row, a_row, a_inner, b, b_row, c + m * c_row, c_row);
  for (; m < rows; ++m)
    small_rows<1>(columns, inner, a + m * a_row, a_row, a_inner, b, b_row, c + m * c_row, c_row);
}

#if defined(__AVX2__)
// Eight rows of eight numbers to eight columns.
inline void turn_eight(const float* from, int64_t from_row, float* to, int64_t to_row) {
  __m256 r[8], pair[8], four[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_row);
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    four[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    four[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    four[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    four[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_row, _mm256_permute2f128_ps(four[i], four[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_row, _mm256_permute2f128_ps(four[i], four[i + 4], 0x31));
  }
}
#endif

// (places, size) to (size, padded), with 0 behind the last place.
inline void turn(const float* from, int64_t place_stride, int places, int size, int padded, float* to) {
  int done = 0;
#if defined(__AVX2__)
  for (; done + 8 <= places; done += 8)
    for (int h = 0; h < size; h += 8) turn_eight(from + done * place_stride + h, place_stride, to + h * padded + done, padded);
#endif
  if (done < padded)
    for (int h = 0; h < size; ++h) {
      float* row = to + h * padded;
      int s = done;
      for (; s < places; ++s) row[s] = from[s * place_stride + h];
      for (; s < padded; ++s) row[s] = 0.0f;
    }
}

// Scores of a query to weights, in place: exactly 0 where minus infinity was added, and behind the last key.
inline void soften(float* row, int keys, int padded, const float* added, float scale) {
  // Behind the last key scores are 0 here.
  f8 zeros8 = every(0.0f);
  for (int s = 0; s < padded; s += 8) {
    const f8 score = load(row + s);
    zeros8 += score * every(0.0f);
    store(row + s, score * every(scale));
  }
  if (added)
    for (int s = 0; s < keys; ++s) row[s] += added[s];
  const float nothing = -std::numeric_limits<float>::infinity();
  for (int s = keys; s < padded; ++s) row[s] = nothing;
  f8 most8 = load(row);
  for (int s = 8; s < padded; s += 8) most8 = larger(most8, load(row + s));
  const f8 top = every(largest(most8)), least = every(-87.0f);
  f8 sum8 = every(0.0f);
  for (int s = 0; s < padded; s += 8) {
    const f8 below = load(row + s) - top;
    const f8 e = below > least ? exp8(below) : every(0.0f);
    sum8 += e;
    store(row + s, e);
  }
  // A score that is no number makes all weights none; exp8 would hide it.
  const f8 inverse = every(1.0f / sum(sum8) + sum(zeros8));
  for (int s = 0; s < padded; s += 8) store(row + s, load(row + s) * inverse);
}

// Some places of a head in fp32: where they lie, or in memory of their own.
struct Places {
  float* at;
  int64_t stride;
};

// Where a head's places lie as T, and memory for them in fp32 where that is another type.
template <class T>
class Head {
 public:
  Head(const void* all, int64_t place_stride, int places, int size)
      : all_(static_cast<T*>(const_cast<void*>(all))), stride_(place_stride), places_(places), size_(size) {
    if (!is_fp32) room_.room(size_t(places) * size);
  }
  // Their numbers, which begin `offset` behind the first.
  Places read(int64_t offset) {
    const Places found = write(offset);
    if constexpr (!is_fp32)
      for (int t = 0; t < places_; ++t)
        for (int h = 0; h < size_; h += 8) store(found.at + t * size_ + h, load(all_ + offset + t * stride_ + h));
    return found;
  }
  // Where to write them; `written` follows.
  Places write(int64_t offset) {
    if constexpr (is_fp32) return {all_ + offset, stride_};
    return {room_.data(), size_};
  }
  void written(int64_t offset) {
    if constexpr (!is_fp32)
      for (int t = 0; t < places_; ++t)
        for (int h = 0; h < size_; h += 8) store(all_ + offset + t * stride_ + h, load(room_.data() + t * size_ + h));
  }

 private:
  static constexpr bool is_fp32 = sizeof(T) == sizeof(float);
  T* all_;
  int64_t stride_;
  int places_, size_;
  Buffer<float> room_;
};

template <class T>
inline void attend(const AttentionCall& call) {
  const int queries = int(call.queries), keys = int(call.keys), size = int(call.size), padded = int(call.padded);
  const int64_t width = call.heads * call.size;
  Buffer<float> room;
  float* turned = room.room(size_t(size) * padded);
  Head<T> of_query(call.query, call.query_place, queries, size), of_key(call.key, call.key_place, keys, size);
  Head<T> of_value(call.value, call.key_place, keys, size), of_attended(call.attended, width, queries, size);
  for (int64_t b = call.first; b < call.last; ++b)
    for (int64_t n = 0; n < call.heads; ++n) {
      const int64_t place = b * call.key_sentence + n * size, out = b * queries * width + n * size;
      const Places query = of_query.read(b * call.query_sentence + n * size);
      const Places key = of_key.read(place), value = of_value.read(place), attended = of_attended.write(out);
      float* weights = call.weights + (b * call.heads + n) * queries * padded;
      turn(key.at, key.stride, keys, size, padded, turned);
      small_product(queries, padded, size, query.at, query.stride, 1, turned, padded, weights, padded);
      for (int t = 0; t < queries; ++t)
        soften(weights + t * padded, keys, padded,
               call.added ? call.added + b * call.added_sentence + t * call.added_query : nullptr, float(call.scale));
      small_product(queries, size, keys, weights, padded, 1, value.at, value.stride, attended.at, attended.stride);
      of_attended.written(out);
    }
}

// From the gradient of `attended` to those of queries, keys and values.
template <class T>
inline void attend_back(const AttentionCall& call) {
  const int queries = int(call.queries), keys = int(call.keys), size = int(call.size), padded = int(call.padded);
  const int64_t width = call.heads * call.size;
  Buffer<float> room, scores;
  float* turned = room.room(size_t(size) * padded);
  float* d_scores = scores.room(size_t(queries) * padded);
  Head<T> of_query(call.query, call.query_place, queries, size), of_key(call.key, call.key_place, keys, size);
  Head<T> of_value(call.value, call.key_place, keys, size), of_out(call.attended, width, queries, size);
  Head<T> to_query(call.d_query, call.query_place, queries, size), to_key(call.d_key, call.key_place, keys, size);
  Head<T> to_value(call.d_value, call.key_place, keys, size);
  for (int64_t b = call.first; b < call.last; ++b)
    for (int64_t n = 0; n < call.heads; ++n) {
      const int64_t place = b * call.key_sentence + n * size, asked = b * call.query_sentence + n * size;
      const Places query = of_query.read(asked), key = of_key.read(place), value = of_value.read(place);
      const Places d_out = of_out.read(b * queries * width + n * size), d_query = to_query.write(asked);
      const Places d_key = to_key.write(place), d_value = to_value.write(place);
      const float* weights = call.weights + (b * call.heads + n) * queries * padded;
      small_product(keys, size, queries, weights, 1, padded, d_out.at, d_out.stride, d_value.at, d_value.stride);
      turn(value.at, value.stride, keys, size, padded, turned);
      small_product(queries, padded, size, d_out.at, d_out.stride, 1, turned, padded, d_scores, padded);
      // The softmax's Jacobian: w * (dw - sum(w * dw)).
      for (int t = 0; t < queries; ++t) {
        const float* w = weights + t * padded;
        float* d = d_scores + t * padded;
        f8 sum8 = every(0.0f);
        for (int s = 0; s < padded; s += 8) sum8 += load(w + s) * load(d + s);
        const f8 mean = every(sum(sum8)), scale = every(float(call.scale));
        for (int s = 0; s < padded; s += 8) store(d + s, load(w + s) * (load(d + s) - mean) * scale);
      }
      small_product(queries, size, keys, d_scores, padded, 1, key.at, key.stride, d_query.at, d_query.stride);
      small_product(keys, size, queries, d_scores, 1, padded, query.at, query.stride, d_key.at, d_key.stride);
      to_query.written(asked), to_key.written(place), to_value.written(place);
    }
}

}  // namespace malmoi

extern "C" {

// 0, or 1 where there is no memory.
int malmoi_training_attend(const malmoi::AttentionCall* call, int backwards, const malmoi::Team* team) {
  std::atomic<int> failed{0};
  const int64_t sentences = call->last;
  malmoi::share(*team, [&](int64_t part) {
    malmoi::AttentionCall some = *call;
    some.first = malmoi::cut(sentences, part, team->parts), some.last = malmoi::cut(sentences, part + 1, team->parts);
    try {
      if (call->in_halves) {
        backwards ? malmoi::attend_back<malmoi::half>(some) : malmoi::attend<malmoi::half>(some);
      } else {
        backwards ? malmoi::attend_back<float>(some) : malmoi::attend<float>(some);
      }
    } catch (const std::bad_alloc&) {
      failed = 1;
    }
  });
  return failed;
}

}  // extern "C"
