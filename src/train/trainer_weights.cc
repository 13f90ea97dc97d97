// Loads the weights of a run, and decides which weights are pruned.
#include <algorithm>
#include <filesystem>
#include <span>

#include "base/file.h"
#include "convert/folder_links.h"
#include "tokenizer/descriptor.h"
#include "train/find_together.h"
#include "train/trainer.h"

namespace athanor {

// Returns the folder of weights that the run starts from, or of the frozen model that a run with adapters resumes with.
std::unique_ptr<ModelFolder> Trainer::find_weights(const std::optional<Resume>& resume) {
  const bool adapts = config_.lora_rank > 0;
  if (config_.init_from.empty() || (resume && !adapts)) return nullptr;
  std::optional<AdapterBase> before;
  if (resume) before = read_adapter_json(resume->folder);
  const std::string path = before ? before->path : config_.init_from;
  const auto find = [&](const Verify& verify) { return verified_model(path, verify).folder; };
  const bool elsewhere = backend_.mesh.world().rank() > 0;
  auto from = std::make_unique<ModelFolder>(
      VerifiedModel{.folder = find_together(backend_.control, find), .elsewhere = elsewhere});
  require_same_model(*from, config_.model);
  if (!adapts) return from;
  const AdapterBase base{.path = std::filesystem::absolute(from->path()).lexically_normal().string(),
                         .fingerprint = weights_fingerprint(*from),
                         .lora = engine_options(config_, true).lora};
  if (before && before->fingerprint != base.fingerprint)
    throw Error(
        cat("resume: ", resume->folder, " has adapters of other weights than those of ", base.path, " (fingerprint ",
            before->fingerprint, ", now ", base.fingerprint, "); put back the model that was there"),
        Exit::usage);
  adapter_ = adapter_json(base);
  return from;
}

// Returns the model of pruning.mask_from; null if the resumed run was already pruned by it.
std::unique_ptr<ModelFolder> Trainer::find_mask(const std::optional<Resume>& resume) {
  const std::string& path = config_.prune_mask_from;
  if (path.empty() || (resume && !resume->prunes_anew)) return nullptr;
  const auto find = [&](const Verify& verify) { return verified_model(path, verify).folder; };
  const bool elsewhere = backend_.mesh.world().rank() > 0;
  auto mask = with_context("pruning.mask_from", [&] {
    return std::make_unique<ModelFolder>(
        VerifiedModel{.folder = find_together(backend_.control, find), .elsewhere = elsewhere});
  });
  require_same_model(*mask, config_.model, "pruning.mask_from");
  return mask;
}

// Adds settings of prompts and sampling (chat template, ends of a text) that lie next to the weights from which the run
// starts or resumes, if the tokenizer there is the data's, so that exports of a fine-tuned model keep them.
void Trainer::add_settings(const std::string& folder) {
  constexpr int64_t kMostBytes = int64_t{256} << 20;
  constexpr const char* kSettings[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                       "chat_template.jinja", "generation_config.json"};
  if (backend_.mesh.world().rank() != 0) return;  // which writes them
  const auto content = [&](const std::string& name) -> std::string {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(cat(folder, "/", name), ignored)) return "";
    return read_file_in(folder, name, kMostBytes, Links::inside);
  };
  size_t same = 0;
  for (const TokenizerFile& file : tokenizer_) {
    if (file.name == kTokenizerFile) continue;  // of this program: a published folder has none
    if (content(file.name) != file.content) return;
    ++same;
  }
  for (const char* name : same > 0 ? std::span<const char* const>(kSettings) : std::span<const char* const>()) {
    const auto has = [name](const TokenizerFile& file) { return file.name == name; };
    if (std::string text = content(name); !text.empty() && std::ranges::none_of(tokenizer_, has))
      tokenizer_.push_back({name, std::move(text)});
  }
}

// Sets master weights, optimizer states and pruning masks: from a checkpoint, from another model, or new ones.
void Trainer::set_weights(const std::optional<Resume>& resume, const ModelFolder* from, const ModelFolder* mask) {
  if (mask) {  // the mask is kept when other weights are loaded
    load_weights(*engine_, backend_.device, *mask);
    engine_->prune(config_.prune_sparsity);
  }
  if (from) load_weights(*engine_, backend_.device, *from);  // with adapters: frozen weights, absent in checkpoints
  if (resume) {
    load_state(resume->folder, mask ? kPrunedState : "");
  } else if (config_.lora_rank > 0) {
    engine_->init_weights(ParamStore::Init::trained);
    init_magnitudes(*engine_, backend_.device, *from);
    if (!config_.adapter.empty()) {
      const auto find = [&](const Verify& verify) { return verified_model(config_.adapter, verify).folder; };
      load_adapters(*engine_, backend_.device, AdapterFolder(find_together(backend_.control, find)), *from);
    }
  } else if (!from) {
    engine_->init_weights();
  }
  if (mask) engine_->zero_pruned();
  if (resume) return;
  if (prunes_after(config_, 0)) engine_->prune(sparsity_after(config_, 0));
  state_.device = engine_->read_state();
}

void Trainer::load_state(const std::string& folder, const std::string& without) {
  state_ = load_checkpoint(*engine_, backend_.device, folder, without);
  if (config_.log_quantization_interval == 0) state_.quantized.clear();
  if (config_.log_routing_interval == 0) state_.routing.clear(), state_.routing_alarm = false;
  if (!config_.log_noise_scale) state_.noise_scale = {};
}

void Trainer::report_pruned() {
  for (const PrunedMatrix& m : engine_->pruned_matrices())
    metrics_.pruned({.step = state_.step, .layer = m.name, .weights = m.weights, .zeros = m.zeros});
}

}  // namespace athanor
