// State dicts written for and read from Python, and invalid files.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <caffe2/serialize/inline_container.h>
#include <torch/torch.h>

#include <lockstep/error.h>

#include "snapshot/contents.h"
#include "snapshot/file_reader.h"
#include "snapshot/file_writer.h"
#include "snapshot/pickle_reader.h"
#include "snapshot/pickle_writer.h"
#include "snapshot/pt_reader.h"
#include "snapshot/pt_writer.h"
#include "snapshot/scratch.h"
#include "support/data.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::snapshot {
namespace {

namespace fs = std::filesystem;
using namespace lockstep::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_in(const fs::path& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename());
  return names;
}

void expect_same(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(same(a[i].second, b[i].second)) << a[i].first;
  }
}

NamedTensors all_sorts() {
  NamedTensors tensors;
  const std::vector<std::pair<std::string, at::ScalarType>> dtypes = {
      {"f32", at::kFloat}, {"f64", at::kDouble}, {"f16", at::kHalf},         {"bf16", at::kBFloat16},
      {"i64", at::kLong},  {"i32", at::kInt},    {"i16", at::kShort},        {"i8", at::kChar},
      {"u8", at::kByte},   {"bool", at::kBool},  {"c64", at::kComplexFloat}, {"c128", at::kComplexDouble}};
  for (const auto& [name, dtype] : dtypes) {
    tensors.emplace_back(name,
                         torch::arange(6).view({2, 3}).to(dtype).set_requires_grad(dtype == at::kFloat));
  }
  const auto grid = torch::arange(20, at::kFloat).view({4, 5});
  const auto tied = torch::eye(3);
  tensors.insert(tensors.end(), {{"scalar", torch::tensor(-2.5)},
                                 {"empty", torch::empty({0})},
                                 {"hollow", torch::empty({2, 0, 3})},
                                 {"transposed", grid.t()},
                                 {"column", grid.select(1, 2)},
                                 {"every other", grid.slice(0, 0, 4, 2).slice(1, 0, 5, 2)},
                                 {"tied.a", tied},
                                 {"tied.b", tied},
                                 {"名前", torch::ones({1})}});
  return tensors;
}

NamedTensors plain() {
  return {{"weight", torch::arange(6, at::kFloat).view({2, 3})}, {"count", torch::tensor(7)}};
}

