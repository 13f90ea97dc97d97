// An observed communicator forwards every call unchanged and reports when it begins and ends.
#include "comm/observed.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace athanor {
namespace {

class Inner final : public Communicator {
 public:
  explicit Inner(std::vector<std::string>& calls, int size = 2) : calls_(calls), size_(size) {}
  int rank() const override { return 1; }
  int size() const override { return size_; }
  std::unique_ptr<Communicator> split(int, int) override { return std::make_unique<Inner>(calls_, 1); }
  void all_reduce(Tensor, Reduce, Stream) override { calls_.emplace_back("all_reduce"); }
  void all_gather(Tensor, Tensor, Stream) override { calls_.emplace_back("all_gather"); }
  void reduce_scatter(Tensor, Tensor, Reduce, Stream) override { calls_.emplace_back("reduce_scatter"); }
  int64_t sum_workspace(DType, int64_t n) const override { return 3 * n; }
  void sum(Tensor, Tensor, Stream) override { calls_.emplace_back("sum"); }
  void sum_scatter(Tensor, Tensor, Tensor, Stream) override { calls_.emplace_back("sum_scatter"); }
  void send(Tensor, int, Stream) override { calls_.emplace_back("send"); }
  void recv(Tensor, int, Stream) override { calls_.emplace_back("recv"); }
  void exchange(Tensor, Tensor, int, Stream) override { calls_.emplace_back("exchange"); }
  void all_to_all(std::span<const Tensor>, std::span<const Tensor>, Stream) override {
    calls_.emplace_back("all_to_all");
  }
  void broadcast(Tensor, int, Stream) override { calls_.emplace_back("broadcast"); }
  void barrier() override { calls_.emplace_back("barrier"); }

 private:
  std::vector<std::string>& calls_;
  int size_;
};

struct Heard final : CollectiveObserver {
  void begins(std::string_view kind, std::string_view group) override {
    words.push_back(std::string(kind) + " of " + std::string(group));
  }
  void ends() override { words.emplace_back("."); }
  std::vector<std::string> words;
};

void call_all(Communicator& c) {
  c.all_reduce({}, Reduce::sum, Stream::compute);
  c.all_gather({}, {}, Stream::compute);
  c.reduce_scatter({}, {}, Reduce::sum, Stream::compute);
  c.sum({}, {}, Stream::compute);
  c.sum_scatter({}, {}, {}, Stream::compute);
  c.send({}, 0, Stream::compute);
  c.recv({}, 0, Stream::compute);
  c.exchange({}, {}, 0, Stream::compute);
  c.all_to_all({}, {}, Stream::compute);
  c.broadcast({}, 0, Stream::compute);
  c.barrier();
}

TEST(Observed, EveryCallIsForwardedAndReported) {
  std::vector<std::string> direct, through;
  Inner inner(direct);
  call_all(inner);
  CollectiveWatch watch;
  const auto world = observed(std::make_unique<Inner>(through), watch);
  call_all(*world);  // without an observer
  EXPECT_EQ(through, direct);
  Heard heard;
  watch.observer = &heard;
  call_all(*world);
  EXPECT_EQ(world->sum_workspace(DType::bf16, 5), 15);
  EXPECT_EQ(heard.words, (std::vector<std::string>{"all_reduce of world",     ".", "all_gather of world", ".",
                                                   "reduce_scatter of world", ".", "all_reduce of world", ".",
                                                   "reduce_scatter of world", ".", "send of world",       ".",
                                                   "recv of world",           ".", "exchange of world",   ".",
                                                   "all_to_all of world",     ".", "broadcast of world",  "."}));
  heard.words.clear();
  call_all(*world->split(0, 0));  // a group of one rank is not observed
  EXPECT_TRUE(heard.words.empty());
}

}  // namespace
}  // namespace athanor
