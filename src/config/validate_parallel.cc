// Combinations of tensor-parallel and context-parallel keys that cannot work.
#include <algorithm>
#include <numeric>

#include "config/config.h"
#include "config/require.h"

namespace athanor {
namespace {

// Tensor-parallel sizes that KV heads allow. With more ranks than KV heads, several ranks have a copy of the same head.
bool shares_key_heads(const ModelConfig& m, int64_t ranks) {
  return m.num_key_value_heads % ranks == 0 || ranks % m.num_key_value_heads == 0;
}
std::string tensor_sizes(const ModelConfig& m) {
  constexpr int64_t kMost = 1024;  // largest size that is listed
  const int64_t all = std::gcd(std::gcd(m.num_attention_heads, m.intermediate_size), shared_width(m));
  std::string text;
  for (int64_t n = 1; n <= std::min(all, kMost); ++n)
    if (all % n == 0 && shares_key_heads(m, n)) text += cat(text.empty() ? "" : ", ", n);
  return text;
}

// Returns why this rule cannot update tensor-parallel shards of matrices; null if it can.
const char* needs_more_than_parts(RuleName o) {
  if (o == RuleName::adamw_8bit) return "keeps a scale for each block of moments, and a part may end within a block";
  if (o == RuleName::lamb || o == RuleName::adafactor) return "needs sums over the whole matrix";
  return nullptr;
}

// List of the context-parallel sizes, up to kMost, that divide this sequence length.
std::string context_sizes(int64_t seq_length) {
  constexpr int64_t kMost = 1024;
  std::string text = "1";
  for (int64_t n = 2; n <= std::min(seq_length / 2, kMost); ++n)
    if (seq_length % (2 * n) == 0) text += cat(", ", n);
  return text;
}

}  // namespace

void validate_tensor_parallel(const Config& c) {
  const int64_t ranks = c.tensor_parallel_size;
  require(
      ranks > 1 || !c.sequence_parallel,
      "sequence_parallel: has no effect with tensor_parallel_size 1; set it to false, or tensor_parallel_size to more");
  if (ranks == 1) return;
  const int64_t context = c.context_parallel_size;
  require(!c.sequence_parallel || c.seq_length % ranks == 0, "sequence_parallel: seq_length ", c.seq_length,
          " does not divide among ", ranks, " ranks of tensor_parallel_size; take a multiple of ",
          context > 1 ? std::lcm(2 * context, context * ranks) : ranks);
  const ModelConfig& m = c.model;
  const auto divides = [&](const char* what, int64_t size, bool does) {
    require(does, "tensor_parallel_size: ", what, " ", size, " does not divide among ", ranks,
            " ranks; these do for this model: ", tensor_sizes(m));
  };
  divides("num_attention_heads", m.num_attention_heads, m.num_attention_heads % ranks == 0);
  divides("num_key_value_heads", m.num_key_value_heads, shares_key_heads(m, ranks));
  divides("intermediate_size", m.intermediate_size, m.intermediate_size % ranks == 0);
  divides("the width of shared experts", shared_width(m), shared_width(m) % ranks == 0);
  require(c.qk_clip_threshold == 0.0 || m.num_key_value_heads % ranks == 0,
          "qk_clip_threshold: with tensor_parallel_size ", ranks, " several ranks have the same of the ",
          m.num_key_value_heads,
          " key heads, and each would clip them by its own queries; set it to 0, or tensor_parallel_size to at most ",
          m.num_key_value_heads);
  require(m.vocab_size >= ranks, "tensor_parallel_size: vocab_size ", m.vocab_size,
          " is less than a token for each of ", ranks, " ranks; take at most ", m.vocab_size);
  const auto works_on_parts = [&](RuleName rule, const std::string& where) {
    const char* why_not = needs_more_than_parts(rule);
    require(!why_not, "tensor_parallel_size: ", ranks, " ranks have parts of a matrix, and optimizer ", name_of(rule),
            where, " ", why_not ? why_not : "",
            "; use adamw, adam, sgd, lion, muon, normuon or schedule_free_adamw, or tensor_parallel_size 1");
  };
  works_on_parts(c.optimizer, "");
  for (const ParamGroupConfig& group : c.param_groups)
    if (group.optimizer) works_on_parts(*group.optimizer, cat(" of param_groups \"", group.match, "\""));
  require(c.update_clip_threshold == 0.0, "adam.update_clip_threshold: ", ranks,
          " ranks of tensor_parallel_size have parts of a tensor, and the limit applies to the whole tensor; set it to "
          "0, or tensor_parallel_size to 1");
  require(!c.log_noise_scale, "logging.noise_scale: gradients in parts on ", ranks,
          " ranks are not supported; set it to false, or tensor_parallel_size to 1");
  require(c.deterministic_reduction != DeterministicReduction::rank_invariant, "tensor_parallel_size: ", ranks,
          " ranks add parts of GEMMs in another order than one rank; use deterministic_reduction fixed_order, or "
          "tensor_parallel_size 1");
}

void validate_context_parallel(const Config& c) {
  const int64_t ranks = c.context_parallel_size;
  if (ranks == 1) return;
  require(c.seq_length % (2 * ranks) == 0, "context_parallel_size: seq_length ", c.seq_length,
          " does not divide into two pieces for each of ", ranks, " ranks; take a multiple of ", 2 * ranks,
          ", or one of these sizes: ", context_sizes(c.seq_length));
  const int64_t own = c.seq_length / ranks;
  require(!c.sequence_parallel || own % c.tensor_parallel_size == 0, "sequence_parallel: ", own,
          " tokens of a sequence on each of ", ranks, " ranks of context_parallel_size do not divide among ",
          c.tensor_parallel_size, " ranks of tensor_parallel_size; take a seq_length that is a multiple of ",
          std::lcm(2 * ranks, ranks * c.tensor_parallel_size));
  require(!c.log_noise_scale, "logging.noise_scale: parts of sequences on ", ranks,
          " ranks have no gradients of whole sequences; set it to false, or context_parallel_size to 1");
  require(c.deterministic_reduction != DeterministicReduction::rank_invariant, "context_parallel_size: ", ranks,
          " ranks add gradients of parts of sequences, in another order than one rank; use deterministic_reduction "
          "fixed_order, or context_parallel_size 1");
}

}  // namespace athanor
