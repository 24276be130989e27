// A single snapshot file: reading returns what was written, other programs can read it, and damaged, foreign
// and malicious files are rejected.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <random>
#include <sys/resource.h>
#include <sys/stat.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <lockstep/error.h>

#include "snapshot/file_reader.h"
#include "snapshot/file_writer.h"
#include "snapshot/scratch.h"
#include "support/data.h"
#include "support/message_of.h"

namespace {

namespace fs = std::filesystem;
using lockstep::SnapshotError;
using lockstep::UsageError;
using nlohmann::json;
using ::testing::HasSubstr;
using namespace lockstep::snapshot;
using namespace lockstep::testing;

std::string with_header(const std::string& header, const std::string& data = {}) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

json header_of(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  return json::parse(file.substr(sizeof length, length));
}

std::string data_of(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  return file.substr(sizeof length + length);
}

// The error message, which must be the same for all functions that read a file.
std::string refusal_of(const fs::path& path, Origin origin = Origin::Lockstep) {
  message_of<SnapshotError>([&] { verify_file(path, origin); });
  const auto message = message_of<SnapshotError>([&] { read_file(path, origin); });
  EXPECT_THAT(message, HasSubstr(path.string()));
  EXPECT_THAT(message, HasSubstr("hint: "));
  return message;
}

at::Tensor values(at::IntArrayRef sizes, at::ScalarType dtype) { return exact_data(sizes, dtype, 1); }

class SnapshotFile : public ::testing::Test {
 protected:
  void expect_round_trip(const Document& document) const {
    write_file(document, path);
    expect_same(read_file(path), document);
    verify_file(path);
    EXPECT_EQ(files_in(folder.path()), 1);
  }

  ScratchFolder folder;
  fs::path path = folder / "a.safetensors";
};

TEST_F(SnapshotFile, BringsBackEveryTypeAndShape) {
  Document document;
  for (const auto dtype : all_dtypes()) {
    if (dtype == at::kComplexDouble) continue;
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{}, {0}, {1}, {3}, {2, 0, 5}, {3, 5, 7}}) {
      document.tensors.push_back(
          {fmt::format("{}.{}", c10::toString(dtype), document.tensors.size()), values(sizes, dtype)});
    }
  }
  expect_round_trip(document);
}

TEST_F(SnapshotFile, BringsBackTheBitsOfNumbersThatAreNotEqualToThemselves) {
  const auto strange = at::tensor({std::nan("7"), -0.0, INFINITY, 5e-324}, at::kDouble);
  write_file({{{"x", strange}}, {}}, path);
  const auto back = read_file(path).tensors.at(0).tensor;
  EXPECT_EQ(std::memcmp(back.data_ptr(), strange.data_ptr(), strange.nbytes()), 0);
}

TEST_F(SnapshotFile, BringsBackWhatIsNotATensor) {
  const auto about =
      json::parse(R"({"a":{"b":[1,-2,0.1,1e300,true,null,"é\"\\\n"]},"big":18446744073709551615})");
  expect_round_trip({{}, about});
  expect_round_trip({{}, nullptr});
  expect_round_trip({{{"x", values({3}, at::kInt)}}, json::object()});
}

