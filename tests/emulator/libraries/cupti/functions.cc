// The functions of CUPTI that the table points at; see fake_cupti.h.
#include <algorithm>
#include <cstring>

#include "fake_cupti.h"

namespace emu::fakes {
namespace {

constexpr uint32_t kVersion = 130001;
constexpr size_t kAlignment = 8;  // of records in a buffer

uint64_t nanoseconds(double us) { return 1000 + static_cast<uint64_t>(us * 1000); }  // 0 would mean: not known

// Handles of nodes are opaque, so their number will do.
CUgraphNode handle_of(uint64_t node) {
  return reinterpret_cast<CUgraphNode>(node);  // NOLINT(performance-no-int-to-ptr)
}

size_t bytes_of(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
      return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(CUpti_ActivityMemset4);
    default:
      return 0;
  }
}

}  // namespace

FakeCupti::FakeCupti(Machine machine) : machine_(std::move(machine)), installed_(this) {}
FakeCupti::~FakeCupti() { machine_.observe({}); }

CUptiResult FakeCupti::refuse(CUptiResult code, const std::string& why) {
  refusals_.add(why);
  return code;
}

int FakeCupti::balance() const {
  const std::lock_guard lock(mutex_);
  return int(enabled_.size()) + (subscriber_ ? 1 : 0);
}

void FakeCupti::queued(const QueuedWork& work) {
  const std::lock_guard lock(mutex_);
  const uint32_t correlation = next_correlation_++;
  calls_[work.ticket] = {correlation, static_cast<uint32_t>(work.stream), work.node};
  if (!enabled_.count(CUPTI_ACTIVITY_KIND_RUNTIME)) return;  // external ids come with records of calls, or not at all
  for (const auto& [key, ids] : external_ids_) {
    if (key.first != std::this_thread::get_id() || ids.empty()) continue;
    CUpti_ActivityExternalCorrelation record{};
    record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    record.externalKind = key.second;
    record.externalId = ids.back();
    record.correlationId = correlation;
    keep(record, record.kind);
  }
  CUpti_ActivityAPI call{};
  call.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  call.correlationId = correlation;
  keep(call, call.kind);
}

void FakeCupti::finished(const FinishedWork& work) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(work.ticket);
  if (found == calls_.end()) return;  // queued before anybody listened
  const Call call = found->second;
  calls_.erase(found);
  const auto fill_in = [&](auto& record, CUpti_ActivityKind kind) {
    record.kind = kind;
    record.start = nanoseconds(work.start_us);
    record.end = nanoseconds(work.end_us);
    record.deviceId = static_cast<uint32_t>(work.device);
    record.streamId = call.stream;
    record.correlationId = call.correlation;
    record.graphNodeId = call.node;
    if (enabled_.count(kind) && ++kept_ > most_) {
      ++dropped_;
    } else {
      keep(record, kind);
    }
  };
  if (work.kind == FinishedWork::kCopy) {
    CUpti_ActivityMemcpy6 record{};
    fill_in(record, CUPTI_ACTIVITY_KIND_MEMCPY);
  } else if (work.kind == FinishedWork::kFill) {
    CUpti_ActivityMemset4 record{};
    fill_in(record, CUPTI_ACTIVITY_KIND_MEMSET);
  } else {
    CUpti_ActivityKernel10 record{};
    record.name = names_.insert(work.name).first->c_str();
    fill_in(record, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  }
}

void FakeCupti::keep(const Record& record, CUpti_ActivityKind kind) {
  if (enabled_.count(kind)) records_.push_back(record);
}

void FakeCupti::tell(CUpti_CallbackId event, uint64_t node, uint64_t original) {
  CUpti_CallbackFunc callback;
  void* data;
  {
    const std::lock_guard lock(mutex_);
    if (!subscriber_ || !events_.count(event)) return;
    callback = subscriber_;
    data = subscriber_data_;
  }
  CUpti_GraphData graph{};
  graph.node = handle_of(node);
  graph.originalNode = handle_of(original);
  CUpti_ResourceData resource{};
  resource.resourceDescriptor = &graph;
  callback(data, CUPTI_CB_DOMAIN_RESOURCE, event, &resource);
}

