// The queue of all devices: tasks with their dependencies, run one at a time in a seeded random order that respects
// streams, events and graph edges; what the host knows to be finished; the virtual clock.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/runtime/actions.h"
#include "emulator/runtime/control.h"
#include "emulator/runtime/operation_set.h"
namespace emu {

struct Task;
using TaskPtr = std::shared_ptr<Task>;  // streams, events, graphs and later tasks refer to it

struct Task {
  uint32_t id = 0;                // in memory stamps; 0 for tasks that touch no memory
  uint32_t epoch = 0;             // generation of ids, which start again after 16,000 operations
  unsigned long long ticket = 0;  // never reused
  int device = 0;
  Action action;
  std::vector<TaskPtr> followers;  // tasks that wait for this one
  size_t blocked_by = 0;           // tasks that this one still waits for
  std::vector<TaskPtr> after;      // emptied when it runs
  TaskPtr overlapped;              // the predecessor that a programmatic launch may overlap
  OperationSet before;             // complete when it runs; until then, what the host knew at the call
  OperationSet before_unwaited;    // the same before griddepcontrol.wait
  bool done = false;
  double called_us = 0, start_us = 0, end_us = 0;  // virtual time
};

struct Random {
  uint64_t state = 1;
  uint32_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return uint32_t(state >> 32);
  }
  uint32_t below(uint32_t end) { return uint32_t((uint64_t{next()} * end) >> 32); }
};

struct Queue {
  std::map<unsigned long long, TaskPtr> pending;  // by ticket
  std::vector<TaskPtr> unblocked;                 // pending tasks that wait for no other task
  uint32_t next_id = 1, epoch = 1;
  unsigned long long next_ticket = 1;
  OperationSet host_knows;
  double host_us = 0;
  Random random;
  Schedule schedule = Schedule::kMixed;
  double wait_limit_seconds = kWaitLimit;
  std::map<int, OperationSet> finished;                 // per device: all that has run, and what that was ordered after
  std::map<unsigned long long, TaskPtr> library_tasks;  // by ticket
  std::map<uint32_t, std::string> names;                // names of operations that have run, for messages
  Observer observer;
};

struct NewTask {
  int device = 0;
  Action action;
  std::vector<TaskPtr> after;
  TaskPtr overlapped = nullptr;
  unsigned long long stream = 0;  // its id
  unsigned long long node = 0;    // node of an executable graph; 0: none
};
TaskPtr add_task(NewTask wanted);
bool run_one_task();                       // false: nothing can run now
void run_some_tasks();                     // a moment passes: any number may run, also none
void host_waits_for(const TaskPtr& task);  // null: returns at once
void host_waits_for_device(int device);
void host_knows_finished(const TaskPtr& task);  // a query has told it
void wait_for_everything();                     // all that can run without other threads
void drop_queue();                              // forgets all queued work and who wrote what
void reseed_queue(uint64_t seed);
}  // namespace emu
