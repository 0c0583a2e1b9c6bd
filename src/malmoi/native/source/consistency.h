// What training has of native code: the output layer with the loss of two passes that are held together.
#pragma once

#include "training.h"

namespace malmoi {

constexpr int kPairRows = 12;  // of each pass, whose scores are gone over again while the cache holds them

// `PairCall` of training.py.
struct PairCall {
  int64_t rows;
  int64_t stride;          // of `gradients`, whole panels
  const float* states[2];  // (rows, inputs) of each pass
  const int64_t* targets;  // (rows)
  double smoothing;
  double weight;           // half of what both divergences weigh
  float* gradients[2];     // (rows, stride), written: of the scores, without the uniform part of smoothing
  double* sums;            // added to: of log s + m - z[right] and of log s + m, for each pass; of both divergences
};

// A row of one pass: its scores, what is exp'd relative to, and what their exps come to.
struct PairRow {
  float* z;
  float most = 0.0f, total = 0.0f, along = 0.0f, level = 0.0f, divergence = 0.0f;
};

// The maximum, and 0 or what is no number: exp8 would hide that.
inline float find_most(PairRow& row, int classes) {
  f8 most8 = every(-std::numeric_limits<float>::infinity()), zeros8 = every(0.0f);
  int i = 0;
  for (; i + 8 <= classes; i += 8) {
    const f8 z = load(row.z + i);
    most8 = larger(most8, z);
    zeros8 += z * every(0.0f);
  }
  float zeros = sum(zeros8);
  row.most = largest(most8);
  for (; i < classes; ++i) row.most = std::max(row.most, row.z[i]), zeros += row.z[i] * 0.0f;
  return zeros;
}

// s = sum exp(z - m) of both rows, and sums of exp(z - m) times how far its score lies above the other's.
inline void find_totals(PairRow& a, PairRow& b, int classes) {
  const f8 top_a = every(a.most), top_b = every(b.most);
  f8 total_a = every(0.0f), total_b = total_a, along_a = total_a, along_b = total_a;
  int i = 0;
  for (; i + 8 <= classes; i += 8) {
    const f8 below_a = load(a.z + i) - top_a, below_b = load(b.z + i) - top_b;
    const f8 e_a = exp8(below_a), e_b = exp8(below_b), apart = below_a - below_b;
    total_a += e_a, total_b += e_b;
    along_a += e_a * apart, along_b -= e_b * apart;
  }
  a.total = sum(total_a), b.total = sum(total_b), a.along = sum(along_a), b.along = sum(along_b);
  for (; i < classes; ++i) {
    const float below_a = a.z[i] - a.most, below_b = b.z[i] - b.most;
    const float e_a = std::exp(below_a), e_b = std::exp(below_b);
    a.total += e_a, b.total += e_b;
    a.along += e_a * (below_a - below_b), b.along += e_b * (below_b - below_a);
  }
  const double log_a = std::log(double(a.total)), log_b = std::log(double(b.total));
  a.level = float(log_a + a.most), b.level = float(log_b + b.most);
  a.divergence = float(double(a.along) / a.total - (log_a - log_b));
  b.divergence = float(double(b.along) / b.total - (log_b - log_a));
}

// Scores to gradients, in place: `add_pair` of consistency.py.
inline void find_gradients(PairRow& a, PairRow& b, int classes, float weight) {
  const f8 level_a = every(a.level), level_b = every(b.level), weight8 = every(weight);
  const f8 own_a = every(1.0f + weight * (1.0f - a.divergence)), own_b = every(1.0f + weight * (1.0f - b.divergence));
  int i = 0;
  for (; i + 8 <= classes; i += 8) {
    const f8 log_a = load(a.z + i) - level_a, log_b = load(b.z + i) - level_b;
    const f8 p = exp8(log_a), q = exp8(log_b), apart = weight8 * (log_a - log_b);
    store(a.z + i, p * (own_a + apart) - weight8 * q);
    store(b.z + i, q * (own_b - apart) - weight8 * p);
  }
  for (; i < classes; ++i) {
    const float log_a = a.z[i] - a.level, log_b = b.z[i] - b.level;
    const float p = std::exp(log_a), q = std::exp(log_b), apart = weight * (log_a - log_b);
    a.z[i] = p * (own_a[0] + apart) - weight * q;
    b.z[i] = q * (own_b[0] - apart) - weight * p;
  }
}

inline void pair_of_rows(const Linear& output, const PairCall& call) {
  const Quantized none;
  double sums[5] = {0.0};
  for (int64_t first = 0; first < call.rows; first += kPairRows) {
    const int count = int(std::min<int64_t>(kPairRows, call.rows - first));
    for (int pass = 0; pass < 2; ++pass)
      product(output, call.states[pass] + first * output.in, output.in, none, count,
              call.gradients[pass] + first * call.stride, int(call.stride), 0, output.panels, false);
    for (int64_t r = first; r < first + count; ++r) {
      PairRow rows[2] = {{call.gradients[0] + r * call.stride}, {call.gradients[1] + r * call.stride}};
      const float zeros[2] = {find_most(rows[0], output.out), find_most(rows[1], output.out)};
      find_totals(rows[0], rows[1], output.out);
      for (int pass = 0; pass < 2; ++pass) {
        sums[2 * pass] += double(rows[pass].level) - rows[pass].z[call.targets[r]] + zeros[pass];
        sums[2 * pass + 1] += rows[pass].level;
        sums[4] += rows[pass].divergence;
      }
      find_gradients(rows[0], rows[1], output.out, float(call.weight));
      for (PairRow& row : rows) row.z[call.targets[r]] += float(call.smoothing - 1.0);
    }
  }
  for (int i = 0; i < 5; ++i) call.sums[i] += sums[i];
}

}  // namespace malmoi

extern "C" {

// `sums` holds (parts, 5) zeros: of each part its own.
void malmoi_training_pair(void* output, const malmoi::PairCall* call, const malmoi::Team* team) {
  const auto& linear = static_cast<malmoi::OutputLayer*>(output)->single;
  malmoi::share(*team, [&](int64_t part) {
    malmoi::PairCall some = *call;
    const int64_t first = malmoi::cut(call->rows, part, team->parts);
    some.rows = malmoi::cut(call->rows, part + 1, team->parts) - first;
    for (int pass = 0; pass < 2; ++pass)
      some.states[pass] += first * linear.in, some.gradients[pass] += first * call->stride;
    some.targets += first, some.sums += 5 * part;
    malmoi::pair_of_rows(linear, some);
  });
}

}  // extern "C"