struct SavedNet : torch::nn::Module {
  SavedNet()
      : conv(register_module("conv", torch::nn::Conv2d(2, 3, 3))),
        norm(register_module("norm", torch::nn::BatchNorm2d(3))),
        fc(register_module("fc", torch::nn::Linear(3, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return fc(torch::relu(norm(conv(x))).mean({2, 3})); }
  NamedTensors state() const {
    NamedTensors all;
    for (const auto& item : named_parameters()) all.emplace_back(item.key(), item.value());
    for (const auto& item : named_buffers()) all.emplace_back(item.key(), item.value());
    return all;
  }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Linear fc;
};

// Starts Python once for all tests.
class PtWithPython : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<ScratchFolder>();
    write_pt(*scratch_ / "written.pt", all_sorts());
    write_pt(*scratch_ / "nothing.pt", {});
    torch::manual_seed(1);
    SavedNet net;
    net.forward(torch::randn({4, 2, 5, 5}));  // changes the initial statistics
    net.eval();
    const auto input = torch::randn({2, 2, 5, 5});
    model_ = net.state();
    write_pt(*scratch_ / "model.pt", model_);
    write_pt(*scratch_ / "case.pt", {{"input", input}, {"output", net.forward(input).detach()}});

    const auto script = fs::path(__FILE__).parent_path() / "state_dicts.py";
    const auto command = fmt::format("timeout 120 /usr/bin/python3 '{}' '{}' 2>&1", script.string(),
                                     scratch_->path().string());
    auto* pipe = ::popen(command.c_str(), "r");
    char line[512];
    while (pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr) output_ += line;
    const int status = pipe == nullptr ? -1 : ::pclose(pipe);
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static void TearDownTestSuite() {
    scratch_.reset();
    model_.clear();
  }
  void SetUp() override {
    // 127: the program was not found
    if (status_ == 77 || status_ == 127) GTEST_SKIP() << "python3-torch is not installed";
    ASSERT_EQ(status_, 0) << output_;
  }

  static NamedTensors read(const std::string& name) { return read_pt(*scratch_ / (name + ".pt")); }
  static std::string error_of(const std::string& name) {
    const auto message = message_of<SnapshotError>([&] { read(name); });
    EXPECT_THAT(message, HasSubstr((*scratch_ / (name + ".pt")).string()));
    EXPECT_THAT(message, HasSubstr("hint: "));
    return message;
  }

  static inline std::unique_ptr<ScratchFolder> scratch_;
  static inline NamedTensors model_;
  static inline std::string output_;
  static inline int status_ = -1;
};

TEST_F(PtWithPython, OpensWhatWasWrittenAndWritesTheSame) {
  const auto resaved = read("resaved");
  expect_same(resaved, all_sorts());
}

TEST_F(PtWithPython, LoadsAModelStrictlyAndGivesItBack) {
  const auto twin = read("twin");
  ASSERT_EQ(twin.size(), model_.size());
  const std::map<std::string, at::Tensor> ours(model_.begin(), model_.end());
  for (const auto& [name, tensor] : twin) EXPECT_TRUE(same(tensor, ours.at(name))) << name;
}

TEST_F(PtWithPython, ReadsEveryFormOfAStateDict) {
  for (const auto* name : {"plain", "dict", "parameters", "protocol3", "protocol4", "protocol5", "attribute",
                           "rezipped", "wrapped", "one_under_two_keys"}) {
    SCOPED_TRACE(name);
    const auto tensors = read(name);
    expect_same(tensors, plain());
    for (const auto& [key, tensor] : tensors) EXPECT_FALSE(tensor.requires_grad());
  }
}

TEST_F(PtWithPython, KeepsPrefixesUntilToldOtherwise) {
  EXPECT_EQ(read("ddp").front().first, "module.weight");
  expect_same(strip_prefix(read("ddp"), "module."), plain());
  expect_same(strip_prefix(plain(), "module."), plain());
}

TEST_F(PtWithPython, KeepsViewsAndWhatTheyShare) {
  const auto views = read("views");
  const auto base = torch::arange(24, at::kFloat).view({4, 6});
  expect_same(views, {{"base", base},
                      {"transposed", base.t()},
                      {"row", base[2]},
                      {"corner", base.slice(0, 1, 3).slice(1, 2, 4)},
                      {"every third", base.slice(1, 0, 6, 3)},
                      {"empty", base.slice(1, 0, 0)}});
  views[0].second.zero_();
  EXPECT_EQ(views[3].second.abs().sum().item<float>(), 0);
}

TEST_F(PtWithPython, SaysWhatIsThereWhenNoStateDictIs) {
  EXPECT_THAT(error_of("two"),
              HasSubstr("several state dicts: \"model\": a state dict of 2, \"ema\": a state "
                        "dict of 2, \"epoch\": an int"));
  EXPECT_THAT(error_of("none"), HasSubstr("no state dict: \"optimizer\": a dict of 2, \"epoch\": an int"));
  EXPECT_THAT(error_of("tensor"), HasSubstr("it holds a tensor"));
  EXPECT_THAT(error_of("list"), HasSubstr("it holds a list of 1"));
  EXPECT_THAT(error_of("script"), HasSubstr("TorchScript"));
}

TEST_F(PtWithPython, SaysHowToSaveAgainWhatItCannotRead) {
  const auto legacy = error_of("legacy");
  EXPECT_THAT(legacy, HasSubstr("before 1.6"));
  EXPECT_THAT(legacy, HasSubstr("torch.save(torch.load("));
  EXPECT_THAT(error_of("deflated"), HasSubstr("compressed"));
  EXPECT_THAT(error_of("expanded"), HasSubstr("expanded from 1 elements to 1000"));
  EXPECT_THAT(error_of("module"), HasSubstr("__main__.Twin"));
  EXPECT_THAT(error_of("sparse"), HasSubstr("_rebuild_sparse_tensor"));
  EXPECT_THAT(error_of("quantized"), HasSubstr("_rebuild_qtensor"));
}

TEST_F(PtWithPython, RunsNothing) {
  const auto message = error_of("evil");
  EXPECT_THAT(message, HasSubstr("posix.system"));
  EXPECT_FALSE(fs::exists(*scratch_ / "evil_was_here"));
}

// Writing

TEST(Pt, ReadsBackWhatItWrote) {
  const ScratchFolder scratch;
  write_pt(scratch / "a.pt", all_sorts());
  expect_same(read_pt(scratch / "a.pt"), all_sorts());
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("a.pt"));
}

