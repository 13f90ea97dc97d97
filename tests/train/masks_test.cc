// Ignored targets and packed documents: the loss is the mean over predicted tokens, whatever the micro-batches; a
// document in a packed sequence behaves as if alone; scores of choices match full forward passes.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "config/choices.h"
#include "infer/evaluate.h"
#include "infer/multiple_choice.h"
#include "tests/tiny_model.h"
#include "tests/train/harness.h"

namespace athanor {
namespace {

using testing::Rig;
constexpr int64_t kT = 16, kV = 61;

ModelConfig tiny() {
  return testing::tiny_model(ModelType::llama,
                             {.vocab = kV, .hidden = 16, .heads = 2, .intermediate = 24, .positions = kT});
}

EngineOptions options(int64_t micro, int64_t global) {
  EngineOptions o;
  o.recipe = make_recipe("fp32", DType::f32);
  o.seq_length = kT;
  o.micro_batch_size = micro;
  o.global_batch_size = global;
  o.seed = o.optimizer.seed = 7;
  o.schedule = {.style = DecayStyle::constant, .lr = 1e-2, .min_lr = 1e-2};
  o.clip_grad = 1;
  return o;
}

std::vector<int32_t> numbers(int64_t n, const char* name) {
  std::vector<int32_t> t(static_cast<size_t>(n));
  for (size_t i = 0; i < t.size(); ++i) t[i] = int32_t(random_bits(3, stream_of(name), i) % uint64_t(kV));
  return t;
}

StepState step(Engine& engine, std::span<const int32_t> tokens, std::span<const int32_t> targets) {
  PhaseClock clock;
  const auto per = size_t(engine.options().micro_batch_size * kT);
  for (size_t at = 0; at < tokens.size(); at += per)
    engine.micro_batch(tokens.subspan(at, per), targets.subspan(at, per), clock);
  return engine.finish_step();
}

TEST(Masks, MeanIsOverTargetsForAnyMicroBatchSize) {
  const auto tokens = numbers(4 * kT, "tokens");
  auto targets = numbers(4 * kT, "targets");
  for (size_t i = 0; i < targets.size(); ++i)
    if (i < 20 || i % 5 == 0) targets[i] = -1;  // the first sequence has no targets, the second few
  const auto counted = std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
  std::vector<StepState> states;
  for (const int64_t micro : {4, 2, 1}) {
    Rig rig;
    Engine engine(tiny(), options(micro, 4), rig.backend());
    engine.commit();
    engine.init_weights();
    states.push_back(step(engine, tokens, targets));
    EXPECT_EQ(states.back().loss_targets, double(counted)) << micro;
    const StepState second = step(engine, tokens, tokens);  // nothing ignored, no state left from before
    EXPECT_EQ(second.loss_targets, double(4 * kT));
  }
  for (const StepState& s : states) {
    EXPECT_NEAR(s.loss, states[0].loss, 1e-5 * states[0].loss);
    EXPECT_NEAR(s.grad_norm, states[0].grad_norm, 1e-5 * states[0].grad_norm);
  }
}

// A sequence trains the same whether or not the batch has another, ignored sequence.
TEST(Masks, IgnoredSequencesChangeNothing) {
  const auto tokens = numbers(2 * kT, "tokens");
  auto targets = numbers(2 * kT, "targets");
  Rig rig;
  Engine both(tiny(), options(1, 2), rig.backend()), alone(tiny(), options(1, 1), rig.backend());
  for (Engine* engine : {&both, &alone}) {
    engine->commit();
    engine->init_weights();
  }
  std::fill(targets.begin() + kT, targets.end(), -1);
  for (int i = 0; i < 3; ++i) {
    const StepState a = step(both, tokens, targets);
    const StepState b = step(alone, std::span(tokens).first(kT), std::span(targets).first(kT));
    EXPECT_NEAR(a.loss / a.loss_targets, b.loss / b.loss_targets, 1e-5) << i;
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5 * b.grad_norm) << i;
  }
}

TEST(Masks, StepWithoutTargetsDoesNotStopTheRun) {
  Rig rig;
  Engine engine(tiny(), options(1, 1), rig.backend());
  engine.commit();
  engine.init_weights();
  const StepState s = step(engine, numbers(kT, "tokens"), std::vector<int32_t>(kT, -1));
  EXPECT_EQ(s.loss, 0);
  EXPECT_EQ(s.loss_targets, 0);
  EXPECT_EQ(s.grad_norm, 0);
  EXPECT_EQ(s.skip, 0);
}

HostBatch packed(std::span<const int32_t> tokens, const std::vector<int64_t>& ends, int64_t most) {
  const PackingOptions options{.reset_attention_mask = true, .reset_position_ids = true, .max_documents = most};
  HostBatch batch(1, kT, options);
  const Window window{{tokens.begin(), tokens.end()}, std::vector<uint8_t>(tokens.size(), 1), ends};
  pack(window, options, {batch.tokens, batch.targets, batch.positions, batch.documents});
  return batch;
}

TEST(Masks, PackedDocumentsMatchSeparateSequences) {
  const auto tokens = numbers(kT + 1, "tokens");
  EngineOptions o = options(1, 1);
  o.documents_per_sequence = 4;
  o.training = false;
  Rig rig;
  EngineOptions training = o;
  training.training = true;
  Engine engine(tiny(), training, rig.backend());
  engine.commit();
  engine.init_weights();
  const HostBatch batch = packed(tokens, {5, 11}, 4);
  set_documents(engine, batch);
  engine.evaluate(batch.tokens, batch.targets);
  const std::vector<float> together = engine.losses();
  engine.set_documents({}, {});
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 5}, {5, 11}, {11, 16}}) {
    std::vector<int32_t> in(kT, 0), targets(kT, -1);
    std::copy(tokens.begin() + int64_t(begin), tokens.begin() + int64_t(end), in.begin());
    std::copy(tokens.begin() + int64_t(begin) + 1, tokens.begin() + int64_t(end) + 1, targets.begin());
    engine.evaluate(in, targets);
    const std::vector<float> alone = engine.losses();
    for (size_t i = begin; i < end; ++i) EXPECT_NEAR(together[i], alone[i - begin], 1e-5) << i;
  }
  // Documents change from one micro-batch of a step to the next.
  PhaseClock clock;
  const HostBatch other = packed(tokens, {3}, 4);
  double sum = 0;
  for (const HostBatch* b : {&batch, &other, &batch}) {
    set_documents(engine, *b);
    sum = engine.evaluate(b->tokens, b->targets);
  }
  double want = 0;
  for (const float loss : together) want += loss;
  EXPECT_NEAR(sum, want, 1e-5 * want);
}

