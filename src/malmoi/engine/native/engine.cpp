// A Transformer for search on the CPU: encoding whole sentences and one decoder step per call, without any library.
//
// In: packed weights, ids, and tables that say where the keys and values of a row's past lie. Out: memories of
// sentences, and log-probabilities or the best candidates of each row. Everything is made row by row (products: tile
// by tile, see products.h), so that a row's numbers depend on its own sentence and past alone, to the last bit.
//
// Rows go through all layers in blocks, whose states stay in the second cache, while the weights stream by. Nothing is
// shared between calls but the weights, which never change: several threads may call at once.
#include "products.h"

#include <limits>
#include <memory>

namespace malmoi {

constexpr int kRowsAtOnce = 48;       // rows of a block
constexpr int kColumnsAtOnce = 256;   // scores of the vocabulary that are in memory at once
constexpr float kEpsilon = 1e-5f;     // of norms

// What Python hands over; engine/library.py holds the same fields in the same order.
struct Shape {
  int64_t width, heads, feed_forward, vocabulary, encoder_layers, decoder_layers;
  int64_t norm_first, root_mean_square, activation, positions, distance, int8;
};
enum Activation { kRelu = 0, kGelu = 1, kSwiglu = 2 };
enum Positions { kAdded = 0, kRotary = 1, kRelative = 2, kNone = 3 };

struct EncodeCall {
  int64_t sentences;
  const int64_t* ids;        // of all sentences, one after another
  const int64_t* lengths;
  float* const* memories;    // per sentence (decoder layers, 2, its length, width)
  const float* table;        // of positions
};

struct StepCall {
  int64_t rows, stride, best, num_forbidden, end_id, places, slot_shift;
  const int64_t* tokens;
  const int32_t* lengths;        // tokens that a row was fed before
  const int32_t* slots;          // (rows, stride): where each of its tokens lies; this step writes to the last one
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
  Buffer<double> log_sums;
  Buffer<float> best;
  Buffer<int64_t> best_ids;
  Quantized quantized;
};

Room& own_room() {
  static thread_local Room room;
  return room;
}

class Engine {
 public:
  Shape shape;
  int width, heads, size;
  std::vector<Layer> encoder, decoder;
  Norm encoder_norm, decoder_norm;
  const float *source_embedding, *target_embedding;
  Linear output;
  Buffer<float> zeros;