TEST(Pt, WritesSharedMemoryOnce) {
  const ScratchFolder scratch;
  const auto big = torch::rand({64, 1024});
  write_pt(scratch / "a.pt", {{"a", big}, {"b", big}, {"half", big.slice(0, 32)}, {"turned", big.t()}});
  EXPECT_LT(fs::file_size(scratch / "a.pt"), big.nbytes() + 4096);
  const auto read = read_pt(scratch / "a.pt");
  expect_same(read, {{"a", big}, {"b", big}, {"half", big.slice(0, 32)}, {"turned", big.t()}});
  read[0].second.zero_();
  for (const auto& [name, tensor] : read) EXPECT_EQ(tensor.abs().sum().item<float>(), 0) << name;
}

TEST(Pt, WritesOnlyTheUsedPartOfALargeBuffer) {
  const ScratchFolder scratch;
  const auto buffer = torch::arange(1 << 20, at::kFloat);
  const NamedTensors parts = {{"end", buffer.slice(0, (1 << 20) - 4)},
                              {"begin", buffer.slice(0, 0, 4)},
                              {"bits", buffer.slice(0, 8, 10).view(at::kInt)}};
  write_pt(scratch / "a.pt", parts);
  EXPECT_LT(fs::file_size(scratch / "a.pt"), 4096u);
  expect_same(read_pt(scratch / "a.pt"), parts);
}

TEST(Pt, AlignsTheDataAsTorchSaveDoes) {
  const ScratchFolder scratch;
  write_pt(scratch / "a.pt", all_sorts());
  caffe2::serialize::PyTorchStreamReader zip((scratch / "a.pt").string());
  EXPECT_TRUE(zip.hasRecord("version"));
  for (const auto* record : {"data.pkl", "data/0", "data/7", "data/13"}) {
    EXPECT_EQ(zip.getRecordOffset(record) % 64, 0u) << record;
  }
}

TEST(Pt, RefusesTensorsThatAStateDictCannotHold) {
  const ScratchFolder scratch;
  const auto write = [&](const NamedTensors& tensors) {
    return message_of<UsageError>([&] { write_pt(scratch / "a.pt", tensors); });
  };
  EXPECT_THAT(write({{"x", at::Tensor()}}), HasSubstr("'x' is undefined"));
  EXPECT_THAT(write({{"x", torch::eye(2).to_sparse()}}), HasSubstr("'x' is not a dense"));
  EXPECT_THAT(write({{"x", torch::empty({2}, at::kMeta)}}), HasSubstr("'x' is not a dense"));
  EXPECT_THAT(write({{"x", torch::ones(1)}, {"x", torch::ones(1)}}), HasSubstr("'x' appears twice"));
  EXPECT_THAT(write({{"\xff\xfe", torch::ones(1)}}), HasSubstr("not UTF-8"));
  EXPECT_TRUE(names_in(scratch.path()).empty());
}

