// CUPTI records show when a kernel ran, but not for which op. A launch outside of graphs gets the label that the host
// has pushed, as CUPTI's external correlation id. A graph replay gets the label of its node: callbacks store the label
// when the node is captured, and copy it to the node of the executable graph.
#include "cuda/device/cupti_profiler.h"

#include <cxxabi.h>

#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "cuda/libraries/open.h"

namespace athanor::cuda {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
    // Records of API calls are not used, but CUPTI delivers external correlation ids only with them.
    CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
constexpr CUpti_CallbackId kNodeCallbacks[] = {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
                                               CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED};
constexpr CUpti_ExternalCorrelationKind kOurs = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

const char* remedy(CUptiResult result) {
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
    return "; another profiler (Nsight Systems, Nsight Compute, cuda-gdb) holds this process: run without it";
  if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
    return "; the driver keeps profiling for administrators: ask for its option NVreg_RestrictProfilingToAdminUsers=0";
  return "";
}

// Reduces "void athanor::cuda::(anonymous namespace)::add<float, 4>(float*)", mangled or not, to "add".
std::string short_name(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                             std::free);
  std::string name = status == 0 ? readable.get() : symbol;
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  for (size_t at; (at = name.find(kUnnamed)) != std::string::npos;) name.erase(at, kUnnamed.size());
  name = name.substr(0, name.find_first_of("<("));
  const size_t before = name.find_last_of(": ");
  return before == std::string::npos ? name : name.substr(before + 1);
}

int64_t label_in(const auto& labels, auto key) {  // 0: no label
  const auto found = labels.find(key);
  return found == labels.end() ? 0 : found->second;
}

class CuptiProfiler final : public Profiler {
 public:
  explicit CuptiProfiler(const Opened<CuptiTable>& cupti)
      : call_(cupti.call), description_(cat("CUPTI ", cupti.library.version)) {
    {
      const std::lock_guard lock(only().mutex);
      CHECK(!only().profiler, "a second profiler while the first exists");
      only().profiler = this;
    }
    try {
      open();
    } catch (...) {
      close();
      throw;
    }
  }
  ~CuptiProfiler() override { close(); }
  CuptiProfiler(const CuptiProfiler&) = delete;
  CuptiProfiler& operator=(const CuptiProfiler&) = delete;

  std::string description() const override { return description_; }
  void begin(int64_t label) override {
    label_ = label;
    note("cuptiActivityPushExternalCorrelationId",
         call_.cuptiActivityPushExternalCorrelationId(kOurs, static_cast<uint64_t>(label)));
  }
  void end() override {
    label_ = 0;
    note("cuptiActivityPopExternalCorrelationId", call_.cuptiActivityPopExternalCorrelationId(kOurs, nullptr));
  }
  DeviceLog take() override;
  int64_t now() const override {
    uint64_t ns = 0;
    return call_.cuptiGetTimestamp(&ns) == CUPTI_SUCCESS ? static_cast<int64_t>(ns) : 0;
  }

 private:
  // CUPTI's buffer callbacks have no user data, so they find the profiler here. The lock also guards the members that
  // other threads use: buffers_, label_of_node_ and problem_. Never call CUPTI while holding it, since CUPTI has locks
  // of its own.
  struct Only {
    std::mutex mutex;
    CuptiProfiler* profiler = nullptr;
  };
  static Only& only() {
    static Only the;
    return the;
  }
  struct Buffer {
    std::unique_ptr<uint8_t, decltype(&std::free)> bytes;
    size_t valid;
    CUcontext context;
    uint32_t stream;
  };
  struct Record {
    DeviceWork activity;
    uint32_t correlation;
    uint64_t node;  // graph node; 0: launched outside of a graph
  };

  void open();
  void close();
  std::string problem_of(const char* function, CUptiResult result) const;
  void require(const char* function, CUptiResult result) const {
    if (result != CUPTI_SUCCESS) throw Error(problem_of(function, result));
  }
  void note(const char* function, CUptiResult result) {
    if (result == CUPTI_SUCCESS) return;
    const std::string problem = problem_of(function, result);
    const std::lock_guard lock(only().mutex);
    if (problem_.empty()) problem_ = problem;
  }

  static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records);
  static void CUPTIAPI take_buffer(CUcontext, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);
  static void CUPTIAPI on_graph_node(void* self, CUpti_CallbackDomain, CUpti_CallbackId, const void* data);
  void read(const Buffer&);
  void add(const CUpti_Activity& any);
  template <class T>
  void add(const T& record, const std::string& name);
  uint64_t id_of(CUgraphNode node);

  CuptiTable call_;
  std::string description_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::thread::id launcher_ = std::this_thread::get_id();
  int64_t label_ = 0;    // label of the current launches of launcher_
  std::string problem_;  // the first problem
  int64_t lost_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<Record> records_;
  std::unordered_map<uint32_t, int64_t> label_of_call_;  // keyed by correlation id
  std::unordered_map<uint64_t, int64_t> label_of_node_;
  std::unordered_map<std::string, std::string> short_names_;
};

std::string CuptiProfiler::problem_of(const char* function, CUptiResult result) const {
  const char* text = nullptr;
  if (call_.cuptiGetResultString(result, &text) != CUPTI_SUCCESS || !text) text = "unknown error";
  return cat("CUPTI: ", function, ": ", text, " (", int(result), ")", remedy(result));
}

