// A folder that holds a model: config.json and weights in Hugging Face's format, or a checkpoint of this program; or a
// GGUF file. Opening it checks that weights and config match: every tensor of the model exists once with its shape, and
// no others do. Weights are read in blocks, so the model is never held in memory as a whole.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/choices.h"
#include "checkpoint/reader.h"
#include "checkpoint/verify.h"
#include "checkpoint/weights.h"
#include "config/model_config.h"
#include "convert/adapter_folder.h"
#include "convert/folder_links.h"
#include "convert/fused_experts.h"
#include "convert/int_weights.h"
#include "convert/low_precision.h"
#include "convert/nf4_file.h"

namespace athanor {

class GgufWeights;
struct ParamSpec;

// A folder and its manifest, if it has one; every byte was verified against it.
struct VerifiedModel {
  std::string folder;
  bool elsewhere = false;  // another rank, which also opens the folder, verifies it
};
// Returns the folder itself, or for a run's folder its newest complete checkpoint. A damaged folder is an Error.
VerifiedModel verified_model(const std::string& path, const Verify& verify = verify_checksums);

class ModelFolder {
 public:
  // path: as for verified_model(). A checkpoint without its manifest is an Error. averages: reads a checkpoint's
  // averages of the weights (averaging.ema_decay, averaging.tail_start) instead of the weights; frozen weights have no
  // averages and are read as they are, as are all weights before the first update; an Error(usage) if there are none.
  // The weights of schedule_free_adamw are always read as its averages.
  explicit ModelFolder(const std::string& path, bool averages = false, Links links = Links::inside);
  // adapters: number of adapter folders so far in the chain of base folders.
  explicit ModelFolder(const VerifiedModel&, bool averages = false, Links links = Links::inside, int adapters = 0);
  // Opens a GGUF file of a model with known configuration: the file's keys are not read.
  ModelFolder(const std::string& gguf, const ModelConfig& config);
  ~ModelFolder();

  const std::string& path() const { return path_; }
  Links links() const { return links_; }
  const ModelConfig& config() const { return config_; }

  struct Weight {
    std::string name;  // name in transformers
    DType dtype;       // f32, bf16 or f16
    Shape shape;
    std::optional<Fp8Blocks> fp8 = {};    // stored in FP8 with scales for these blocks; read as f32
    std::optional<IntGroups> ints = {};   // stored as packed integers; read as f32
    int gptq_bits = 0;                    // if > 0, stored in GPTQ's format with this number of bits; read as f32
    std::optional<Nf4State> nf4 = {};     // stored in NF4; read as f32
    std::optional<FusedPart> fused = {};  // stored in a tensor of all experts
    Role role = Role::matrix;
    bool linear = false;  // is_linear_or_expert() of its parameter
    bool buffer = false;  // state that keeps its dtype: ParamSpec::buffer
    // True if the checkpoint has dense weights of a run with 2:4 sparsity (pruning.method srste): reading sets the two
    // pruned weights of every four to zero.
    bool two_of_four = false;
    // For adapter folders, read as f32. `merged`: dtype of the weight in the base folder. `quantized`: the adapters
    // were trained on the NF4 weight, so reading quantizes and dequantizes it. `adapted`: reading adds the weight's
    // adapters.
    std::optional<DType> merged = {};
    bool quantized = false, adapted = false;
  };
  const AdapterFolder* adapter() const { return adapter_.get(); }  // adapters merged into the base; may be null
  const ModelFolder* base() const { return base_.get(); }          // set with adapter()
  // True if the folder's safetensors hold the weights as they are read: nothing is merged, averaged or pruned.
  bool stores_what_it_reads() const {
    const auto differs = [this](const Weight& w) { return w.two_of_four || has_average_minus_weight(w.name); };
    return !adapter_ && !gguf_ && std::ranges::none_of(weights_, differs);
  }
  const std::vector<Weight>& weights() const { return weights_; }  // in model order; without a tied head
  const Weight& at(const std::string& name) const;                 // throws Error if there is no such tensor

