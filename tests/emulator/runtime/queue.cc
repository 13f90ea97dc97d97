// The queue: which task may run next, what it is ordered after, and how the host waits. Nothing runs by itself: work
// runs when a host thread waits, asks, or now and then when it queues more (Schedule).
#include "emulator/runtime/queue.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
constexpr uint32_t kRenumberAfter = 16000;  // operations; stamps hold kMaxOperation
constexpr uint32_t kEagerOneIn = 8;         // kMixed: so many calls between tasks that run at once

Queue& queue() { return runtime().queue; }

// Beside other tasks, library operations wait for other host threads.
bool may_start(const Task& task) {
  const auto* library = std::get_if<LibraryOperation>(&task.action);
  return library == nullptr || !library->ready || runtime().sticky != cudaSuccess || library->ready();
}

void block_on_earlier(const TaskPtr& task) {
  for (const TaskPtr& earlier : task->after) {
    if (earlier->done) continue;
    earlier->followers.push_back(task);
    ++task->blocked_by;
  }
  if (task->blocked_by == 0) queue().unblocked.push_back(task);
}

void finish(const TaskPtr& task) {
  task->done = true;
  task->after.clear();
  task->overlapped = nullptr;
  // Releases what the operation's functions captured: streams and events may keep the finished task.
  if (auto* library = std::get_if<LibraryOperation>(&task->action)) *library = {.name = library->name};
  for (const TaskPtr& follower : task->followers) {
    if (--follower->blocked_by == 0) queue().unblocked.push_back(follower);
  }
  task->followers.clear();
  queue().pending.erase(task->ticket);
}

void collect_order(Task& task) {
  uint32_t epoch = queue().epoch;
  for (const TaskPtr& earlier : task.after) {
    task.start_us = std::max(task.start_us, earlier->end_us);
    if (earlier->epoch != epoch) continue;  // finished before the stamps were reset
    task.before.merge(earlier->before);
    task.before.add(earlier->id);
    const bool overlapped = earlier == task.overlapped;
    task.before_unwaited.merge(overlapped ? earlier->before_unwaited : earlier->before);
    if (!overlapped) task.before_unwaited.add(earlier->id);
  }
  const auto* library = std::get_if<LibraryOperation>(&task.action);
  if (library == nullptr || !library->also_after) return;
  for (unsigned long long ticket : library->also_after()) {
    auto found = queue().library_tasks.find(ticket);
    if (found == queue().library_tasks.end() || found->second->epoch != epoch) continue;
    task.before.merge(found->second->before);
    task.before.add(found->second->id);
  }
}

Operation operation_of(const Task& task) {
  Runtime& rt = runtime();
  const Device& gpu = rt.devices[size_t(task.device)];
  Operation operation;
  operation.id = task.id;
  operation.name = action_name(task.action);
  operation.device = task.device;
  operation.compute_capability = gpu.model.major * 10 + gpu.model.minor;
  const Task* self = &task;
  const bool programmatic = task.overlapped != nullptr;
  operation.ordered = [self, programmatic](uint32_t other, bool waited) {
    return (programmatic && !waited ? self->before_unwaited : self->before).has(other);
  };
  return operation;
}

void tell(const Task& task) {
  FinishedWork work{.ticket = task.ticket,
                    .device = task.device,
                    .name = action_name(task.action),
                    .start_us = task.start_us,
                    .end_us = task.end_us};
  if (std::holds_alternative<CopyAction>(task.action)) {
    work.kind = FinishedWork::kCopy;
  } else if (std::holds_alternative<FillAction>(task.action)) {
    work.kind = FinishedWork::kFill;
  } else if (!std::holds_alternative<KernelAction>(task.action) &&
             !std::holds_alternative<LibraryOperation>(task.action)) {
    return;
  }
  queue().observer.finished(work);
}

void run(const TaskPtr& task) {
  Runtime& rt = runtime();
  task->start_us = task->called_us;
  collect_order(*task);
  if (task->id != 0) rt.queue.names[task->id] = action_name(task->action);
  if (rt.sticky == cudaSuccess) {
    const bool writes_host = may_write_host_memory(task->action);
    if (writes_host) verify_guards();
    open_memory();
    execute(task->action, operation_of(*task));
    if (writes_host) renew_guards();
    adopt_fault();
  }
  task->end_us = task->start_us + action_microseconds(task->action);
  if (rt.queue.observer.finished) tell(*task);
  OperationSet& finished = rt.queue.finished[task->device];
  finished.merge(task->before);
  finished.add(task->id);
  finish(task);
  rt.progress.notify_all();
}

// Numbers start again at 1. Only possible when nothing is pending; what is in memory counts as written long ago, which
// can hide a missing order but never invents one.
void renumber() {
  Runtime& rt = runtime();
  open_memory();
  for (auto& [begin, held] : rt.allocations) rebase_stamps(begin, held.bytes);
  rt.queue.next_id = 1;
  ++rt.queue.epoch;
  rt.queue.host_knows.clear();
  rt.queue.finished.clear();
  rt.queue.library_tasks.clear();
  rt.queue.names.clear();
}

void make_room_for_ids() {
  Queue& q = queue();
  if (q.next_id < kMaxOperation - 1) return;
  while (run_one_task()) {
  }
  if (q.pending.empty()) return renumber();
  fprintf(stderr, "emulator: %u operations are queued and cannot run; synchronise more often\n", q.next_id);
  abort();
}

