// A pinned buffer belongs to a copy from the call until the host knows that the copy is finished. If the host changes
// its bytes in between, the program is wrong even if the order of this run gave the right result.
#include <cstring>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
void check(const PinnedGuard& guard) {
  for (size_t i = 0; i < guard.expected.size(); ++i) {
    if (guard.begin[i] == guard.expected[i]) continue;
    std::string what = guard.source ? "the source" : "the destination";
    report(Fault::kHost, "the host changed " + what + " of a queued cudaMemcpyAsync before it knew the copy to be " +
                             "finished: byte " + std::to_string(i) + " of " + std::to_string(guard.expected.size()) +
                             " at " + describe_address(guard.begin + i) + " (wait for an event after the copy)");
    return;
  }
}

void renew(PinnedGuard& guard) { guard.expected.assign(guard.begin, guard.begin + guard.expected.size()); }

bool is_known(const PinnedGuard& guard) {
  const Queue& queue = runtime().queue;
  return guard.task->done && (guard.task->epoch != queue.epoch || queue.host_knows.has(guard.task->id));
}

void add_guard(const TaskPtr& task, const void* begin, size_t bytes, bool source) {
  PinnedGuard guard{const_cast<uint8_t*>(static_cast<const uint8_t*>(begin)), std::vector<uint8_t>(bytes), task,
                    source};
  renew(guard);
  runtime().guards.push_back(std::move(guard));
}
}  // namespace

void guard_pinned(const TaskPtr& task, const CopyAction& copy) {
  if (copy.staged == nullptr && is_pinned(copy.from)) add_guard(task, copy.from, copy.bytes, true);
  if (is_pinned(copy.to)) add_guard(task, copy.to, copy.bytes, false);
}

void verify_guards() {
  for (const PinnedGuard& guard : runtime().guards) check(guard);
  adopt_fault();
}

void renew_guards() {
  for (PinnedGuard& guard : runtime().guards) renew(guard);
}

void release_known_guards() {
  auto& guards = runtime().guards;
  for (const PinnedGuard& guard : guards) {
    if (is_known(guard)) check(guard);
  }
  std::erase_if(guards, is_known);
  adopt_fault();
}
}  // namespace emu
