// What the layers of a Transformer do with a block of rows, and what Python hands over.
//
// Everything is made row by row (products: tile by tile, see products.h), so that a row's numbers depend on its own
// sentence and past alone, to the last bit.
#pragma once

#include "products.h"

#include <limits>

namespace malmoi {

constexpr float kEpsilon = 1e-5f;  // of norms

// What Python hands over; library.py holds the same fields in the same order.
struct Shape {
  int64_t width, heads, feed_forward, vocabulary, source_vocabulary, encoder_layers, decoder_layers;
  int64_t norm_first, root_mean_square, activation, positions, distance, int8;
};
enum Activation { kRelu = 0, kGelu = 1, kSwiglu = 2 };
enum Positions { kAdded = 0, kRotary = 1, kRelative = 2, kNone = 3 };

enum Result { kDone = 0, kNoMemory = 1, kNoSuchId = 2, kNoSuchRow = 3, kNotNumbers = 4 };

struct EncodeCall {
  int64_t sentences;
  const int64_t* ids;        // of all sentences, one after another
  const int64_t* lengths;
  float* const* memories;    // per sentence (decoder layers, 2, its length, width)
  const float* table;        // of positions
};

struct StepCall {
  int64_t rows, rows_before, stride_before, stride, best, num_forbidden, end_id, places, slot_shift;
  int64_t sentences, rows_each, merged;  // how many of each sentence are merged; 0: none
  const int64_t* tokens;
  const int64_t* origins;        // the row of the state before that each row goes on from, or null: the same
  const int32_t* lengths_before; // tokens that a row was fed before
  const int32_t* slots_before;   // (rows before, stride before): where each of its tokens lies
  const int32_t* fresh;          // where this step's token of each row is to lie
  int32_t* lengths;              // the same after this step, to be filled in
  int32_t* slots;                // (rows, stride), to be filled in
  float* const* chunks;          // slots in blocks of 2^slot_shift
  const float* const* memories;  // of each row's sentence
  const int32_t* source_lengths;
  const float* table;            // of positions
  const int64_t* forbidden;      // ids that are not to be candidates
  const uint8_t* no_end;         // rows whose candidates are not to hold the end symbol, or null
  float* log_probs;              // (rows, vocabulary), or null
  double* best_log_probs;        // (rows, best), in the order of their ids, or null
  int64_t* best_ids;
  double* end_log_probs;         // (rows)
  float* attention;              // (rows, places), or null
  const int64_t* alive;          // which of all (sentences, rows each) the rows are, or null: all
  const double* totals;          // (sentences, rows each): the sums so far
  double* merged_totals;         // (sentences, merged), best first
  double* merged_log_probs;
  int64_t* merged_rows;
  int64_t* merged_ids;
  int64_t* is_plain;             // one: whether no sentence's best continuations end or are too few
  // Where most_steps is above 1, plain steps are followed by the next one at once; `fresh` and `stride` have room for all.
  // Greedy search writes down what its rows say instead: (most_steps, rows) ids and log-probabilities, how many of them
  // in `num_plain` (rows), and adds them up in `plain_totals`. Its `fresh` slots are (rows, most_steps).
  int64_t most_steps;
  int64_t* num_plain;            // one: how many steps were
  int64_t* plain_rows;           // (plain steps, rows): what each row goes on from, says, and adds to its sum
  int64_t* plain_ids;
  double* plain_log_probs;
  double* plain_totals;          // (rows), after the last of them
};

struct Norm {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

struct Attention {
  Linear input, output;  // cross-attention: `input` makes the queries alone
  const float* near_keys = nullptr;
  const float* near_values = nullptr;
};

struct Layer {
  Attention self, cross;
  Linear key_value, inner, outer;
  Norm self_norm, cross_norm, last_norm;
};

// Room for one block of rows, kept by each thread.
struct Room {
  Buffer<float> states, normed, wide, attended, moved, weights, scores, sums, maxima;
  Buffer<const float*> places;
  Buffer<float> best;
  Buffer<int64_t> best_ids;
  Buffer<int32_t> numbers;
  Quantized quantized;
};

inline Room& own_room() {
  static thread_local Room room;
  return room;
}

class Layers {
 public:
  Shape shape;
  int width, heads, size;
  std::vector<Layer> encoder, decoder;
  Norm encoder_norm, decoder_norm;
  const float *source_embedding, *target_embedding;
  Linear output;

  Layers(const Shape& given, const float* const* weights) : shape(given) {
    width = int(shape.width), heads = int(shape.heads), size = width / heads;
    const float* const* next = weights;
    encoder = std::vector<Layer>(shape.encoder_layers);
    decoder = std::vector<Layer>(shape.decoder_layers);
    for (Layer& layer : encoder) read(layer, next, false);
    encoder_norm = read_norm(next);
    for (Layer& layer : decoder) read(layer, next, true);
    decoder_norm = read_norm(next);
    source_embedding = *next++;
    target_embedding = *next++;
    read(output, next, int(shape.vocabulary), width);
  }