  Engine(const Shape& given, const float* const* weights) : shape(given) {
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

  void encode(const EncodeCall& call) const {
    int64_t first = 0, ids_before = 0;
    while (first < call.sentences) {
      int64_t end = first, rows = 0;
      while (end < call.sentences && (rows == 0 || rows + call.lengths[end] <= kRowsAtOnce)) rows += call.lengths[end++];
      if (rows) encode_block(call, first, end, call.ids + ids_before, int(rows));
      ids_before += rows;
      first = end;
    }
  }

  void step(const StepCall& call) const {
    const int64_t blocks = (call.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    if (!blocks) return;
    const int64_t rows = round_up(int((call.rows + blocks - 1) / blocks), 8);
    for (int64_t row = 0; row < call.rows; row += rows) step_block(call, row, int(std::min(rows, call.rows - row)));
  }

 private:
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

  int near(int distance) const {
    const int most = int(shape.distance);
    return std::max(-most, std::min(most, distance)) + most;
  }

  void scale_query(float* query) const {
    const float scale = 1.0f / std::sqrt(float(size));
    for (int i = 0; i < width; ++i) query[i] *= scale;
  }

  void encode_block(const EncodeCall& call, int64_t first, int64_t end, const int64_t* ids, int rows) const {
    Room& room = own_room();
    float* x = room.states.room(size_t(rows) * width);
    int row = 0;
    for (int64_t sentence = first; sentence < end; ++sentence)
      for (int64_t place = 0; place < call.lengths[sentence]; ++place, ++row)
        embed(source_embedding, call.table, ids[row], place, x + size_t(row) * width);
    for (const Layer& layer : encoder) {
      encode_self(layer, call, first, end, room, rows);
      feed_forward(layer, room, rows);
    }
    if (shape.norm_first)
      for (row = 0; row < rows; ++row) normalize(encoder_norm, x + size_t(row) * width, x + size_t(row) * width);
    for (size_t l = 0; l < decoder.size(); ++l) {
      const Linear& linear = decoder[l].key_value;
      float* wide = room.wide.room(size_t(rows) * linear.stride());
      multiply(linear, room, x, width, rows, wide);
      row = 0;
      for (int64_t sentence = first; sentence < end; ++sentence) {
        const size_t length = call.lengths[sentence];
        float* keys = call.memories[sentence] + 2 * l * length * width;
        for (size_t place = 0; place < length; ++place, ++row) {
          const float* from = wide + size_t(row) * linear.stride();
          std::copy(from, from + width, keys + place * width);
          std::copy(from + width, from + 2 * width, keys + (length + place) * width);
        }
      }
    }
  }

  void encode_self(const Layer& layer, const EncodeCall& call, int64_t first, int64_t end, Room& room, int rows) const {
    const float* asked = before(layer.self_norm, room, rows);
    const int stride = layer.self.input.stride();
    float* wide = room.wide.room(size_t(rows) * stride);
    multiply(layer.self.input, room, asked, width, rows, wide);
    float* attended = room.attended.room(size_t(rows) * width);
    const float** places = room.places.room(rows);
    const Attention* relative = shape.positions == kRelative ? &layer.self : nullptr;
    for (int row = 0; row < rows; ++row) places[row] = wide + size_t(row) * stride;
    int start = 0;
    for (int64_t sentence = first; sentence < end; ++sentence) {
      const int length = int(call.lengths[sentence]);
      for (int place = 0; place < length; ++place) {
        float* packed = wide + size_t(start + place) * stride;
        if (shape.positions == kRotary) {
          turn(packed, call.table + size_t(place) * size);
          turn(packed + width, call.table + size_t(place) * size);
        }
        scale_query(packed);
      }
      for (int place = 0; place < length; ++place)
        look(places[start + place], places + start, width, 2 * width, length, attended + size_t(start + place) * width,
             room, relative, place, nullptr);
      start += length;
    }
    float* y = room.moved.room(size_t(rows) * layer.self.output.stride());
    multiply(layer.self.output, room, attended, width, rows, y);
    after(layer.self_norm, room, rows, y, layer.self.output.stride());
  }

  float* slot(const StepCall& call, int32_t number) const {
    const size_t mask = (size_t(1) << call.slot_shift) - 1;
    return call.chunks[number >> call.slot_shift] + (number & mask) * 2 * width * decoder.size();
  }

  void step_block(const StepCall& call, int64_t first, int rows) const {
    Room& room = own_room();
    float* x = room.states.room(size_t(rows) * width);
    for (int row = 0; row < rows; ++row)
      embed(target_embedding, call.table, call.tokens[first + row], call.lengths[first + row], x + size_t(row) * width);
    for (size_t l = 0; l < decoder.size(); ++l) {
      const Layer& layer = decoder[l];
      step_self(layer, l, call, first, room, rows);
      step_cross(layer, l, call, first, room, rows);
      feed_forward(layer, room, rows);
    }
    if (shape.norm_first)
      for (int row = 0; row < rows; ++row)
        normalize(decoder_norm, x + size_t(row) * width, x + size_t(row) * width);
    choose(call, first, room, rows);
  }

  void step_self(const Layer& layer, size_t l, const StepCall& call, int64_t first, Room& room, int rows) const {
    const float* asked = before(layer.self_norm, room, rows);
    const int stride = layer.self.input.stride();
    float* wide = room.wide.room(size_t(rows) * stride);
    multiply(layer.self.input, room, asked, width, rows, wide);
    float* attended = room.attended.room(size_t(rows) * width);
    const Attention* relative = shape.positions == kRelative ? &layer.self : nullptr;
    for (int row = 0; row < rows; ++row) {
      float* packed = wide + size_t(row) * stride;
      const int place = call.lengths[first + row];
      const int32_t* slots = call.slots + (first + row) * call.stride;
      if (shape.positions == kRotary) {
        turn(packed, call.table + size_t(place) * size);
        turn(packed + width, call.table + size_t(place) * size);
      }
      scale_query(packed);
      const float** places = room.places.room(place + 1);
      for (int t = 0; t <= place; ++t) places[t] = slot(call, slots[t]) + 2 * l * width;
      std::copy(packed + width, packed + 3 * width, const_cast<float*>(places[place]));
      look(packed, places, 0, width, place + 1, attended + size_t(row) * width, room, relative, place, nullptr);
    }
    float* y = room.moved.room(size_t(rows) * layer.self.output.stride());
    multiply(layer.self.output, room, attended, width, rows, y);
    after(layer.self_norm, room, rows, y, layer.self.output.stride());
  }

  void step_cross(const Layer& layer, size_t l, const StepCall& call, int64_t first, Room& room, int rows) const {
    const float* asked = before(layer.cross_norm, room, rows);
    const int stride = layer.cross.input.stride();
    float* queries = room.wide.room(size_t(rows) * stride);
    multiply(layer.cross.input, room, asked, width, rows, queries);
    float* attended = room.attended.room(size_t(rows) * width);
    for (int row = 0; row < rows; ++row) {
      float* query = queries + size_t(row) * stride;
      scale_query(query);
      const int length = call.source_lengths[first + row];
      const float* keys = call.memories[first + row] + 2 * l * size_t(length) * width;
      const float** places = room.places.room(std::max(length, 1));
      for (int t = 0; t < length; ++t) places[t] = keys + size_t(t) * width;
      float* attention = nullptr;
      if (call.attention && l + 1 == decoder.size()) {
        attention = call.attention + (first + row) * call.places;
        std::fill(attention, attention + call.places, 0.0f);
      }
      look(query, places, 0, size_t(length) * width, length, attended + size_t(row) * width, room, nullptr, 0, attention);
    }
    float* y = room.moved.room(size_t(rows) * layer.cross.output.stride());
    multiply(layer.cross.output, room, attended, width, rows, y);
    after(layer.cross_norm, room, rows, y, layer.cross.output.stride());
  }

  // The output layer some columns at a time: the sum of exponentials and the best candidates of each row are kept
  // while the scores pass by.
  void choose(const StepCall& call, int64_t first, Room& room, int rows) const {
    const float* x = room.states.data();
    const float lowest = -std::numeric_limits<float>::infinity();
    const int best = call.best_log_probs ? int(call.best) : 0, vocabulary = int(shape.vocabulary);
    float* scores = room.scores.room(size_t(rows) * kColumnsAtOnce);
    float* sums = room.sums.room(size_t(rows) * 8);
    float* maxima = room.maxima.room(rows);
    float* values = room.best.room(size_t(rows) * std::max(best, 1));
    int64_t* ids = room.best_ids.room(size_t(rows) * std::max(best, 1));
    std::fill(sums, sums + size_t(rows) * 8, 0.0f);
    std::fill(maxima, maxima + rows, lowest);
    std::fill(values, values + size_t(rows) * best, lowest);
    std::fill(ids, ids + size_t(rows) * best, int64_t(0));
    if (output.in_int8) room.quantized.fill(x, width, rows, width, true);
    for (int column = 0; column < vocabulary; column += kColumnsAtOnce) {
      const int from = column / kPanel, to = std::min(output.panels, from + kColumnsAtOnce / kPanel);
      product(output, x, width, room.quantized, rows, scores - size_t(from) * kPanel, kColumnsAtOnce, from, to, false);
      const int length = std::min(kColumnsAtOnce, vocabulary - column);
      for (int row = 0; row < rows; ++row) {
        float* of_row = scores + size_t(row) * kColumnsAtOnce;
        for (int i = length; i < round_up(length, 8); ++i) of_row[i] = lowest;
        if (call.log_probs)
          std::copy(of_row, of_row + length, call.log_probs + (first + row) * vocabulary + column);
        if (call.end_id >= column && call.end_id < column + length) call.end_log_probs[first + row] = of_row[call.end_id - column];
        const float most = take_in(of_row, round_up(length, 8), sums + size_t(row) * 8, maxima[row]);
        if (best && most > values[size_t(row) * best + best - 1]) {
          for (int64_t i = 0; i < call.num_forbidden; ++i)
            if (call.forbidden[i] >= column && call.forbidden[i] < column + length) of_row[call.forbidden[i] - column] = lowest;
          if (call.no_end && call.no_end[first + row] && call.end_id >= column && call.end_id < column + length)
            of_row[call.end_id - column] = lowest;
          pick(of_row, length, column, best, values + size_t(row) * best, ids + size_t(row) * best);
        }
      }
    }
    for (int row = 0; row < rows; ++row) {
      float finite = 0.0f;
      for (int i = 0; i < width; ++i) finite += x[size_t(row) * width + i] * 0.0f;
      f8 total = load(sums + size_t(row) * 8);
      // A state that is not a number makes all of a row so, which the search then refuses.
      const double log_sum = double(maxima[row]) + std::log(double(sum(total))) + double(finite);
      finish(call, first + row, log_sum, best, values + size_t(row) * best, ids + size_t(row) * best);
    }
  }

  // Adds e^(score - maximum) of some columns to a row's eight sums; returns the largest of the columns.
  static float take_in(const float* scores, int length, float* sums, float& maximum) {
    f8 most8 = load(scores);
    for (int i = 8; i < length; i += 8) most8 = larger(most8, load(scores + i));
    const float most = largest(most8);
    f8 total = load(sums);
    if (most > maximum) {
      if (maximum > -std::numeric_limits<float>::infinity()) total *= every(std::exp(maximum - most));
      maximum = most;
    }
    const f8 top = every(maximum);
    f8 other = every(0.0f);
    int i = 0;
    for (; i + 16 <= length; i += 16) {
      total += exp8(load(scores + i) - top);
      other += exp8(load(scores + i + 8) - top);
    }
    if (i < length) total += exp8(load(scores + i) - top);
    store(sums, total + other);
    return most;
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

  void finish(const StepCall& call, int64_t row, double log_sum, int best, const float* values, const int64_t* ids) const {
    if (call.end_log_probs) call.end_log_probs[row] -= log_sum;
    if (call.log_probs) {
      float* of_row = call.log_probs + row * shape.vocabulary;
      for (int64_t i = 0; i < shape.vocabulary; ++i) of_row[i] = float(double(of_row[i]) - log_sum);
    }
    if (!best) return;
    int order[64];
    for (int i = 0; i < best; ++i) order[i] = i;
    // Places without a candidate come last.
    std::sort(order, order + best, [&](int a, int b) {
      const bool no_a = std::isinf(values[a]), no_b = std::isinf(values[b]);
      return no_a != no_b ? no_b : ids[a] != ids[b] ? ids[a] < ids[b] : a < b;
    });
    for (int i = 0; i < best; ++i) {
      call.best_log_probs[row * best + i] = double(values[order[i]]) - log_sum;
      call.best_ids[row * best + i] = ids[order[i]];
    }
  }
};

}  // namespace malmoi

extern "C" {

void* malmoi_engine_new(const malmoi::Shape* shape, const float* const* weights) {
  try {
    return new malmoi::Engine(*shape, weights);
  } catch (...) {
    return nullptr;
  }
}

void malmoi_engine_free(void* engine) { delete static_cast<malmoi::Engine*>(engine); }

// 0 where all went well, else 1: there was no memory.
int malmoi_engine_encode(const void* engine, const malmoi::EncodeCall* call) {
  try {
    static_cast<const malmoi::Engine*>(engine)->encode(*call);
    return 0;
  } catch (...) {
    return 1;
  }
}

int malmoi_engine_step(const void* engine, const malmoi::StepCall* call) {
  try {
    static_cast<const malmoi::Engine*>(engine)->step(*call);
    return 0;
  } catch (...) {
    return 1;
  }
}

// What products are made of, for `malmoi doctor`.
const char* malmoi_engine_kernels() {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return "AVX-512 VNNI";
#elif defined(__AVXVNNI__)
  return "AVX VNNI";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "portable";
#endif
}
}
