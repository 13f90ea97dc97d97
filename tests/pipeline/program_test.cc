// Step programs: every schedule terminates, its bubble and in-flight micro-batches match the published formulas, and
// the number of frames matches the simulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <sstream>

#include "base/error.h"
#include "pipeline/draw.h"

namespace athanor {
namespace {

using Kind = StageAction::Kind;
using S = PipelineSchedule;

std::string text_of(const Actions& list, bool transfers) {
  std::string text;
  for (const StageAction& a : list) {
    if (!transfers && !computes(a)) continue;
    constexpr const char* kLetters[] = {"<", "f", ">", "(", "b", "b", ")", "w"};
    text += cat(text.empty() ? "" : " ", kLetters[size_t(a.kind)], a.micro_batch, a.chunk ? cat(".", a.chunk) : "");
  }
  return text;
}

std::vector<Kind> computations_of(S schedule) {
  if (splits_backward(schedule)) return {Kind::forward, Kind::input_backward, Kind::weight_backward};
  return {Kind::forward, Kind::backward};
}

Simulation of(S schedule, PipelineShape shape, PassTimes times = {}) {
  return simulate(make_program(schedule, shape), times);
}

TEST(StepProgram, OneStageRunsEachMicroBatchForwardAndBackward) {
  for (const S schedule : {S::one_f_one_b, S::interleaved})
    EXPECT_EQ(text_of(make_program(schedule, {1, 1, 3}).stages[0], true), "f0 b0 f1 b1 f2 b2");
}

TEST(StepProgram, SchedulesMatchPublishedOnes) {
  const StepProgram one = make_program(S::one_f_one_b, {4, 1, 6});
  EXPECT_EQ(text_of(one.stages[0], false), "f0 f1 f2 f3 b0 f4 b1 f5 b2 b3 b4 b5");
  EXPECT_EQ(text_of(one.stages[2], false), "f0 f1 b0 f2 b1 f3 b2 f4 b3 f5 b4 b5");
  EXPECT_EQ(text_of(one.stages[3], true), "<0 f0 b0 )0 <1 f1 b1 )1 <2 f2 b2 )2 <3 f3 b3 )3 <4 f4 b4 )4 <5 f5 b5 )5");
  EXPECT_EQ(text_of(make_program(S::gpipe, {2, 1, 3}).stages[0], true), "f0 >0 f1 >1 f2 >2 (0 b0 (1 b1 (2 b2");
  const StepProgram inter = make_program(S::interleaved, {2, 2, 4});
  EXPECT_EQ(text_of(inter.stages[0], false), "f0 f1 f0.1 f1.1 f2 b0.1 f3 b1.1 f2.1 b0 f3.1 b1 b2.1 b3.1 b2 b3");
  EXPECT_EQ(text_of(inter.stages[1], false), "f0 f1 f0.1 b0.1 f1.1 b1.1 f2 b0 f3 b1 f2.1 b2.1 f3.1 b3.1 b2 b3");
  const StepProgram zero = make_program(S::zb1p, {3, 1, 4});
  EXPECT_EQ(text_of(zero.stages[0], false), "f0 f1 f2 b0 w0 f3 b1 w1 b2 w2 b3 w3");
  EXPECT_EQ(text_of(zero.stages[1], false), "f0 f1 b0 f2 b1 w0 f3 b2 w1 b3 w2 w3");
  EXPECT_EQ(text_of(zero.stages[2], true), "<0 f0 b0 )0 <1 f1 b1 )1 <2 f2 b2 )2 w0 <3 f3 b3 )3 w1 w2 w3");
  const StepProgram v = make_program(S::zbv, {2, 2, 3});
  EXPECT_EQ(text_of(v.stages[0], false), "f0 f1 f2 f0.1 b0.1 w0.1 f1.1 b1.1 w1.1 b0 w0 f2.1 b2.1 w2.1 b1 w1 b2 w2");
  EXPECT_EQ(text_of(v.stages[1], false), "f0 f0.1 f1 f1.1 b0.1 w0.1 f2 b0 w0 f2.1 b1.1 w1.1 b1 b2.1 b2 w1 w2.1 w2");
}

// Includes fewer micro-batches than stages and indivisible numbers: no stage deadlocks, every transfer is matched, and
// every micro-batch runs once through every chunk.
TEST(StepProgram, NeverDeadlocksAndRunsEveryMicroBatchOnce) {
  for (const S schedule : {S::one_f_one_b, S::interleaved, S::gpipe, S::zb1p, S::zbv})
    for (int stages = 1; stages <= 8; ++stages)
      for (const int chunks : {1, 2, 3, 4, 8, 12})
        for (int64_t m = 1; m <= 17; ++m) {
          if (schedule == S::zbv && chunks != 2) continue;
          if (schedule != S::zbv && chunks > 1 && (schedule != S::interleaved || stages == 1)) continue;
          const StepProgram program = make_program(schedule, {stages, chunks, m});
          const Simulation s = simulate(program, {.transfer = 0.1});
          ASSERT_LE(program.sends_ahead, chunks == 1 || m % stages == 0 || m < stages ? 2 : stages + 1)
              << stages << " stages, " << chunks << " chunks, " << m << " micro-batches";
          ASSERT_GE(s.bubble(), -1e-9) << stages << " stages, " << chunks << " chunks, " << m << " micro-batches";
          for (const Actions& list : program.stages)
            for (const Kind kind : computations_of(schedule))
              for (int c = 0; c < chunks; ++c)
                for (int64_t i = 0; i < m; ++i) ASSERT_EQ(std::ranges::count(list, StageAction{kind, c, i}), 1);
        }
}

// A plan builds a program for each of about ten micro-batch sizes and recomputations.
TEST(StepProgram, ConstructionTimeIsLinear) {
  const auto seconds = [](int64_t micro_batches) {  // of the processor, in the fastest of three constructions
    double least = 1e9;
    for (int i = 0; i < 3; ++i) {
      const std::clock_t begin = std::clock();
      const StepProgram program = make_program(S::interleaved, {8, 8, micro_batches});
      least = std::min(least, double(std::clock() - begin) / CLOCKS_PER_SEC);
      EXPECT_EQ(program.stages[1].size(), size_t(6 * 8 * micro_batches));
    }
    return least;
  };
  EXPECT_LT(seconds(4096), 24 * seconds(512)) << "8 times the micro-batches: linear 8, quadratic 64 times the seconds";
}

// [Narayanan et al. 2021, section 2.2], in units of a forward: (p - 1) (F + B) / v.
TEST(StepProgram, BubblesMatchTheFormula) {
  for (const S schedule : {S::one_f_one_b, S::gpipe})
    for (const int p : {2, 3, 4, 8})
      for (const int64_t m : {1, 4, 7, 32}) EXPECT_DOUBLE_EQ(of(schedule, {p, 1, m}).bubble(), 3.0 * (p - 1)) << p << m;
  for (const int p : {2, 4})
    for (const int v : {2, 4, 12})
      for (const int64_t m : {p, 4 * p})
        EXPECT_NEAR(of(S::interleaved, {p, v, m}).bubble(), 3.0 * (p - 1) / v, 1e-9) << p << " " << v << " " << m;
  EXPECT_DOUBLE_EQ(of(S::one_f_one_b, {4, 1, 8}).seconds, 33);
  EXPECT_DOUBLE_EQ(of(S::one_f_one_b, {8, 1, 32}).seconds, 117);
}

// [Qi et al. 2023, table 1]: (p - 1) (F + B - W) where the two halves of backward take as long as forward. A V leaves
// half of that: the first chunk's forward on the last stage.
TEST(StepProgram, ZeroBubbleSchedulesHaveSmallerBubbles) {
  for (const int p : {2, 4, 8})
    for (const int64_t m : {int64_t{2} * p, int64_t{4} * p}) {
      EXPECT_DOUBLE_EQ(of(S::zb1p, {p, 1, m}).bubble(), p - 1) << p << " " << m;
      EXPECT_DOUBLE_EQ(of(S::zbv, {p, 2, m}).bubble(), 0.5 * (p - 1)) << p << " " << m;
    }
  EXPECT_DOUBLE_EQ(of(S::zb1p, {4, 1, 8}).seconds, 27);
  EXPECT_DOUBLE_EQ(of(S::zbv, {4, 2, 16}).seconds, 49.5);
  const auto bubble = [](S schedule, int chunks, PassTimes times) {
    return of(schedule, {4, chunks, 16}, times).bubble();
  };
  EXPECT_NEAR(bubble(S::zb1p, 1, {.backward = 2.2, .weights = 0.7}), 5.4, 1e-9);  // attention has no weights
  EXPECT_NEAR(bubble(S::zbv, 2, {.backward = 2.2, .weights = 0.7}), 2.4, 1e-9);
}

TEST(StepProgram, InFlightMicroBatchesMatchPublishedTables) {
  using V = std::vector<double>;
  EXPECT_EQ(of(S::gpipe, {4, 1, 8}).in_flight, (V{8, 8, 8, 8}));
  EXPECT_EQ(of(S::one_f_one_b, {4, 1, 8}).in_flight, (V{4, 3, 2, 1}));
  EXPECT_EQ(of(S::one_f_one_b, {4, 1, 2}).in_flight, (V{2, 2, 2, 1}));
  EXPECT_EQ(of(S::zb1p, {4, 1, 8}).in_flight, (V{4, 4, 4, 4}));
  EXPECT_EQ(of(S::zbv, {4, 2, 16}).in_flight, (V{4, 4, 4, 4}));
  const V chunks = of(S::interleaved, {4, 12, 16}).in_flight;  // 2 (p - r - 1) + (v - 1) p, and one
  for (int r = 0; r < 4; ++r) EXPECT_DOUBLE_EQ(chunks[size_t(r)] * 12, 2 * (4 - r - 1) + 44 + 1);
}

TEST(StepProgram, FramesMatchInFlightMicroBatches) {
  const StepProgram program = make_program(S::one_f_one_b, {4, 1, 9});
  for (int r = 0; r < 4; ++r) {
    const Frames frames = assign_frames(program.stages[size_t(r)], 1);
    EXPECT_EQ(frames.frames, std::vector<int>{4 - r});
    EXPECT_EQ(frames.most, 4 - r);
    EXPECT_EQ(frames.slots, 4 - r);
  }
  // No two micro-batches in flight share a frame of a chunk, or the slot of their inputs.
  for (const int64_t m : {3, 8, 10}) {
    const StepProgram inter = make_program(S::interleaved, {3, 2, m});
    for (const Actions& list : inter.stages) {
      const Frames frames = assign_frames(list, 2);
      for (size_t i = 0; i < list.size(); ++i)
        for (size_t j = i + 1; j < list.size(); ++j)
          for (size_t k = j + 1; k < list.size(); ++k) {
            if (list[i].micro_batch != list[k].micro_batch || list[j].micro_batch == list[i].micro_batch) continue;
            ASSERT_NE(frames.slot[i], frames.slot[j]);
            if (list[i].chunk == list[k].chunk && list[j].chunk == list[i].chunk) {
              ASSERT_NE(frames.frame[i], frames.frame[j]);
            }
          }
    }
  }
}

// Memory is planned for a step's most micro-batches, and batches may grow to that.
TEST(StepProgram, FewerMicroBatchesNeverNeedMoreFrames) {
  for (const auto& [schedule, chunks] : {std::pair{S::one_f_one_b, 1}, {S::gpipe, 1}, {S::zb1p, 1}, {S::zbv, 2}})
    for (int p = 2; p <= 5; ++p) {
      StepProgram fewer = make_program(schedule, {p, chunks, 1});
      for (int64_t m = 2; m <= 2 * p + 1; ++m) {
        StepProgram more = make_program(schedule, {p, chunks, m});
        EXPECT_LE(fewer.sends_ahead, more.sends_ahead);
        for (size_t stage = 0; stage < size_t(p); ++stage) {
          const Frames few = assign_frames(fewer.stages[stage], chunks),
                       all = assign_frames(more.stages[stage], chunks);
          EXPECT_LE(few.slots, all.slots) << p << " " << m;
          for (size_t c = 0; c < size_t(chunks); ++c) EXPECT_LE(few.frames[c], all.frames[c]) << p << " " << m;
        }
        fewer = std::move(more);
      }
    }
}

TEST(Simulate, ReportsDeadlockedStages) {
  StepProgram program = make_program(S::one_f_one_b, {2, 1, 2});
  program.stages[0] = {{Kind::receive_gradient, 0, 0}};
  try {
    simulate(program, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "pipeline: the stages wait for each other: stage 0 waits at receiving the gradient of micro-batch 0, "
                 "chunk 0; stage 1 waits at receiving the activations of micro-batch 0, chunk 0");
  }
  program = make_program(S::one_f_one_b, {2, 1, 2});
  std::swap(program.stages[1][0], program.stages[1][4]);
  EXPECT_THROW(simulate(program, {}), Error);
}

TEST(Simulate, RendersAStepAsTextAndSvg) {
  const StepProgram program = make_program(S::one_f_one_b, {2, 1, 2});
  EXPECT_EQ(schedule_text(program, simulate(program, {}), 1),
            "stage 0  f0 f1 .  .  b0 -  .  b1 -\n"
            "stage 1  .  f0 b0 -  f1 b1 -  .  .\n");
  const std::string svg = schedule_svg(program, simulate(program, {}));
  const auto count = [&](const char* text) {
    int n = 0;
    for (size_t at = svg.find(text); at != svg.npos; at = svg.find(text, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<rect x="), 8) << "passes";
  EXPECT_EQ(count("hsl(210"), 4) << "forward";
  EXPECT_EQ(count("width=\"48\""), 4) << "backward takes twice as long";
  EXPECT_NE(svg.find("stages wait 33 % of the step"), svg.npos);
}

}  // namespace
}  // namespace athanor