TEST_F(SnapshotFile, TakesAnyTextAsAName) {
  Document document;
  for (const auto* name : {"", "a.b.c", "weights/größe 🎉", "\"quoted\"\n\t\\", "lockstep", "checksum"}) {
    document.tensors.push_back({name, values({2}, at::kFloat)});
  }
  document.tensors.push_back({std::string("zero\0byte", 9), values({2}, at::kFloat)});
  document.tensors.push_back({std::string(100'000, 'x'), values({2}, at::kFloat)});
  expect_round_trip(document);
}

TEST_F(SnapshotFile, StoresStridedTensorsInRowMajorOrder) {
  const auto base = values({6, 8, 4, 4}, at::kFloat);
  const auto complex = values({5, 3}, at::kComplexFloat) * c10::complex<float>(1, 2);
  expect_round_trip({{{"transposed", base.transpose(0, 3)},
                      {"sliced", base.slice(1, 1, 8, 3)},
                      {"expanded", values({3, 1}, at::kLong).expand({3, 1000})},
                      {"channels last", base.contiguous(at::MemoryFormat::ChannelsLast)},
                      {"conjugated", complex.conj()},
                      {"negated", at::imag(complex.conj())},
                      {"with a gradient", at::ones({3}).requires_grad_()}},
                     {}});
}

TEST_F(SnapshotFile, StoresTensorsLargerThanOneWrite) {
  const auto bytes = at::arange(9'000'001).to(at::kByte);
  const auto matrix = at::arange(2'400'000, at::kFloat).view({1200, 2000});
  expect_round_trip({{{"odd", bytes},
                      {"transposed", matrix.t()},
                      {"one long row", matrix.view({1, 2'400'000}).expand({2, -1})},
                      {"few long columns", matrix.view({1'200'000, 2}).t()},
                      {"one by one", matrix.t().unsqueeze(0).unsqueeze(0)},
                      {"after", values({5}, at::kShort)}},
                     {}});
}

TEST_F(SnapshotFile, StoresManySmallTensors) {
  Document document;
  for (int i = 0; i < 5000; ++i)
    document.tensors.push_back({fmt::format("{}", i), values({i % 5}, at::kHalf)});
  expect_round_trip(document);
}

TEST_F(SnapshotFile, IsASafetensorsFileForOtherReaders) {
  const Document document = {{{"odd", values({3}, at::kByte)},
                              {"wide", values({2, 3}, at::kDouble)},
                              {"empty", values({0, 4}, at::kHalf)},
                              {"scalar", values({}, at::kFloat)}},
                             {{"epoch", 3}}};
  write_file(document, path);
  const auto file = bytes_in(path);
  const auto header = header_of(file);
  const auto data = data_of(file);
  EXPECT_EQ((file.size() - data.size()) % 64, 0);

  const auto& metadata = header.at("__metadata__");
  for (const auto& [key, value] : metadata.items()) EXPECT_TRUE(value.is_string()) << key;
  EXPECT_EQ(json::parse(metadata.at("lockstep").get<std::string>()), document.about);
  EXPECT_EQ(metadata.at("format_version"), "1");

  EXPECT_EQ(header.at("odd").at("dtype"), "U8");
  EXPECT_EQ(header.at("wide").at("dtype"), "F64");
  EXPECT_EQ(header.at("wide").at("shape"), json({2, 3}));
  EXPECT_EQ(header.at("empty").at("shape"), json({0, 4}));
  EXPECT_EQ(header.at("scalar").at("shape"), json::array());
  uint64_t covered = 0;
  for (const auto& [name, tensor, lasting] : document.tensors) {
    const uint64_t begin = header.at(name).at("data_offsets").at(0),
                   end = header.at(name).at("data_offsets").at(1);
    ASSERT_EQ(end - begin, tensor.nbytes()) << name;
    EXPECT_EQ(begin % tensor.element_size(), 0) << name << " is not aligned";
    if (end > begin) {
      EXPECT_EQ(std::memcmp(data.data() + begin, tensor.data_ptr(), tensor.nbytes()), 0) << name;
    }
    covered += end - begin;
  }
  EXPECT_EQ(covered, data.size());
}

TEST_F(SnapshotFile, HoldsTheChecksumOfAllItsBytes) {
  write_file(small_document(1), path);
  auto file = bytes_in(path);
  const std::string kind = "xxh3-128:";
  const std::string text = header_of(file).at("__metadata__").at("checksum");
  ASSERT_TRUE(text.starts_with(kind));
  const auto digits = text.substr(kind.size());
  file.replace(file.find(digits), digits.size(), digits.size(), '0');
  const auto hash = XXH3_128bits(file.data(), file.size());
  EXPECT_EQ(digits, fmt::format("{:016x}{:016x}", hash.high64, hash.low64));
}

TEST_F(SnapshotFile, IsTheSameForTheSameDocument) {
  write_file(small_document(1), path);
  const auto first = bytes_in(path);
  write_file(small_document(1), path);
  EXPECT_EQ(bytes_in(path), first);
}

TEST_F(SnapshotFile, SummaryTellsWhatIsInIt) {
  write_file(small_document(5), path);
  const auto summary = read_summary(path);
  EXPECT_EQ(summary.about, json({{"mark", 5}}));
  EXPECT_EQ(summary.bytes, fs::file_size(path));
  EXPECT_FALSE(summary.foreign);
  ASSERT_EQ(summary.tensors.size(), 3);
  EXPECT_EQ(summary.tensors[0].name, "weight");
  EXPECT_EQ(summary.tensors[0].dtype, at::kFloat);
  EXPECT_EQ(summary.tensors[0].shape, (std::vector<int64_t>{20, 50}));
}

TEST_F(SnapshotFile, ReportsProgressUntilAllIsWritten) {
  std::vector<uint64_t> done;
  uint64_t all = 0;
  write_file({{{"x", at::zeros({10'000'000}, at::kByte)}}, {}}, path,
             [&](uint64_t bytes_done, uint64_t bytes_all) {
               done.push_back(bytes_done);
               all = bytes_all;
             });
  EXPECT_GE(done.size(), 3);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), all);
  EXPECT_EQ(all, fs::file_size(path));
}

TEST_F(SnapshotFile, LeavesTheOldOneWhenProgressThrows) {
  write_file(small_document(1), path);
  EXPECT_THROW(
      write_file(small_document(2), path, [](uint64_t, uint64_t) { throw std::runtime_error("stopped"); }),
      std::runtime_error);
  expect_same(read_file(path), small_document(1));
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST_F(SnapshotFile, RefusesDocumentsThatTheFormatCannotHold) {
  const auto one = at::ones({2});
  const auto refused = [&](const Document& document) {
    const auto message = message_of<UsageError>([&] { write_file(document, path); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    EXPECT_EQ(files_in(folder.path()), 0);
    return message;
  };
  EXPECT_THAT(refused({{{"x", one}, {"x", one}}, {}}), HasSubstr("two tensors with the name \"x\""));
  EXPECT_THAT(refused({{{"__metadata__", one}}, {}}), HasSubstr("__metadata__"));
  EXPECT_THAT(refused({{{"bad \xff", one}}, {}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(refused({{{"x", {}}}, {}}), HasSubstr("\"x\" is undefined"));
  EXPECT_THAT(refused({{{"x", one.to_sparse()}}, {}}), HasSubstr("\"x\" is not dense"));
  EXPECT_THAT(refused({{{"x", at::empty({2}, at::kMeta)}}, {}}), HasSubstr("\"x\" has no values"));
  EXPECT_THAT(refused({{{"x", one.to(at::kComplexDouble)}}, {}}), HasSubstr("\"x\" is ComplexDouble"));
  EXPECT_THAT(refused({{{"x", at::ones(std::vector<int64_t>(65, 1))}}, {}}), HasSubstr("64 dimensions"));
  EXPECT_THAT(refused({{}, {{"text", "bad \xff"}}}), HasSubstr("UTF-8"));
  EXPECT_THAT(refused({{}, std::string(17'000'000, 'x')}), HasSubstr("the limit is"));
}

TEST_F(SnapshotFile, RefusesPathsThatCannotBeWritten) {
  const auto refused = [](const fs::path& where) {
    return message_of<SnapshotError>([&] { write_file(small_document(1), where); });
  };
  EXPECT_THAT(refused(folder / "missing/a.safetensors"), HasSubstr("No such file or directory"));
  EXPECT_THAT(refused(folder / (std::string(250, 'n') + ".st")), HasSubstr("File name too long"));
  put_bytes(folder / "file", "x");
  EXPECT_THAT(refused(folder / "file/a.safetensors"), HasSubstr("Not a directory"));
  fs::create_directory(path);
  EXPECT_THAT(refused(path), HasSubstr("Is a directory"));
  message_of<UsageError>([&] { write_file(small_document(1), folder.path() / ""); });
}

TEST_F(SnapshotFile, EveryFlippedBitIsFound) {
  write_file({{{"x", values({40}, at::kFloat)}, {"flag", values({3}, at::kBool)}}, {{"epoch", 3}}}, path);
  const auto good = bytes_in(path);
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0, static_cast<int>(1 + i % 7)}) {
      auto bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      put_bytes(path, bad);
      EXPECT_THROW(read_file(path), DamagedError) << "byte " << i << " bit " << bit;
      EXPECT_THROW(verify_file(path, Origin::Any), DamagedError) << "byte " << i << " bit " << bit;
    }
  }
}

TEST_F(SnapshotFile, EveryLostOrAddedByteIsFound) {
  write_file({{{"x", values({40}, at::kFloat)}}, {{"epoch", 3}}}, path);
  const auto good = bytes_in(path);
  for (size_t size = 0; size < good.size(); ++size) {
    put_bytes(path, good.substr(0, size));
    EXPECT_THROW(read_file(path), DamagedError) << size;
    EXPECT_THROW(verify_file(path), DamagedError) << size;
    EXPECT_THROW(read_summary(path, Origin::Any), DamagedError) << size;
  }
  put_bytes(path, good.substr(0, good.size() - 1));
  EXPECT_THAT(refusal_of(path),
              HasSubstr(fmt::format("cut short: it has {} bytes of {}", good.size() - 1, good.size())));
  put_bytes(path, good + "!");
  EXPECT_THAT(refusal_of(path), HasSubstr("1 bytes after its end"));
}

TEST_F(SnapshotFile, SaysThatTheChecksumIsWrong) {
  write_file(small_document(1), path);
  auto file = bytes_in(path);
  file.back() ^= 1;
  put_bytes(path, file);
  EXPECT_THAT(refusal_of(path), HasSubstr("its checksum is wrong"));
}

TEST_F(SnapshotFile, RefusesThoseOfANewerLockstep) {
  write_file(small_document(1), path);
  put_bytes(path, with_version(bytes_in(path), "7"));
  EXPECT_THAT(refusal_of(path), HasSubstr("newer lockstep: format version 7, this one reads up to 1"));
  EXPECT_THROW(read_file(path), NewerFormatError);

  // Also if nothing else in the file is known to this version.
  put_bytes(path, with_header(R"({"__metadata__":{"checksum":"xxh9:","format_version":"8","lockstep":"?"},)"
                              R"("x":{"dtype":"F3","shape":[],"strides":[]}})"));
  EXPECT_THAT(refusal_of(path), HasSubstr("format version 8"));
}

// A flipped bit can turn the version into a newer one. That is damage, and resume() falls back to an older
// snapshot.
TEST_F(SnapshotFile, DoesNotTakeAFlippedBitForANewerLockstep) {
  write_file(small_document(1), path);
  const auto good = bytes_in(path);
  const auto version = good.find(R"("format_version":"1")") + 18;
  ASSERT_EQ(good[version], '1');
  for (int bit = 0; bit < 8; ++bit) {
    auto bad = good;
    bad[version] = static_cast<char>(bad[version] ^ (1 << bit));
    put_bytes(path, bad);
    EXPECT_THROW(read_file(path), DamagedError) << "bit " << bit;
    EXPECT_THROW(verify_file(path, Origin::Any), DamagedError) << "bit " << bit;
  }
  auto newer = with_version(good, "7");
  newer.back() ^= 1;
  put_bytes(path, newer);
  EXPECT_THAT(refusal_of(path), HasSubstr("its checksum is wrong"));
  EXPECT_THROW(read_summary(path), DamagedError);
}

TEST_F(SnapshotFile, RefusesWhatIsNoSnapshotAtAll) {
  const auto refusal = [&](const std::string& bytes) {
    put_bytes(path, bytes);
    return refusal_of(path, Origin::Any);
  };
  EXPECT_THAT(refusal(""), HasSubstr("it is empty"));
  EXPECT_THAT(refusal("abc"), HasSubstr("too short"));
  EXPECT_THAT(refusal("a text that is long enough"), HasSubstr("does not begin with the length"));
  EXPECT_THAT(refusal(std::string("PK\x03\x04\0\0\x08\x08\0\0", 10)), HasSubstr("it is a .pt file"));
  EXPECT_THAT(refusal(std::string("PK\x03\x04\0\0\x08\x08\0\0", 10)), HasSubstr("snapshot import"));
  EXPECT_THAT(refusal(std::string(1000, '\0')), HasSubstr("does not begin"));
  EXPECT_THAT(refusal(std::string(1000, '\xff')), HasSubstr("does not begin"));
}

TEST_F(SnapshotFile, RefusesWhatIsNoRegularFile) {
  EXPECT_THAT(refusal_of(folder / "none"), HasSubstr("No such file"));
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("not a regular file"));
  EXPECT_THAT(refusal_of("/dev/zero"), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // without a process at the other end
  EXPECT_THAT(refusal_of(path), HasSubstr("not a regular file"));
}

TEST_F(SnapshotFile, ReadsFilesOfOtherProgramsOnlyWhereTheyAreWanted) {
  // The order of the header differs from that of the data.
  put_bytes(path, with_header(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
                              R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]},)"
                              R"("none":{"data_offsets":[4,4],"shape":[0],"dtype":"F32"}}   )",
                              std::string("\x2a\0\0\0\x07\x08", 6)));
  const auto document = read_file(path, Origin::Any);
  expect_same(document, {{{"b", at::tensor({7, 8}, at::kByte)},
                          {"a", at::scalar_tensor(42, at::kInt)},
                          {"none", at::empty({0}, at::kFloat)}},
                         json::object()});
  EXPECT_TRUE(read_summary(path, Origin::Any).foreign);
  EXPECT_THAT(refusal_of(path), HasSubstr("of another program"));
  EXPECT_THAT(refusal_of(path), HasSubstr("snapshot import"));
  message_of<SnapshotError>([&] { read_summary(path); });

  put_bytes(path, with_header("{}"));
  EXPECT_TRUE(read_file(path, Origin::Any).tensors.empty());
  put_bytes(path, with_header(R"({"__metadata__":{"format":"pt"}})"));
  EXPECT_TRUE(read_file(path, Origin::Any).tensors.empty());
}

TEST_F(SnapshotFile, RefusesItsOwnWhenAnotherProgramWroteItAnew) {
  write_file(small_document(1), path);
  const auto file = bytes_in(path);
  auto header = header_of(file);
  header["__metadata__"]["author"] = "another";
  put_bytes(path, with_header(header.dump(), data_of(file)));
  EXPECT_THAT(refusal_of(path, Origin::Any), HasSubstr("another program has rewritten"));
}

TEST_F(SnapshotFile, RefusesHeadersThatLie) {
  struct Lie {
    std::string header, data, says;
  };
  const auto tensor = [](const std::string& fields) { return "{\"x\":{" + fields + "}}"; };
  const std::string good = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";
  const std::vector<Lie> lies = {
      {"[]", "", "a list, not an object"},
      {"17", "", "a number, not an object"},
      {"  null", "", "null, not an object"},
      {"{ ", "", "not JSON"},
      {"{} {}", "", "not JSON"},
      {"{\"x\":\xff}", "", "not JSON"},
      {R"({"x":1})", "", "not an object"},
      {R"({"x":{}})", "", "lacks the dtype"},
      {R"({"__metadata__":[]})", "", "a list for \"__metadata__\""},
      {R"({"__metadata__":{"a":1}})", "", "a number for \"a\", not a text"},
      {R"({"__metadata__":{"a":{}}})", "", "an object for \"a\", not a text"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "", "has \"a\" twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "", "names \"__metadata__\" twice"},
      {tensor(R"("dtype":"U8","shape":[4])"), "abcd", "lacks the dtype, shape or data_offsets of \"x\""},
      {tensor(good + R"(,"dtype":"I8")"), "abcd", "a text in \"dtype\""},
      {tensor(good + R"(,"shape":[4])"), "abcd", "a list in \"shape\""},
      {tensor(good + R"(,"more":{})"), "abcd", "an object in \"more\""},
      {tensor(R"("dtype":"F7","shape":[4],"data_offsets":[0,4])"), "abcd", "the type \"F7\""},
      {tensor(R"("dtype":8,"shape":[4],"data_offsets":[0,4])"), "abcd", "a number in \"dtype\""},
      {tensor(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), "abcd", "a negative number"},
      {tensor(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), "abcd", "not whole"},
      {tensor(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"), "abcd", "a list in \"shape\""},
      {tensor(R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])"), "abcd", "a text in \"shape\""},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), "abcd", "two data_offsets"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"), "abcd", "a number in \"data_offsets\""},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,5])"), "abcde",
       "gives \"x\" 5 bytes; U8 [4] has 4"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[1,5])"), "abcde", "at bytes 1 to 5"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), "abcd", "at bytes 4 to 0"},
      {tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,4])"), "abcd", "F32 [4] has 16"},
      {tensor(good), "abcde", "1 bytes after its end"},
      {tensor(good), "abc", "cut short"},
      {tensor(R"("dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776])"), "abc",
       "cut short"},
      {tensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4])"), "abcd",
       "a dimension of"},
      {tensor(R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4])"), "abcd", "not whole"},
      {tensor(R"("dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,0])"), "",
       "exceeds any memory"},
      {tensor(R"("dtype":"U8","shape":[4611686018427387904,4,0],"data_offsets":[0,0])"), "",
       "exceeds any memory"},
      {tensor(R"("dtype":"U8","shape":[0,4611686018427387904,4],"data_offsets":[0,0])"), "",
       "exceeds any memory"},
      {R"({"x":{)" + good + R"(},"x":{)" + good + "}}", "abcd", "names \"x\" twice"},
      {R"({"x":{)" + good + R"(},"y":{)" + good + "}}", "abcd", "must begin at 4"},
      {R"({"x":{)" + good + R"(},"y":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", "abcdefghi",
       "must begin at 4"},
  };
  for (const auto& lie : lies) {
    put_bytes(path, with_header(lie.header, lie.data));
    EXPECT_THAT(refusal_of(path, Origin::Any), HasSubstr(lie.says)) << lie.header;
  }
}