TEST(Pt, SaysWhyAFileCannotBeWritten) {
  const ScratchFolder scratch;
  EXPECT_THAT(message_of<SnapshotError>([&] { write_pt(scratch / "no/such/a.pt", plain()); }),
              HasSubstr("No such file or directory"));
  fs::create_directory(scratch / "folder");
  EXPECT_THAT(message_of<SnapshotError>([&] { write_pt(scratch / "folder", plain()); }),
              HasSubstr("Is a directory"));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("folder"));
}

TEST(Pt, LeavesTheOldFileWhenTheNewOneCannotBeFinished) {
  const ScratchFolder scratch;
  write_pt(scratch / "a.pt", plain());
  lockstep::testing::expect_success(lockstep::testing::start_ranks(1, [&](int) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{5000, 5000};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_THAT(message_of<SnapshotError>([&] {
                  write_pt(scratch / "a.pt", {{"x", torch::ones(10000)}});
                }),
                HasSubstr("File too large"));
  }));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("a.pt"));
  expect_same(read_pt(scratch / "a.pt"), plain());
}

// Invalid files

TEST(Pt, RefusesWhatIsNoFileOfTorchSave) {
  const ScratchFolder scratch;
  const auto error_of = [&](const std::string& name) {
    return message_of<SnapshotError>([&] { read_pt(scratch / name); });
  };
  EXPECT_THAT(error_of("missing.pt"), HasSubstr("No such file"));
  EXPECT_THAT(error_of("."), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of("pipe"), HasSubstr("not a regular file"));
  put_bytes(scratch / "empty", "");
  EXPECT_THAT(error_of("empty"), HasSubstr("not a zip"));
  put_bytes(scratch / "text", "hello, world\n");
  EXPECT_THAT(error_of("text"), HasSubstr("not a zip"));
  put_bytes(scratch / "zeros", std::string(100'000, '\0'));
  EXPECT_THAT(error_of("zeros"), HasSubstr("not a zip"));
  put_bytes(scratch / "empty.zip", "PK\5\6" + std::string(18, '\0'));
  EXPECT_THAT(error_of("empty.zip"), HasSubstr("not one of torch.save"));
}

TEST(Pt, NoticesACutAtEveryByte) {
  const ScratchFolder scratch;
  write_pt(scratch / "a.pt", plain());
  const auto whole = bytes_in(scratch / "a.pt");
  for (size_t size = 0; size < whole.size(); ++size) {
    put_bytes(scratch / "cut.pt", whole.substr(0, size));
    EXPECT_THROW(read_pt(scratch / "cut.pt"), SnapshotError) << size << " of " << whole.size() << " bytes";
  }
}

TEST(Pt, NeverReadsOtherValuesFromADamagedFile) {
  const ScratchFolder scratch;
  write_pt(scratch / "a.pt", plain());
  const auto whole = bytes_in(scratch / "a.pt");
  size_t refused = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    auto damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i * 5 % 8)));
    put_bytes(scratch / "damaged.pt", damaged);
    try {
      expect_same(read_pt(scratch / "damaged.pt"), plain());  // an unused byte was changed
    } catch (const SnapshotError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500u);
}

// A zip as torch.save writes it, with valid checksums and any contents.
using Records = std::vector<std::pair<std::string, std::string>>;
void write_zip(const fs::path& path, const Records& records) {
  std::string bytes;
  {
    caffe2::serialize::PyTorchStreamWriter zip([&](const void* data, size_t count) {
      bytes.append(static_cast<const char*>(data), count);
      return count;
    });
    for (const auto& [name, data] : records) zip.writeRecord(name, data.data(), data.size());
    zip.writeEndOfFile();
  }
  put_bytes(path, bytes);
}

