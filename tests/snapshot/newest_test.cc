// Which snapshot is resumed from if files are damaged, unreadable, or removed at the same time.
#include "snapshot/newest.h"

#include <cerrno>
#include <cstdarg>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <lockstep/error.h>

#include "snapshot/background_task.h"
#include "snapshot/file_writer.h"
#include "snapshot/scratch.h"
#include "snapshot/stored_file.h"
#include "support/message_of.h"

namespace {

// A fault while a snapshot is read. The functions with C linkage below replace the system calls.
struct ReadFault {
  std::string call;                // "open" or "read"
  std::string path = {};           // applies to an open whose path ends with this
  int error = 0;                   // the errno to set, if any
  int times = 1'000'000;           // how often it occurs
  std::function<void()> before{};  // runs once, before the call
};

ReadFault read_fault;

// True if the call must fail.
bool meets_fault(const char* call, std::string_view path) {
  if (read_fault.call != call || !path.ends_with(read_fault.path)) return false;
  if (const auto before = std::exchange(read_fault.before, {})) before();
  errno = read_fault.error;
  return read_fault.error != 0 && read_fault.times-- > 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (meets_fault("open", path)) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
ssize_t read(int fd, void* bytes, size_t count) {
  if (meets_fault("read", "")) return -1;
  return ::syscall(SYS_read, fd, bytes, count);
}

}  // extern "C"

namespace {

namespace fs = std::filesystem;
using lockstep::SnapshotError;
using lockstep::SystemError;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace lockstep::snapshot;
using namespace lockstep::testing;

class NewestSnapshot : public ::testing::Test {
 protected:
  NewestSnapshot() { directory.lock(); }
  ~NewestSnapshot() override { read_fault = {}; }

  fs::path save(int64_t mark) {
    const auto path = directory.next();
    write_file(small_document(mark), path);
    return path;
  }
  // The mark of the newest snapshot; 0 if there is none.
  int64_t newest() const {
    const auto document = read_newest(directory);
    return document ? document->about.at("mark").get<int64_t>() : 0;
  }

