// One step of a decoder for a block of rows: all its layers, the output layer, and the choice of candidates.
//
// Rows go through all layers in blocks, whose states stay in the second cache, while the weights stream by.
#pragma once

#include "layers.h"

namespace malmoi {

constexpr int kRowsAtOnce = 48;       // rows of a block
constexpr int kColumnsAtOnce = 256;   // scores of the vocabulary that are in memory at once

class Decoder : public Layers {
 public:
  using Layers::Layers;

 protected:
  // The lists of slots of the rows that go on, with the fresh ones behind.
  Result move_rows(const StepCall& call) const {
    for (int64_t row = 0; row < call.rows; ++row) {
      const int64_t origin = call.origins ? call.origins[row] : row;
      if (uint64_t(origin) >= uint64_t(call.rows_before)) return kNoSuchRow;
      if (uint64_t(call.tokens[row]) > uint64_t(shape.vocabulary)) return kNoSuchId;
      const int32_t length = call.lengths_before[origin];
      const int32_t* from = call.slots_before + origin * call.stride_before;
      int32_t* to = call.slots + row * call.stride;
      std::copy(from, from + length, to);
      to[length] = call.fresh[row];
      std::fill(to + length + 1, to + call.stride, 0);
      call.lengths[row] = length + 1;
    }
    return kDone;
  }

  void step_block(const StepCall& call, int64_t first, int rows) const {
    Room& room = own_room();
    float* x = room.states.room(size_t(rows) * width);
    for (int row = 0; row < rows; ++row)
      embed(target_embedding, call.table, call.tokens[first + row], call.lengths[first + row] - 1,
            x + size_t(row) * width);
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

 private:
  float* slot(const StepCall& call, int32_t number) const {
    const size_t mask = (size_t(1) << call.slot_shift) - 1;
    return call.chunks[number >> call.slot_shift] + (number & mask) * 2 * width * decoder.size();
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
      const int place = call.lengths[first + row] - 1;
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
