// The options of data, one row each: which files are read, in which proportions, and how rows are built from them.
#include "base/error.h"
#include "config/fields.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

using enum OnResume;

void read_source(DataSource& out, const Json& value, const std::string& path, Notices notices) {
  if (value.is(Json::Kind::string)) {
    out.path = read_path(value, path);
  } else {
    read_fields(data_source_fields(), value, path, out, notices);
  }
  if (out.path.empty()) bad_value(value, path, "a path that is not empty");
}

template <std::vector<DataSource> Config::*M>
void read_sources(Config& out, const Json& value, const std::string& path, Notices notices) {
  out.*M = {};
  if (!value.is(Json::Kind::array)) return read_source((out.*M).emplace_back(), value, path, notices);
  for (size_t i = 0; i < value.items.size(); ++i) {
    read_source((out.*M).emplace_back(), value.items[i], cat(path, "[", i, "]"), notices);
  }
}

template <std::vector<DataSource> Config::*M>
Json write_sources(const Config& in) {
  Json list = Json::array();
  for (const auto& source : in.*M) {
    Json entry = write_fields(data_source_fields(), source);
    if (source.name.empty()) entry.erase("name");
    list.items.push_back(std::move(entry));
  }
  return list;
}

Json sources_schema() {
  const Json path = schema_from(R"({"type": "string"})"), entry = schema_of(data_source_fields());
  Json list = schema_from(R"({"type": "array"})");
  list.set("items", any_of({path, entry}));
  return any_of({path, entry, std::move(list)});
}

template <std::vector<DataSource> Config::*M>
Field<Config> sources(std::string_view key, OnResume rule, std::string_view help) {
  return custom(key, Custom<Config>{read_sources<M>, write_sources<M>, sources_schema, "path, or list of entries"},
                rule, help);
}

void read_weights(DataStage& out, const Json& value, const std::string& path, Notices) {
  require_object(value, path);
  out.weights.clear();
  for (size_t i = 0; i < value.items.size(); ++i)
    out.weights.emplace_back(value.keys[i], read_real(value.items[i], dotted(path, value.keys[i]), at_least(0)));
}

Json write_weights(const DataStage& in) {
  Json object = Json::object();
  for (const auto& [name, weight] : in.weights) object.set(name, Json::of(weight));
  return object;
}

Json weights_schema() {
  Json schema = Json::object();
  schema.set("type", Json::of("object"));
  schema.set("additionalProperties", number_schema("number", at_least(0), {}));
  return schema;
}

TokenName read_token(const Json& value, const std::string& path) {
  if (value.is(Json::Kind::integer)) return {.id = read_integer(value, path, between(0, kMaxCount)), .text = ""};
  if (!value.is(Json::Kind::string) || value.text.empty()) bad_value(value, path, "the id or the text of a token");
  return {.text = value.text};
}

void read_fim_tokens(Config& out, const Json& value, const std::string& path, Notices) {
  out.fim_tokens.reset();
  if (value.is(Json::Kind::null)) return;
  if (!value.is(Json::Kind::array) || value.items.size() != 3)
    bad_value(value, path, "null, or a list of three tokens: those before the prefix, the suffix and the middle");
  const auto token = [&](size_t i) { return read_token(value.items[i], cat(path, "[", i, "]")); };
  out.fim_tokens = FimTokens{.prefix = token(0), .suffix = token(1), .middle = token(2)};
}

Json write_fim_tokens(const Config& in) {
  if (!in.fim_tokens) return {};
  Json list = Json::array();
  for (const TokenName* token : {&in.fim_tokens->prefix, &in.fim_tokens->suffix, &in.fim_tokens->middle})
    list.items.push_back(token->id >= 0 ? Json::of(token->id) : Json::of(token->text));
  return list;
}

Json fim_tokens_schema() {
  return schema_from(R"({"type": ["array", "null"], "items": {"type": ["integer", "string"]},
                         "minItems": 3, "maxItems": 3})");
}

}  // namespace