TEST_F(SnapshotFile, RefusesBombs) {
  const auto refusal = [&](const std::string& bytes) {
    put_bytes(path, bytes);
    return refusal_of(path, Origin::Any);
  };
  const auto length = [](uint64_t bytes) {
    return with_header("").replace(0, 8, reinterpret_cast<char*>(&bytes), 8);
  };
  EXPECT_THAT(refusal(length(UINT64_MAX) + "{}"), HasSubstr("does not begin with the length"));
  EXPECT_THAT(refusal(length(UINT64_MAX - 7) + "{}"), HasSubstr("does not begin with the length"));
  EXPECT_THAT(refusal(length(100'000'001) + "{}"), HasSubstr("does not begin with the length"));
  EXPECT_THAT(refusal(length(100'000'000) + "{}"), HasSubstr("ends within its header"));

  const std::string deep(1'000'000, '[');
  EXPECT_THAT(refusal(with_header(deep)), HasSubstr("a list, not an object"));
  EXPECT_THAT(refusal(with_header(R"({"x":{"dtype":"U8","shape":)" + deep)),
              HasSubstr("a list in \"shape\""));
  std::string dimensions = "0";
  for (int i = 0; i < 100'000; ++i) dimensions += ",0";
  EXPECT_THAT(refusal(with_header(R"({"x":{"dtype":"U8","shape":[)" + dimensions + "]}}")),
              HasSubstr("64 dimensions"));

  const auto about = [&](const std::string& text) {
    return with_header(R"({"__metadata__":{"format_version":"1","lockstep":")" + text + "\"}}");
  };
  EXPECT_THAT(refusal(about(deep)), HasSubstr("nested too deep"));
  put_bytes(path, about(std::string(17'000'000, '1')));
  EXPECT_THAT(message_of<SnapshotError>([&] { read_summary(path); }), HasSubstr("the limit is"));
  EXPECT_THAT(refusal(about("nonsense")), HasSubstr("not JSON"));

  // A tensor's name in a message is short and does not control the terminal.
  const auto message = refusal(with_header(R"({"\u001b[2J)" + std::string(100'000, 'n') + R"(":1})"));
  EXPECT_LT(message.size(), 1000);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

TEST_F(SnapshotFile, RefusesTruthValuesThatAreNeither) {
  put_bytes(path, with_header(R"({"x":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})",
                              std::string("\0\1\2", 3)));
  EXPECT_THAT(message_of<SnapshotError>([&] { read_file(path, Origin::Any); }),
              HasSubstr("values other than 0 and 1"));
}

TEST_F(SnapshotFile, SurvivesDamageThatNoChecksumCatches) {
  const auto good =
      with_header(R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                  R"("y":{"dtype":"I64","shape":[1],"data_offsets":[24,32]}})",
                  std::string(32, '\1'));
  const std::string alphabet = "{}[]\",:0123456789-.eUFIBOLx \\\xff";
  std::mt19937 random(7);
  const auto below = [&](size_t bound) { return random() % bound; };
  int whole = 0;
  for (int round = 0; round < 1500; ++round) {
    auto bad = good;
    for (size_t changes = 1 + below(3); changes > 0; --changes)
      bad[below(bad.size())] = alphabet[below(alphabet.size())];
    put_bytes(path, bad);
    try {
      uint64_t bytes = 0;
      for (const auto& entry : read_file(path, Origin::Any).tensors) bytes += entry.tensor.nbytes();
      EXPECT_LE(bytes, bad.size());
      ++whole;
    } catch (const SnapshotError&) {
    }
  }
  EXPECT_GT(whole, 0) << "names, metadata and data can change without harm";
}

TEST_F(SnapshotFile, SaysThatThereIsNoMemoryForIt) {
  if (kSanitized) GTEST_SKIP() << "sanitizers do not work with a limit on memory";
  put_bytes(path,
            with_header(R"({"x":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})"));
  // The file has the length that its header gives, since it is sparse, but there is not enough memory for it.
  fs::resize_file(path, fs::file_size(path) + (uint64_t{1} << 40));
  const auto status = in_child([&] {
    const rlimit limit = {uint64_t{64} << 30, uint64_t{64} << 30};
    ::setrlimit(RLIMIT_AS, &limit);
    EXPECT_THAT(message_of<SnapshotError>([&] { read_file(path, Origin::Any); }),
                HasSubstr("not enough memory for the"));
  });
  EXPECT_TRUE(exited_with(status, 0));
}

}  // namespace