std::string names_of_waiting() {
  std::string names;
  for (auto& [ticket, task] : queue().pending) {
    if (std::holds_alternative<LibraryOperation>(task->action)) names += " " + action_name(task->action);
  }
  return names.empty() ? " (nothing)" : names;
}

// Runs tasks until `finished`, waiting for other host threads where operations wait for them. Waits are counted, not
// timed, so that a process that was stopped for a while finds no deadlock when it goes on.
template <class Finished>
void wait_until(Finished finished) {
  Runtime& rt = runtime();
  constexpr std::chrono::milliseconds kWait(20);
  double waited_seconds = 0;
  while (!finished()) {
    if (run_one_task()) {
      waited_seconds = 0;
      continue;
    }
    if (waited_seconds > rt.queue.wait_limit_seconds) {
      report(Fault::kDeadlock, "the host waits for operations that never become ready:" + names_of_waiting());
      adopt_fault();
      continue;  // with an error, everything queued ends
    }
    close_memory();
    const bool nothing_happened = rt.progress.wait_for(rt.mutex, kWait) == std::cv_status::timeout;
    if (nothing_happened) waited_seconds += std::chrono::duration<double>(kWait).count();
  }
}

void host_learns(const OperationSet& set, double until_us) {
  queue().host_knows.merge(set);
  queue().host_us = std::max(queue().host_us, until_us);
  release_known_guards();
}
}  // namespace

TaskPtr add_task(NewTask wanted) {
  Queue& q = queue();
  make_room_for_ids();
  auto task = std::make_shared<Task>();
  task->id = touches_memory(wanted.action) ? q.next_id++ : 0;
  task->epoch = q.epoch;
  task->ticket = q.next_ticket++;
  task->device = wanted.device;
  task->action = std::move(wanted.action);
  task->before = task->before_unwaited = q.host_knows;
  task->called_us = q.host_us;
  for (TaskPtr& earlier : wanted.after) {
    if (earlier != nullptr) task->after.push_back(std::move(earlier));
  }
  const TaskPtr& overlapped = wanted.overlapped;
  const bool both_kernels = overlapped != nullptr && std::holds_alternative<KernelAction>(overlapped->action);
  if (both_kernels) task->overlapped = overlapped;
  if (q.observer.queued && touches_memory(task->action)) q.observer.queued({task->ticket, wanted.stream, wanted.node});
  q.pending[task->ticket] = task;
  block_on_earlier(task);
  if (std::holds_alternative<LibraryOperation>(task->action)) q.library_tasks[task->ticket] = task;
  if (const auto* copy = std::get_if<CopyAction>(&task->action)) guard_pinned(task, *copy);
  if (q.schedule == Schedule::kAtOnce) {
    while (run_one_task()) {
    }
  } else if (q.schedule == Schedule::kMixed && q.random.below(kEagerOneIn) == 0) {
    run_one_task();
  }
  runtime().progress.notify_all();
  return task;
}

bool run_one_task() {
  Queue& q = queue();
  std::vector<size_t> choices;
  for (size_t i = 0; i < q.unblocked.size(); ++i) {
    if (may_start(*q.unblocked[i])) choices.push_back(i);
  }
  if (choices.empty()) return false;
  const size_t chosen = choices[q.random.below(uint32_t(choices.size()))];
  TaskPtr task = std::move(q.unblocked[chosen]);
  q.unblocked[chosen] = std::move(q.unblocked.back());
  q.unblocked.pop_back();
  run(task);
  return true;
}

void run_some_tasks() {
  for (uint32_t n = queue().random.below(3); n != 0 && run_one_task(); --n) {
  }
}

void host_waits_for(const TaskPtr& task) {
  if (task == nullptr) return;
  wait_until([&] { return task->done; });
  host_knows_finished(task);
}

void host_knows_finished(const TaskPtr& task) {
  OperationSet known;
  if (task->epoch == queue().epoch) {
    known = task->before;
    known.add(task->id);
  }
  host_learns(known, task->end_us);
}

void host_waits_for_device(int device) {
  Queue& q = queue();
  double until = q.host_us;
  std::vector<TaskPtr> mine;
  for (auto& [ticket, task] : q.pending) {
    if (task->device == device) mine.push_back(task);
  }
  for (const TaskPtr& task : mine) {
    wait_until([&] { return task->done; });
    until = std::max(until, task->end_us);
  }
  host_learns(q.finished[device], until);
  if (q.pending.empty() && q.next_id > kRenumberAfter) renumber();
}

void wait_for_everything() {
  while (run_one_task()) {
  }
  for (auto& [device, finished] : std::map<int, OperationSet>(queue().finished)) host_learns(finished, 0);
}

void drop_queue() {
  Runtime& rt = runtime();
  Queue& q = rt.queue;
  while (!q.pending.empty()) finish(TaskPtr(q.pending.begin()->second));
  q.unblocked.clear();
  rt.guards.clear();
  if (q.next_id > kRenumberAfter) return renumber();
  q.host_knows.add_all_below(q.next_id);  // before all that will be queued
  q.library_tasks.clear();
}

void reseed_queue(uint64_t value) { queue().random.state = value * 2654435761u + 12345; }

void observe(Observer observer) {
  std::unique_lock lock(runtime().mutex);
  queue().observer = std::move(observer);
}

double virtual_microseconds() {
  std::unique_lock lock(runtime().mutex);
  return queue().host_us;
}

std::string operation_name(uint32_t id) {
  auto found = queue().names.find(id);
  const std::string number = "operation " + std::to_string(id);
  return found == queue().names.end() ? number : found->second + " (" + number + ")";
}
}  // namespace emu