std::vector<Field<Config>> data_fields() {
  return {
      sources<&Config::train_data>("train_data", notice,
                                   "training token shards; paths may be globs, relative to the working directory; on "
                                   "resume they may move, but changed content is refused (by fingerprint)"),
      custom("train_data_stages", list_of_objects<&Config::train_data_stages, data_stage_fields, "list of stages">(),
             notice,
             "data mixture schedule: other train_data weights from a given token on; on resume, changes of stages that "
             "have begun are refused (by fingerprint)"),
      sources<&Config::valid_data>("valid_data", free, "evaluation token shards; none = no evaluation"),
      choice<&Config::packing>(
          "documents.packing", refused,
          "packing of training sequences: contiguous = fixed windows of the token stream, cut anywhere; best_fit = "
          "whole documents, cut only if longer than a sequence, padding is not predicted"),
      number("documents.packing_documents", &Config::packing_documents, between(1, 1 << 22), refused, "",
             "best_fit: number of consecutive documents packed together")
          .developer(),
      number("documents.bos_token_id", &Config::bos_token_id, between(-1, kMaxCount), refused, "",
             "best_fit: token inserted before every document; -1 = none"),
      option("documents.reset_attention_mask", &Config::reset_attention_mask, refused,
             "attention is restricted to the token's own document"),
      option("documents.reset_position_ids", &Config::reset_position_ids, refused,
             "position ids restart at 0 in every document"),
      option("documents.eod_mask_loss", &Config::eod_mask_loss, refused,
             "exclude the first token of a document from the loss, since it would be predicted from the previous "
             "document"),
      number("documents.eod_token_id", &Config::eod_token_id, between(-1, kMaxCount), refused, "",
             "end-of-document token for files without a document index; -1 = from the tokenizer next to train_data"),
      number("documents.max_per_sequence", &Config::max_documents_per_sequence, between(0, kMaxCount), refused, "",
             "documents.reset_attention_mask: maximum number of separate documents per sequence; tokens beyond it are "
             "not predicted; 0 = one per 16 tokens")
          .developer(),
      number("fim.rate", &Config::fim_rate, between(0, 1), refused, "",
             "fill-in-the-middle: fraction of documents reordered so that the middle is predicted last "
             "(data/README.md); 0 = off"),
      number(
          "fim.spm_rate", &Config::fim_spm_rate, between(0, 1), refused, "",
          "fraction of reordered documents in suffix-prefix-middle order; the rest are in prefix-suffix-middle order"),
      custom("fim.tokens",
             Custom<Config>{read_fim_tokens, write_fim_tokens, fim_tokens_schema, "null, or list of three"}, refused,
             "sentinel tokens before prefix, suffix and middle, as ids or as text of the tokenizer next to train_data"),
      choice<&Config::fim_level>("fim.level", refused,
                                 "where documents are cut: token = between tokens, character = between characters, as "
                                 "published, which needs the tokenizer next to train_data"),
      option("images.horizontal_flip", &Config::horizontal_flip, notice,
             "vit: mirror half of the training images, left to right"),
      number("images.crop_padding", &Config::crop_padding, between(0, 1 << 14), notice, "pixels",
             "vit: move training images by up to this many pixels, at random in both directions; the border is black"),
  };
}

std::vector<Field<DataSource>> data_source_fields() {
  return {
      option("path", &DataSource::path, refused, "shard, or glob of shards read as one stream").path().required(),
      number("weight", &DataSource::weight, at_least(0), refused, "",
             "sampling weight relative to the other entries; 0 only in train_data when a stage gives another weight"),
      choice<&DataSource::dtype>("dtype", refused, "token type of files without a header; auto = by file name"),
      option("name", &DataSource::name, free, "name used in train_data_stages and evaluation records; empty = path"),
  };
}

std::vector<Field<DataStage>> data_stage_fields() {
  return {
      number("from_tokens", &DataStage::from_tokens, at_least(1), notice, "tokens",
             "tokens after which the stage begins, at the next sequence; later than the previous stage")
          .required(),
      custom("weights",
             Custom<DataStage>{read_weights, write_weights, weights_schema, "object: weight by name of an entry"},
             notice, "sampling weights; omitted entries keep their weight")
          .required(),
  };
}

}  // namespace athanor
