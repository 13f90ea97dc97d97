#include "train/advice.h"

#include "base/error.h"
#include "base/format.h"
#include "base/int.h"
#include "perf/flops.h"
#include "train/setup.h"

namespace athanor {
namespace {

// FLOPs per token of forward and backward with causal attention, by the dimension in which they are linear.
struct Work {
  double width = 0;      // all matrices: each has the width as one dimension
  double mlp = 0;        // portion of `width` in the feed-forward layer
  double attention = 0;  // GEMMs of queries, keys and values
  double total() const { return width + attention; }
};

// Outputs and inputs, per layer, of attention's linear layers from and to the residual stream.
int64_t projected(const ModelConfig& m) {
  if (!has_latent_attention(m.model_type)) return m.head_dim * 2 * (m.num_attention_heads + m.num_key_value_heads);
  const int64_t queries = m.q_lora_rank > 0 ? m.q_lora_rank : m.num_attention_heads * m.head_dim;
  return queries + m.kv_lora_rank + m.qk_rope_head_dim + m.num_attention_heads * m.v_head_dim;
}

Work work_of(const ModelConfig& m, int64_t seq_length) {
  const double projections = double(m.hidden_size * projected(m));
  const double matrices = m.gated_mlp ? 3 : 2;  // gate, up, down; up, down
  const auto layers = double(m.num_hidden_layers);
  double widths = 0;  // sum over all layers
  for (int64_t l = 0; l < m.num_hidden_layers; ++l)
    widths += has_experts(m, l) ? double(m.num_experts_per_tok * m.moe_intermediate_size + shared_width(m))
                                : double(m.intermediate_size);
  const double mlp = matrices * double(m.hidden_size) * widths / layers;  // mean per layer
  Work w;
  w.mlp = 6 * layers * mlp;
  w.width = 6 * (layers * (projections + mlp) + double(m.vocab_size * m.hidden_size));
  w.attention = attention_flops_per_token(m, seq_length).causal;
  return w;
}

}  // namespace

std::vector<DimensionAdvice> dimension_advice(const ModelConfig& m, int64_t seq_length, int64_t multiple) {
  const Work work = work_of(m, seq_length);
  std::vector<DimensionAdvice> advice;
  const auto consider = [&](const char* key, int64_t value, double share) {
    if (value % multiple == 0) return;
    const int64_t better = round_up(value, multiple);
    const double padding = share * (double(better) / double(value) - 1);  // relative to the useful work
    advice.push_back({key, value, better, padding / (work.total() + padding)});
  };
  consider("hidden_size", m.hidden_size, work.width);
  consider("head_dim", m.head_dim, work.attention);
  if (has_expert_width(m.model_type))
    consider("moe_intermediate_size", m.moe_intermediate_size, work.mlp);
  else
    consider("intermediate_size", m.intermediate_size, work.mlp);
  return advice;
}

std::string to_text(const DimensionAdvice& a, int64_t multiple) {
  return cat("model.", a.key, " ", a.value, " is not a multiple of ", multiple, ": its GEMMs cost what ", a.better,
             " costs, ", format_text("%.1f", 100 * a.gain), " % of the step is wasted");
}

}  // namespace athanor
