// Reads and writes the engine's state for checkpoints, reports and comparisons.
#include <cstring>

#include "comm/texts.h"
#include "engine/engine.h"

namespace athanor {

void Engine::want_logits() {
  CHECK(!recorded_, "want_logits() comes after the plan was recorded");
  CHECK(stage_.stages() == 1, "logits of a model on several stages");
  CHECK(part_.ranks == 1, "logits of whole sequences on ranks that share them");
  want_logits_ = true;
  memory_.add(MemoryKind::inputs, "logit rows", DType::i32, micro_inputs_.front().batch.tokens.shape, &logit_rows_);
}

void Engine::set_sources(std::span<const int32_t> sources) {
  if (source_count() == 0) return;
  CHECK(int64_t(sources.size()) == part_.sequences, sources.size(), " sources of ", part_.sequences, " sequences");
  for (const int32_t s : sources) CHECK(s >= 0 && s < source_count(), "source ", s, " of ", source_count());
  sources_.assign(sources.begin(), sources.end());
}

std::unique_ptr<BlockGather> Engine::gather_blocks() {
  CHECK(!reads_averages_, "masters may be averages; use_weights() comes first");
  receive_deltas();
  return std::make_unique<BlockGather>(context(*ops_, nullptr), model_->params(), options_.save_block_bytes);
}

void Engine::run_logits(Ctx c, std::vector<float>* out) {
  Var x = forward(*model_, c, micro_inputs_.front().batch, {});
  Buffer z = athanor::logits({c, model_->params()}, std::move(x), logit_rows_, model_->head(), model_->head_bias());
  release_head(*model_, c);
  if (!out) return;
  const ModelConfig& config = model_->config();
  out->resize(size_t(z.t.rows() * config.vocab_size));
  read_logits(backend_.device, z.t, float(config.final_logit_softcapping), config.vocab_size, *out);
}

std::vector<float> Engine::logits(std::span<const int32_t> tokens) {
  load(tokens, std::vector<int32_t>(tokens.size(), -1), micro_inputs_.front(), 0);
  arena_.begin("logits");
  std::vector<float> out;
  run_logits(context(*ops_, nullptr), &out);
  arena_.end();
  return out;
}

void Engine::want_top_logits(int64_t k, int64_t vocab, float temperature) {
  CHECK(!recorded_, "want_top_logits() comes after the plan was recorded");
  CHECK(stage_.stages() == 1 && part_.ranks == 1, "logits of a model or of sequences in parts");
  const int64_t n = part_.rows();
  memory_.add(MemoryKind::inputs, "ids of top logits", DType::i32, {n, k}, &top_.ids);
  memory_.add(MemoryKind::inputs, "top logits", DType::f32, {n, k}, &top_.values);
  memory_.add(MemoryKind::inputs, "rest of the logits", DType::f32, {n}, &top_.rest);
  top_vocab_ = vocab, top_temperature_ = temperature;
}

void Engine::run_top_logits(Ctx c) {
  const Buffer x = forward(*model_, c, micro_inputs_.front().batch, {}).keep();
  Classifier classifier = head();
  classifier.vocab = top_vocab_;
  athanor::top_logits({c, model_->params()}, x, classifier, top_, top_temperature_);
  release_head(*model_, c);
}

Engine::TopLogitsOfBatch Engine::top_logits(std::span<const int32_t> tokens) {
  load(tokens, std::vector<int32_t>(tokens.size(), -1), micro_inputs_.front(), 0);
  arena_.begin("top logits");
  run_top_logits(context(*ops_, nullptr));
  arena_.end();
  TopLogitsOfBatch out{.ids = std::vector<int32_t>(size_t(top_.ids.numel())),
                       .values = std::vector<float>(size_t(top_.values.numel())),
                       .rest = std::vector<float>(size_t(top_.rest.numel()))};
  Device& device = backend_.device;
  device.copy(out.ids.data(), top_.ids.data, top_.ids.bytes(), Stream::compute);
  device.copy(out.values.data(), top_.values.data, top_.values.bytes(), Stream::compute);
  device.copy(out.rest.data(), top_.rest.data, top_.rest.bytes(), Stream::compute);
  device.sync();
  return out;
}

// Sets the rows of class tokens, and black images for steps without data.
void Engine::init_images() {
  Device& device = backend_.device;
  for (const MicroInputs& each : micro_inputs_) {
    if (!each.batch.pixels) continue;
    const std::vector<uint8_t> black(each.batch.pixels.bytes());
    device.copy(each.batch.pixels.data, black.data(), black.size(), Stream::compute);
    device.sync();
  }
  if (!class_rows_) return;
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < class_rows_.numel(); ++i) rows.push_back(int32_t(i * options_.seq_length));
  device.copy(class_rows_.data, rows.data(), class_rows_.bytes(), Stream::compute);
  device.sync();
}