// Describes a tensor in a storage of four floats.
struct Described {
  std::string storage = "FloatStorage", key = "0";
  int64_t count = 4, offset = 0;
  std::vector<int64_t> sizes = {4}, strides = {1};
};
std::string pickle_of_all(const std::vector<std::pair<std::string, Described>>& all) {
  PickleWriter out;
  out.global("collections", "OrderedDict");
  out.empty_tuple();
  out.call();
  out.mark();
  for (const auto& [name, described] : all) {
    out.text(name);
    out.global("torch._utils", "_rebuild_tensor_v2");
    out.mark();
    out.mark();
    out.text("storage");
    out.global("torch", described.storage);
    out.text(described.key);
    out.text("cpu");
    out.integer(described.count);
    out.tuple();
    out.persistent();
    out.integer(described.offset);
    out.integers(described.sizes);
    out.integers(described.strides);
    out.no();
    out.no();
    out.tuple();
    out.call();
  }
  out.set_items();
  return std::move(out).finish();
}

std::string pickle_of(const Described& described) { return pickle_of_all({{"x", described}}); }

TEST(Pt, RefusesTensorsThatReachOutsideOfTheirStorage) {
  const ScratchFolder scratch;
  const auto read = [&](const Described& described) {
    write_zip(scratch / "a.pt", {{"data.pkl", pickle_of(described)}, {"data/0", std::string(16, '\1')}});
    return read_pt(scratch / "a.pt");
  };
  EXPECT_EQ(read({}).size(), 1u);
  EXPECT_EQ(read({.offset = 1, .sizes = {3}}).front().second.numel(), 3);
  EXPECT_EQ(read({.offset = 4, .sizes = {0}}).front().second.numel(), 0);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const std::vector<Described> wrong = {
      {.count = 5},
      {.count = 3},
      {.count = -1},
      {.count = kHuge},
      {.storage = "DoubleStorage"},
      {.storage = "NoStorage"},
      {.storage = "BoolStorage", .count = 4},
      {.key = "1"},
      {.key = "../data.pkl"},
      {.offset = 1},
      {.offset = -1},
      {.offset = kHuge},
      {.offset = 5, .sizes = {0}},
      {.sizes = {5}},
      {.sizes = {-4}},
      {.sizes = {4, 4}},
      {.sizes = {2, 2}, .strides = {3, 1}},
      {.sizes = {4}, .strides = {-1}},
      {.sizes = {4}, .strides = {kHuge}},
      {.sizes = {1 << 30, 1 << 30, 1 << 30}, .strides = {0, 0, 0}},
      {.sizes = {kHuge}, .strides = {0}},
      {.sizes = {8}, .strides = {0}},
      {.sizes = std::vector<int64_t>(100, 1), .strides = std::vector<int64_t>(100, 1)},
  };
  for (size_t i = 0; i < wrong.size(); ++i) EXPECT_THROW(read(wrong[i]), SnapshotError) << "case " << i;
}

TEST(Pt, RefusesBoolsOfAnotherValue) {
  const ScratchFolder scratch;
  write_zip(scratch / "a.pt",
            {{"data.pkl", pickle_of({.storage = "BoolStorage"})}, {"data/0", {"\1\0\2\1", 4}}});
  EXPECT_THAT(message_of<SnapshotError>([&] { read_pt(scratch / "a.pt"); }),
              HasSubstr("neither true nor false"));
}

TEST(Pt, RefusesNumbersOfTheOtherEndianness) {
  const ScratchFolder scratch;
  write_zip(scratch / "a.pt",
            {{"data.pkl", pickle_of({})}, {"byteorder", "big"}, {"data/0", std::string(16, '\1')}});
  EXPECT_THAT(message_of<SnapshotError>([&] { read_pt(scratch / "a.pt"); }), HasSubstr("little-endian"));
}

