// Packed documents compared with PyTorch: attention stays within a document, and positions restart in each.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/safetensors.h"
#include "config/config.h"
#include "tests/train/harness.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

template <class T>
std::vector<T> read(const SafetensorsFile& file, const std::string& name) {
  std::vector<T> out(size_t(file.at(name).bytes) / sizeof(T));
  file.read(file.at(name), std::as_writable_bytes(std::span(out)));
  return out;
}

class Packed : public ::testing::TestWithParam<const char*> {};

TEST_P(Packed, LossAndGradientsMatchSeparateDocuments) {
  testing::Rig rig;
  const std::string folder = cat("tests/golden/", GetParam());
  const SafetensorsFile reference(folder + "/reference.safetensors");
  const auto documents = read<int32_t>(reference, "packed.spans");
  const auto shape = reference.at("tokens").shape;
  const int64_t n = shape[1] * shape[2];
  EngineOptions o;
  o.recipe = make_recipe("fp32", DType::f32);
  o.seq_length = n;  // one row holds all documents
  o.micro_batch_size = o.global_batch_size = 1;
  for (size_t d = 0; d < documents.size(); d += 2)
    o.documents.push_back({documents[d], documents[d + 1], documents[d], documents[d + 1], 0, 0});
  Engine engine(load_model_config(folder + "/config.json"), o, rig.backend());
  engine.commit();
  load_weights(engine, *rig.device, ModelFolder(folder));
  const auto tokens = read<int32_t>(reference, "tokens"), targets = read<int32_t>(reference, "targets");
  PhaseClock clock;
  engine.micro_batch(std::span(tokens).first(size_t(n)), std::span(targets).first(size_t(n)), clock);
  for (const auto& piece : engine.model().params().pieces()) {
    const auto want = read<float>(reference, "packed.grad." + piece.slice->name);
    const auto all = rig.read<float>(engine.model().params().units()[size_t(piece.unit)]->grad);
    const float* got = all.data() + piece.offset;
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << piece.slice->name << " " << i;
  }
  const double want = read<float>(reference, "packed.loss")[0];
  EXPECT_NEAR(engine.finish_step().loss / double(n), want, 1e-5 * want);
}

INSTANTIATE_TEST_SUITE_P(Golden, Packed,
                         ::testing::Values("gpt2", "llama", "nanochat", "speedrun", "gated", "gates", "values", "sinks",
                                           "after", "both"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace athanor
