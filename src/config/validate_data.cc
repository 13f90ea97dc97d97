// Combinations of data keys that cannot work, and the weights of data sources over a run.
#include <algorithm>
#include <numeric>
#include <set>

#include "base/int.h"
#include "config/config.h"
#include "config/require.h"

namespace athanor {
namespace {

void validate_sources(const std::vector<DataSource>& sources, std::string_view key) {
  std::vector<std::string_view> paths;
  for (const auto& source : sources) paths.push_back(source.path);
  std::sort(paths.begin(), paths.end());
  const auto twice = std::adjacent_find(paths.begin(), paths.end());
  require(twice == paths.end(), key, ": ", twice == paths.end() ? "" : *twice,
          " is listed twice; list it once with a larger weight");
  std::set<std::string_view> names;
  for (const auto& source : sources) {
    require(!source.path.empty(), key, ": a path is empty");
    require(names.insert(source_name(source)).second, key, ": two entries have the name \"", source_name(source),
            "\"; give each its own name");
  }
}

// Stage 0 has the weights of train_data's own entries.
void validate_weights(const Config& c) {
  for (const DataSource& source : c.valid_data)
    require(source.weight > 0, "valid_data: the weight of \"", source_name(source), "\" is 0; leave the entry out");
  std::vector<double> most(c.train_data.size());
  for (size_t stage = 0; stage <= c.train_data_stages.size(); ++stage) {
    const std::vector<double> weights = source_weights(c, stage);
    const std::string key = stage == 0 ? "train_data" : cat("train_data_stages[", stage - 1, "].weights");
    require(weights.empty() || std::accumulate(weights.begin(), weights.end(), 0.0) > 0, key,
            ": the weights of all entries of train_data are 0; set at least one above 0");
    std::ranges::transform(weights, most, most.begin(), [](double a, double b) { return std::max(a, b); });
  }
  for (size_t i = 0; i < most.size(); ++i)
    require(most[i] > 0, "train_data: the weight of \"", source_name(c.train_data[i]),
            "\" is 0, and train_data_stages gives it no other; leave the entry out");
}

void validate_stages(const Config& c) {
  int64_t before = 0;
  for (size_t k = 0; k < c.train_data_stages.size(); ++k) {
    const DataStage& stage = c.train_data_stages[k];
    const std::string key = cat("train_data_stages[", k, "]");
    require(k == 0 || stage.from_tokens > before, key, ".from_tokens: ", stage.from_tokens,
            " is not above that of the stage before it, ", before, "; list stages in ascending order");
    before = stage.from_tokens;
    for (const auto& entry : stage.weights) {
      const std::string& name = entry.first;
      const auto named = [&](const DataSource& source) { return source_name(source) == name; };
      std::string known;
      for (const DataSource& source : c.train_data) known += cat(known.empty() ? "" : ", ", source_name(source));
      require(std::ranges::any_of(c.train_data, named), key, ".weights: train_data has no entry of the name \"", name,
              "\"; its entries are: ", known);
    }
  }
}

void validate_fim(const Config& c) {
  if (c.fim_rate == 0) return;
  require(c.fim_tokens.has_value(), "fim.rate: ", c.fim_rate,
          " needs fim.tokens, the ids or texts of the tokens before the prefix, the suffix and the middle");
  const FimTokens& tokens = *c.fim_tokens;
  for (const TokenName* token : {&tokens.prefix, &tokens.suffix, &tokens.middle})
    require(token->id < c.model.vocab_size, "fim.tokens: ", token->id, " is not below model.vocab_size ",
            c.model.vocab_size);
  require(tokens.prefix != tokens.suffix && tokens.suffix != tokens.middle && tokens.middle != tokens.prefix,
          "fim.tokens: expected three different tokens");
}

void validate_documents(Config& c) {
  require(c.eod_token_id < c.model.vocab_size, "documents.eod_token_id: ", c.eod_token_id,
          " is not below model.vocab_size ", c.model.vocab_size);
  require(c.bos_token_id < c.model.vocab_size, "documents.bos_token_id: ", c.bos_token_id,
          " is not below model.vocab_size ", c.model.vocab_size);
  const bool best_fit = c.packing == Packing::best_fit;
  require(best_fit || c.bos_token_id < 0, "documents.bos_token_id: ", c.bos_token_id,
          " has a meaning only with documents.packing best_fit");
  require(best_fit || c.packing_documents == Config().packing_documents,
          "documents.packing_documents: ", c.packing_documents, " has a meaning only with documents.packing best_fit");
  require(c.reset_attention_mask || c.max_documents_per_sequence == 0,
          "documents.max_per_sequence: ", c.max_documents_per_sequence,
          " has a meaning only with documents.reset_attention_mask");
  require(c.max_documents_per_sequence <= c.seq_length, "documents.max_per_sequence: ", c.max_documents_per_sequence,
          " is more than the ", c.seq_length, " tokens of a sequence");
  constexpr int64_t kTokensPerDocument =
      16;  // average; sequences with shorter documents are too rare in ordinary text to matter
  if (c.reset_attention_mask && c.max_documents_per_sequence == 0)
    c.max_documents_per_sequence = div_ceil(c.seq_length, kTokensPerDocument);
}

}  // namespace

int64_t first_sample_of(const Config& c, const DataStage& stage) { return div_ceil(stage.from_tokens, c.seq_length); }

std::vector<double> source_weights(const Config& c, size_t stage) {
  std::vector<double> weights;
  for (const DataSource& source : c.train_data) {
    double& weight = weights.emplace_back(source.weight);
    for (size_t k = 0; k < stage; ++k)
      for (const auto& [name, changed] : c.train_data_stages[k].weights)
        if (name == source_name(source)) weight = changed;
  }
  return weights;
}

void validate_data(Config& c) {
  validate_sources(c.train_data, "train_data");
  validate_sources(c.valid_data, "valid_data");
  validate_stages(c);
  validate_weights(c);
  validate_documents(c);
  validate_fim(c);
}

}  // namespace athanor
