// The fake CUPTI records what the machine says, loses records when told to, and refuses what the real one refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "libraries/cupti/fake_cupti.h"
#include "libraries/simple_machine.h"

namespace emu::fakes {
namespace {

constexpr CUpti_ExternalCorrelationKind kKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

struct Buffer {
  uint8_t* bytes;
  size_t valid;
};
std::vector<Buffer> delivered;
bool give_buffers = true;
size_t buffer_bytes = 4096;

void give(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = give_buffers ? static_cast<uint8_t*>(std::malloc(buffer_bytes)) : nullptr;
  *size = give_buffers ? buffer_bytes : 0;
  *most = 0;
}
void take(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) { delivered.push_back({buffer, valid}); }

struct NodeEvent {
  CUpti_CallbackId event;
  uint64_t node, original;
  bool operator==(const NodeEvent&) const = default;
};
void on_node(void* seen, CUpti_CallbackDomain domain, CUpti_CallbackId event, const void* data) {
  EXPECT_EQ(domain, CUPTI_CB_DOMAIN_RESOURCE);
  const auto& graph =
      *static_cast<const CUpti_GraphData*>(static_cast<const CUpti_ResourceData*>(data)->resourceDescriptor);
  static_cast<std::vector<NodeEvent>*>(seen)->push_back(
      {event, reinterpret_cast<uint64_t>(graph.node), reinterpret_cast<uint64_t>(graph.originalNode)});
}

class Cupti : public testing::Test {
 protected:
  void SetUp() override {
    give_buffers = true;
    buffer_bytes = 4096;
  }
  void TearDown() override { drop(); }
  static void drop() {
    for (const Buffer& buffer : delivered) std::free(buffer.bytes);
    delivered.clear();
  }
  void start() {
    ASSERT_EQ(cupti.cuptiActivityRegisterCallbacks(give, take), CUPTI_SUCCESS);
    for (const auto kind :
         {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
          CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION})
      ASSERT_EQ(cupti.cuptiActivityEnable(kind), CUPTI_SUCCESS);
  }
  void run(unsigned long long ticket, FinishedWork::Kind kind = FinishedWork::kKernel, unsigned long long node = 0) {
    machine.observer().queued({ticket, 7, node});
    machine.observer().finished({kind, ticket, 0, "add", 2, 5});
  }
  // Kinds of all records that a flush brings, in their order.
  std::vector<CUpti_ActivityKind> flush() {
    drop();
    EXPECT_EQ(cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), CUPTI_SUCCESS);
    std::vector<CUpti_ActivityKind> kinds;
    for (const Buffer& buffer : delivered) {
      CUpti_Activity* record = nullptr;
      while (cupti.cuptiActivityGetNextRecord(buffer.bytes, buffer.valid, &record) == CUPTI_SUCCESS)
        kinds.push_back(record->kind);
    }
    return kinds;
  }
  size_t lost() {
    size_t count = 0;
    EXPECT_EQ(cupti.cuptiActivityGetNumDroppedRecords(nullptr, 0, &count), CUPTI_SUCCESS);
    return count;
  }
  template <class Record>
  const Record& first() const {
    return *reinterpret_cast<const Record*>(delivered.at(0).bytes);
  }

