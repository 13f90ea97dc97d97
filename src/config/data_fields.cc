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
  Json path = Json::object(), entry = Json::object(), list = Json::object(), any = Json::object();
  path.set("type", Json::of("string"));
  Json entries = Json::array();
  entries.items = {path, schema_of(data_source_fields())};
  entry.set("anyOf", entries);
  list.set("type", Json::of("array"));
  list.set("items", std::move(entry));
  entries.items.push_back(std::move(list));
  any.set("anyOf", std::move(entries));
  return any;
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
  Json schema = Json::object(), types = Json::array(), item = Json::object(), either = Json::array();
  types.items = {Json::of("array"), Json::of("null")};
  either.items = {Json::of("integer"), Json::of("string")};
  item.set("type", std::move(either));
  schema.set("type", std::move(types));
  schema.set("items", std::move(item));
  schema.set("minItems", Json::of(int64_t{3}));
  schema.set("maxItems", Json::of(int64_t{3}));
  return schema;
}

}  // namespace

std::vector<Field<Config>> data_fields() {
  return {
      sources<&Config::train_data>("train_data", notice,
                                   "token shards to train on; paths may be globs and are relative to the working "
                                   "directory; they may move, but other "
                                   "content is refused on resume (by fingerprint)"),
      custom("train_data_stages", list_of_objects<&Config::train_data_stages, data_stage_fields, "list of stages">(),
             notice,
             "other weights of train_data from some token of the run on; stages that have begun are refused on resume "
             "if they changed (by fingerprint)"),
      sources<&Config::valid_data>("valid_data", free, "token shards to evaluate on; none = no evaluation"),
      choice<&Config::packing>("documents.packing", refused,
                               "how rows of train_data are made: contiguous = windows of the stream of tokens, cut "
                               "anywhere; best_fit = whole "
                               "documents, cut only where longer than a row, the rest of a row is not predicted"),
      number("documents.packing_documents", &Config::packing_documents, between(1, 1 << 22), refused, "",
             "best_fit: consecutive documents that are packed together")
          .developer(),
      number("documents.bos_token_id", &Config::bos_token_id, between(-1, kMaxCount), refused, "",
             "best_fit: token that is put in front of every document, so at the start of every row; -1 = none"),
      option("documents.reset_attention_mask", &Config::reset_attention_mask, refused,
             "tokens see their own document only, not those before it in the sequence"),
      option("documents.reset_position_ids", &Config::reset_position_ids, refused,
             "positions start anew in every document"),
      option("documents.eod_mask_loss", &Config::eod_mask_loss, refused,
             "the first token of a document is not predicted from the end of the one before it"),
      number("documents.eod_token_id", &Config::eod_token_id, between(-1, kMaxCount), refused, "",
             "token that ends a document, where no index says it; -1 = that of the tokenizer beside train_data"),
      number("documents.max_per_sequence", &Config::max_documents_per_sequence, between(0, kMaxCount), refused, "",
             "documents.reset_attention_mask: documents of a sequence that are kept apart; what lies beyond is not "
             "predicted; 0 = one for every 16 tokens")
          .developer(),
      number("fim.rate", &Config::fim_rate, between(0, 1), refused, "",
             "fill-in-the-middle: share of the documents of a row of train_data that are reordered so that their "
             "middle is predicted last (data/README.md); 0 = off"),
      number("fim.spm_rate", &Config::fim_spm_rate, between(0, 1), refused, "",
             "share of these documents in the order suffix, prefix, middle; the rest is in the order prefix, suffix, "
             "middle"),
      custom("fim.tokens",
             Custom<Config>{read_fim_tokens, write_fim_tokens, fim_tokens_schema, "null, or list of three"}, refused,
             "the tokens before the prefix, the suffix and the middle, each by its id, or by its text in the tokenizer "
             "beside train_data"),
      choice<&Config::fim_level>("fim.level", refused,
                                 "documents are cut between tokens, or between characters, as published; character "
                                 "needs the tokenizer beside train_data"),
  };
}

std::vector<Field<DataSource>> data_source_fields() {
  return {
      option("path", &DataSource::path, refused, "shard, or glob of shards that are read as one stream")
          .path()
          .required(),
      number("weight", &DataSource::weight, at_least(0), refused, "",
             "share of the blend, relative to the other entries; 0 only in train_data, where a stage gives another"),
      choice<&DataSource::dtype>("dtype", refused, "type of a token in files without a header; auto = by file"),
      option("name", &DataSource::name, free,
             "what train_data_stages and records of evaluations call it; empty = path"),
  };
}

std::vector<Field<DataStage>> data_stage_fields() {
  return {
      number("from_tokens", &DataStage::from_tokens, at_least(1), notice, "tokens",
             "the stage begins with the first sequence before which the run has read this many; later than the stage "
             "before it")
          .required(),
      custom("weights",
             Custom<DataStage>{read_weights, write_weights, weights_schema, "object: weight by name of an entry"},
             notice, "shares of the blend; an entry that is left out keeps its weight")
          .required(),
  };
}

}  // namespace athanor
