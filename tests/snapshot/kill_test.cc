// Writers that are killed at any byte and any system call, that run out of disk space, or whose system calls
// fail.
//
// In all cases, the previous snapshot remains the newest intact one, and the next writer continues.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <random>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <lockstep/error.h>

#include "snapshot/directory.h"
#include "snapshot/file_reader.h"
#include "snapshot/file_writer.h"
#include "snapshot/scratch.h"
#include "support/message_of.h"

namespace {

// A fault in a system call of the writer. The functions with C linkage below replace these calls.
struct Fault {
  enum class Kind { None, KillBefore, KillAfter, Fail };
  Kind kind = Kind::None;
  int at = -1;             // the index of the call
  const char* call = "";   // or the name: applies to all its calls
  int error = 0;           // the errno that Fail sets
  size_t most = SIZE_MAX;  // the limit on the bytes of one write
};

Fault fault;
bool counting = false;
bool syncing = true;
std::vector<std::string> calls;

template <class Call>
auto pass(const char* name, const Call& call) -> decltype(call()) {
  if (!counting) return call();
  const bool here = fault.at == static_cast<int>(calls.size()) || std::string_view(fault.call) == name;
  calls.emplace_back(name);
  if (here && fault.kind == Fault::Kind::KillBefore) ::raise(SIGKILL);
  if (here && fault.kind == Fault::Kind::Fail) {
    errno = fault.error;
    return -1;
  }
  const auto result = call();
  if (here && fault.kind == Fault::Kind::KillAfter) ::raise(SIGKILL);
  return result;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t count) {
  return pass("write", [&] { return ::syscall(SYS_write, fd, bytes, std::min(count, fault.most)); });
}
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  return pass("pwrite",
              [&] { return ::syscall(SYS_pwrite64, fd, bytes, std::min(count, fault.most), offset); });
}
int fallocate(int fd, int mode, off_t offset, off_t count) {
  return pass("fallocate",
              [&] { return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, count)); });
}
int fsync(int fd) {
  return pass("fsync", [&] { return syncing ? static_cast<int>(::syscall(SYS_fsync, fd)) : 0; });
}
int renameat(int from_fd, const char* from, int to_fd, const char* to) noexcept {
  return pass("renameat",
              [&] { return static_cast<int>(::syscall(SYS_renameat2, from_fd, from, to_fd, to, 0)); });
}

}  // extern "C"

namespace {

namespace fs = std::filesystem;
using lockstep::SnapshotError;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace lockstep::snapshot;
using namespace lockstep::testing;

// Writes with a fault. Returns the system calls that were made.
std::vector<std::string> write_with(const Fault& chosen, const Document& document, const fs::path& path,
                                    const WriteProgress& progress = {}) {
  fault = chosen;
  calls.clear();
  calls.reserve(1000);
  counting = true;
  try {
    write_file(document, path, progress);
  } catch (...) {
    counting = false;
    throw;
  }
  counting = false;
  return calls;
}

class KilledWriter : public ::testing::Test {
 protected:
  KilledWriter() {
    // Sync is not needed: the kernel keeps what a killed process has written. Only a power failure would lose
    // it.
    syncing = false;
    write_file(small_document(0), Directory(folder.path()).next());
  }
  ~KilledWriter() override { syncing = true; }

  // Kills a writer of the next snapshot, and lets another one continue. Returns true if the snapshot of the
  // killed one exists.
  bool survive(const std::function<void(const Document&, const fs::path&)>& killed, int signal) {
    ++mark;
    const auto next = Directory(folder.path()).next();
    const int status = in_child([&] {
      Directory directory(folder.path());
      directory.lock();
      killed(small_document(mark), next);
    });
    EXPECT_TRUE(killed_by(status, signal)) << "status " << status;

    const bool there = fs::exists(next);
    const auto newest = Directory(folder.path()).list().back();
    if (there) last_mark = mark;
    expect_same(read_file(newest.path), small_document(last_mark));

    Directory directory(folder.path());
    directory.lock();
    write_file(small_document(++mark), directory.next());
    last_mark = mark;
    directory.remove_old(1);
    expect_same(read_file(directory.list().back().path), small_document(mark));
    EXPECT_EQ(files_in(folder.path()), 2) << "the snapshot and the lock";
    return there;
  }

