// Laws of safetensors: tensors round-trip bit for bit, the bytes match the reference writer, and no hostile header
// passes validation.
#include "checkpoint/safetensors.h"

#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "base/checksum.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {
namespace {

class Safetensors : public Scratch {};

std::vector<OwnedTensor> assorted() {
  std::vector<OwnedTensor> t;
  t.push_back(random_tensor("b.odd", DType::u8, {7}));
  t.push_back(random_tensor("a.half", DType::f16, {3, 5}));
  t.push_back(random_tensor("z.weight", DType::f32, {4, 3}));
  t.push_back(random_tensor("scalar", DType::f32, {}));
  t.push_back(random_tensor("empty", DType::bf16, {0, 4}));
  t.push_back(random_tensor("nothing", DType::f32, {2, 0, 3}));
  t.push_back(random_tensor("d", DType::f64, {2, 1, 2, 3}));
  t.push_back(random_tensor("i64", DType::i64, {3}));
  t.push_back(random_tensor("i32", DType::i32, {1, 1}));
  t.push_back(random_tensor("brain", DType::bf16, {11}));
  t.push_back(random_tensor("name \"with\" \\ and \n and \xc3\xa9", DType::u8, {2}));
  return t;
}

std::vector<TensorData> views(const std::vector<OwnedTensor>& owned) {
  std::vector<TensorData> v;
  for (const OwnedTensor& t : owned) v.push_back(t.data);
  return v;
}

// A file of the given header text and data size.
std::string file_with(std::string_view json, size_t data_bytes) {
  uint64_t n = json.size();
  std::string s(8, '\0');
  std::memcpy(s.data(), &n, 8);
  return s + std::string(json) + std::string(data_bytes, 'd');
}

TEST_F(Safetensors, RoundTripIsBitExact) {
  const auto owned = assorted();
  const auto tensors = views(owned);
  const auto summary = save_safetensors(at("x.safetensors"), tensors, {.metadata = {{"format", "pt"}, {"k", "v\"\n"}}});
  const SafetensorsFile file(at("x.safetensors"));
  EXPECT_EQ(file.tensors().size(), owned.size());
  EXPECT_EQ(file.header().metadata, (TextMap{{"format", "pt"}, {"k", "v\"\n"}}));
  EXPECT_EQ(file.header().data_begin() % 8, 0);
  EXPECT_EQ(summary.bytes, file.file_bytes());
  EXPECT_EQ(summary.xxh3, xxh3_hex(slurp(at("x.safetensors"))));
  for (size_t i = 0; i < owned.size(); ++i) {
    SCOPED_TRACE(owned[i].data.name);
    const TensorEntry& e = file.at(owned[i].data.name);
    EXPECT_EQ(e.checked_dtype(), owned[i].data.dtype);
    EXPECT_EQ(e.checked_shape(), owned[i].data.shape);
    EXPECT_EQ(summary.tensor_xxh3[i], xxh3_hex(owned[i].bytes));
    const auto mapped = file.data(e);
    EXPECT_TRUE(std::equal(mapped.begin(), mapped.end(), owned[i].bytes.begin(), owned[i].bytes.end()));
    std::vector<std::byte> copy(owned[i].bytes.size());
    file.read(e, copy);
    EXPECT_EQ(copy, owned[i].bytes);
  }
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_ERROR(file.at("ab\x1bsent"), "x.safetensors", "'ab\\x1bsent'", "no tensor");
}

TEST_F(Safetensors, TensorOrderMatchesTheReferenceWriter) {
  const auto owned = assorted();
  save_safetensors(at("x"), views(owned));
  const SafetensorsFile file(at("x"));
  std::vector<std::string> order;
  for (const auto& t : file.tensors()) order.push_back(t.name);
  // Sorted by dtype: I64, F64, F32, I32, BF16, F16, U8; then by name. Empty tensors share an offset with their
  // successor.
  const std::string text = slurp(at("x"));
  std::map<size_t, std::string> by_position;
  for (const auto& t : owned) {
    const size_t p = text.find(cat("\"", t.data.name.substr(0, 4)));
    by_position[p] = t.data.name;
  }
  std::vector<std::string> in_header;
  for (const auto& [p, name] : by_position) in_header.push_back(name);
  EXPECT_EQ(in_header, (std::vector<std::string>{"i64", "d", "nothing", "scalar", "z.weight", "i32", "brain", "empty",
                                                 "a.half", "b.odd", "name \"with\" \\ and \n and \xc3\xa9"}));
  EXPECT_TRUE(text.substr(8).starts_with(
      R"({"__metadata__":{"format":"pt"},"i64":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},)"));
  int64_t next = file.header().data_begin();
  for (const auto& t : file.tensors()) {
    EXPECT_EQ(t.offset, next);
    next += t.bytes;
  }
  EXPECT_EQ(next, file.file_bytes());
}

TEST_F(Safetensors, NoTensorsAndNoMetadataAreLegal) {
  save_safetensors(at("x"), {}, {.metadata = {}});
  EXPECT_EQ(slurp(at("x")), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_TRUE(SafetensorsFile(at("x")).tensors().empty());
}

TEST_F(Safetensors, PiecesAndStridedViewsAreJoined) {
  auto whole = random_tensor("w", DType::f32, {6, 8});
  TensorData cut = whole.data;
  cut.pieces = {
      std::span(whole.bytes).first(5), {}, std::span(whole.bytes).subspan(5, 100), std::span(whole.bytes).subspan(105)};
  const auto a = save_safetensors(at("a"), std::span(&whole.data, 1));
  const auto b = save_safetensors(at("b"), std::span(&cut, 1));
  EXPECT_EQ(slurp(at("a")), slurp(at("b")));
  EXPECT_EQ(a.tensor_xxh3, b.tensor_xxh3);

  const Tensor t{whole.bytes.data(), DType::f32, {6, 8}};
  const TensorData columns = tensor_data("c", t.columns(2, 5));
  EXPECT_EQ(columns.pieces.size(), 6u);
  save_safetensors(at("c"), std::span(&columns, 1));
  const SafetensorsFile file(at("c"));
  const auto* got = reinterpret_cast<const float*>(file.data(file.at("c")).data());
  for (int64_t i = 0; i < 6; ++i)
    for (int64_t j = 0; j < 3; ++j)
      EXPECT_EQ(std::memcmp(&got[i * 3 + j], t.as<float>() + i * 8 + j + 2, 4), 0) << i << " " << j;
  EXPECT_EQ(tensor_data("w", t).pieces.size(), 1u);
}

TEST_F(Safetensors, BlocksLargerThanTheBufferKeepTheirChecksums) {
  // Crosses the writer's 1 MiB blocks, with odd sizes before and after.
  auto t = random_tensor("w", DType::u8, {(3 << 20) + 17});
  TensorData cut = t.data;
  cut.pieces = {std::span(t.bytes).first(3), std::span(t.bytes).subspan(3, (2 << 20) + 5),
                std::span(t.bytes).subspan((2 << 20) + 8)};
  const auto summary = save_safetensors(at("x"), std::span(&cut, 1));
  EXPECT_EQ(summary.tensor_xxh3[0], xxh3_hex(t.bytes));
  EXPECT_EQ(summary.xxh3, xxh3_hex(slurp(at("x"))));
  EXPECT_EQ(summary.bytes, int64_t(slurp(at("x")).size()));
  std::vector<std::byte> part(1000);
  const SafetensorsFile file(at("x"));
  file.read_part(file.at("w"), 1 << 20, part);
  EXPECT_EQ(std::memcmp(part.data(), t.bytes.data() + (1 << 20), part.size()), 0);
}

TEST_F(Safetensors, StreamedTensorsWriteTheSameBytes) {
  auto t = random_tensor("w", DType::u8, {(1 << 20) + 99});
  const auto plain = save_safetensors(at("plain"), std::span(&t.data, 1));
  TensorData made = t.data;
  made.pieces.clear();
  size_t less = 0;
  made.make = [&](const ByteSink& sink) {
    const auto all = std::span<const std::byte>(t.bytes).first(t.bytes.size() - less);
    for (size_t i = 0; i < all.size(); i += 1000) sink(all.subspan(i, std::min<size_t>(1000, all.size() - i)));
  };
  const auto summary = save_safetensors(at("made"), std::span(&made, 1));
  EXPECT_EQ(slurp(at("made")), slurp(at("plain")));
  EXPECT_EQ(summary.tensor_xxh3, plain.tensor_xxh3);
  less = 1;
  EXPECT_ERROR(save_safetensors(at("short"), std::span(&made, 1)), "w was made with 1 bytes less");
  made.shape = {1 << 20};
  EXPECT_ERROR(save_safetensors(at("long"), std::span(&made, 1)), "w was made with more than its 1048576 bytes");
  EXPECT_FALSE(std::filesystem::exists(at("short")) || std::filesystem::exists(at("long")));
}

TEST_F(Safetensors, WriterRefusesInvalidTensors) {
  auto t = random_tensor("w", DType::f32, {2, 2});
  auto save = [&](std::vector<TensorData> v) { save_safetensors(at("x"), v); };
  TensorData bad = t.data;
  bad.shape = {2, 3};
  EXPECT_ERROR(save({bad}), "needs 24 bytes", "pieces have 16");
  EXPECT_ERROR(save({t.data, t.data}), "two tensors are named w");
  bad = t.data;
  bad.name = "__metadata__";
  EXPECT_ERROR(save({bad}), "__metadata__");
  bad.name = "bad utf8 \xff";
  EXPECT_ERROR(save({bad}), "not valid UTF-8");
  EXPECT_FALSE(std::filesystem::exists(at("x")));
}

struct Hostile {
  const char* what;
  std::string content;
  std::string error;
};

// A file of one tensor "a" with the given fields.
std::string entry(std::string_view fields, size_t data_bytes = 8) {
  return file_with(cat(R"({"a":{)", fields, "}}"), data_bytes);
}

// A wrong length field, and the errors that result from it.
std::string length(uint64_t n, std::string_view rest) {
  std::string s(8, '\0');
  std::memcpy(s.data(), &n, 8);
  return s + std::string(rest);
}

const std::string kOneTensor = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

std::vector<Hostile> hostile_framing() {
  return {
      {"empty file", "", "0 bytes, at least 8"},
      {"short file", "1234567", "7 bytes, at least 8"},
      {"length above the limit", length(100'000'001, "{}"), "at most 100000000"},
      {"length 2^64-1", length(UINT64_MAX, "{}"), "18446744073709551615"},
      {"length 2^63", length(uint64_t{1} << 63, "{}"), "not a safetensors file"},
      {"length one beyond the file", length(3, "{}"), "truncated"},
      {"no header", length(0, ""), "lacks the first {"},
      {"a list", file_with("[]", 0), "lacks the first {"},
      {"leading space", file_with(" {}", 0), "lacks the first {"},
      {"byte order mark", file_with("\xef\xbb\xbf{}", 0), "lacks the first {"},
      {"cut JSON", file_with(kOneTensor.substr(0, 20), 8), "not valid JSON"},
      {"second value", file_with(kOneTensor + "{}", 8), "not valid JSON"},
      {"comment", file_with("{/* */}", 0), "not valid JSON"},
      {"trailing comma", file_with("{\"a\":{},}", 0), "lacks dtype"},
      {"invalid UTF-8 name", file_with("{\"\xff\":{}}", 0), "not valid JSON"},
      {"overlong UTF-8", file_with("{\"\xc0\xaf\":{}}", 0), "not valid JSON"},
      {"zero byte after the object", file_with(std::string("{}\0garbage", 10), 0), "zero byte"},
      {"zero padding", file_with(std::string("{}\0\0\0\0\0\0", 8), 0), "zero byte"},
  };
}

std::vector<Hostile> hostile_structure() {
  const std::string deep(100000, '[');
  return {
      {"same tensor twice",
       file_with(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2),
       "'a' appears twice"},
      {"same tensor twice, escaped",
       file_with(
           R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
           0),
       "'a' appears twice"},
      {"same field twice", entry(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"),
       "dtype appears twice"},
      {"metadata twice", file_with(R"({"__metadata__":{},"__metadata__":{}})", 0), "'__metadata__': appears twice"},
      {"metadata key twice", file_with(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "twice"},
      {"metadata number", file_with(R"({"__metadata__":{"k":1}})", 0), "expected a string, found a number"},
      {"metadata object", file_with(R"({"__metadata__":{"k":{}}})", 0), "expected a string, found an object"},
      {"metadata null", file_with(R"({"__metadata__":null})", 0), "found null"},
      {"tensor is a string", file_with(R"({"a":"F32"})", 0), "expected an object, found a string"},
      {"tensor is a list", file_with(R"({"a":[]})", 0), "expected an object, found a list"},
      {"deep nesting", file_with(cat("{\"a\":", deep), 0), "expected an object, found a list"},
      {"deep objects", file_with(R"({"a":{"b":{"c":{"d":{}}}}})", 0), "unknown field 'b'"},
  };
}

std::vector<Hostile> hostile_fields() {
  return {
      {"unknown dtype", entry(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), "unknown dtype 'F31'"},
      {"lower-case dtype", entry(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), "unknown dtype 'f32'"},
      {"dtype number", entry(R"("dtype":32,"shape":[2],"data_offsets":[0,8])"), "expected a string, found a number"},
      {"missing dtype", entry(R"("shape":[2],"data_offsets":[0,8])"), "lacks dtype"},
      {"missing shape", entry(R"("dtype":"F32","data_offsets":[0,8])"), "lacks shape"},
      {"missing offsets", entry(R"("dtype":"F32","shape":[2])"), "lacks data_offsets"},
      {"unknown field", entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)"), "unknown field 'x'"},
      {"negative dimension", entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "negative number"},
      {"minus zero", entry(R"("dtype":"F32","shape":[-0],"data_offsets":[0,0])", 0), "negative number"},
      {"fractional dimension", entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "unsigned 64-bit"},
      {"exponent dimension", entry(R"("dtype":"F32","shape":[2e0],"data_offsets":[0,8])"), "unsigned 64-bit"},
      {"dimension 2^64", entry(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])"),
       "unsigned 64-bit"},
      {"dimension 2^63", entry(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"), "too large"},
      {"product overflows to 8", entry(R"("dtype":"U8","shape":[4294967296,4294967296,8],"data_offsets":[0,8])"),
       "overflows 64 bits"},
      {"bits overflow to 0", entry(R"("dtype":"F64","shape":[288230376151711744],"data_offsets":[0,0])", 0),
       "overflows 64 bits"},
      {"overflow hidden by 0", entry(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])", 0),
       "overflows 64 bits"},
      {"half a byte", entry(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])", 1), "12 bits are not whole bytes"},
      {"nested shape", entry(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), "found a list"},
      {"shape of strings", entry(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])"), "found a string"},
      {"shape is a number", entry(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), "expected a list of sizes"},
  };
}

std::vector<Hostile> hostile_offsets() {
  return {
      {"one offset", entry(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), "expected two numbers"},
      {"three offsets", entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), "found more"},
      {"offsets too long", entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,9])", 9), "do not hold the 8 bytes"},
      {"offsets too short", entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,7])", 7), "do not hold the 8 bytes"},
      {"offsets reversed", entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,-8])"), "negative number"},
      {"end before begin",
       file_with(
           R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[0],"data_offsets":[8,7]}})",
           8),
       "do not hold"},
      {"begins late", entry(R"("dtype":"F32","shape":[2],"data_offsets":[1,9])", 9), "begins at 1, expected 0"},
      {"hole",
       file_with(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
           5),
       "'b': data begins at 3, expected 2"},
      {"overlap",
       file_with(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           3),
       "begins at 1, expected 2"},
      {"same bytes twice",
       file_with(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
           2),
       "begins at 0, expected 2"},
      {"truncated data", file_with(kOneTensor, 7), "truncated"},
      {"trailing data", file_with(kOneTensor, 9), "1 bytes follow the last tensor"},
      {"data without tensors", file_with("{}", 1), "1 bytes follow"},
      {"huge offset", entry(R"("dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807])"),
       "overflows 64 bits"},
      {"large offset", entry(R"("dtype":"U8","shape":[1000000],"data_offsets":[0,1000000])"), "truncated"},
  };
}