// Sequences cut into chunks give the same losses, gradient norm and next step as shorter sequences of the same tokens.
TEST(Masks, ChunksMatchShorterSequences) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    ModelConfig model = tiny();
    if (type == ModelType::gpt2)
      model = testing::tiny_model(type, {.vocab = kV, .hidden = 16, .heads = 2, .intermediate = 64, .positions = kT});
    constexpr int64_t kShort = 4, kRows = 3;
    Rig rig;
    EngineOptions whole = options(kRows, kRows), pieces = options(kRows * kT / kShort, kRows * kT / kShort);
    whole.documents_per_sequence = kT / kShort;
    pieces.seq_length = kShort;
    Engine chunked(model, whole, rig.backend()), shorter(model, pieces, rig.backend());
    const PackingOptions packing{.max_chunks = kT / kShort, .chunk_length = kShort};
    HostBatch batch(kRows, kT, packing);
    PhaseClock clock;
    for (Engine* engine : {&chunked, &shorter}) {
      engine->commit();
      engine->init_weights();
    }
    for (int64_t step = 0; step < 3; ++step) {
      const auto tokens = numbers((step + 1) * kRows * (kT + 1), "tokens");
      for (int64_t row = 0; row < kRows; ++row) {
        const auto from = tokens.begin() + (step * kRows + row) * (kT + 1);
        const auto at = size_t(row * kT), table = size_t(row * packing.table_rows());
        pack({{from, from + kT + 1}, std::vector<uint8_t>(kT + 1, 1), {}}, packing,
             {std::span(batch.tokens).subspan(at, kT), std::span(batch.targets).subspan(at, kT),
              std::span(batch.positions).subspan(at, kT),
              std::span(batch.documents).subspan(table, size_t(packing.table_rows()))});
      }
      set_documents(chunked, batch);
      chunked.micro_batch(batch.tokens, batch.targets, clock);
      shorter.micro_batch(batch.tokens, batch.targets, clock);
      const StepState got = chunked.finish_step(), want = shorter.finish_step();
      EXPECT_NEAR(got.loss, want.loss, 1e-6 * want.loss) << name_of(type) << " step " << step;
      EXPECT_NEAR(got.grad_norm, want.grad_norm, 1e-5 * want.grad_norm) << name_of(type) << " step " << step;
    }
  }
}

