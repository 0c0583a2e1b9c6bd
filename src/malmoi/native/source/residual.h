// What surrounds a sublayer in training, in one pass over the memory: dropout, the residual sum and LayerNorm.
#pragma once

#include "halves.h"
#include "share.h"

namespace malmoi {

// `ResidualCall` of training.py. All arrays are (rows, width), width a multiple of 8.
struct ResidualCall {
  int64_t in_halves;       // what is `void` is bf16, else fp32
  int64_t first, last;     // rows
  int64_t width;
  int64_t kept_levels;     // of 65536
  double scale;            // of what is kept
  double epsilon;
  const float* states;
  const void* sublayer;
  const uint16_t* levels;  // random; below `kept_levels` an element is kept. Null: all are
  const float* gain;       // (width)
  const float* bias;       // (width)
  float* out;              // backwards its gradient, read
  float* normed;           // before gain and bias
  float* inverse;          // (rows): 1 / sqrt(variance + epsilon)
  float* d_states;         // backwards, written
  void* d_sublayer;
  float* d_gain;           // (width), added to
  float* d_bias;
};

// What eight elements are multiplied with: `scale`, or 0 where the level is not below `kept_levels`.
inline f8 kept_of(const uint16_t* levels, int kept_levels, f8 scale) {
  h8 eight;
  std::memcpy(&eight, levels, sizeof eight);
  const i8 level = __builtin_convertvector(eight, i8);
  const i8 most = {kept_levels, kept_levels, kept_levels, kept_levels, kept_levels, kept_levels, kept_levels, kept_levels};
  return level < most ? scale : every(0.0f);
}

template <class T>
inline void residual_norm(const ResidualCall& call) {
  const T* sublayer = static_cast<const T*>(call.sublayer);
  const int64_t width = call.width;
  const f8 scale = every(float(call.scale));
  for (int64_t r = call.first; r < call.last; ++r) {
    const int64_t start = r * width;
    float* row = call.normed + start;
    f8 sum8 = every(0.0f);
    for (int64_t i = 0; i < width; i += 8) {
      f8 value = load(sublayer + start + i);
      if (call.levels) value *= kept_of(call.levels + start + i, int(call.kept_levels), scale);
      value += load(call.states + start + i);
      sum8 += value;
      store(row + i, value);
    }
    const f8 mean = every(sum(sum8) / float(width));
    f8 square8 = every(0.0f);
    for (int64_t i = 0; i < width; i += 8) {
      const f8 apart = load(row + i) - mean;
      square8 += apart * apart;
    }
    const float inverse = 1.0f / std::sqrt(sum(square8) / float(width) + float(call.epsilon));
    call.inverse[r] = inverse;
    for (int64_t i = 0; i < width; i += 8) {
      const f8 normed = (load(row + i) - mean) * every(inverse);
      store(row + i, normed);
      store(call.out + start + i, normed * load(call.gain + i) + load(call.bias + i));
    }
  }
}

template <class T>
inline void residual_norm_back(const ResidualCall& call) {
  T* d_sublayer = static_cast<T*>(call.d_sublayer);
  const int64_t width = call.width;
  const f8 scale = every(float(call.scale));
  for (int64_t r = call.first; r < call.last; ++r) {
    const int64_t start = r * width;
    f8 sum8 = every(0.0f), product8 = every(0.0f);
    for (int64_t i = 0; i < width; i += 8) {
      const f8 gradient = load(call.out + start + i), normed = load(call.normed + start + i);
      store(call.d_gain + i, load(call.d_gain + i) + gradient * normed);
      store(call.d_bias + i, load(call.d_bias + i) + gradient);
      const f8 inner = gradient * load(call.gain + i);
      sum8 += inner;
      product8 += inner * normed;
    }
    const f8 mean = every(sum(sum8) / float(width)), along = every(sum(product8) / float(width));
    const f8 inverse = every(call.inverse[r]);
    for (int64_t i = 0; i < width; i += 8) {
      const f8 inner = load(call.out + start + i) * load(call.gain + i);
      const f8 made = (inner - mean - load(call.normed + start + i) * along) * inverse;
      store(call.d_states + start + i, made);
      store(d_sublayer + start + i,
            call.levels ? made * kept_of(call.levels + start + i, int(call.kept_levels), scale) : made);
    }
  }
}

}  // namespace malmoi

extern "C" {

// Backwards `d_gain` holds (parts, 2, width) zeros: of each part the gradients of gain and bias.
void malmoi_training_residual(const malmoi::ResidualCall* call, int backwards, const malmoi::Team* team) {
  const int64_t rows = call->last;
  malmoi::share(*team, [&](int64_t part) {
    malmoi::ResidualCall some = *call;
    some.first = malmoi::cut(rows, part, team->parts), some.last = malmoi::cut(rows, part + 1, team->parts);
    if (backwards) {
      some.d_gain = call->d_gain + 2 * part * call->width;
      some.d_bias = some.d_gain + call->width;
      call->in_halves ? malmoi::residual_norm_back<malmoi::half>(some) : malmoi::residual_norm_back<float>(some);
    } else {
      call->in_halves ? malmoi::residual_norm<malmoi::half>(some) : malmoi::residual_norm<float>(some);
    }
  });
}

}  // extern "C"