TEST_F(Safetensors, EveryHostileHeaderIsRefusedWithItsReason) {
  for (const auto& group : {hostile_framing(), hostile_structure(), hostile_fields(), hostile_offsets()})
    for (const Hostile& h : group) {
      SCOPED_TRACE(h.what);
      spill(at("x"), h.content);
      EXPECT_ERROR(SafetensorsFile(at("x")), at("x"), h.error);
    }
}

TEST_F(Safetensors, HugeHeaderLengthIsRefusedBeforeAllocation) {
  // A terabyte that is all hole: the header limit holds, nothing near the file's size is allocated.
  spill(at("x"), std::string("\0\0\0\0\x80\0\0\0", 8));
  std::filesystem::resize_file(at("x"), uintmax_t{1} << 40);
  EXPECT_ERROR(SafetensorsFile(at("x")), "at most 100000000");
}

TEST_F(Safetensors, EveryTruncationOfAGoodFileIsRefused) {
  const auto owned = assorted();
  save_safetensors(at("x"), views(owned));
  const std::string good = slurp(at("x"));
  for (size_t n = 0; n < good.size(); ++n) {
    spill(at("y"), good.substr(0, n));
    EXPECT_NE(error_of([&] { SafetensorsFile{at("y")}; }), "no error") << n;
  }
  spill(at("y"), good + "x");
  EXPECT_ERROR(SafetensorsFile(at("y")), "1 bytes follow");
}

