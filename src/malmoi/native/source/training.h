// What training has of native code: the output layer's product, softmax and loss for rows that are still in the cache.
#pragma once

#include <limits>

#include "halves.h"
#include "share.h"

namespace malmoi {

constexpr int kLossRows = 24;  // rows whose scores are made, and gone over again while the cache holds them
constexpr int kHalfLossRows = 2 * kHalfRows;

// `LossCall` of training.py.
struct LossCall {
  int64_t rows;
  int64_t stride;           // of `unscaled`, whole panels
  const void* states;       // (rows, inputs), of the products' type
  const int64_t* targets;   // (rows)
  double smoothing;
  void* unscaled;           // (rows, stride), of that type, written: exp(z - m), the right one less (1 - smoothing) s
  float* inverse;           // (rows), written: 1 / s
  double* sums;             // added to: of log s + m - z[right], and of log s + m
};

// An output layer whose products are of fp32 or of bf16.
struct OutputLayer {
  Linear single;
  HalfLinear halves;
  bool in_halves = false;

  int classes() const { return in_halves ? halves.out : single.out; }
  int stride() const { return in_halves ? halves.stride() : single.stride(); }
};

inline void put(float* to, float value) { *to = value; }

inline void put(half* to, float value) { *to = narrowed(value); }

// What a row's scores come to: what the loss is made of, and 0 or what is no number, which exp8 would hide.
struct RowSums {
  float most, total, below, zeros;
};

// exp(z - m) of a row of scores z with maximum m, written to `to`, which may be where they lie.
template <class T>
inline RowSums soften_row(const float* z, int classes, int64_t target, double smoothing, T* to) {
  f8 most8 = every(-std::numeric_limits<float>::infinity()), other8 = most8;
  f8 zeros8 = every(0.0f), more8 = zeros8;
  int i = 0;
  for (; i + 16 <= classes; i += 16) {
    const f8 first = load(z + i), next = load(z + i + 8);
    most8 = larger(most8, first);
    other8 = larger(other8, next);
    zeros8 += first * every(0.0f);
    more8 += next * every(0.0f);
  }
  RowSums found;
  found.most = largest(larger(most8, other8)), found.zeros = sum(zeros8 + more8);
  for (; i < classes; ++i) found.most = std::max(found.most, z[i]), found.zeros += z[i] * 0.0f;
  found.below = z[target] - found.most;
  const f8 top = every(found.most);
  f8 sum8 = every(0.0f), rest8 = sum8;
  for (i = 0; i + 16 <= classes; i += 16) {
    const f8 e = exp8(load(z + i) - top), next = exp8(load(z + i + 8) - top);
    sum8 += e;
    rest8 += next;
    store(to + i, e);
    store(to + i + 8, next);
  }
  found.total = sum(sum8 + rest8);
  for (; i < classes; ++i) {
    const float e = std::exp(z[i] - found.most);
    found.total += e;
    put(to + i, e);
  }
  const float right = exp8(every(found.below))[0];
  put(to + target, right + float((smoothing - 1.0) * found.total));
  return found;
}

// Scores z of rows, their maximum m, s = sum exp(z - m): what `ChunkPass.add` of loss.py makes with torch. T is the type
// of the products; only fp32 has room for the scores where their exps will be.
template <class T>
inline void loss_of_rows(const OutputLayer& output, const LossCall& call) {
  constexpr bool in_halves = sizeof(T) == sizeof(half);
  constexpr int at_once = in_halves ? kHalfLossRows : kLossRows;
  const T* states = static_cast<const T*>(call.states);
  T* unscaled = static_cast<T*>(call.unscaled);
  const Quantized none;
  Buffer<float> room;
  if (in_halves) room.room(size_t(at_once) * call.stride);
  double nll = 0.0, level = 0.0;
  for (int64_t first = 0; first < call.rows; first += at_once) {
    const int count = int(std::min<int64_t>(at_once, call.rows - first));
    const float* scores;
    if constexpr (in_halves) {
      product(output.halves, states + first * output.halves.in, count, room.data(), call.stride);
      scores = room.data();
    } else {
      const Linear& linear = output.single;
      product(linear, states + first * linear.in, linear.in, none, count, unscaled + first * call.stride,
              int(call.stride), 0, linear.panels, false);
      scores = unscaled + first * call.stride;
    }
    for (int64_t r = first; r < first + count; ++r) {
      const RowSums row = soften_row(scores + (r - first) * call.stride, output.classes(), call.targets[r],
                                     call.smoothing, unscaled + r * call.stride);
      const double log_total = std::log(double(row.total));
      // A score that is no number makes the loss none either.
      nll += log_total - row.below + row.zeros;
      level += log_total + row.most;
      call.inverse[r] = 1.0f / row.total;
    }
  }
  call.sums[0] += nll;
  call.sums[1] += level;
}

}  // namespace malmoi

extern "C" {

// An empty output layer, or null where there is no memory.
void* malmoi_training_new() { return new (std::nothrow) malmoi::OutputLayer; }

void malmoi_training_free(void* output) { delete static_cast<malmoi::OutputLayer*>(output); }

// Lays out weights (classes, inputs), of bf16 or of fp32; returns the stride of its rows of scores, 0 where there is no
// memory.
int64_t malmoi_training_pack(void* output, const void* weight, const float* bias, int64_t classes, int64_t inputs,
                             int in_halves) {
  auto& layer = *static_cast<malmoi::OutputLayer*>(output);
  try {
    layer.in_halves = in_halves != 0;
    if (in_halves) {
      layer.halves.pack(static_cast<const malmoi::half*>(weight), bias, int(classes), int(inputs));
    } else {
      layer.single.pack(static_cast<const float*>(weight), bias, int(classes), int(inputs), false);
    }
    return layer.stride();
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

// `sums` holds (parts, 2) zeros: of each part its own. 0, or 1 where there is no memory.
int malmoi_training_loss(void* output, const malmoi::LossCall* call, const malmoi::Team* team) {
  const auto& layer = *static_cast<malmoi::OutputLayer*>(output);
  const int64_t inputs = layer.in_halves ? layer.halves.in : layer.single.in;
  const int64_t size = layer.in_halves ? sizeof(malmoi::half) : sizeof(float);
  std::atomic<int> failed{0};
  malmoi::share(*team, [&](int64_t part) {
    malmoi::LossCall some = *call;
    const int64_t first = malmoi::cut(call->rows, part, team->parts);
    some.rows = malmoi::cut(call->rows, part + 1, team->parts) - first;
    some.states = static_cast<const char*>(call->states) + first * inputs * size;
    some.unscaled = static_cast<char*>(call->unscaled) + first * call->stride * size;
    some.targets += first, some.inverse += first, some.sums += 2 * part;
    try {
      layer.in_halves ? malmoi::loss_of_rows<malmoi::half>(layer, some) : malmoi::loss_of_rows<float>(layer, some);
    } catch (const std::bad_alloc&) {
      failed = 1;
    }
  });
  return failed;
}

}  // extern "C"
