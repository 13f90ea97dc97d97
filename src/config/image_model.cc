// The options and keys of vision transformers (model_type vit), and the checks of their shapes.
#include "config/fields.h"

#include <algorithm>

#include "base/error.h"
#include "base/image_limits.h"
#include "config/require.h"

namespace athanor {
namespace {

using enum OnResume;
using M = ModelConfig;

template <std::vector<double> M::*L>
Field<M> per_channel(std::string_view key, std::string_view help) {
  const auto read = [](M& out, const Json& value, const std::string& path, Notices) {
    out.*L = read_numbers(value, path, between(-1e3, 1e3), "null, or a list of a number for each channel");
  };
  const auto write = [](const M& in) { return write_numbers(in.*L); };
  return custom(key, Custom<M>{read, write, numbers_schema, "null, or list of numbers"}, refused, help)
      .unset_is("vit: 0.5 for each channel");
}

Json labels(int64_t classes, bool by_name) {
  Json out = Json::object();
  for (int64_t i = 0; i < classes; ++i) {
    const std::string name = cat("LABEL_", i), number = cat(i);
    if (by_name)
      out.set(name, Json::of(i));
    else
      out.set(number, Json::of(name));
  }
  return out;
}

}  // namespace

std::vector<Field<ModelConfig>> image_fields() {
  return {
      number("image_size", &M::image_size, between(0, double(kMaxImageSide)), refused, "pixels",
             "vit: height and width of an image"),
      number("patch_size", &M::patch_size, between(0, double(kMaxImageSide)), refused, "pixels",
             "vit: side of the square patches that an image is cut into, each of which is a token; divides image_size"),
      number("num_channels", &M::num_channels, between(0, double(kMaxImageChannels)), refused, "",
             "vit: channels of an image: 1 = grey, 3 = RGB")
          .unset_is("vit: 3"),
      per_channel<&M::image_mean>(
          "image_mean", "vit: mean of each channel, which is subtracted from pixels between 0 and 1; null = 0.5"),
      per_channel<&M::image_std>("image_std",
                                 "vit: standard deviation of each channel, which then divides them; null = 0.5"),
  };
}

void adopt_image_keys(Json& model, const std::string& path) {
  const Json* classes = model.find("num_labels");
  const Json* names = model.find("id2label");
  if (!model.find("vocab_size") && classes) {
    const Json copy = *classes;
    model.set("vocab_size", copy);
  } else if (!model.find("vocab_size") && names && names->is(Json::Kind::object)) {
    const std::string where = names->where;  // set() may move the object's members
    model.set("vocab_size", Json::of(int64_t(names->keys.size()))).where = where;
  }
  model.erase("num_labels");
  for (const char* key : {"image_size", "patch_size"})
    if (!model.find(key))
      throw Error(cat(model.where, ": ", dotted(path, key), " is required for model_type vit, in pixels"), Exit::usage);
  const Json *image = model.find("image_size"), *patch = model.find("patch_size");
  const auto is_size = [](const Json* size) {  // others are reported by the reader of the options
    return size->is(Json::Kind::integer) && size->integer > 0 && size->integer <= kMaxImageSide;
  };
  if (model.find("max_position_embeddings") || !is_size(image) || !is_size(patch)) return;
  const int64_t side = image->integer / patch->integer;
  const std::string where = image->where;
  model.set("max_position_embeddings", Json::of(1 + side * side)).where = where;
}

void validate_images(const ModelConfig& m, std::string_view where) {
  const bool vit = m.model_type == ModelType::vit;
  for (const auto& [key, value] :
       {std::pair{"image_size", m.image_size}, {"patch_size", m.patch_size}, {"num_channels", m.num_channels}}) {
    require_key(vit || value == 0, where, key, name_of(m.model_type), " reads text, got ", value,
                "; leave it out, or take model_type vit");
    require_key(!vit || value > 0, where, key, "is required for vit, got ", value);
  }
  const auto listed = [&](std::string_view key, const std::vector<double>& values) {
    require_key(vit || values.empty(), where, key, name_of(m.model_type), " reads text; leave it out");
    require_key(values.empty() || int64_t(values.size()) == m.num_channels, where, key, values.size(),
                " numbers for the ", m.num_channels, " channels of num_channels; give one for each");
  };
  listed("image_mean", m.image_mean);
  listed("image_std", m.image_std);
  if (!vit) return;
  for (const double x : m.image_std) require_key(x > 0, where, "image_std", "expected numbers above 0, got ", x);
  require_key(m.image_size % m.patch_size == 0, where, "patch_size", m.patch_size, " does not divide image_size ",
              m.image_size);
  const int64_t side = m.image_size / m.patch_size, tokens = 1 + side * side;
  require_key(m.max_position_embeddings == tokens, where, "max_position_embeddings", "an image of ", side, " x ", side,
              " patches and a class token are ", tokens, " tokens, got ", m.max_position_embeddings, "; leave it out");
  require_key(!m.tie_word_embeddings, where, "tie_word_embeddings", "vit has no token embedding; leave it out");
  require_key(m.vocab_size <= kMaxImageClasses, where, "vocab_size", "expected at most ", kMaxImageClasses,
              " classes, got ", m.vocab_size);
  require_key(m.final_logit_softcapping == 0, where, "final_logit_softcapping", "vit has none, got ",
              m.final_logit_softcapping, "; leave it out");
}

void add_vit_keys(const ModelConfig& m, Json& out) {
  out.erase("vocab_size");
  out.set("hidden_size", Json::of(m.hidden_size));
  out.set("intermediate_size", Json::of(m.intermediate_size));
  out.set("num_hidden_layers", Json::of(m.num_hidden_layers));
  out.set("num_attention_heads", Json::of(m.num_attention_heads));
  out.set("hidden_act", Json::of("gelu"));
  out.set("layer_norm_eps", Json::of(m.norm_eps));
  out.set("qkv_bias", Json::of(true));
  for (auto key : {"hidden_dropout_prob", "attention_probs_dropout_prob"}) out.set(key, Json::of(0.0));
  out.set("image_size", Json::of(m.image_size));
  out.set("patch_size", Json::of(m.patch_size));
  out.set("num_channels", Json::of(m.num_channels));
  out.set("image_mean", write_numbers(m.image_mean));
  out.set("image_std", write_numbers(m.image_std));
  out.set("id2label", labels(m.vocab_size, false));
  out.set("label2id", labels(m.vocab_size, true));
}

std::string image_processor_json(const ModelConfig& m) {
  Json out = Json::object(), size = Json::object();
  const auto values = [&m](const std::vector<double>& given) {
    Json list = Json::array();
    for (int64_t c = 0; c < m.num_channels; ++c) list.items.push_back(Json::of(given.empty() ? 0.5 : given[size_t(c)]));
    return list;
  };
  size.set("height", Json::of(m.image_size));
  size.set("width", Json::of(m.image_size));
  out.set("image_processor_type", Json::of("ViTImageProcessor"));
  out.set("do_resize", Json::of(true));
  out.set("size", std::move(size));
  out.set("resample", Json::of(int64_t{3}));  // PIL's bicubic
  out.set("do_rescale", Json::of(true));
  out.set("rescale_factor", Json::of(1.0 / 255));
  out.set("do_normalize", Json::of(true));
  out.set("image_mean", values(m.image_mean));
  out.set("image_std", values(m.image_std));
  return to_pretty(out);
}

}  // namespace athanor
