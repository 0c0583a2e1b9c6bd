// Work in parts on the threads that torch computes with, so that no others compete with them for the cores.
#pragma once

#include <atomic>
#include <cstdint>

namespace malmoi {

// GOMP_parallel of GCC's OpenMP runtime: calls the function on so many threads (0: as many as torch has set), and
// returns when all have.
typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);

// `Team` of training.py.
struct Team {
  Parallel parallel;  // null: the caller's thread does it all
  int64_t parts;
};

// Part `part` of so many things begins here.
inline int64_t cut(int64_t count, int64_t part, int64_t parts) { return count * part / parts; }

template <class Work>
inline void share(const Team& team, const Work& work) {
  struct Task {
    const Work* work;
    std::atomic<int64_t> next;
    int64_t parts;
  } task{&work, {0}, team.parts};
  void (*run)(void*) = [](void* data) {
    Task& task = *static_cast<Task*>(data);
    for (int64_t part; (part = task.next++) < task.parts;) (*task.work)(part);
  };
  if (team.parallel && team.parts > 1) {
    // Fewer threads than last time would make the runtime end some, and begin others when torch comes next.
    team.parallel(run, &task, 0, 0);
  } else {
    run(&task);
  }
}

}  // namespace malmoi
