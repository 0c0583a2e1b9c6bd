// Products of rows with packed weights, in fp32 and in int8.
//
// A sum over the inputs is made in the same order for every output, whatever other rows are computed with it: in fp32
// one accumulator per output goes through the inputs from the first to the last; in int8 sums are whole numbers and
// exact. So a row's result never depends on its neighbours, to the last bit.
#pragma once

#include "bytes.h"

namespace malmoi {

struct Linear {
  int in = 0, out = 0, depth = 0, panels = 0;
  bool in_int8 = false;
  Buffer<float> weight;      // [panel][in][16]
  Buffer<int8_t> weight8;    // as `place_of` says
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
        to[place_of(o, k, depth)] = int8_t(whole[k]);
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

// M rows times P panels in int8; `x` holds `depth` places per row.
template <int M, int P>
inline void tile_int8(const Linear& linear, const uint8_t* x, const float* scales, bool is_signed, int panel, float* y,
                      int y_stride, bool relu) {
  const size_t next = size_t(linear.depth) * kPanel;
  int32_t sums[P][M][kPanel];
  sums_of_bytes<M, P>(linear.weight8.data() + panel * next, next, x, linear.depth, sums);
  for (int p = 0; p < P; ++p)
    for (int half = 0; half < 2; ++half) {
      const int first = (panel + p) * kPanel + half * 8;
      i8 shift = i8{0, 0, 0, 0, 0, 0, 0, 0};
      if (is_signed) std::memcpy(&shift, linear.middle.data() + first, sizeof shift);
      const f8 scale = load(linear.scale.data() + first), bias = load(linear.bias.data() + first);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        i8 sum;
        std::memcpy(&sum, sums[p][m] + half * 8, sizeof sum);
        f8 value = __builtin_convertvector(sum - shift, f8) * (scale * every(scales[m])) + bias;
        if (relu) value = larger(every(0.0f), value);  // what is no number stays so
        store(y + size_t(m) * y_stride + first, value);
      }
    }
}

template <int M>
inline void rows_int8(const Linear& linear, const Quantized& x, int row, int from, int to, float* y, int stride, bool relu) {
  const uint8_t* values = x.values.data() + size_t(row) * linear.depth;
  const float* scales = x.scales.data() + row;
  constexpr int at_once = kTogether == kPanel ? (M > 4 ? 2 : 4) : 1;  // as many sums as registers hold
  int panel = from;
  for (; panel + at_once <= to; panel += at_once)
    tile_int8<M, at_once>(linear, values, scales, x.is_signed, panel, y, stride, relu);
  for (; panel < to; ++panel) tile_int8<M, 1>(linear, values, scales, x.is_signed, panel, y, stride, relu);
}

template <int M, int P>
inline void rows_fp32(const Linear& linear, const float* x, int x_stride, int from, int to, float* y, int stride, bool relu) {
  int panel = from;
  for (; panel + P <= to; panel += P) tile_fp32<M, P>(linear, x, x_stride, panel, y, stride, relu);
  for (; panel < to; ++panel) tile_fp32<M, 1>(linear, x, x_stride, panel, y, stride, relu);
}

constexpr int kPanelsAtOnce = 4;  // a run of weights that stays in the first cache while all rows pass

// Panels `from` to `to` of y = x W^T + b for `rows` rows; `y` holds whole panels, its column 0 is that of panel 0.
[[gnu::noinline]] inline void product(const Linear& linear, const float* x, int x_stride, const Quantized& quantized, int rows, float* y,
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
