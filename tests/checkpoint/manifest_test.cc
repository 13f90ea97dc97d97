// Laws of the manifest: text and back is the identity, every changed byte is noticed, newer versions are refused with
// the remedy, and hostile text ends in an error that names the field.
#include "checkpoint/manifest.h"

#include <cstring>

#include "base/checksum.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {
namespace {

const std::string kHash(32, 'a');

Manifest sample() {
  Manifest m;
  m.program_version = "0.1.0";
  m.program_commit = "0123abc";
  m.step = 1000;
  m.created = "2026-01-02T03:04:05Z";
  m.config_hash = "c";
  m.data_fingerprint = "d\"\\\n\xc3\xa9";
  m.files = {{"model.safetensors", 123, kHash}, {"state.json", 0, kHash}};
  m.tensors = {
      {"model.safetensors", "a", DType::f32, {4, 6}, {0, 0}, {2, 6}, kHash},
      {"model.safetensors", "scalar", DType::bf16, {}, {}, {}, kHash},
      {"model.safetensors", "empty", DType::i64, {0, 3}, {0, 0}, {0, 3}, kHash},
  };
  return m;
}

// Gives edited JSON the checksum it would have if it had been written so: the checks behind it are reached.
std::string resealed(std::string text) {
  const size_t head = std::strlen("{\n \"xxh3\": \""), rest = head + 32 + 2;
  return text.replace(head, 32, xxh3_hex(std::string_view(text).substr(rest)));
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

TEST(ManifestText, RoundTrips) {
  const Manifest m = sample();
  const std::string text = manifest_json(m);
  const Manifest got = parse_manifest(text, "m");
  EXPECT_EQ(manifest_json(got), text);
  EXPECT_EQ(got.step, 1000);
  EXPECT_EQ(got.data_fingerprint, m.data_fingerprint);
  ASSERT_EQ(got.tensors.size(), 3u);
  EXPECT_EQ(got.tensors[0].piece_shape(), Shape({2, 6}));
  EXPECT_EQ(got.tensors[1].shape, Shape());
  EXPECT_EQ(got.tensors[2].dtype, DType::i64);
  EXPECT_EQ(got.find_file("state.json")->bytes, 0);
  EXPECT_EQ(got.find_file("none"), nullptr);
  Manifest empty;
  EXPECT_EQ(manifest_json(parse_manifest(manifest_json(empty), "m")), manifest_json(empty));
}

TEST(ManifestText, EveryChangedByteAndTruncationIsDetected) {
  const std::string good = manifest_json(sample());
  for (size_t i = 0; i < good.size(); ++i)
    for (int flip : {0x01, 0x10, 0x80}) {
      std::string bad = good;
      bad[i] = char(bad[i] ^ flip);
      ASSERT_NE(error_of([&] { parse_manifest(bad, "m"); }), "no error") << "byte " << i;
    }
  for (size_t n = 0; n < good.size(); ++n)
    ASSERT_NE(error_of([&] { parse_manifest(std::string_view(good).substr(0, n), "m"); }), "no error") << n;
  EXPECT_ERROR(parse_manifest(good + " ", "m"), "own checksum");
}

TEST(ManifestText, ValidJsonWithAChangedValueIsReportedAsDamaged) {
  EXPECT_ERROR(parse_manifest(replaced(manifest_json(sample()), "1000", "2000"), "m.json"), "m.json",
               "does not match its own checksum", "damaged or edited");
}

TEST(ManifestText, ANewerFormatIsRefusedWithTheRemedy) {
  const std::string newer = R"({"format_version": 7, "program_version": "9.1", "something": {"else": [1]}})";
  EXPECT_ERROR(parse_manifest(newer, "m.json"), "m.json", "format_version 7 is unknown", "reads 1",
               "use the athanor that wrote it ('9.1')", "newer");
  EXPECT_ERROR(parse_manifest(R"({"format_version": 0})", "m"), "format_version 0 is unknown");
  EXPECT_ERROR(parse_manifest(R"({"format_version": 1})", "m"), "own checksum");
}

TEST(ManifestText, UnknownExtraFieldsOfTheSameVersionAreIgnored) {
  const std::string text = resealed(replaced(manifest_json(sample()), "\"step\"", "\"later\": [1, {}], \"step\""));
  EXPECT_EQ(parse_manifest(text, "m").step, 1000);
}

TEST(ManifestText, HostileFieldsAreNamed) {
  const struct {
    const char *from, *to, *error;
  } kCases[] = {
      {"\"step\": 1000", "\"step\": -1", "\"step\": expected a whole number"},
      {"\"step\": 1000", "\"step\": 1e3", "\"step\": expected a whole number"},
      {"\"step\": 1000", "\"step\": 9223372036854775808", "\"step\": expected a whole number"},
      {"\"step\": 1000", "\"step\": 99999999999999999999", "\"step\": expected a whole number"},
      {"\"step\": 1000", "\"step\": \"1\"", "\"step\": expected a whole number"},
      {"\"step\": 1000", "\"step\": 1, \"step\": 2", "'step' appears twice"},
      {"\"step\": 1000", "\"st\\u0065p\": 1, \"step\": 2", "'step' appears twice"},
      {"\"step\"", "\"stop\"", "lacks \"step\""},
      {"\"created\": \"", "\"created\": 5, \"x\": \"", "\"created\": expected a string, found number"},
      {"\"files\": [", "\"files\": 5, \"x\": [", "\"files\": expected a list"},
      {"\"files\": [", "\"files\": [5, ", "files[0]: expected an object"},
      {"\"bytes\": 123", "\"bytes\": -123", "files[0]: \"bytes\""},
      {"\"bytes\": 123", "\"bites\": 123", "files[0]: lacks \"bytes\""},
      {"model.safetensors", "../model.safetensors", "'../model.safetensors' is not allowed"},
      {"model.safetensors", "/etc/passwd", "is not allowed"},
      {"model.safetensors", "", "is not allowed"},
      {"model.safetensors", ".lock", "is not allowed"},
      {"model.safetensors", "manifest.json", "is not allowed"},
      {"model.safetensors", "a\\u001b[2J", "'a\\x1b[2J' is not allowed"},
      {"model.safetensors", "other.safetensors", "'model.safetensors', which the manifest does not list"},
      {"state.json", "model.safetensors", "'model.safetensors' is listed twice"},
      {"\"name\": \"scalar\"", "\"name\": \"a\"", "'a' of 'model.safetensors' is listed twice"},
      {"\"F32\"", "\"F33\"", "tensors[0]: 'a': unknown dtype 'F33'"},
      {"\"F32\"", "\"BOOL\"", "unknown dtype 'BOOL'"},
      {"\"shape\": [\n    4,", "\"shape\": [\n    4, 1, 1, 1,", "rank above 4"},
      {"\"shape\": [\n    4,", "\"shape\": [\n    4, 1,", "is not of rank 3"},
      {"\"shape\": [\n    4,", "\"shape\": [\n    -4,", "\"shape\": expected a whole number"},
      {"\"shape\": [\n    4,", "\"shape\": [\n    1,", "is outside shape [1, 6]"},
      {"\"shape\": [\n    4,", "\"shape\": [\n    4611686018427387904,", "overflows 64 bits"},
      {"\"begin\": [\n    0,", "\"begin\": [\n    3,", "slice [3, 0] to [2, 6] is outside"},
      {"\"begin\": [\n    0,", "\"begin\": [\n    [0],", "\"begin\": expected a whole number"},
      {"aaaaaaaa\"\n  },", "AAAAAAAA\"\n  },", "expected 32 hex digits"},
      {"aaaaaaaa\"\n  },", "aaaaaaa\"\n  },", "expected 32 hex digits"},
  };
  const std::string good = manifest_json(sample());
  for (const auto& c : kCases) {
    SCOPED_TRACE(cat(c.from, " -> ", c.to));
    EXPECT_ERROR(parse_manifest(resealed(replaced(good, c.from, c.to)), "m.json"), "m.json", c.error);
  }
}

TEST(ManifestText, HostileTextIsRefused) {
  for (std::string text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{}"), std::string("\0", 1),
        std::string("{\"format_version\":1}\0", 21), std::string(200000, '['), std::string("{\"\xff\":1}")})
    EXPECT_ERROR(parse_manifest(text, "m.json"), "m.json");
  std::string nested;
  for (int i = 0; i < 40; ++i) nested += "{\"a\":";
  EXPECT_ERROR(parse_manifest(nested, "m"), "nested deeper than 32");
}

TEST(ManifestText, NamesThatAreNotTextCannotBeWritten) {
  Manifest m = sample();
  m.tensors[0].name = "\xff";
  EXPECT_ERROR(manifest_json(m), "step 1000", "not valid UTF-8");
}

TEST(FileNames, AcceptPlainNamesOnly) {
  for (const char* good : {"a", "model-00001-of-00002.safetensors", "a b", "a..b", "\xc3\xa9"})
    EXPECT_TRUE(is_plain_file_name(good));
  for (std::string bad : {"", ".", "..", ".hidden", "a/b", "/", "a\n", "a\x7f"})
    EXPECT_FALSE(is_plain_file_name(bad)) << bad;
  EXPECT_FALSE(is_plain_file_name(std::string("a\0b", 3)));
  EXPECT_FALSE(is_plain_file_name(std::string(256, 'a')));
}

}  // namespace
}  // namespace athanor::test