 protected:
  void read(Linear& linear, const float* const*& next, int out, int in) const {
    const float* weight = *next++;
    const float* bias = *next++;
    linear.pack(weight, bias, out, in, shape.int8);
  }

  static Norm read_norm(const float* const*& next) {
    Norm norm{next[0], next[1]};
    next += 2;
    return norm;
  }

  void read(Layer& layer, const float* const*& next, bool crosses) const {
    read(layer.self.input, next, 3 * width, width);
    read(layer.self.output, next, width, width);
    layer.self.near_keys = *next++;
    layer.self.near_values = *next++;
    layer.self_norm = read_norm(next);
    if (crosses) {
      read(layer.cross.input, next, width, width);
      read(layer.key_value, next, 2 * width, width);
      read(layer.cross.output, next, width, width);
      layer.cross_norm = read_norm(next);
    }
    const int inner = int(shape.feed_forward);
    read(layer.inner, next, shape.activation == kSwiglu ? 2 * inner : inner, width);
    read(layer.outer, next, width, inner);
    layer.last_norm = read_norm(next);
  }

  // Whole products of a block, activations made small first where that is asked for.
  void multiply(const Linear& linear, Room& room, const float* x, int x_stride, int rows, float* y, bool relu = false,
                bool is_signed = true) const {
    if (linear.in_int8) room.quantized.fill(x, x_stride, rows, linear.in, is_signed);
    product(linear, x, x_stride, room.quantized, rows, y, linear.stride(), 0, linear.panels, relu);
  }

  void embed(const float* embedding, const float* table, int64_t id, int64_t place, float* x) const {
    const float scale = std::sqrt(float(width));
    const float* from = embedding + id * width;
    const float* add = shape.positions == kAdded ? table + place * width : nullptr;
    for (int i = 0; i < width; ++i) x[i] = from[i] * scale + (add ? add[i] : 0.0f);
  }

