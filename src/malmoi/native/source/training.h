// What training has of native code: the output layer's product, softmax and loss for rows that are still in the cache.
#pragma once

#include <limits>

#include "products.h"
#include "share.h"

namespace malmoi {

constexpr int kLossRows = 24;  // rows whose scores are made, and gone over again while the cache holds them

// `LossCall` of training.py.
struct LossCall {
  int64_t rows;
  int64_t stride;           // of `unscaled`, whole panels
  const float* states;      // (rows, inputs)
  const int64_t* targets;   // (rows)
  double smoothing;
  float* unscaled;          // (rows, stride), written: exp(z - m), the right one less (1 - smoothing) s
  float* inverse;           // (rows), written: 1 / s
  double* sums;             // added to: of log s + m - z[right], and of log s + m
};

// Scores z of rows, their maximum m, s = sum exp(z - m): what `ChunkPass.add` of loss.py makes with torch.
inline void loss_of_rows(const Linear& output, const LossCall& call) {
  const int classes = output.out;
  const Quantized none;
  double nll = 0.0, level = 0.0;
  for (int64_t first = 0; first < call.rows; first += kLossRows) {
    const int count = int(std::min<int64_t>(kLossRows, call.rows - first));
    product(output, call.states + first * output.in, output.in, none, count, call.unscaled + first * call.stride,
            int(call.stride), 0, output.panels, false);
    for (int64_t r = first; r < first + count; ++r) {
      float* row = call.unscaled + r * call.stride;
      f8 most8 = every(-std::numeric_limits<float>::infinity()), other8 = most8;
      f8 zeros8 = every(0.0f), more8 = zeros8;
      int i = 0;
      for (; i + 16 <= classes; i += 16) {
        const f8 z = load(row + i), next = load(row + i + 8);
        most8 = larger(most8, z);
        other8 = larger(other8, next);
        zeros8 += z * every(0.0f);
        more8 += next * every(0.0f);
      }
      float most = largest(larger(most8, other8)), zeros = sum(zeros8 + more8);
      for (; i < classes; ++i) most = std::max(most, row[i]), zeros += row[i] * 0.0f;
      float& right = row[call.targets[r]];
      const float below = right - most;
      const f8 top = every(most);
      f8 sum8 = every(0.0f), rest8 = sum8;
      for (i = 0; i + 16 <= classes; i += 16) {
        const f8 e = exp8(load(row + i) - top), next = exp8(load(row + i + 8) - top);
        sum8 += e;
        rest8 += next;
        store(row + i, e);
        store(row + i + 8, next);
      }
      float total = sum(sum8 + rest8);
      for (; i < classes; ++i) total += row[i] = std::exp(row[i] - most);
      const double log_total = std::log(double(total));
      // A score that is no number makes the loss none either; exp8 would hide it.
      nll += log_total - below + zeros;
      level += log_total + most;
      right += float((call.smoothing - 1.0) * total);
      call.inverse[r] = 1.0f / total;
    }
  }
  call.sums[0] += nll;
  call.sums[1] += level;
}

}  // namespace malmoi

extern "C" {

// An empty output layer, or null where there is no memory.
void* malmoi_training_new() { return new (std::nothrow) malmoi::Linear; }

void malmoi_training_free(void* output) { delete static_cast<malmoi::Linear*>(output); }

// Lays out weights (classes, inputs); returns the stride of its rows of scores, 0 where there is no memory.
int64_t malmoi_training_pack(void* output, const float* weight, const float* bias, int64_t classes, int64_t inputs) {
  auto& linear = *static_cast<malmoi::Linear*>(output);
  try {
    linear.pack(weight, bias, int(classes), int(inputs), false);
    return linear.stride();
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

// `sums` holds (parts, 2) zeros: of each part its own.
void malmoi_training_loss(void* output, const malmoi::LossCall* call, const malmoi::Team* team) {
  const auto& linear = *static_cast<malmoi::Linear*>(output);
  malmoi::share(*team, [&](int64_t part) {
    malmoi::LossCall some = *call;
    const int64_t first = malmoi::cut(call->rows, part, team->parts);
    some.rows = malmoi::cut(call->rows, part + 1, team->parts) - first;
    some.states += first * linear.in, some.targets += first, some.inverse += first;
    some.unscaled += first * call->stride, some.sums += 2 * part;
    malmoi::loss_of_rows(linear, some);
  });
}

}  // extern "C"
