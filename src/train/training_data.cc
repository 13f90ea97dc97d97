// Opens data sets from the config, and determines how windows are converted to rows.
#include <algorithm>

#include "base/format.h"
#include "tokenizer/load.h"
#include "tokenizer/token_bytes.h"
#include "train/setup.h"

namespace athanor {

Dataset open_dataset(const std::vector<DataSource>& sources, const Config& c, const std::vector<MixtureStage>& stages) {
  if (sources.empty()) throw Error("expected at least one path of token shards, got none", Exit::usage);
  std::vector<ShardSource> shards;
  for (const DataSource& s : sources) shards.push_back({s.path, s.weight, std::string(name_of(s.dtype))});
  if (const ModelConfig& m = c.model; reads_images(m))
    return Dataset::open_images(
        shards, c.seq_length,
        {.classes = m.vocab_size, .channels = m.num_channels, .height = m.image_size, .width = m.image_size}, stages);
  return Dataset::open(shards, c.seq_length, c.model.vocab_size, stages);
}

namespace {

// Returns the id of a token that fim.tokens names: the tokenizer's only token with this text.
int32_t id_of(const TokenName& token, const Dataset& data, const Config& c) {
  if (token.id >= 0) return int32_t(token.id);
  const auto tokenizer = find_tokenizer(data.first_shard());
  if (!tokenizer)
    throw Error(cat("fim.tokens: \"", token.text, "\" is a text, and there is no tokenizer next to ",
                    data.first_shard(), "; give the token's id"),
                Exit::usage);
  const std::vector<int32_t> ids = ids_with_text(*tokenizer, token.text);
  if (ids.size() != 1)
    throw Error(cat("fim.tokens: ", ids.size(), " tokens of the tokenizer next to ", data.first_shard(),
                    " have the text \"", token.text, "\", expected one; ",
                    ids.empty() ? "add it to the tokenizer, or name another" : "give the token's id"),
                Exit::usage);
  if (ids.front() >= c.model.vocab_size)
    throw Error(cat("fim.tokens: \"", token.text, "\" is token ", ids.front(), ", which is not below model.vocab_size ",
                    c.model.vocab_size),
                Exit::usage);
  return ids.front();
}

// Returns the token that ends a document: the config's, or that of the tokenizer in the data's folder; required if
// shards have no index of documents. `why`: the feature that needs it.
int64_t end_of_document(const Config& c, const Dataset& data, const char* why) {
  if (c.eod_token_id >= 0) return c.eod_token_id;
  if (const auto tokenizer = find_tokenizer(data.first_shard())) return tokenizer->eod_id();
  if (!data.has_document_indices())
    throw Error(cat("documents.eod_token_id: expected the token that ends a document (for ", why,
                    "): ", data.first_shard(), " has no index of its documents and no tokenizer next to it"),
                Exit::usage);
  return -1;
}

// Returns the encoder of text parts for fim_level "character"; null for other levels.
std::shared_ptr<PartEncoder> part_encoder(const Config& c, const Dataset& data) {
  if (c.fim_level != FimLevel::character) return nullptr;
  std::shared_ptr<const Tokenizer> tokenizer = find_tokenizer(data.first_shard());
  if (!tokenizer)
    throw Error(cat("fim.level: character tokenizes parts of documents again, and there is no tokenizer next to ",
                    data.first_shard(), "; put it there, or set fim.level to token"),
                Exit::usage);
  if (tokenizer->vocab_size() > c.model.vocab_size)
    throw Error(cat("fim.level: the tokenizer next to ", data.first_shard(), " has ", tokenizer->vocab_size(),
                    " tokens, more than model.vocab_size ", c.model.vocab_size),
                Exit::usage);
  return std::make_shared<PartEncoder>(std::move(tokenizer));
}

}  // namespace

Dataset open_training_data(const Config& c) {
  std::vector<MixtureStage> stages;
  for (size_t k = 0; k < c.train_data_stages.size(); ++k)
    stages.push_back({first_sample_of(c, c.train_data_stages[k]), source_weights(c, k + 1)});
  Dataset data = open_dataset(c.train_data, c, stages);
  if (c.packing == Packing::best_fit)
    data.pack({.documents = c.packing_documents,
               .eod_id = end_of_document(c, data, "documents.packing: best_fit"),
               .bos_id = c.bos_token_id});
  if (c.fim_rate > 0)
    data.reorder({.rate = c.fim_rate,
                  .spm_rate = c.fim_spm_rate,
                  .prefix = id_of(c.fim_tokens->prefix, data, c),
                  .suffix = id_of(c.fim_tokens->suffix, data, c),
                  .middle = id_of(c.fim_tokens->middle, data, c),
                  .eod_id = end_of_document(c, data, "fim.rate"),
                  .characters = part_encoder(c, data)});
  return data;
}

std::string epochs_of_sources(const Config& c, const Dataset& data) {
  const std::vector<int64_t> samples = data.mixture().given(samples_after(c, c.train_iters));
  std::string text = cat("epochs of its entries in ", c.train_iters, " steps: ");
  for (size_t i = 0; i < samples.size(); ++i)
    text += cat(i ? ", " : "", source_name(c.train_data[i]), " ",
                format_count(double(samples[i]) / double(data.windows(int64_t(i)))));
  return text;
}

NamedValues source_losses(const Config& c, std::span<const double> sums) {
  NamedValues losses;
  const size_t count = sums.size() / 2;
  for (size_t i = 0; i < count; ++i)
    if (sums[count + i] > 0) losses.emplace_back(source_name(c.train_data[i]), sums[i] / sums[count + i]);
  return losses;
}

PackingOptions packing_options(const Config& c, const Dataset& train) {
  PackingOptions o{.reset_attention_mask = c.reset_attention_mask,
                   .reset_position_ids = c.reset_position_ids,
                   .eod_mask_loss = c.eod_mask_loss,
                   .eod_id = c.eod_token_id,
                   .max_documents = std::max<int64_t>(1, c.max_documents_per_sequence),
                   .max_chunks = max_chunks(c),
                   .image_pixels = train.images() ? train.images()->pixels() : 0};
  if (o.needs_documents())
    o.eod_id = end_of_document(
        c, train, "documents.reset_attention_mask, documents.reset_position_ids or documents.eod_mask_loss");
  return o;
}

Augmentation augmentation(const Config& c) {
  return {.seed = uint64_t(c.seed), .horizontal_flip = c.horizontal_flip, .crop_padding = c.crop_padding};
}

}  // namespace athanor
