// Tables of options: one row holds key, member, range, unit, resume rule, help and aliases of one option. Parsing,
// dumping, documentation and resume comparison are generic walks over the rows. Defaults are the initialisers of the
// members. A key with a dot, such as lora.rank, is the option `rank` of the section `lora`, an object in JSON.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "config/choices.h"
#include "config/config.h"
#include "config/json.h"

namespace athanor {

// Bounds of a number, inclusive unless marked as open.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false, open_high = false;
};
inline constexpr double kMaxCount = 2147483648.0;          // 2^31: sequences, tokens of a sequence, steps, token ids
inline constexpr double kMaxInteger = 9007199254740991.0;  // 2^53 - 1: exact in every JSON reader
inline constexpr double kMaxReal = std::numeric_limits<float>::max();  // ops take numbers as floats
constexpr Range at_least(double low) { return {.low = low, .high = kMaxInteger}; }
constexpr Range above(double low) { return {.low = low, .high = kMaxReal, .open_low = true}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }
constexpr Range below(double low, double high) { return {.low = low, .high = high, .open_high = true}; }

// A string, or the literal null, that replaces a number in JSON.
struct Word {
  std::string_view text;
  int64_t value = 0;
};
std::string to_text(const Range&);  // ">= 0", "0 ... 1", "> 0"; "" without bounds

using Notices = std::vector<std::string>*;  // may be nullptr

template <class T>
struct Choice {  // an enum member; its JSON value is a string, one of `names`
  std::span<const std::string_view> names;
  int (*get)(const T&);
  void (*set)(T&, int);
};

template <class T>
struct Custom {  // a member with its own JSON syntax
  void (*read)(T&, const Json&, const std::string& path, Notices);
  Json (*write)(const T&);
  Json (*schema)();
  std::string_view type;  // for the documentation
};

template <class T>
struct Field {
  using Member = std::variant<bool T::*, int64_t T::*, double T::*, std::string T::*, Choice<T>, Custom<T>>;

  std::string_view key;
  Member member;
  Range range;
  OnResume rule = OnResume::refused;
  std::string_view unit;
  std::string_view help;
  std::string_view group;
  bool is_required = false;
  bool is_path = false;       // the value is a path; a leading ~/ is the home folder
  bool is_developer = false;  // accepted and resumed like any other, but not in the schema and the reference
  Word word;
  std::string_view word_for_default;       // default shown in the documentation if the initialiser only means "not
                                           // given"
  std::vector<std::string_view> aliases;   // other keys, read with a notice
  std::vector<std::string_view> synonyms;  // other keys, read without a notice
  std::vector<std::string_view> former;  // keys of earlier versions (former_keys.cc), read with a notice, undocumented
  std::vector<std::string_view> same;    // values with the same meaning: changing between them on resume is free

  Field path() && { return is_path = true, std::move(*this); }
  Field developer() && { return is_developer = true, std::move(*this); }
  Field required() && { return is_required = true, std::move(*this); }
  Field or_word(std::string_view text, int64_t value) && { return word = {text, value}, std::move(*this); }
  Field unset_is(std::string_view text) && { return word_for_default = text, std::move(*this); }
  Field alias(std::initializer_list<std::string_view> keys) && { return aliases = keys, std::move(*this); }
  Field interchangeable(std::initializer_list<std::string_view> words) && { return same = words, std::move(*this); }
  Field synonym(std::initializer_list<std::string_view> keys) && { return synonyms = keys, std::move(*this); }
};