  ScratchFolder folder;
  Directory directory{folder.path()};
};

TEST_F(NewestSnapshot, IsNothingInAnEmptyDirectory) {
  EXPECT_FALSE(read_newest(directory));
  EXPECT_FALSE(read_newest(Directory(folder / "not there")));
  EXPECT_FALSE(with_newest(directory, [](const fs::path&) { FAIL(); }));
}

TEST_F(NewestSnapshot, IsTheNewestThatIsWhole) {
  save(1);
  save(2);
  const auto flipped = save(3), cut = save(4), foreign = save(5);
  auto bytes = bytes_in(flipped);
  const auto version = bytes.find(R"("format_version":"1")") + 18;
  bytes[version] ^= 2;  // a version that does not exist
  put_bytes(flipped, bytes);
  fs::resize_file(cut, 1000);
  put_bytes(foreign, "something else");
  EXPECT_EQ(newest(), 2);
}

TEST_F(NewestSnapshot, OfANewerFormatIsNotPassedOver) {
  save(1);
  const auto path = save(2);
  put_bytes(path, with_version(bytes_in(path), "7"));
  EXPECT_THAT(message_of<SnapshotError>([&] { newest(); }),
              AllOf(HasSubstr(path.string()), HasSubstr("format version 7"), HasSubstr("move this one")));
}

// The file may be intact. Falling back would lose its steps, and then the file itself when old snapshots are
// removed.
TEST_F(NewestSnapshot, ThatCannotBeReadJustNowIsAnErrorAndNotPassedOver) {
  save(1);
  const auto path = save(2);
  for (const char* call : {"open", "read"}) {
    for (const int error : {EMFILE, EIO, ESTALE, EACCES, ENOMEM, ENFILE}) {
      read_fault = {
          .call = call, .path = call == std::string("open") ? "00000002.safetensors" : "", .error = error};
      EXPECT_THAT(
          message_of<SnapshotError>([&] { newest(); }),
          AllOf(HasSubstr(path.string()), HasSubstr(fmt::format("errno {}", error)), HasSubstr("hint: "),
                HasSubstr("to continue from an older snapshot, move this one elsewhere")))
          << call;
      read_fault = {};
      EXPECT_EQ(newest(), 2);
    }
  }
}

// A user who expects to resume must not start over without an error.
TEST_F(NewestSnapshot, ThatIsNoFileIsAnErrorAndNotANewBeginning) {
  const auto path = directory.next();
  const auto refusal = [&] {
    const auto message = message_of<SnapshotError>([&] { newest(); });
    EXPECT_THAT(message, AllOf(HasSubstr(path.string()), HasSubstr("hint: ")));
    return message;
  };
  fs::create_directory(path);
  EXPECT_THAT(refusal(), HasSubstr("not a regular file but a directory"));
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // without a process at the other end
  EXPECT_THAT(refusal(), HasSubstr("not a regular file but a named pipe"));
  fs::remove(path);
  fs::create_symlink("nowhere", path);
  EXPECT_THAT(refusal(), HasSubstr("a link to a file that is not there"));
  fs::remove(path);
  fs::create_symlink(path.filename(), path);
  EXPECT_THAT(refusal(), HasSubstr("errno 40"));
  EXPECT_GT(save(2), path);
  EXPECT_EQ(newest(), 2) << "older files are not opened";
}

TEST_F(NewestSnapshot, IsLookedForAgainWhenItsWriterRemovesIt) {
  const auto first = save(1);
  const auto prune = [&] {
    save(2);
    directory.remove_old(1);
  };
  read_fault = {.call = "open", .path = "00000001.safetensors", .before = prune};
  EXPECT_EQ(newest(), 2);
  EXPECT_FALSE(fs::exists(first));

  read_fault = {.call = "open", .path = "00000002.safetensors", .before = [&] {
                  save(3);
                  directory.remove_old(1);
                }};
  int64_t shown = 0;
  EXPECT_TRUE(with_newest(
      directory, [&](const fs::path& path) { shown = read_summary(path).about.at("mark").get<int64_t>(); }));
  EXPECT_EQ(shown, 3);
}

// A file server may report a removed file only when it is read.
TEST_F(NewestSnapshot, IsLookedForAgainWhenItIsRemovedWhileItIsRead) {
  save(1);
  read_fault = {.call = "read", .error = ESTALE, .times = 1, .before = [&] {
                  save(2);
                  directory.remove_old(1);
                }};
  EXPECT_EQ(newest(), 2);
}

TEST_F(NewestSnapshot, IsAlwaysFoundBesideAWriterThatKeepsOne) {
  save(1);
  const pid_t reader = ::fork();
  ASSERT_GE(reader, 0);
  if (reader == 0) {
    ::alarm(60);
    int status = 0;
    try {
      for (int64_t last = 1; last < 200;) {
        const auto mark = newest();
        if (mark < last) throw std::runtime_error(fmt::format("{} after {}", mark, last));
        last = mark;
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      status = 1;
    }
    ::_exit(status);
  }
  int64_t mark = 1;
  for (; mark < 200; ++mark) {
    save(mark + 1);
    directory.remove_old(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(reader, &status, 0), reader);
  EXPECT_TRUE(exited_with(status, 0));
}

TEST(BackgroundTask, ThatCannotBeginHasFailed) {
  struct Uncopied {
    Uncopied() = default;
    Uncopied(const Uncopied&) { throw std::runtime_error("no memory"); }
    void operator()() const {}
  };
  for (const bool preparing : {false, true}) {
    auto task = BackgroundTask::start([&] {
      if (preparing) throw std::runtime_error("no memory");
      return Uncopied();
    });
    EXPECT_TRUE(task.pending());
    EXPECT_TRUE(task.done_within(std::chrono::milliseconds(0)));
    EXPECT_THAT(message_of<std::runtime_error>([&] { task.get(); }), HasSubstr("no memory"));
    EXPECT_FALSE(task.pending());
  }
  auto no_thread = BackgroundTask::start(
      []() -> std::function<void()> { throw std::system_error(EAGAIN, std::generic_category()); });
  EXPECT_THAT(message_of<SystemError>([&] { no_thread.get(); }),
              AllOf(HasSubstr("rank 0"), HasSubstr("thread"), HasSubstr("hint: ")));
}

}  // namespace
