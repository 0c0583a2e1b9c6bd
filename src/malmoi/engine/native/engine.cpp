// A Transformer for search on the CPU: encoding whole sentences and one decoder step per call, without any library.
//
// In: packed weights, ids, and tables that say where the keys and values of a row's past lie. Out: memories of
// sentences, and log-probabilities or the best candidates of each row. Everything is made row by row (products: tile
// by tile, see products.h), so that a row's numbers depend on its own sentence and past alone, to the last bit.
//
// Rows go through all layers in blocks, whose states stay in the second cache, while the weights stream by. Nothing is
// shared between calls but the weights, which never change: several threads may call at once.
#include "layers.h"

namespace malmoi {

constexpr int kRowsAtOnce = 48;       // rows of a block
constexpr int kColumnsAtOnce = 256;   // scores of the vocabulary that are in memory at once

class Engine : public Layers {
 public:
  using Layers::Layers;

  Result encode(const EncodeCall& call) const {
    int64_t first = 0, ids_before = 0;
    for (int64_t sentence = 0, i = 0, end = 0; sentence < call.sentences; ++sentence)
      for (end += call.lengths[sentence]; i < end; ++i)
        if (uint64_t(call.ids[i]) > uint64_t(shape.source_vocabulary)) return kNoSuchId;
    while (first < call.sentences) {
      int64_t end = first, rows = 0;
      while (end < call.sentences && (rows == 0 || rows + call.lengths[end] <= kRowsAtOnce)) rows += call.lengths[end++];
      if (rows) encode_block(call, first, end, call.ids + ids_before, int(rows));
      ids_before += rows;
      first = end;
    }
    return kDone;
  }

  // One step, or several as long as they are plain: the best continuations live on, and nothing else is to be decided.
  Result step(const StepCall& given) const {
    StepCall call = given;
    for (int64_t done = 0;; ++done) {
      if (const Result fault = one_step(call)) return fault;
      if (given.most_steps <= 1) return kDone;
      *given.num_plain = done;
      if (done + 1 == given.most_steps || !*given.is_plain) break;
      follow(given, call, done);
    }
    if (call.slots != given.slots) {
      std::copy(call.lengths, call.lengths + given.rows, given.lengths);
      std::copy(call.slots, call.slots + given.rows * given.stride, given.slots);
    }
    return kDone;
  }

 private:
  // Makes the call of the step after a plain one, all of whose rows hold a hypothesis.
  void follow(const StepCall& given, StepCall& call, int64_t done) const {
    const int64_t rows = given.rows, each = given.rows_each;
    int64_t *origins = given.plain_rows + done * rows, *ids = given.plain_ids + done * rows;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t from = row / each * given.merged + row % each;
      origins[row] = row / each * each + given.merged_rows[from];
      ids[row] = given.merged_ids[from];
      given.plain_log_probs[done * rows + row] = given.merged_log_probs[from];
      given.plain_totals[row] = given.merged_totals[from];
    }
    const bool was_given = call.slots == given.slots;
    int32_t* spare = own_room().numbers.room(size_t(rows) * (given.stride + 1));
    call.tokens = ids, call.origins = origins, call.totals = given.plain_totals, call.fresh += rows;
    call.lengths_before = call.lengths, call.slots_before = call.slots;
    call.rows_before = rows, call.stride_before = given.stride;
    call.lengths = was_given ? spare : given.lengths, call.slots = was_given ? spare + rows : given.slots;
  }

  Result one_step(const StepCall& call) const {
    if (const Result fault = move_rows(call)) return fault;
    const int64_t blocks = (call.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    if (!blocks) return kDone;
    const int64_t rows = round_up(int((call.rows + blocks - 1) / blocks), 8);
    for (int64_t row = 0; row < call.rows; row += rows) step_block(call, row, int(std::min(rows, call.rows - row)));
    if (call.best_log_probs)
      for (int64_t row = 0; row < call.rows; ++row)
        if (std::isnan(call.end_log_probs[row])) return kNotNumbers;
    if (call.merged) merge(call);
    return kDone;
  }

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

  // The best continuations of each sentence: `merge_best` of decoding/candidates.py, which says what is meant.
  void merge(const StepCall& call) const {
    const int64_t most = call.merged;
    std::fill(call.merged_totals, call.merged_totals + call.sentences * most, -std::numeric_limits<double>::infinity());
    for (int64_t row = 0; row < call.rows; ++row) {
      const int64_t number = call.alive ? call.alive[row] : row, first = number / call.rows_each * most;
      double *totals = call.merged_totals + first, *log_probs = call.merged_log_probs + first;
      int64_t *rows = call.merged_rows + first, *ids = call.merged_ids + first;
      for (int64_t i = row * call.best; i < (row + 1) * call.best; ++i) {
        const double total = call.best_log_probs[i] + call.totals[number];
        // Of equal sums the earlier row and id stays before the later one.
        if (!(total > totals[most - 1])) continue;
        int64_t place = most - 1;
        for (; place > 0 && totals[place - 1] < total; --place) {
          totals[place] = totals[place - 1], log_probs[place] = log_probs[place - 1];
          rows[place] = rows[place - 1], ids[place] = ids[place - 1];
        }
        totals[place] = total, log_probs[place] = call.best_log_probs[i];
        rows[place] = number % call.rows_each, ids[place] = call.best_ids[i];
      }
    }
    *call.is_plain = most >= call.rows_each;
    for (int64_t first = 0; *call.is_plain && first < call.sentences * most; first += most)
      for (int64_t place = first; place < first + call.rows_each; ++place)
        if (std::isinf(call.merged_totals[place]) || call.merged_ids[place] == call.end_id) *call.is_plain = 0;
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

int malmoi_engine_encode(const void* engine, const malmoi::EncodeCall* call) {
  try {
    return static_cast<const malmoi::Engine*>(engine)->encode(*call);
  } catch (...) {
    return malmoi::kNoMemory;
  }
}

int malmoi_engine_step(const void* engine, const malmoi::StepCall* call) {
  try {
    return static_cast<const malmoi::Engine*>(engine)->step(*call);
  } catch (...) {
    return malmoi::kNoMemory;
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