// Constructors of rows. Only numbers have a range and a unit.
template <class T, class V>
Field<T> number(std::string_view key, V T::*member, Range range, OnResume rule, std::string_view unit,
                std::string_view help) {
  Field<T> field{};
  field.key = key, field.member = member, field.range = range, field.rule = rule, field.unit = unit, field.help = help;
  return field;
}
template <class T, class V>
Field<T> option(std::string_view key, V T::*member, OnResume rule, std::string_view help) {
  return number(key, member, Range{}, rule, "", help);
}
template <class T, class E>
T owner_of(E T::*);
// Index of a value in choice_names(); for an optional value, index 0 means that it is absent.
template <class E>
int name_number(E value) {
  return int(value);
}
template <class E>
int name_number(std::optional<E> value) {
  return value ? int(*value) + 1 : 0;
}
template <class E>
void set_by_number(E& value, int number) {
  value = E(number);
}
template <class E>
void set_by_number(std::optional<E>& value, int number) {
  value = number > 0 ? std::optional(E(number - 1)) : std::nullopt;
}
template <auto M>
auto choice(std::string_view key, OnResume rule, std::string_view help) {
  using T = decltype(owner_of(M));
  using E = std::remove_cvref_t<decltype(std::declval<T>().*M)>;
  Field<T> field{};
  field.key = key, field.rule = rule, field.help = help;
  field.member = Choice<T>{choice_names(E{}), [](const T& t) { return name_number(t.*M); },
                           [](T& t, int number) { set_by_number(t.*M, number); }};
  return field;
}
template <class T>
Field<T> custom(std::string_view key, Custom<T> member, OnResume rule, std::string_view help) {
  Field<T> field{};
  field.key = key, field.member = member, field.rule = rule, field.help = help;
  return field;
}