// The last first, so that activities come before the calls that they belong to.
void FakeCupti::deliver(std::vector<Record> records) {
  while (!records.empty()) {
    uint8_t* buffer = nullptr;
    size_t size = 0, most = 0, used = 0, count = 0;
    request_(&buffer, &size, &most);
    if (buffer == nullptr) {
      const std::lock_guard lock(mutex_);
      dropped_ += records.size();
      return;
    }
    const auto fits = [&](size_t bytes) { return used + bytes <= size && (most == 0 || count < most); };
    while (!records.empty()) {
      const size_t bytes = std::visit([](const auto& r) { return sizeof r; }, records.back());
      if (!fits(bytes)) break;
      std::visit([&](const auto& r) { std::memcpy(buffer + used, &r, sizeof r); }, records.back());
      used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      ++count;
      records.pop_back();
    }
    complete_(nullptr, 0, buffer, size, used);
    if (count == 0) return;  // a buffer for not even one record
  }
}

// A struct, so that FakeCupti can make it a friend.
struct CuptiFunctions {
  static FakeCupti& fake() { return Installed<FakeCupti>::get(); }

  // Runs the body unless a failure is planned for this call.
  template <class Body>
  static CUptiResult call(const char* function, Body&& body) {
    FakeCupti& f = fake();
    int code = 0;
    if (f.machine_.planned_failure(function, &code))
      return f.refuse(static_cast<CUptiResult>(code), text(function, ": planned failure"));
    return body(f);
  }
  template <class Body>
  static CUptiResult locked(const char* function, Body&& body) {
    return call(function, [&](FakeCupti& f) {
      const std::lock_guard lock(f.mutex_);
      return body(f);
    });
  }

