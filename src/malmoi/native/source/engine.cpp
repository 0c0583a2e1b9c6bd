// A Transformer for search on the CPU: encoding whole sentences and one decoder step per call, without any library.
//
// In: packed weights, ids, and tables that say where the keys and values of a row's past lie. Out: memories of
// sentences, and log-probabilities or the best candidates of each row. Everything is made row by row (products: tile
// by tile, see products.h), so that a row's numbers depend on its own sentence and past alone, to the last bit.
//
// Rows go through all layers in blocks, whose states stay in the second cache, while the weights stream by. Nothing is
// shared between calls but the weights, which never change: several threads may call at once.
#include "attention.h"
#include "consistency.h"
#include "decoder.h"
#include "residual.h"

namespace malmoi {

// Room for the rows of a block that go on alone, kept by each thread.
struct Alone {
  Buffer<int64_t> row, tokens, origins, ids;
  Buffer<const float*> memories;
  Buffer<int32_t> source_lengths, fresh, numbers[2];
  Buffer<double> log_probs, end_log_probs;

  void make_room(int rows, int64_t stride) {
    for (Buffer<int64_t>* one : {&row, &tokens, &origins, &ids}) one->room(rows);
    memories.room(rows);
    for (Buffer<int32_t>* one : {&source_lengths, &fresh}) one->room(rows);
    for (Buffer<int32_t>& one : numbers) one.room(size_t(rows) * (stride + 1));
    for (Buffer<double>* one : {&log_probs, &end_log_probs}) one->room(rows);
  }
};

inline Alone& own_alone() {
  static thread_local Alone alone;
  return alone;
}

class Engine : public Decoder {
 public:
  using Decoder::Decoder;

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

  // Greedy search for up to `most_steps` tokens of each row, one block after another, so that what the rows of a block
  // have to remember stays near. A row stops behind its end symbol, or where nothing may come.
  Result go_greedily(const StepCall& call) const {
    const int64_t blocks = (call.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    const int64_t rows = blocks ? round_up(int((call.rows + blocks - 1) / blocks), 8) : 1;
    for (int64_t row = 0; row < call.rows; row += rows)
      if (const Result fault = go_greedily(call, row, int(std::min(rows, call.rows - row)))) return fault;
    return kDone;
  }

 private:
  Result go_greedily(const StepCall& given, int64_t first, int rows) const {
    Alone& alone = own_alone();
    alone.make_room(rows, given.stride);
    for (int row = 0; row < rows; ++row) {
      alone.row[row] = first + row, alone.tokens[row] = given.tokens[first + row];
      alone.origins[row] = given.origins ? given.origins[first + row] : first + row;
      alone.memories[row] = given.memories[first + row], alone.source_lengths[row] = given.source_lengths[first + row];
      given.num_plain[first + row] = 0;
    }
    StepCall call = given;
    call.best = 1, call.merged = 0, call.no_end = nullptr, call.log_probs = nullptr, call.attention = nullptr;
    call.tokens = alone.tokens.data(), call.origins = alone.origins.data(), call.fresh = alone.fresh.data();
    call.memories = alone.memories.data(), call.source_lengths = alone.source_lengths.data();
    call.best_ids = alone.ids.data(), call.best_log_probs = alone.log_probs.data();
    call.end_log_probs = alone.end_log_probs.data();
    int going_on = rows;
    for (int64_t step = 0; step < given.most_steps && going_on; ++step) {
      call.rows = going_on;
      call.lengths = alone.numbers[step % 2].data(), call.slots = call.lengths + rows;
      for (int i = 0; i < going_on; ++i) alone.fresh[i] = given.fresh[alone.row[i] * given.most_steps + step];
      if (const Result fault = move_rows(call)) return fault;
      step_block(call, 0, going_on);
      for (int i = 0; i < going_on; ++i)
        if (std::isnan(call.end_log_probs[i])) return kNotNumbers;
      going_on = say(given, alone, step, going_on);
      call.lengths_before = call.lengths, call.slots_before = call.slots;
      call.rows_before = rows, call.stride_before = given.stride;
    }
    for (int row = 0; row < rows; ++row) given.lengths[first + row] = 0;
    std::fill(given.slots + first * given.stride, given.slots + (first + rows) * given.stride, 0);
    for (int i = 0; i < going_on; ++i) {
      const int32_t* slots = call.slots + alone.origins[i] * given.stride;
      given.lengths[alone.row[i]] = call.lengths[alone.origins[i]];
      std::copy(slots, slots + given.stride, given.slots + alone.row[i] * given.stride);
    }
    return kDone;
  }

  // Writes down what rows said and moves together those that go on; returns their number.
  static int say(const StepCall& given, Alone& alone, int64_t step, int rows) {
    int going_on = 0;
    for (int i = 0; i < rows; ++i) {
      const int64_t row = alone.row[i], id = alone.ids[i];
      const double log_prob = alone.log_probs[i];
      if (std::isinf(log_prob)) continue;
      given.plain_ids[step * given.rows + row] = id;
      given.plain_log_probs[step * given.rows + row] = log_prob;
      given.plain_totals[row] += log_prob;
      given.num_plain[row] = step + 1;
      if (id == given.end_id) continue;
      alone.row[going_on] = row, alone.tokens[going_on] = id, alone.origins[going_on] = i;
      alone.memories[going_on] = alone.memories[i], alone.source_lengths[going_on] = alone.source_lengths[i];
      ++going_on;
    }
    return going_on;
  }

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

int malmoi_engine_go_greedily(const void* engine, const malmoi::StepCall* call) {
  try {
    return static_cast<const malmoi::Engine*>(engine)->go_greedily(*call);
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