  // Reads rows [begin, end) of the first dimension; for a vector, elements. NaN or infinite values are an Error that
  // names all tensors with such values.
  void read(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  // Reads elements [begin, end) in row-major order.
  void read_run(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  // The NF4 record of a matrix: the bytes stored in the folder, or its values quantized. Throws Error(usage) if the
  // folder stores NF4 with the other kind of absmaxes.
  std::vector<std::byte> nf4_record(const Weight&, bool nested) const;
  // The record of a matrix in bitsandbytes' file layout: its values are [outputs, inputs], so GPT-2's matrices are
  // transposed first. A GPT-2 folder that is itself in NF4 has no nf4_record().
  std::vector<std::byte> nf4_file_record(const Weight&, bool nested) const;
  // True if plain files store matrices as [in, out].
  bool in_out() const { return config_.model_type == ModelType::gpt2; }
  // L2 norms of the outputs of a matrix; if `nested` is set, of the matrix quantized to NF4 with that kind of absmaxes.
  std::vector<float> output_norms(const Weight&, std::optional<bool> nested) const;
  // Passes all rows in order, in blocks of whole rows of about kBlockBytes.
  static constexpr int64_t kBlockBytes = 4 << 20;
  using Block = std::function<void(std::span<const std::byte>)>;
  void for_each_block(const Weight&, const Block&) const;

 private:
  struct Stored {
    DType dtype;
    Shape shape;
  };
  Stored stored(const std::string& name) const;
  bool has(const std::string& name) const;
  std::vector<std::string> names() const;
  void check_weights(bool heads);
  Weight find_weight(const std::string& name, const Shape&, const ParamSpec& of);
  Weight nf4_weight(const std::string& name, const Shape&);
  std::vector<std::byte> read_nf4_parts(const Weight&, bool packed) const;
  std::vector<std::byte> stored_nf4_record(const Weight&, bool nested) const;
  const std::vector<float>& in_out_nf4_values(const Weight&) const;
  void read_nf4(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  std::vector<float> base_values(const Weight&, int64_t begin, int64_t end) const;
  Weight with_scales(const std::string& name, const Shape&);
  Weight packed(const std::string& name, const Shape&);
  Weight gptq(const std::string& name, const Shape&);
  Weight fused_weight(const std::string& name, const Shape&);  // without a name if there is none
  void read_fused(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  const std::vector<float>& gptq_matrix_values(const Weight&) const;
  void read_packed(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  void check_tied_head(const Weight& table);
  void check_float(const Weight&) const;
  // These read elements [begin, end).
  void read_unchecked(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  void read_stored(const std::string& name, const Stored&, int64_t begin, int64_t end,
                   std::vector<std::byte>& out) const;
  void find_two_of_four();
  void read_two_of_four(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  void read_sum(const std::string& name, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  [[noreturn]] void refuse_non_finite() const;

  void open_folder();  // checkpoint_ or files_
  void open_adapter(int adapters);
  Weight merged_weight(const std::string& name, const Shape&, const ParamSpec& of);
  void read_merged(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  void add_adapters(const Weight&, int64_t begin, int64_t end, std::vector<float>& values) const;
  void add_product(const Weight&, int64_t begin, int64_t end, std::vector<float>& values) const;
  void read_magnitudes(const Weight&) const;
  int64_t output_of(const Weight&, int64_t element) const;
  bool find_averages() const;
  std::string stored_name(const std::string& name) const;
  bool has_average_minus_weight(const std::string& name) const;

  std::string path_;
  bool averages_;
  Links links_;
  ModelConfig config_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // exactly one of these three is set,
  std::unique_ptr<WeightFiles> files_;
  std::unique_ptr<GgufWeights> gguf_;
  std::unique_ptr<AdapterFolder> adapter_;  // or these two, for an adapter folder
  std::unique_ptr<ModelFolder> base_;
  // Cache: the adapters of the matrix read last.
  mutable std::string adapted_name_;
  mutable std::vector<float> a_, b_;
  mutable std::vector<float> output_factors_;  // DoRA: magnitude / norm per output
  std::vector<Weight> weights_;
  std::map<std::string, size_t> places_;              // in weights_, by name
  std::map<std::string, std::vector<float>> scales_;  // scales of FP8 and packed-integer weights
  // Cache: one whole GPTQ matrix, or GPT-2 NF4 matrix, dequantized and transposed.
  mutable std::string unpacked_name_;
  mutable std::vector<float> unpacked_;
  // Cache: one whole expert of a fused tensor.
  mutable std::string fused_name_;
  mutable std::vector<std::byte> fused_;
  // Cache: the NF4 matrix read last. packed: set only if it was quantized here.
  struct Nf4Cache {
    std::string name;
    std::vector<std::byte> packed;
    std::vector<float> absmax;
  };
  mutable Nf4Cache nf4_;
};

// Returns the folder itself, or for a run's folder its newest complete checkpoint; logs its name and why newer ones
// were skipped.
std::string newest_model(const std::string& folder, const Verify& verify = verify_checksums);

// A cheap checksum of the names, shapes and some values of all weights.
std::string weights_fingerprint(const ModelFolder&);

// Throws Error(usage) naming the keys if a run with this configuration cannot use the weights; logs differences that
// are allowed (context length, positions). key: the option that names the folder.
void require_same_model(const ModelFolder& from, const ModelConfig& run, const std::string& key = "init_from");

}  // namespace athanor
