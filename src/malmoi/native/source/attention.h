// Attention of short sentences for training: a head's products over a few places, forth and back, without copies.
//
// Queries, keys and values lie where the linear layers left them; each (sentence, head) is computed by itself, so that
// nothing depends on its neighbours, to the last bit.
#pragma once

#include <limits>

#include "products.h"
#include "share.h"

namespace malmoi {

// `AttentionCall` of training.py. Strides in floats. A head's numbers lie together, heads of a place side by side.
struct AttentionCall {
  int64_t first, last;        // sentences
  int64_t heads, size;        // numbers of a head: a multiple of 8
  int64_t queries, keys;      // places
  int64_t query_sentence, query_place;
  int64_t key_sentence, key_place;
  int64_t added_sentence, added_query;
  int64_t padded;             // keys rounded up to whole vectors: a row of `weights`
  double scale;
  const float* query;
  const float* key;
  const float* value;
  const float* added;         // (sentence, query, key), or null
  float* weights;             // (sentence, head, query, padded)
  float* attended;            // (sentence, query, head, size); backwards its gradient, read
  float* d_query;             // backwards: gradients, with the strides of query and key
  float* d_key;
  float* d_value;
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

inline void attend(const AttentionCall& call) {
  const int queries = int(call.queries), keys = int(call.keys), size = int(call.size), padded = int(call.padded);
  const int64_t width = call.heads * call.size;
  Buffer<float> room;
  float* turned = room.room(size_t(size) * padded);
  for (int64_t b = call.first; b < call.last; ++b)
    for (int64_t n = 0; n < call.heads; ++n) {
      const float* query = call.query + b * call.query_sentence + n * size;
      const int64_t place = b * call.key_sentence + n * size;
      float* weights = call.weights + (b * call.heads + n) * queries * padded;
      turn(call.key + place, call.key_place, keys, size, padded, turned);
      small_product(queries, padded, size, query, call.query_place, 1, turned, padded, weights, padded);
      for (int t = 0; t < queries; ++t)
        soften(weights + t * padded, keys, padded,
               call.added ? call.added + b * call.added_sentence + t * call.added_query : nullptr, float(call.scale));
      small_product(queries, size, keys, weights, padded, 1, call.value + place, call.key_place,
                    call.attended + b * queries * width + n * size, width);
    }
}

// From the gradient of `attended` to those of queries, keys and values.
inline void attend_back(const AttentionCall& call) {
  const int queries = int(call.queries), keys = int(call.keys), size = int(call.size), padded = int(call.padded);
  const int64_t width = call.heads * call.size;
  Buffer<float> room, scores;
  float* turned = room.room(size_t(size) * padded);
  float* d_scores = scores.room(size_t(queries) * padded);
  for (int64_t b = call.first; b < call.last; ++b)
    for (int64_t n = 0; n < call.heads; ++n) {
      const int64_t place = b * call.key_sentence + n * size, asked = b * call.query_sentence + n * size;
      const float* weights = call.weights + (b * call.heads + n) * queries * padded;
      const float* d_out = call.attended + b * queries * width + n * size;
      small_product(keys, size, queries, weights, 1, padded, d_out, width, call.d_value + place, call.key_place);
      turn(call.value + place, call.key_place, keys, size, padded, turned);
      small_product(queries, padded, size, d_out, width, 1, turned, padded, d_scores, padded);
      // The softmax's Jacobian: w * (dw - sum(w * dw)).
      for (int t = 0; t < queries; ++t) {
        const float* w = weights + t * padded;
        float* d = d_scores + t * padded;
        f8 sum8 = every(0.0f);
        for (int s = 0; s < padded; s += 8) sum8 += load(w + s) * load(d + s);
        const f8 mean = every(sum(sum8)), scale = every(float(call.scale));
        for (int s = 0; s < padded; s += 8) store(d + s, load(w + s) * (load(d + s) - mean) * scale);
      }
      small_product(queries, size, keys, d_scores, padded, 1, call.key + place, call.key_place, call.d_query + asked,
                    call.query_place);
      small_product(keys, size, queries, d_scores, 1, padded, call.query + asked, call.query_place, call.d_key + place,
                    call.key_place);
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
      backwards ? malmoi::attend_back(some) : malmoi::attend(some);
    } catch (const std::bad_alloc&) {
      failed = 1;
    }
  });
  return failed;
}

}  // extern "C"