// A small file must not expand to a huge one.
TEST(Pt, ManyNamesOfOneTensorAreStoredOnce) {
  const ScratchFolder scratch;
  std::vector<std::pair<std::string, Described>> names;
  for (int i = 0; i < 300; ++i)
    names.emplace_back(fmt::format("n{}", i), Described{.count = 4096, .sizes = {4096}});
  write_zip(scratch / "a.pt", {{"data.pkl", pickle_of_all(names)}, {"data/0", std::string(4 * 4096, '\1')}});
  const auto tensors = read_pt(scratch / "a.pt");
  ASSERT_EQ(tensors.size(), 300u);
  const auto document = import_model(tensors);
  EXPECT_EQ(document.tensors.size(), 1u);
  write_file(document, scratch / "a.safetensors");
  EXPECT_LT(fs::file_size(scratch / "a.safetensors"), 2 * fs::file_size(scratch / "a.pt"));
  EXPECT_EQ(model_in(read_file(scratch / "a.safetensors"), "").size(), 300u);
}

TEST(Pt, RefusesTensorsThatLieOverEachOtherWithoutEnd) {
  const ScratchFolder scratch;
  std::vector<std::pair<std::string, Described>> names;
  for (int64_t i = 0; i < 300; ++i) {
    names.emplace_back(fmt::format("n{}", i), Described{.count = 4096, .sizes = {4096 - i}});
  }
  write_zip(scratch / "a.pt", {{"data.pkl", pickle_of_all(names)}, {"data/0", std::string(4 * 4096, '\1')}});
  EXPECT_THAT(message_of<SnapshotError>([&] { read_pt(scratch / "a.pt"); }),
              HasSubstr("the tensors overlap too much"));
}

// Any pickle yields data or an error; the sanitizers detect the rest.
TEST(Pt, SurvivesAnyChangeOfThePickle) {
  const ScratchFolder scratch;
  const auto valid = pickle_of({});
  std::mt19937 random(7);
  for (int i = 0; i < 1500; ++i) {
    auto changed = valid;
    for (int change = 0; change < 1 + i % 3; ++change) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    write_zip(scratch / "a.pt", {{"data.pkl", changed}, {"data/0", std::string(16, '\1')}});
    try {
      for (const auto& [name, tensor] : read_pt(scratch / "a.pt")) EXPECT_LE(tensor.numel(), 4);
    } catch (const SnapshotError&) {
    }
  }
}

TEST(Pickle, SurvivesAnyBytes) {
  // Only opcodes, so that more of the pickle is executed.
  const std::string opcodes =
      "(.012NJKMGXUTBC)tle]a}dsucRbQhjqr\x85\x86\x87\x88\x89\x81\x8a\x8c\x8f\x90\x91\x92\x93\x94";
  std::mt19937 random(11);
  size_t finished = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string program;
    for (size_t length = random() % 40; length > 0; --length) {
      program += random() % 8 == 0 ? static_cast<char>(random() % 4) : opcodes[random() % opcodes.size()];
    }
    try {
      const Pickle pickle(program, [](std::string_view) { return true; });
      ++finished;
    } catch (const PickleError&) {
    }
  }
  EXPECT_GT(finished, 100u);
}

std::string pickle_error(const std::string& program) {
  return message_of<PickleError>(
      [&] { const Pickle pickle(program, [](std::string_view) { return true; }); });
}