// The section of a key ("" without one) and its name there: "lora" and "rank" for "lora.rank".
inline std::string_view section_of(std::string_view key) {
  const size_t dot = key.find('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}
inline std::string_view name_in_section(std::string_view key) { return key.substr(key.find('.') + 1); }

// Texts about a section for documentation and schema.
struct Section {
  std::string_view key, title, help;
};
std::span<const Section> config_sections();
// The keys that the option had in earlier versions, which had no sections.
std::vector<std::string_view> former_keys(std::string_view key);

// The parts of a row that the documentation needs, independent of the row's struct.
struct FieldDoc {
  std::string key, type, default_value, range, unit, rule, help, group;
  std::vector<std::string> aliases;
  bool required = false;
  Json schema;
};

// The tables (config_fields.cc, data_fields.cc, optimizer_fields.cc, loss_fields.cc, adaptation_fields.cc,
// model_fields.cc).
std::vector<Field<Config>> config_fields();     // all of Config, including the groups below; sections are contiguous
std::vector<Field<Config>> optimizer_fields();  // each function: one group of the documentation
std::vector<Field<Config>> schedule_fields();
std::vector<Field<Config>> loss_fields();
std::vector<Field<Config>> expert_fields();
std::vector<Field<Config>> local_update_fields();
std::vector<Field<Config>> distillation_fields();
std::vector<Field<Config>> pruning_fields();
std::vector<Field<Config>> adapter_fields();
std::vector<Field<Config>> data_fields();
std::vector<Field<DataSource>> data_source_fields();
std::vector<Field<DataStage>> data_stage_fields();
std::vector<Field<AheadToken>> ahead_token_fields();
std::vector<Field<ParamGroupConfig>> param_group_fields();
std::vector<Field<ModelConfig>> model_fields();  // including the following and image_fields()
std::vector<Field<ModelConfig>> block_fields();
std::vector<Field<ModelConfig>> latent_fields();
std::vector<Field<ModelConfig>> gpt_oss_fields();
std::vector<Field<RopeScaling>> rope_scaling_fields();

// Reads a model shape. It has its own reader because Hugging Face files contain other keys, too.
ModelConfig read_model(const Json& object, const std::string& path, Notices);
// Fills in a shape from a published config.json the way transformers reads it: with the defaults of its configuration
// classes, and without dropout. Each change adds a notice.
void adopt_published(Json& model, const std::string& path, Notices);
// Removes the keys from `object` that only Hugging Face needs, and describes them in a schema's properties.
void drop_foreign_keys(Json& object, const std::string& path, ModelType, Notices);
void describe_foreign_keys(Json& properties);
Json write_model(const ModelConfig&);
// Rewrites rope_parameters, if present, as the rope_theta and rope_scaling of the same object.
void merge_rope_keys(Json& model, const std::string& path);
Json model_schema();

// Errors and scalars (fields.cc). `path` is the dotted key; all of them throw Error(..., Exit::usage).
[[noreturn]] void bad_value(const Json& value, const std::string& path, const std::string& expected);
bool read_bool(const Json&, const std::string& path);
std::string read_string(const Json&, const std::string& path);
std::string read_path(const Json&, const std::string& path);  // with ~/ expanded
int64_t read_integer(const Json&, const std::string& path, const Range&, const Word& = {});
double read_real(const Json&, const std::string& path, const Range&, const Word& = {});
int read_choice(const Json&, const std::string& path, std::span<const std::string_view> names);
// A list of numbers; null is an empty list. expected: what a message says about another value.
std::vector<double> read_numbers(const Json&, const std::string& path, const Range&, const std::string& expected);
Json write_numbers(std::span<const double>);
// A list of integers; null is an empty list, and a negative number is written as null.
std::vector<int64_t> read_integers(const Json&, const std::string& path, const Range&, const std::string& expected,
                                   const Word& = {});
Json write_integers(std::span<const int64_t>);
// Schemas: parsed from a constant; of a value that one of the schemas allows; of null, or a value of this schema.
Json schema_from(std::string_view text);
Json any_of(std::vector<Json> schemas);
Json null_or(Json schema);
Json list_schema(Json item);  // the schema of null, or of a list of these items
Json numbers_schema();
void require_object(const Json&, const std::string& path);
// `near`: the key that was most likely meant, or "".
[[noreturn]] void unknown_key(const Json& value, const std::string& path, std::string_view key,
                              const std::string& near);
// The candidate that `word` is most likely a misspelling of, or "".
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);
std::string joined(std::span<const std::string_view> words, std::string_view separator);
std::string dotted(const std::string& prefix, std::string_view key);

// True if the key existed in an earlier version and has the value that matches today's behaviour (removed.cc). Throws
// Error(usage) with the replacement if the key has another value.
bool skips_removed_key(const Json& value, const std::string& prefix, std::string_view key, Notices);
// Throws Error(usage) with the replacement if the value existed only in an earlier version.
void refuse_removed_value(const Json& value, const std::string& path);

// Multi-head latent attention (latent_model.cc): rows of its options, above; the part of validate() for them, of every
// family; and its keys in a config.json of transformers.
void validate_latent(const ModelConfig&, std::string_view where);
void add_latent_keys(const ModelConfig&, Json& out);
// Reads topk_method, the key of deepseek_v2 that says whether experts are in groups.
void adopt_topk_method(Json& model, const std::string& path);

// Rows, checks and keys of gpt_oss (gpt_oss_model.cc). complete_gpt_oss() fills layer_types; default_gpt_oss() adds
// transformers' defaults to a published file.
void complete_gpt_oss(ModelConfig&);
void validate_gpt_oss(const ModelConfig&, std::string_view where);
void add_gpt_oss_keys(const ModelConfig&, Json& out);
void default_gpt_oss(Json& model, const std::string& path, Notices);

// Options, checks and keys in files that only vision transformers (model_type vit) have (image_model.cc).

// Rows of the options image_size, patch_size, num_channels, image_mean and image_std.
std::vector<Field<ModelConfig>> image_fields();
// Reads the keys of a vit's config.json that have other names here: the number of classes becomes vocab_size, and the
// tokens of an image become max_position_embeddings, each unless given. Throws Error(usage) if a size is missing.
void adopt_image_keys(Json& model, const std::string& path);
// The part of validate() for these options, of every family.
void validate_images(const ModelConfig&, std::string_view where);
// Adds a vit's keys to a config.json of transformers.
void add_vit_keys(const ModelConfig&, Json& out);

}  // namespace athanor
