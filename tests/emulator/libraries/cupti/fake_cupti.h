// A CUPTI that records what the machine runs: kernels, copies and fills with their virtual times, external correlation
// ids of the calling thread, nodes of graphs. Records come in buffers of the caller, in another order than things
// happened; they get lost where a buffer is refused, or beyond a number that the test sets.
#pragma once
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "../fake_library.h"
#include "cuda/libraries/cupti_table.h"

namespace emu::fakes {

class FakeCupti {
 public:
  explicit FakeCupti(Machine machine);
  ~FakeCupti();

  athanor::CuptiTable table() const;
  void lose_beyond(size_t records) {
    most_ = records;
  }  // keeps so many records of kernels, copies and fills between two flushes

  std::string last_refusal() const { return refusals_.last(); }
  int balance() const;  // kinds that are still enabled, and subscribers

 private:
  friend struct CuptiFunctions;
  using Record = std::variant<CUpti_ActivityExternalCorrelation, CUpti_ActivityAPI, CUpti_ActivityKernel10,
                              CUpti_ActivityMemcpy6, CUpti_ActivityMemset4>;
  struct Call {  // a call of the host whose work has not finished on the device
    uint32_t correlation;
    uint32_t stream;
    uint64_t node;
  };

  CUptiResult refuse(CUptiResult code, const std::string& why);
  void queued(const QueuedWork& work);
  void finished(const FinishedWork& work);
  void tell(CUpti_CallbackId event, uint64_t node, uint64_t original);
  void keep(const Record& record, CUpti_ActivityKind kind);
  void deliver(std::vector<Record> records);

  Machine machine_;
  Refusals refusals_;
  mutable std::recursive_mutex mutex_;  // callbacks of the program call functions of the table
  std::set<CUpti_ActivityKind> enabled_;
  CUpti_CallbackFunc subscriber_ = nullptr;
  void* subscriber_data_ = nullptr;
  std::set<CUpti_CallbackId> events_;  // of the resource domain
  CUpti_BuffersCallbackRequestFunc request_ = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete_ = nullptr;
  std::map<std::pair<std::thread::id, CUpti_ExternalCorrelationKind>, std::vector<uint64_t>> external_ids_;
  std::map<unsigned long long, Call> calls_;  // by ticket
  uint32_t next_correlation_ = 1;
  std::vector<Record> records_;
  std::set<std::string> names_;  // records point at them
  size_t most_ = SIZE_MAX, kept_ = 0, dropped_ = 0;
  Installed<FakeCupti> installed_;
};

}  // namespace emu::fakes