TEST_F(Safetensors, UnusualButLegalHeadersAreRead) {
  const struct {
    const char* what;
    std::string content;
    size_t tensors;
  } kCases[] = {
      {"white space and any order",
       file_with("{ \"b\" :\n{\"shape\":[1 , "
                 "2],\t\"data_offsets\":[4,6],\"dtype\":\"U8\"},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":"
                 "[0,4]}}\r\n  ",
                 6),
       2},
      {"unaligned data", file_with(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", 8), 1},
      {"metadata last",
       file_with(R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},"__metadata__":{"x":"y"}})", 1), 1},
      {"high rank", file_with(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1), 1},
      {"six-bit floats", file_with(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3), 1},
      {"eight-bit floats", file_with(R"({"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]}})", 3), 1},
      {"empty tensors in the middle",
       file_with(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"e":{"dtype":"F64","shape":[0,9],"data_offsets":[1,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2),
       3},
      {"empty name", file_with(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), 1},
      {"large dimension times 0",
       file_with(R"({"a":{"dtype":"U8","shape":[0,9223372036854775807],"data_offsets":[0,0]}})", 0), 1},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    spill(at("x"), c.content);
    EXPECT_EQ(error_of([&] { EXPECT_EQ(SafetensorsFile(at("x")).tensors().size(), c.tensors); }), "no error");
  }
}

TEST_F(Safetensors, UnsupportedDtypesAndRanksAreNamed) {
  spill(at("x"), file_with(R"({"a":{"dtype":"BOOL","shape":[1,1,1,1,1],"data_offsets":[0,1]}})", 1));
  const SafetensorsFile file(at("x"));
  EXPECT_ERROR(file.at("a").checked_dtype(), "'a'", "BOOL", "not supported");
  EXPECT_ERROR(file.at("a").checked_shape(), "'a'", "rank 5 is above 4");
}

TEST_F(Safetensors, FoldersAndPipesAreRefusedWithoutBlocking) {
  EXPECT_ERROR(SafetensorsFile(at("none")), at("none"), "No such file");
  EXPECT_ERROR(SafetensorsFile{dir}, "expected a regular file");
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_ERROR(SafetensorsFile(at("pipe")), "expected a regular file");
}

// Runs the reference implementation if this machine has it (ATHANOR_PYTHON names the interpreter, default python3).
std::string python() {
  const char* name = std::getenv("ATHANOR_PYTHON");
  return name ? name : "python3";
}
bool has_python_safetensors() {
  return std::system(cat(python(), " -c 'import safetensors.numpy' >/dev/null 2>&1").c_str()) == 0;
}

TEST_F(Safetensors, ReferenceLibraryReadsAndRewritesTheSameBytes) {
  if (!has_python_safetensors()) GTEST_SKIP() << python() << " has no safetensors with numpy (set ATHANOR_PYTHON)";
  auto owned = assorted();
  std::erase_if(owned, [](const OwnedTensor& t) { return t.data.dtype == DType::bf16; });  // numpy has none
  save_safetensors(at("ours.safetensors"), views(owned));
  spill(at("check.py"), R"(import sys, safetensors.numpy as st
from safetensors import safe_open
ours, theirs = sys.argv[1:]
tensors = st.load_file(ours)
with safe_open(ours, 'np') as f:
    assert f.metadata() == {'format': 'pt'}, f.metadata()
st.save_file(tensors, theirs, metadata={'format': 'pt'})
)");
  const std::string command =
      cat(python(), " ", at("check.py"), " ", at("ours.safetensors"), " ", at("theirs.safetensors"));
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_TRUE(slurp(at("ours.safetensors")) == slurp(at("theirs.safetensors")));
  const SafetensorsFile theirs(at("theirs.safetensors"));
  for (const auto& t : owned) {
    const auto got = theirs.data(theirs.at(t.data.name));
    EXPECT_TRUE(std::equal(got.begin(), got.end(), t.bytes.begin(), t.bytes.end())) << t.data.name;
  }
}

}  // namespace
}  // namespace athanor::test