TEST(Pickle, SaysWhatIsWrong) {
  using namespace std::string_literals;
  EXPECT_THAT(pickle_error(""), HasSubstr("ends too early"));
  EXPECT_THAT(pickle_error("\x80\x02"), HasSubstr("ends too early"));
  EXPECT_THAT(pickle_error("."), HasSubstr("too little on its stack"));
  EXPECT_THAT(pickle_error("t."), HasSubstr("no mark"));
  EXPECT_THAT(pickle_error("N(\x85."),
              HasSubstr("too little on its stack"));  // values below a mark are not accessible
  EXPECT_THAT(pickle_error("X\xff\xff\xff\xff"
                           "abc"s),
              HasSubstr("ends too early"));
  EXPECT_THAT(pickle_error("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                           "abc"s),
              HasSubstr("ends too early"));
  EXPECT_THAT(pickle_error("h\5."), HasSubstr("reference to nothing"));
  EXPECT_THAT(pickle_error("}(Nu."), HasSubstr("key without a value"));
  EXPECT_THAT(pickle_error("]NNs."), HasSubstr("cannot hold them"));
  EXPECT_THAT(pickle_error("N)R."), HasSubstr("call of something else"));
  EXPECT_THAT(pickle_error("NQ."), HasSubstr("not a tuple"));
  EXPECT_THAT(pickle_error("\xfe."), HasSubstr("0xfe"));
  EXPECT_THAT(pickle_error("ccollections\nOrderedDict\n]\x85R."), HasSubstr("Python 2"));
}

TEST(Pickle, AsksBeforeItTakesAGlobal) {
  std::vector<std::string> asked;
  const auto refuse = [&](std::string_view name) {
    asked.emplace_back(name);
    return false;
  };
  for (const std::string program : {"cos\nsystem\n.", "\x8c\x02os\x8c\x06system\x93."}) {
    EXPECT_THAT(message_of<PickleError>([&] { const Pickle pickle(program, refuse); }),
                HasSubstr("os.system"));
  }
  EXPECT_THAT(asked, ElementsAre("os.system", "os.system"));
}

TEST(Pickle, BearsValuesThatHoldThemselves) {
  const Pickle list("]q\1h\1a.", [](std::string_view) { return false; });
  EXPECT_EQ(list.root().items.front(), &list.root());
  const Pickle dict("}q\1Nh\1s.", [](std::string_view) { return false; });
  EXPECT_EQ(dict.root().items.back(), &dict.root());
}

TEST(Pickle, ReadsIntegersOfEveryForm) {
  using namespace std::string_literals;
  const Pickle pickle("(K\xffM\xff\xffJ\xff\xff\xff\xff\x8a\x00\x8a\x01\x80\x8a\x05\x00\x00\x00\x00\x01t."s,
                      [](std::string_view) { return false; });
  std::vector<int64_t> values;
  for (const auto* item : pickle.root().items) values.push_back(item->integer);
  EXPECT_THAT(values, ElementsAre(255, 65535, -1, 0, -128, int64_t{1} << 32));
}

// Large counts take no memory, because many values may refer to one tuple.
TEST(Pickle, TakesNoMoreMemoryThanItsBytesJustify) {
  std::string program =
      "cx\ny\nq\1"
      "0(" +
      std::string(100'000, 'N') +
      "tq\2"
      "0(";
  for (int i = 0; i < 100'000; ++i) program += "h\1h\2R";
  const Pickle pickle(program + "t.", [](std::string_view) { return true; });
  EXPECT_EQ(pickle.root().items.size(), 100'000u);
  EXPECT_EQ(pickle.root().items[0]->tuple, pickle.root().items[1]->tuple);

  // Each takes one byte in the file, and a hundred in memory.
  EXPECT_THAT(pickle_error("N" + std::string(1'000'000, '\x94') + "."),
              HasSubstr("more references than values"));
  EXPECT_THAT(pickle_error("(" + std::string(1'000'000, ']') + "t."), HasSubstr("too many values"));
  EXPECT_THAT(pickle_error("c" + std::string(2000, 'm') + "\nx\n."), HasSubstr("very long name"));
  std::string integers = "(";
  for (int i = 0; i < 1'000'000; ++i) integers += "K\5";
  const Pickle small(integers + "t.", [](std::string_view) { return true; });
  EXPECT_EQ(small.root().items.size(), 1'000'000u);
  EXPECT_EQ(small.root().items[0], small.root().items[1]) << "small integers are shared";
}

}  // namespace
}  // namespace lockstep::snapshot
