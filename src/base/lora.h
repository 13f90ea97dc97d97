// Configuration choices of low-rank adapters, used by model/adapters.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace athanor {

// Scale of the low-rank update: alpha / rank [Hu et al. 2021, "LoRA"], or alpha / sqrt(rank) [Kalajdzievski 2023,
// "rsLoRA"]. dora: as lora, with trained output norms [Liu et al. 2024, "DoRA"].
enum class LoraVariant : uint8_t { lora, rslora, dora };

// How the frozen linear layers are stored: in the compute dtype, or in NF4 [Dettmers et al. 2023, "QLoRA"].
enum class BasePrecision : uint8_t { none, nf4 };

struct LoraOptions {
  int64_t rank = 0;  // 0: no adapters, and no weight is frozen
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> targets = {"all-linear"};  // module names, or suffixes of names that follow a dot
  LoraVariant variant = LoraVariant::lora;
  BasePrecision base = BasePrecision::none;
  bool double_quant = true;  // for an NF4 base
  double scale() const;
};

// The model that PEFT's adapters in `folder` are for. named: their base_model_name_or_path, a folder as this process or
// the adapters' folder sees it, or a name on Hugging Face's hub, which is returned as it is.
std::string base_of_peft(const std::string& folder, const std::string& named);

}  // namespace athanor