  SimpleMachine machine;
  FakeCupti fake{machine.machine()};
  athanor::CuptiTable cupti = fake.table();
};

TEST_F(Cupti, EveryFunctionOfTheTableIsThere) {
  for_each_function(cupti, [](const char* name, auto function) { EXPECT_NE(function, nullptr) << name; });
}

TEST_F(Cupti, RecordsKernelsCopiesAndFillsWithTheirTimes) {
  start();
  run(1, FinishedWork::kKernel, 9);
  ASSERT_EQ(flush(), (std::vector{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME}));
  const auto& kernel = first<CUpti_ActivityKernel10>();
  EXPECT_STREQ(kernel.name, "add");
  EXPECT_EQ(kernel.end - kernel.start, 3000u);
  EXPECT_EQ(kernel.streamId, 7u);
  EXPECT_EQ(kernel.graphNodeId, 9u);
  run(2, FinishedWork::kCopy);
  run(3, FinishedWork::kFill);
  const auto kinds = flush();
  EXPECT_EQ(std::ranges::count(kinds, CUPTI_ACTIVITY_KIND_MEMCPY), 1);
  EXPECT_EQ(std::ranges::count(kinds, CUPTI_ACTIVITY_KIND_MEMSET), 1);
  EXPECT_EQ(flush(), std::vector<CUpti_ActivityKind>{});
}

TEST_F(Cupti, ExternalIdsAreThoseOfTheLaunchingThread) {
  start();
  ASSERT_EQ(cupti.cuptiActivityPushExternalCorrelationId(kKind, 42), CUPTI_SUCCESS);
  std::thread([&] { run(1); }).join();  // has pushed nothing
  EXPECT_EQ(std::ranges::count(flush(), CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION), 0);
  run(2);
  EXPECT_EQ(std::ranges::count(flush(), CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION), 1);
  uint64_t last = 0;
  EXPECT_EQ(cupti.cuptiActivityPopExternalCorrelationId(kKind, &last), CUPTI_SUCCESS);
  EXPECT_EQ(last, 42u);
  EXPECT_EQ(cupti.cuptiActivityPopExternalCorrelationId(kKind, nullptr), CUPTI_ERROR_QUEUE_EMPTY);
  run(3);
  EXPECT_EQ(std::ranges::count(flush(), CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION), 0);
}

TEST_F(Cupti, ExternalIdsComeOnlyWithRecordsOfCalls) {
  start();
  ASSERT_EQ(cupti.cuptiActivityDisable(CUPTI_ACTIVITY_KIND_RUNTIME), CUPTI_SUCCESS);
  ASSERT_EQ(cupti.cuptiActivityPushExternalCorrelationId(kKind, 42), CUPTI_SUCCESS);
  run(1);
  EXPECT_EQ(flush(), (std::vector{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL}));
}

TEST_F(Cupti, LosesRecordsWithoutBuffersAndBeyondItsLimit) {
  start();
  give_buffers = false;
  run(1);
  EXPECT_EQ(flush().size(), 0u);
  EXPECT_EQ(lost(), 2u);  // the kernel and its call
  EXPECT_EQ(lost(), 0u);  // told once
  give_buffers = true;
  fake.lose_beyond(1);
  run(2);
  run(3);
  EXPECT_EQ(std::ranges::count(flush(), CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), 1);
  EXPECT_EQ(lost(), 1u);
  fake.lose_beyond(SIZE_MAX);
  buffer_bytes = 300;  // one kernel each
  for (unsigned i = 4; i < 14; ++i) run(i);
  EXPECT_EQ(std::ranges::count(flush(), CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), 10);
  EXPECT_GT(delivered.size(), 9u);
}

TEST_F(Cupti, CallsBackAboutNodesAndTheirClones) {
  start();
  std::vector<NodeEvent> seen;
  CUpti_SubscriberHandle subscriber = nullptr, second = nullptr;
  ASSERT_EQ(cupti.cuptiSubscribe(&subscriber, on_node, &seen), CUPTI_SUCCESS);
  EXPECT_EQ(cupti.cuptiSubscribe(&second, on_node, &seen), CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  machine.observer().node_made(5);  // nothing is enabled yet
  for (const auto id : {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED})
    ASSERT_EQ(cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, id), CUPTI_SUCCESS);
  machine.observer().node_made(6);
  machine.observer().node_cloned(8, 6);
  EXPECT_EQ(seen, (std::vector<NodeEvent>{{CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, 6, 0},
                                          {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, 8, 0},
                                          {CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, 8, 6}}));
  EXPECT_EQ(cupti.cuptiUnsubscribe(subscriber), CUPTI_SUCCESS);
  EXPECT_EQ(cupti.cuptiUnsubscribe(subscriber), CUPTI_ERROR_INVALID_PARAMETER);
  machine.observer().node_made(9);
  EXPECT_EQ(seen.size(), 3u);
}

TEST_F(Cupti, RefusesCallsOutOfOrderAndFailsAsPlanned) {
  EXPECT_EQ(cupti.cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY), CUPTI_ERROR_INVALID_OPERATION);
  EXPECT_EQ(cupti.cuptiActivityFlushAll(0), CUPTI_ERROR_INVALID_OPERATION);
  start();
  machine.fail_next("cuptiActivityFlushAll", 1, CUPTI_ERROR_UNKNOWN);
  EXPECT_EQ(cupti.cuptiActivityFlushAll(0), CUPTI_ERROR_UNKNOWN);
  EXPECT_EQ(fake.last_refusal(), "cuptiActivityFlushAll: planned failure");
  EXPECT_EQ(fake.balance(), 5);
}

}  // namespace
}  // namespace emu::fakes
