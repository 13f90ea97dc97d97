// A folder that holds a model: config.json and weights, as Hugging Face has them, or a checkpoint of ours; or a GGUF
// file. Opening it proves that weights and shape belong together: every tensor of the model is there once with its
// shape, and nothing else. Weights are read in blocks; no second model lies in memory.
#pragma once
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
#include "convert/int_weights.h"
#include "convert/low_precision.h"
#include "convert/nf4_file.h"

namespace athanor {

class GgufWeights;

// A folder of which every byte has been verified, if it has a manifest.
struct VerifiedModel {
  std::string folder;
  bool elsewhere = false;  // by another rank, which opens it too
};
// The folder itself, or of a run's folder the newest whole checkpoint. An Error if it is damaged.
VerifiedModel verified_model(const std::string& path, const Verify& verify = verify_checksums);

class ModelFolder {
 public:
  // path: as for verified_model(). A checkpoint that lacks its manifest is refused.
  // With `averages` the weights are a checkpoint's averages of them (ema_decay, tail_average_start); frozen ones have
  // none and are as they are. An Error(usage) if there are none. Averages of schedule_free_adamw are what its weights
  // are in any case.
  explicit ModelFolder(const std::string& path, bool averages = false, Links links = Links::inside);
  // adapters: folders of adapters that this one is the base of.
  explicit ModelFolder(const VerifiedModel&, bool averages = false, Links links = Links::inside, int adapters = 0);
  // A GGUF file of a model of known shape: its keys are not read.
  ModelFolder(const std::string& gguf, const ModelConfig& config);
  ~ModelFolder();

  const std::string& path() const { return path_; }
  Links links() const { return links_; }
  const ModelConfig& config() const { return config_; }

  struct Weight {
    std::string name;  // as transformers has it
    DType dtype;       // f32, bf16 or f16
    Shape shape;
    std::optional<CodeBlocks> codes = {};  // stored in FP8 with such scales; read as f32
    std::optional<IntGroups> ints = {};    // stored as packed integers; read as f32
    int gptq_bits = 0;                     // stored as in GPTQ's files, in so many bits; read as f32
    std::optional<Nf4State> nf4 = {};      // stored in NF4; read as f32
    Role role = Role::matrix;
    bool buffer = false;  // state that stays in its dtype: ParamSpec::buffer
    // The checkpoint has dense weights, and its run computes with two of every four (prune_method srste): reading sets
    // the other two to zero.
    bool two_of_four = false;
    // A weight of a folder of adapters, read as f32. `merged`: its type in the base folder. `quantized`: the adapters
    // were trained on the NF4 weight, so reading quantizes and dequantizes it. `adapted`: it has adapters, which
    // reading adds.
    std::optional<DType> merged = {};
    bool quantized = false, adapted = false;
  };
  const AdapterFolder* adapter() const { return adapter_.get(); }  // whose weights are merged into those of a base
  const std::vector<Weight>& weights() const { return weights_; }  // in the order of the model; no tied head
  const Weight& at(const std::string& name) const;                 // Error if there is no such tensor