// Kinds are enabled from the start, not only for the profiled steps, because graphs must be created while they are
// enabled.
void CuptiProfiler::open() {
  require("cuptiSubscribe", call_.cuptiSubscribe(&subscriber_, on_graph_node, this));
  for (const CUpti_CallbackId id : kNodeCallbacks)
    require("cuptiEnableCallback", call_.cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, id));
  require("cuptiActivityRegisterCallbacks", call_.cuptiActivityRegisterCallbacks(give_buffer, take_buffer));
  for (const CUpti_ActivityKind kind : kKinds) require("cuptiActivityEnable", call_.cuptiActivityEnable(kind));
}

// Ignores errors: nothing depends on the profiler any more.
void CuptiProfiler::close() {
  for (const CUpti_ActivityKind kind : kKinds) (void)call_.cuptiActivityDisable(kind);
  (void)call_.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);  // returns all buffers
  if (subscriber_) (void)call_.cuptiUnsubscribe(subscriber_);
  const std::lock_guard lock(only().mutex);
  only().profiler = nullptr;
}

void CuptiProfiler::give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::malloc(kBufferBytes));  // null: CUPTI drops records
  *size = *buffer ? kBufferBytes : 0;
  *most_records = 0;  // as many records as fit
}

void CuptiProfiler::take_buffer(CUcontext context, uint32_t stream, uint8_t* bytes, size_t, size_t valid) {
  Buffer buffer{{bytes, std::free}, valid, context, stream};
  const std::lock_guard lock(only().mutex);
  if (only().profiler) only().profiler->buffers_.push_back(std::move(buffer));
}

void CuptiProfiler::read(const Buffer& buffer) {
  size_t dropped = 0;
  note("cuptiActivityGetNumDroppedRecords",
       call_.cuptiActivityGetNumDroppedRecords(buffer.context, buffer.stream, &dropped));
  lost_ += static_cast<int64_t>(dropped);
  CUpti_Activity* record = nullptr;
  for (;;) {
    const CUptiResult result = call_.cuptiActivityGetNextRecord(buffer.bytes.get(), buffer.valid, &record);
    if (result == CUPTI_ERROR_MAX_LIMIT_REACHED) return;
    if (result == CUPTI_ERROR_INVALID_KIND) {  // an incomplete record; nothing after it can be read
      ++lost_;
      return;
    }
    note("cuptiActivityGetNextRecord", result);
    if (result != CUPTI_SUCCESS) return;
    add(*record);
  }
}

void CuptiProfiler::add(const CUpti_Activity& any) {
  switch (any.kind) {
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& call = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(any);
      if (call.externalKind == kOurs) label_of_call_[call.correlationId] = static_cast<int64_t>(call.externalId);
      return;
    }
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(any);
      const char* symbol = kernel.name ? kernel.name : "unnamed";
      const auto [known, is_new] = short_names_.try_emplace(symbol);
      if (is_new) known->second = short_name(symbol);
      return add(kernel, known->second);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return add(reinterpret_cast<const CUpti_ActivityMemcpy6&>(any), "copy");
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return add(reinterpret_cast<const CUpti_ActivityMemset4&>(any), "fill");
    default:
      return;
  }
}

template <class T>
void CuptiProfiler::add(const T& record, const std::string& name) {
  if (record.start == 0 || record.end < record.start) {  // CUPTI had no memory for the timestamps
    ++lost_;
    return;
  }
  records_.push_back({.activity = {.name = name,
                                   .label = 0,
                                   .stream = record.streamId,
                                   .begin = static_cast<int64_t>(record.start),
                                   .end = static_cast<int64_t>(record.end)},
                      .correlation = record.correlationId,
                      .node = record.graphNodeId});
}

uint64_t CuptiProfiler::id_of(CUgraphNode node) {
  uint64_t id = 0;
  note("cuptiGetGraphNodeId", call_.cuptiGetGraphNodeId(node, &id));
  return id;
}

void CuptiProfiler::on_graph_node(void* self_address, CUpti_CallbackDomain, CUpti_CallbackId event, const void* data) {
  auto& self = *static_cast<CuptiProfiler*>(self_address);
  const auto& graph =
      *static_cast<const CUpti_GraphData*>(static_cast<const CUpti_ResourceData*>(data)->resourceDescriptor);
  const uint64_t node = self.id_of(graph.node);
  const bool cloned = event == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED;
  const uint64_t original = cloned ? self.id_of(graph.originalNode) : 0;
  const bool labelled = !cloned && std::this_thread::get_id() == self.launcher_;
  const std::lock_guard lock(only().mutex);
  const int64_t label = labelled ? self.label_ : label_in(self.label_of_node_, original);
  if (label != 0) self.label_of_node_[node] = label;
}

DeviceLog CuptiProfiler::take() {
  // Forced, to include partly filled buffers; the device is idle, so every record is complete.
  note("cuptiActivityFlushAll", call_.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  std::vector<Buffer> buffers;
  {
    const std::lock_guard lock(only().mutex);
    buffers.swap(buffers_);
  }
  for (const Buffer& buffer : buffers) read(buffer);
  const std::lock_guard lock(only().mutex);
  DeviceLog log{.done = {}, .lost = std::exchange(lost_, 0), .problem = problem_};
  for (Record& record : records_) {
    record.activity.label =
        record.node != 0 ? label_in(label_of_node_, record.node) : label_in(label_of_call_, record.correlation);
    log.done.push_back(std::move(record.activity));
  }
  records_.clear();
  label_of_call_.clear();
  return log;
}

}  // namespace

std::unique_ptr<Profiler> cupti_profiler(const SearchPlaces& places) {
  return std::make_unique<CuptiProfiler>(open_cupti(places));
}

}  // namespace athanor::cuda