void Engine::predict_classes(Ctx& c, const Var& x) {
  const Buffer z =
      athanor::logits({c, model_->params()}, c.var(x.keep()), class_rows_, model_->head(), model_->head_bias());
  c.run(TopLogits{.ids = classes_.ids,
                  .values = classes_.values,
                  .rest = classes_.rest,
                  .logits = z.t,
                  .vocab = model_->config().vocab_size});
}

std::vector<int32_t> Engine::predicted_classes() {
  if (!class_rows_) return {};
  std::vector<int32_t> out(size_t(classes_.ids.numel()));
  backend_.device.copy(out.data(), classes_.ids.data, classes_.ids.bytes(), Stream::compute);
  backend_.device.sync();
  return out;
}

std::vector<float> Engine::losses() {
  const MicroInputs& in = micro_inputs_.front();
  const Tensor& from = in.all_losses ? in.all_losses : in.losses;
  std::vector<float> out(size_t(from.numel()));
  backend_.device.copy(out.data(), from.data, from.bytes(), Stream::compute);
  backend_.device.sync();
  if (part_rows_.empty()) return out;
  std::vector<float> in_order(out.size());
  for (size_t i = 0; i < out.size(); ++i) in_order[size_t(part_rows_[i])] = out[i];
  return in_order;
}

// Reads a record from a tensor in device memory.
template <class Record>
Record Engine::read(const Tensor& from) {
  Record record;
  last_end_ = nullptr;  // excludes work between steps from the next step's time
  backend_.device.copy(&record, from.data, sizeof record, Stream::compute);
  backend_.device.sync();
  return record;
}

template <class Record>
void Engine::write(const Tensor& to, const Record& record) {
  backend_.device.copy(to.data, &record, sizeof record, Stream::compute);
  backend_.device.sync();
}

StepState Engine::read_state() { return read<StepState>(state_); }
void Engine::write_state(const StepState& state) { write(state_, state); }
SpikeWindow Engine::read_window() { return read<SpikeWindow>(window_); }
void Engine::write_window(const SpikeWindow& window) { write(window_, window); }

std::vector<double> Engine::take_routing() {
  if (!routing_) return {};
  std::vector<double> sums(size_t(routing_.numel()));
  last_end_ = nullptr;
  backend_.device.copy(sums.data(), routing_.data, routing_.bytes(), Stream::compute);
  ops_->run(Fill{.x = routing_}, nullptr);
  backend_.device.sync();
  if (!backend_.control) return sums;
  const std::string mine(reinterpret_cast<const char*>(sums.data()), routing_.bytes());
  const std::vector<std::string> all = gather_texts(*backend_.control, mine);
  sums.assign(sums.size(), 0);
  for (const std::string& of_rank : all) {
    std::vector<double> part(sums.size());
    CHECK(of_rank.size() == mine.size(), "a rank counts other layers");
    std::memcpy(part.data(), of_rank.data(), of_rank.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }
  return sums;
}

std::vector<double> Engine::least_buffer_factors() {
  if (!least_factors_) return {};
  std::vector<double> most(size_t(least_factors_.numel()));
  last_end_ = nullptr;
  backend_.mesh.world().all_reduce(least_factors_, Reduce::max, Stream::compute);
  backend_.device.copy(most.data(), least_factors_.data, least_factors_.bytes(), Stream::compute);
  backend_.device.sync();
  return most;
}

void Engine::discard_overflows() {
  if (least_factors_) ops_->run(Fill{.x = least_factors_}, nullptr);
}

std::vector<QuantizedOperand> Engine::take_quantized() {
  if (!quantized_ || !quantized_->statistics()) return {};
  const Tensor& counted = quantized_->statistics();
  using Counts = std::vector<QuantizeStatistics>;
  Counts counts(size_t(counted.shape[0]) * kOperands);
  last_end_ = nullptr;
  backend_.device.copy(counts.data(), counted.data, counted.bytes(), Stream::compute);
  ops_->run(Fill{.x = counted}, nullptr);
  backend_.device.sync();
  if (backend_.control) {
    for (size_t i = 0; i < counts.size(); ++i)
      if (!quantized_->counts({int(i / kOperands)}, matrix_of(Operand(i % kOperands)), backend_.mesh)) counts[i] = {};
    const std::string mine(reinterpret_cast<const char*>(counts.data()), counted.bytes());
    const std::vector<std::string> all = gather_texts(*backend_.control, mine);
    counts.assign(counts.size(), {});
    for (size_t r = 0; r < all.size(); ++r) {
      Counts of_rank(counts.size());
      CHECK(all[r].size() == mine.size(), "rank ", r, " counts other layers");
      std::memcpy(of_rank.data(), all[r].data(), mine.size());
      for (size_t i = 0; i < counts.size(); ++i) counts[i].add(of_rank[i]);
    }
  }
  std::vector<QuantizedOperand> found;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i].values > 0 || counts[i].amax != 0)
      found.push_back({Param{int(i / kOperands)}, Operand(i % kOperands), counts[i]});
  return found;
}

}  // namespace athanor