  static CUptiResult version(uint32_t* out) {
    *out = kVersion;
    return CUPTI_SUCCESS;
  }
  static CUptiResult result_string(CUptiResult result, const char** out) {
    *out = result == CUPTI_SUCCESS                                    ? "CUPTI_SUCCESS"
           : result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
           : result == CUPTI_ERROR_UNKNOWN                            ? "CUPTI_ERROR_UNKNOWN"
                                                                      : nullptr;
    return *out ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
  }
  static CUptiResult timestamp(uint64_t* out) {
    return call("cuptiGetTimestamp", [&](FakeCupti& f) {
      *out = nanoseconds(f.machine_.microseconds());
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult subscribe(CUpti_SubscriberHandle* out, CUpti_CallbackFunc callback, void* data) {
    return locked("cuptiSubscribe", [&](FakeCupti& f) {
      if (f.subscriber_) return f.refuse(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "a second subscriber");
      f.subscriber_ = callback;
      f.subscriber_data_ = data;
      *out = reinterpret_cast<CUpti_SubscriberHandle>(&f);
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult unsubscribe(CUpti_SubscriberHandle subscriber) {
    return locked("cuptiUnsubscribe", [&](FakeCupti& f) {
      if (!f.subscriber_ || subscriber != reinterpret_cast<CUpti_SubscriberHandle>(&f))
        return f.refuse(CUPTI_ERROR_INVALID_PARAMETER, "not a subscriber");
      f.subscriber_ = nullptr;
      f.events_.clear();
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult enable_callback(uint32_t enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
                                     CUpti_CallbackId event) {
    return locked("cuptiEnableCallback", [&](FakeCupti& f) {
      if (!f.subscriber_ || subscriber != reinterpret_cast<CUpti_SubscriberHandle>(&f))
        return f.refuse(CUPTI_ERROR_INVALID_PARAMETER, "cuptiEnableCallback: not a subscriber");
      if (domain != CUPTI_CB_DOMAIN_RESOURCE)
        return f.refuse(CUPTI_ERROR_INVALID_PARAMETER,
                        "cuptiEnableCallback: this fake calls back about resources only");
      enable ? (void)f.events_.insert(event) : (void)f.events_.erase(event);
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult node_id(CUgraphNode node, uint64_t* out) {
    return call("cuptiGetGraphNodeId", [&](FakeCupti& f) {
      if (!node || !out) return f.refuse(CUPTI_ERROR_INVALID_PARAMETER, "cuptiGetGraphNodeId: no node");
      *out = reinterpret_cast<uint64_t>(node);
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult enable(CUpti_ActivityKind kind) {
    CUptiResult result = locked("cuptiActivityEnable", [&](FakeCupti& f) {
      if (!f.request_) return f.refuse(CUPTI_ERROR_INVALID_OPERATION, "cuptiActivityEnable: no callbacks registered");
      f.enabled_.insert(kind);
      return CUPTI_SUCCESS;
    });
    if (result == CUPTI_SUCCESS) {
      FakeCupti& f = fake();
      f.machine_.observe(
          {.queued = [&f](const QueuedWork& work) { f.queued(work); },
           .finished = [&f](const FinishedWork& work) { f.finished(work); },
           .node_made = [&f](unsigned long long node) { f.tell(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, node, 0); },
           .node_cloned =
               [&f](unsigned long long node, unsigned long long original) {
                 f.tell(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, node, 0);
                 f.tell(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, node, original);
               }});
    }
    return result;
  }
  static CUptiResult disable(CUpti_ActivityKind kind) {
    return locked("cuptiActivityDisable", [&](FakeCupti& f) {
      f.enabled_.erase(kind);
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult register_callbacks(CUpti_BuffersCallbackRequestFunc request,
                                        CUpti_BuffersCallbackCompleteFunc complete) {
    return locked("cuptiActivityRegisterCallbacks", [&](FakeCupti& f) {
      if (!request || !complete) return f.refuse(CUPTI_ERROR_INVALID_PARAMETER, "a callback is missing");
      f.request_ = request;
      f.complete_ = complete;
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult next_record(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
    return call("cuptiActivityGetNextRecord", [&](FakeCupti&) {
      uint8_t* next = buffer;
      if (*record) {
        const size_t bytes = bytes_of((*record)->kind);
        next = reinterpret_cast<uint8_t*>(*record) + (bytes + kAlignment - 1) / kAlignment * kAlignment;
      }
      if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
      auto* found = reinterpret_cast<CUpti_Activity*>(next);
      if (bytes_of(found->kind) == 0) return CUPTI_ERROR_INVALID_KIND;
      *record = found;
      return CUPTI_SUCCESS;
    });
  }
  // Records come from a thread of CUPTI's own.
  static CUptiResult flush(uint32_t flag) {
    return call("cuptiActivityFlushAll", [&](FakeCupti& f) {
      if (!f.request_) return f.refuse(CUPTI_ERROR_INVALID_OPERATION, "cuptiActivityFlushAll: no callbacks registered");
      if (flag != CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) return CUPTI_SUCCESS;  // this fake fills no buffer before
      std::vector<FakeCupti::Record> records;
      {
        const std::lock_guard lock(f.mutex_);
        records.swap(f.records_);
        f.kept_ = 0;
      }
      std::thread([&] { f.deliver(std::move(records)); }).join();
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult dropped(CUcontext, uint32_t, size_t* out) {
    return locked("cuptiActivityGetNumDroppedRecords", [&](FakeCupti& f) {
      *out = std::exchange(f.dropped_, 0);
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult push(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    return locked("cuptiActivityPushExternalCorrelationId", [&](FakeCupti& f) {
      f.external_ids_[{std::this_thread::get_id(), kind}].push_back(id);
      return CUPTI_SUCCESS;
    });
  }
  static CUptiResult pop(CUpti_ExternalCorrelationKind kind, uint64_t* last) {
    return locked("cuptiActivityPopExternalCorrelationId", [&](FakeCupti& f) {
      auto& ids = f.external_ids_[{std::this_thread::get_id(), kind}];
      if (ids.empty()) return f.refuse(CUPTI_ERROR_QUEUE_EMPTY, "more ids popped than pushed");
      if (last) *last = ids.back();
      ids.pop_back();
      return CUPTI_SUCCESS;
    });
  }
};

athanor::CuptiTable FakeCupti::table() const {
  using F = CuptiFunctions;
  return {.cuptiGetVersion = F::version,
          .cuptiGetResultString = F::result_string,
          .cuptiGetTimestamp = F::timestamp,
          .cuptiSubscribe = F::subscribe,
          .cuptiUnsubscribe = F::unsubscribe,
          .cuptiEnableCallback = F::enable_callback,
          .cuptiGetGraphNodeId = F::node_id,
          .cuptiActivityEnable = F::enable,
          .cuptiActivityDisable = F::disable,
          .cuptiActivityRegisterCallbacks = F::register_callbacks,
          .cuptiActivityGetNextRecord = F::next_record,
          .cuptiActivityFlushAll = F::flush,
          .cuptiActivityGetNumDroppedRecords = F::dropped,
          .cuptiActivityPushExternalCorrelationId = F::push,
          .cuptiActivityPopExternalCorrelationId = F::pop};
}

}  // namespace emu::fakes