  ScratchFolder folder;
  int64_t mark = 0, last_mark = 0;
};

// With a limit on the file size, the kernel kills the writer at exactly this byte.
void write_up_to(uint64_t bytes, const Document& document, const fs::path& path) {
  const rlimit limit = {bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  // Some file systems apply the limit to the reserved space as well, which kills the writer before the first
  // byte.
  write_with({.kind = Fault::Kind::Fail, .call = "fallocate", .error = EOPNOTSUPP, .most = 1500}, document,
             path);
}

TEST_F(KilledWriter, AtAnyByteLeavesTheSnapshotBefore) {
  const auto size = fs::file_size(Directory(folder.path()).list().back().path);
  std::vector<uint64_t> points = {0, 1, 7, 8, 9, 63, 64, 65, 1499, 1500, 1501, size - 2, size - 1};
  std::mt19937_64 random(11);
  while (points.size() < 213) points.push_back(random() % size);
  for (const auto point : points) {
    SCOPED_TRACE(fmt::format("killed at byte {} of {}", point, size));
    const auto killed = [&](const Document& document, const fs::path& path) {
      write_up_to(point, document, path);
    };
    EXPECT_FALSE(survive(killed, SIGXFSZ));
    if (HasFailure()) return;
  }
}

TEST_F(KilledWriter, AtAnySystemCallLeavesOneThatIsWhole) {
  const auto scratch = folder / "snapshot-00000000.safetensors";
  const auto all_calls = write_with({.most = 1500}, small_document(mark), scratch);
  fs::remove(scratch);
  const auto rename = std::find(all_calls.begin(), all_calls.end(), "renameat") - all_calls.begin();
  EXPECT_THAT(all_calls, AllOf(Contains("fallocate"), Contains("write"), Contains("pwrite")));
  EXPECT_EQ(all_calls.at(static_cast<size_t>(rename) - 1), "fsync")
      << "the bytes are synced before the rename";
  EXPECT_EQ(all_calls.back(), "fsync") << "and the directory after it";

  for (int i = 0; i < static_cast<int>(all_calls.size()); ++i) {
    for (const auto kind : {Fault::Kind::KillBefore, Fault::Kind::KillAfter}) {
      const bool after = kind == Fault::Kind::KillAfter;
      SCOPED_TRACE(
          fmt::format("{} {} ({})", after ? "after" : "before", i, all_calls[static_cast<size_t>(i)]));
      const auto killed = [&](const Document& document, const fs::path& path) {
        write_with({.kind = kind, .at = i, .most = 1500}, document, path);
      };
      EXPECT_EQ(survive(killed, SIGKILL), i > rename || (i == rename && after));
    }
  }
}

TEST_F(KilledWriter, FromItsProgressLeavesTheSnapshotBefore) {
  const auto killed = [&](const Document& document, const fs::path& path) {
    write_file(document, path, [](uint64_t done, uint64_t all) {
      if (done == all) ::raise(SIGKILL);
    });
  };
  EXPECT_FALSE(survive(killed, SIGKILL));
}

class FailingWriter : public ::testing::Test {
 protected:
  FailingWriter() { write_file(small_document(1), path); }

  void expect_untouched() const {
    expect_same(read_file(path), small_document(1));
    EXPECT_EQ(files_in(folder.path()), 1);
  }

  ScratchFolder folder;
  fs::path path = folder / "a.safetensors";
};

TEST_F(FailingWriter, NamesTheFailureAndLeavesNothing) {
  for (const auto& [call, error] : std::vector<std::pair<const char*, int>>{{"fallocate", ENOSPC},
                                                                            {"fallocate", EDQUOT},
                                                                            {"write", ENOSPC},
                                                                            {"write", EDQUOT},
                                                                            {"write", EIO},
                                                                            {"write", EFBIG},
                                                                            {"pwrite", EIO},
                                                                            {"fsync", EIO},
                                                                            {"fsync", ENOSPC},
                                                                            {"renameat", EACCES},
                                                                            {"renameat", EROFS}}) {
    const Fault failing = {.kind = Fault::Kind::Fail, .call = call, .error = error};
    EXPECT_THAT(message_of<SnapshotError>([&] { write_with(failing, small_document(2), path); }),
                AllOf(HasSubstr(path.string()), HasSubstr(fmt::format("errno {}", error)),
                      HasSubstr("bytes free"), HasSubstr("hint: ")))
        << call;
    expect_untouched();
  }
}

TEST_F(FailingWriter, SaysHowFarItCame) {
  const Fault second_write = {.kind = Fault::Kind::Fail, .at = 2, .error = ENOSPC, .most = 1000};
  EXPECT_THAT(message_of<SnapshotError>([&] { write_with(second_write, small_document(2), path); }),
              AllOf(HasSubstr(fmt::format("1000 of {} bytes written", fs::file_size(path))),
                    HasSubstr("No space left on device"), HasSubstr("keep fewer snapshots")));
  expect_untouched();
}

TEST_F(FailingWriter, SaysWhenOnlyTheDirectoryCouldNotBeWritten) {
  const auto all_calls = write_with({}, small_document(1), path);
  const Fault last = {.kind = Fault::Kind::Fail, .at = static_cast<int>(all_calls.size()) - 1, .error = EIO};
  EXPECT_THAT(message_of<SnapshotError>([&] { write_with(last, small_document(2), path); }),
              HasSubstr("the directory of the snapshot"));
  expect_same(read_file(path), small_document(2));
}

TEST_F(FailingWriter, GoesOnAfterInterruptionsAndShortWrites) {
  const auto all_calls = write_with({.most = 7}, small_document(2), path);
  EXPECT_GT(all_calls.size(), 500);
  expect_same(read_file(path), small_document(2));
  for (const int i : {0, 1, 2, 3, 5}) {  // all calls but rename, which is never interrupted
    write_with({.kind = Fault::Kind::Fail, .at = i, .error = EINTR}, small_document(3 + i), path);
    expect_same(read_file(path), small_document(3 + i));
  }
}

TEST_F(FailingWriter, DoesWithoutReservedSpaceWhereThereIsNone) {
  for (const int error : {EOPNOTSUPP, ENOSYS, EINVAL}) {
    write_with({.kind = Fault::Kind::Fail, .call = "fallocate", .error = error}, small_document(error), path);
    expect_same(read_file(path), small_document(error));
  }
}

// Moves this process to a mount namespace of its own: directly as root, otherwise within a new user
// namespace.
bool has_own_mounts() {
  if (::unshare(CLONE_NEWNS) == 0) return true;
  const auto user = ::getuid();
  const auto group = ::getgid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  // Without the maps, files would have no valid owner and could not be created. The process may write them
  // only if it is dumpable.
  ::prctl(PR_SET_DUMPABLE, 1);
  const auto put = [](const char* file, const std::string& text) {
    return static_cast<bool>(std::ofstream(file) << text << std::flush);
  };
  return put("/proc/self/setgroups", "deny") && put("/proc/self/uid_map", fmt::format("0 {} 1", user)) &&
         put("/proc/self/gid_map", fmt::format("0 {} 1", group));
}

// Mounts a file system of this size at `path`, visible in this process only. False if that is not permitted.
bool mount_small(const fs::path& path, const char* options) {
  return has_own_mounts() && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", path.c_str(), "tmpfs", 0, options) == 0;
}

constexpr int kNotPermitted = 77;

TEST(FullDisk, LeavesTheSnapshotsBeforeAndSaysHowMuchIsFree) {
  const ScratchFolder folder;
  // Made before the fork: LibTorch fills it with several threads, which the child does not have.
  const Document large = {{{"x", at::ones({2'000'000}, at::kByte)}}, {}};
  const auto status = in_child([&] {
    if (!mount_small(folder.path(), "size=1m")) ::_exit(kNotPermitted);
    Directory directory(folder.path());
    directory.lock();
    write_file(small_document(1), directory.next());
    const auto next = directory.next();
    EXPECT_THAT(
        message_of<SnapshotError>([&] { write_file(large, next); }),
        AllOf(HasSubstr(next.string()), HasSubstr("cannot reserve the space"), HasSubstr("(0 of 2000"),
              HasSubstr("No space left on device"), HasSubstr("bytes free"), HasSubstr("keep fewer")));
    // Where space cannot be reserved, the error occurs during the writes.
    const Fault no_reserving = {.kind = Fault::Kind::Fail, .call = "fallocate", .error = EOPNOTSUPP};
    EXPECT_THAT(
        message_of<SnapshotError>([&] { write_with(no_reserving, large, next); }),
        AllOf(HasSubstr("No space left on device"), Not(HasSubstr("(0 of ")), HasSubstr("bytes written")));
    EXPECT_EQ(files_in(folder.path()), 2);
    expect_same(read_file(directory.list().back().path), small_document(1));
    write_file(small_document(2), directory.next());
    expect_same(read_file(directory.list().back().path), small_document(2));
  });
  if (exited_with(status, kNotPermitted)) GTEST_SKIP() << "mounts are not permitted here";
  EXPECT_TRUE(exited_with(status, 0));
}

TEST(ReadOnlyDisk, IsNamedAndCanBeRead) {
  const ScratchFolder folder;
  const auto status = in_child([&] {
    if (!mount_small(folder.path(), "size=1m")) ::_exit(kNotPermitted);
    write_file(small_document(1), Directory(folder.path()).next());
    if (::mount(nullptr, folder.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0)
      ::_exit(kNotPermitted);
    Directory directory(folder.path());
    EXPECT_THAT(message_of<SnapshotError>([&] { directory.lock(); }), HasSubstr("Read-only file system"));
    EXPECT_THAT(message_of<SnapshotError>([&] { write_file(small_document(2), directory.next()); }),
                AllOf(HasSubstr("Read-only file system"), HasSubstr("may write to")));
    expect_same(read_file(directory.list().at(0).path), small_document(1));
  });
  if (exited_with(status, kNotPermitted)) GTEST_SKIP() << "mounts are not permitted here";
  EXPECT_TRUE(exited_with(status, 0));
}

}  // namespace