  // Rows [begin, end) of the first dimension; of a vector, its elements. Values that are NaN or infinite are an Error
  // that names all tensors with such values.
  void read(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  // Reads elements [begin, end), counted row by row.
  void read_run(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  // A matrix in NF4: the bytes that the folder has, or its values quantized. An Error(usage) if the folder has NF4 with
  // absmaxes of the other kind.
  std::vector<std::byte> nf4_record(const Weight&, bool nested) const;
  // The record that a file in bitsandbytes' layout has of a matrix: its values as [outputs, inputs], so that GPT-2's
  // matrices are transposed first. A GPT-2 folder that is itself in NF4 has no nf4_record().
  std::vector<std::byte> nf4_file_record(const Weight&, bool nested) const;
  bool in_out() const { return config_.model_type == ModelType::gpt2; }  // of matrices in plain files
  // Norms of the outputs of a matrix; nested: of what it is in NF4, with absmaxes of that kind.
  std::vector<float> output_norms(const Weight&, std::optional<bool> nested) const;
  // All rows in order, in blocks of whole rows of about kBlockBytes.
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
  Weight find_weight(const std::string& name, const Shape&, Role);
  Weight nf4_weight(const std::string& name, const Shape&);
  std::vector<std::byte> read_nf4_parts(const Weight&, bool packed) const;
  std::vector<std::byte> stored_nf4_record(const Weight&, bool nested) const;
  const std::vector<float>& in_out_nf4_values(const Weight&) const;
  void read_nf4(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  std::vector<float> base_values(const Weight&, int64_t begin, int64_t end) const;
  Weight with_scales(const std::string& name, const Shape&);
  Weight packed(const std::string& name, const Shape&);
  Weight gptq(const std::string& name, const Shape&);
  const std::vector<float>& gptq_matrix_values(const Weight&) const;
  void read_packed(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  void check_tied_head(const Weight& table);
  void check_float(const Weight&) const;
  // Elements [begin, end):
  void read_unchecked(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  void read_stored(const std::string& name, const Stored&, int64_t begin, int64_t end,
                   std::vector<std::byte>& out) const;
  void find_two_of_four();
  void read_two_of_four(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  void read_sum(const std::string& name, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  [[noreturn]] void refuse_non_finite() const;

  void open_folder();  // checkpoint_ or files_
  void open_adapter(int adapters);
  Weight merged_weight(const std::string& name, const Shape&, Role);
  void read_merged(const Weight&, int64_t begin, int64_t end, std::vector<std::byte>& out) const;
  void add_adapters(const Weight&, int64_t begin, int64_t end, std::vector<float>& values) const;
  void add_product(const Weight&, int64_t begin, int64_t end, std::vector<float>& values) const;
  void read_magnitudes(const Weight&) const;
  int64_t output_of(const Weight&, int64_t element) const;
  void require_averages() const;
  std::string stored_name(const std::string& name) const;
  bool has_average_minus_weight(const std::string& name) const;

  std::string path_;
  bool averages_;
  Links links_;
  ModelConfig config_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // one of the three
  std::unique_ptr<WeightFiles> files_;
  std::unique_ptr<GgufWeights> gguf_;
  std::unique_ptr<AdapterFolder> adapter_;  // apart from the folder of the model that it is for
  std::unique_ptr<ModelFolder> base_;
  // The adapters of the matrix that was read last.
  mutable std::string adapted_name_;
  mutable std::vector<float> a_, b_;
  mutable std::vector<float> output_factors_;  // of DoRA
  std::vector<Weight> weights_;
  std::map<std::string, std::vector<float>> scales_;  // of weights in FP8 and in packed integers
  // The matrix of GPTQ, or in NF4 of GPT-2, that is held whole, since it is transposed in files.
  mutable std::string unpacked_name_;
  mutable std::vector<float> unpacked_;
  // The matrix in NF4 that was read last. packed: only where it was quantized here.
  struct Nf4Cache {
    std::string name;
    std::vector<std::byte> packed;
    std::vector<float> absmax;
  };
  mutable Nf4Cache nf4_;
};

// The folder itself, or of a run's folder the newest whole checkpoint; the log names it, and why newer ones are not.
std::string newest_model(const std::string& folder, const Verify& verify = verify_checksums);

// A checksum of the names, the shapes and some values of all weights: equal for equal models, and cheap.
std::string weights_fingerprint(const ModelFolder&);

// What a run with this shape cannot take over from weights of that shape is an Error(usage) naming the keys; what it
// may change (the context and how positions reach it) is a line of the log.
// key: which names the folder.
void require_same_model(const ModelFolder& from, const ModelConfig& run, const std::string& key = "init_from");

}  // namespace athanor