  void normalize(const Norm& norm, const float* x, float* y) const {
    const int whole = width / 8 * 8;
    float mean = 0.0f;
    if (!shape.root_mean_square) {
      f8 total = every(0.0f);
      for (int i = 0; i < whole; i += 8) total += load(x + i);
      mean = sum(total);
      for (int i = whole; i < width; ++i) mean += x[i];
      mean /= float(width);
    }
    f8 squares = every(0.0f);
    for (int i = 0; i < whole; i += 8) {
      f8 v = load(x + i) - every(mean);
      squares += v * v;
    }
    float variance = sum(squares);
    for (int i = whole; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / std::sqrt(variance / float(width) + kEpsilon);
    for (int i = 0; i < width; ++i) {
      float value = (x[i] - mean) * scale * norm.weight[i];
      y[i] = norm.bias ? value + norm.bias[i] : value;
    }
  }

  // What a sublayer gets: the states themselves, or a normed copy.
  const float* before(const Norm& norm, Room& room, int rows) const {
    float* x = room.states.data();
    if (!shape.norm_first) return x;
    float* y = room.normed.room(size_t(rows) * width);
    for (int row = 0; row < rows; ++row) normalize(norm, x + size_t(row) * width, y + size_t(row) * width);
    return y;
  }

  void after(const Norm& norm, Room& room, int rows, const float* y, int stride) const {
    float* x = room.states.data();
    for (int row = 0; row < rows; ++row, x += width, y += stride) {
      for (int i = 0; i < width; ++i) x[i] += y[i];
      if (!shape.norm_first) normalize(norm, x, x);
    }
  }

  void feed_forward(const Layer& layer, Room& room, int rows) const {
    const float* x = before(layer.last_norm, room, rows);
    const int stride = layer.inner.stride(), inner = int(shape.feed_forward);
    float* wide = room.wide.room(size_t(rows) * stride);
    const bool relu = shape.activation == kRelu;
    multiply(layer.inner, room, x, width, rows, wide, relu);
    for (int row = 0; row < rows && !relu; ++row) {
      float* h = wide + size_t(row) * stride;
      for (int i = 0; i < inner; ++i)
        h[i] = shape.activation == kGelu ? 0.5f * h[i] * (1.0f + std::erf(h[i] * 0.70710678f))
                                         : h[i] / (1.0f + std::exp(-h[i])) * h[inner + i];
    }
    float* y = room.moved.room(size_t(rows) * layer.outer.stride());
    multiply(layer.outer, room, wide, stride, rows, y, false, !relu);
    after(layer.last_norm, room, rows, y, layer.outer.stride());
  }

  void turn(float* x, const float* of_place) const {
    for (int head = 0; head < heads; ++head, x += size)
      for (int i = 0; i < size / 2; ++i) {
        const float sine = of_place[i], cosine = of_place[size / 2 + i], first = x[2 * i], second = x[2 * i + 1];
        x[2 * i] = first * cosine - second * sine;
        x[2 * i + 1] = first * sine + second * cosine;
      }
  }

  float dot(const float* a, const float* b, int length) const {
    f8 total = every(0.0f);
    int i = 0;
    for (; i + 8 <= length; i += 8) total += load(a + i) * load(b + i);
    float result = sum(total);
    for (; i < length; ++i) result += a[i] * b[i];
    return result;
  }

  void scores(const float* query, const float* const* places, size_t offset, int length, float* out) const {
    int t = 0;
    if (size % 8 == 0)
      for (; t + 4 <= length; t += 4) {
        f8 totals[4] = {every(0.0f), every(0.0f), every(0.0f), every(0.0f)};
        const float *k0 = places[t] + offset, *k1 = places[t + 1] + offset, *k2 = places[t + 2] + offset,
                    *k3 = places[t + 3] + offset;
        for (int i = 0; i < size; i += 8) {
          f8 q = load(query + i);
          totals[0] += q * load(k0 + i);
          totals[1] += q * load(k1 + i);
          totals[2] += q * load(k2 + i);
          totals[3] += q * load(k3 + i);
        }
        sum_four(totals[0], totals[1], totals[2], totals[3], out + t);
      }
    for (; t < length; ++t) out[t] = dot(query, places[t] + offset, size);
  }

  // Softmax over `length` scores in place; the room goes on to whole vectors.
  static void softmax(float* x, int length) {
    const int whole = round_up(length, 8);
    for (int t = length; t < whole; ++t) x[t] = -std::numeric_limits<float>::infinity();
    f8 most = load(x);
    for (int t = 8; t < whole; t += 8) most = larger(most, load(x + t));
    const f8 top = every(largest(most));
    f8 total = every(0.0f);
    for (int t = 0; t < whole; t += 8) {
      f8 e = exp8(load(x + t) - top);
      store(x + t, e);
    }
    for (int t = length; t < whole; ++t) x[t] = 0.0f;
    for (int t = 0; t < whole; t += 8) total += load(x + t);
    const f8 share = every(1.0f / sum(total));
    for (int t = 0; t < whole; t += 8) store(x + t, load(x + t) * share);
  }

  template <int C>
  static void mix(const float* weights, const float* const* places, size_t offset, int length, float* out) {
    f8 totals[C];
    for (int c = 0; c < C; ++c) totals[c] = every(0.0f);
    for (int t = 0; t < length; ++t) {
      const float* value = places[t] + offset;
      const f8 weight = every(weights[t]);
      for (int c = 0; c < C; ++c) totals[c] += weight * load(value + 8 * c);
    }
    for (int c = 0; c < C; ++c) store(out + 8 * c, totals[c]);
  }

  // One row's attention, all heads: `places[t]` is where the keys of place t lie, its values `values` floats further.
  // The query is scaled already. `own` is the query's own place among them, for relative positions.
  void look(const float* query, const float* const* places, size_t keys, size_t values, int length, float* out,
            Room& room, const Attention* relative, int own, float* attention) const {
    if (!length) {
      std::fill(out, out + width, 0.0f);
      return;
    }
    float* weights = room.weights.room(round_up(length, 8));
    for (int head = 0; head < heads; ++head) {
      const float* q = query + head * size;
      const size_t shift = size_t(head) * size;
      float* to = out + shift;
      scores(q, places, keys + shift, length, weights);
      if (relative)
        for (int t = 0; t < length; ++t) weights[t] += dot(q, relative->near_keys + size_t(near(t - own)) * size, size);
      softmax(weights, length);
      int i = 0;
      for (; i + 64 <= size; i += 64) mix<8>(weights, places, values + shift + i, length, to + i);
      for (; i + 32 <= size; i += 32) mix<4>(weights, places, values + shift + i, length, to + i);
      for (; i + 8 <= size; i += 8) mix<1>(weights, places, values + shift + i, length, to + i);
      for (; i < size; ++i) {
        float total = 0.0f;
        for (int t = 0; t < length; ++t) total += weights[t] * places[t][values + shift + i];
        to[i] = total;
      }
      if (relative)
        for (int t = 0; t < length; ++t) {
          const float* value = relative->near_values + size_t(near(t - own)) * size;
          for (int j = 0; j < size; ++j) to[j] += weights[t] * value[j];
        }
      if (attention)
        for (int t = 0; t < length; ++t) attention[t] += weights[t] / float(heads);
    }
  }

  // Candidates are kept best first, equal ones by their ids.
  static void pick(const float* scores, int length, int column, int best, float* values, int64_t* ids) {
    for (int block = 0; block < length; block += 8) {
      const float least = values[best - 1];
      f8 of_block = load(scores + block);
      if (!(largest(of_block) > least)) continue;
      for (int i = block; i < std::min(length, block + 8); ++i) {
        if (!(scores[i] > values[best - 1])) continue;
        int place = best - 1;
        for (; place > 0 && values[place - 1] < scores[i]; --place) {
          values[place] = values[place - 1];
          ids[place] = ids[place - 1];
        }
        values[place] = scores[i];
        ids[place] = column + i;
      }
    }
  }

  int near(int distance) const {
    const int most = int(shape.distance);
    return std::max(-most, std::min(most, distance)) + most;
  }

  void scale_query(float* query) const {
    const float scale = 1.0f / std::sqrt(float(size));
    for (int i = 0; i < width; ++i) query[i] *= scale;
  }
};

}  // namespace malmoi