// Log-softmax of full forward passes, one choice at a time.
double reference_score(Engine& engine, const Question& q, size_t choice) {
  std::vector<int32_t> text = q.context;
  text.insert(text.end(), q.choices[choice].begin(), q.choices[choice].end());
  const auto n = int64_t(q.choices[choice].size());
  if (int64_t(text.size()) > kT + 1) text.erase(text.begin(), text.end() - kT - 1);
  std::vector<int32_t> in(kT, 0);
  std::copy(text.begin(), text.end() - 1, in.begin());
  const std::vector<float> logits = engine.logits(in);
  double score = 0;
  for (int64_t i = int64_t(text.size()) - n; i < int64_t(text.size()); ++i) {
    double sum = 0;
    const float* row = logits.data() + (i - 1) * kV;
    for (int64_t v = 0; v < kV; ++v) sum += std::exp(double(row[v]));
    score += double(row[text[size_t(i)]]) - std::log(sum);
  }
  return score;
}

TEST(Answers, ScoresMatchSeparateForwardPasses) {
  std::vector<Question> questions;
  for (int q = 0; q < 7; ++q) {
    Question one{
        .context = numbers(1 + q * 4 % 23, cat("context", q).c_str()), .choices = {}, .characters = {}, .label = q % 3};
    for (int c = 0; c < 3; ++c) {
      one.choices.push_back(numbers(1 + (q + c) % 6, cat("choice", q, c).c_str()));
      one.characters.push_back(1 + (q * c) % 5);
    }
    questions.push_back(one);
  }
  for (const int64_t most : {1, 3, 16}) {
    for (const int64_t micro : {1, 2}) {
      Rig rig;
      EngineOptions o = options(micro, 2);
      o.documents_per_sequence = most;
      Engine engine(tiny(), o, rig.backend());
      engine.commit();
      engine.init_weights();
      const ChoiceScores scores = score(engine, questions);
      Engine whole(tiny(), options(1, 1), rig.backend());
      whole.want_logits();
      whole.commit();
      whole.init_weights();
      for (size_t q = 0; q < questions.size(); ++q)
        for (size_t c = 0; c < 3; ++c)
          EXPECT_NEAR(scores[q][c], reference_score(whole, questions[q], c), 2e-5) << most << " " << q << " " << c;
      // Afterwards the engine trains as if no questions had been scored.
      const auto tokens = numbers(2 * kT, "tokens"), targets = numbers(2 * kT, "targets");
      Engine fresh(tiny(), o, rig.backend());
      fresh.commit();
      fresh.init_weights();
      EXPECT_EQ(step(engine, tokens, targets).loss, step(fresh, tokens, targets).loss);
    }
  }
}

TEST(Answers, AccuracyCountsTheLikeliestByEachMeasure) {
  const std::vector<Question> questions = {{{1}, {{1, 2, 3, 4}, {1}}, {2, 10}, 0}, {{1}, {{1}, {2}}, {1, 1}, 1}};
  const ChoiceScores scores = {{-4, -3}, {-1, -2}};  // normalized per token -1 and -3, per character -2 and -0.3
  const ChoiceResult r = grade(questions, scores);
  EXPECT_EQ(r.questions, 2);
  EXPECT_EQ(r.tokens, 5);
  EXPECT_DOUBLE_EQ(r.loss, 6.0 / 5);
  EXPECT_DOUBLE_EQ(r.accuracy, 0);
  EXPECT_DOUBLE_EQ(r.accuracy_per_token, 0.5);
  EXPECT_DOUBLE_EQ(r.accuracy_per_character, 0);
}

}  // namespace
}  // namespace athanor
