// Cases of the sums of momentum in 1 bit per element.
#include "tests/ops/cases.h"

namespace athanor {
namespace {

constexpr int64_t kRecord = sizeof(OneBitRecord);

Tensor elements(const OneBitBlocks& b) { return tensor(DType::f32, {b.count * kOneBitBlock}); }
Tensor state() { return tensor(DType::u8, {int64_t(sizeof(StepState))}); }

// Records of scale 0.5 with random signs.
double byte_of_record(uint64_t stream, int64_t i) {
  if (i % kRecord < 4) return i % kRecord == 3 ? 0x3f : 0;
  return double(random_bits(kCaseSeed, stream, uint64_t(i)) % 256);
}

// Some elements without a variance, and one block without any.
double variance(uint64_t stream, int64_t i) {
  const bool none = i / kOneBitBlock == 2 || random_bits(kCaseSeed, stream + 1, uint64_t(i)) % 8 == 0;
  return none ? 0 : uniform(0.01, 1)(stream, i);
}

}  // namespace

void one_bit_cases(Examiner& examine) {
  for (const auto& [count, first, workers, worker] :
       {OneBitBlocks{1, 0, 1, 0}, OneBitBlocks{5, 3, 1, 0}, OneBitBlocks{4, 2, 2, 0}, OneBitBlocks{7, 1, 3, 2},
        OneBitBlocks{70, 5, 4, 1}, OneBitBlocks{2, 7, 5, 2}})
    for (const bool skip : {false, true}) {
      const OneBitBlocks blocks{count, first, workers, worker};
      const std::string name =
          cat(count, " blocks from ", first, ", worker ", worker, " of ", workers, skip ? " skip" : "");
      const Tensor n = elements(blocks), records = tensor(DType::u8, {count * kRecord});
      StepState s = running_state();
      s.skip = skip;
      const auto examine_with = [&](auto c) {
        c.values.insert({{"state", bytes_of(s)},
                         {"v", variance},
                         {"m", normal(0, 0.3)},
                         {"error", normal(0, 0.1)},
                         {"records", byte_of_record},
                         {"received", byte_of_record}});
        examine(c);
      };
      examine_with(OpCase<OneBitMomentum>{
          name, {.state = state(), .m = n, .v = n, .grad = n, .error = n, .records = records, .blocks = blocks}});
      examine_with(OpCase<OneBitDirection>{
          name, {.state = state(), .records = records, .v = n, .m = n, .grad = n, .blocks = blocks}});
      for (const bool cautious : {false, true}) {
        OpCase<OneBitDirection> lamb{cat(name, cautious ? " for LAMB, cautious" : " for LAMB"),
                                     {.state = state(),
                                      .records = records,
                                      .v = n,
                                      .m = n,
                                      .grad = n,
                                      .fresh = n,
                                      .ratios = tensor(DType::f32, {count}),
                                      .w = n,
                                      .weight_decay = 0.3,
                                      .decayed = count > 1 ? n.numel() - 300 : n.numel(),
                                      .cautious = cautious,
                                      .blocks = blocks}};
        lamb.values["fresh"] = [](uint64_t stream, int64_t i) { return i % 7 == 0 ? 0 : uniform(0.01, 1)(stream, i); };
        examine_with(lamb);
      }
      const int64_t served = blocks.served(blocks.order(worker));
      if (served == 0) continue;
      examine_with(
          OpCase<OneBitMean>{name,
                             {.state = state(),
                              .v = n,
                              .grad = n,
                              .received = workers > 1 ? tensor(DType::u8, {workers * served * kRecord}) : Tensor{},
                              .error = n,
                              .records = records,
                              .blocks = blocks}});
    }
}

// Factors that the limits leave alone, and such that they change; a tensor that has no ratios yet, and one without a
// variance.
void trust_ratio_cases(Examiner& examine) {
  for (const bool skip : {false, true}) {
    StepState s = running_state();
    s.skip = skip;
    const auto some = [](std::vector<double> values) {
      return [=](uint64_t, int64_t i) { return values[size_t(i) % values.size()]; };
    };
    for (const auto& [average, factor, max] : {std::tuple{0.0, 0.0, 1.05},
                                               {0.3, 0.0, 3.0},
                                               {0.3, 1.2, 1.25},
                                               {0.7, 1.2, 0.2},
                                               {0.7, 3.9, 9.0},
                                               {0.7, 0.52, 0.1},
                                               {2.0, 1.5, 0.0}}) {
      const std::string name = cat(average, " ", factor, " ", max, skip ? " skip" : "");
      OpCase<AverageTrustRatio> averages{name, {.parts = {}, .state = state()}};
      OpCase<FrozenTrustRatio> frozen{name, {.parts = {}, .state = state()}};
      for (const int64_t count : max > 3 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{1}) {
        averages.op.parts.push_back({.sums = tensor(DType::f64, {2, count}), .trust = tensor(DType::f32, {2})});
        frozen.op.parts.push_back(
            {.max = tensor(DType::f32, {1}), .trust = tensor(DType::f32, {2}), .sums = tensor(DType::f64, {2, 1})});
      }
      averages.values = {{"state", bytes_of(s)}, {"trust", some({average, factor})}, {"sums", uniform(1, 9)}};
      frozen.values = {{"state", bytes_of(s)}, {"trust", some({average, factor})}, {"max", some({max})}};
      examine(averages);
      examine(frozen);
    }
  }
}

}  // namespace athanor
