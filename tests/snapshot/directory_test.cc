// The directory of snapshots: which files it lists and removes, and who may write to it.
#include "snapshot/directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>

#include <lockstep/error.h>

#include "base/fd.h"
#include "base/host.h"
#include "snapshot/file_reader.h"
#include "snapshot/file_writer.h"
#include "snapshot/scratch.h"
#include "support/message_of.h"

namespace {

namespace fs = std::filesystem;
using lockstep::SnapshotError;
using lockstep::UsageError;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace lockstep::snapshot;
using namespace lockstep::testing;

std::vector<int64_t> numbers_in(const Directory& directory) {
  std::vector<int64_t> numbers;
  for (const auto& snapshot : directory.list()) numbers.push_back(snapshot.sequence);
  return numbers;
}

class SnapshotDirectory : public ::testing::Test {
 protected:
  ScratchFolder folder;
  fs::path path = folder / "run1";

  void put(const std::string& name) const {
    fs::create_directories(path);
    put_bytes(path / name, "x");
  }
};

TEST_F(SnapshotDirectory, IsEmptyWhenItDoesNotExistAndIsNotMadeByLooking) {
  const Directory directory(path);
  EXPECT_THAT(directory.list(), IsEmpty());
  EXPECT_EQ(directory.next().filename(), "snapshot-00000001.safetensors");
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(SnapshotDirectory, ListsInTheOrderOfTheNumbers) {
  put("snapshot-00000010.safetensors");
  put("snapshot-00000002.safetensors");
  put("snapshot-123456789.safetensors");
  put("snapshot-00000009.safetensors");
  const Directory directory(path);
  EXPECT_THAT(numbers_in(directory), ElementsAre(2, 9, 10, 123456789));
  EXPECT_EQ(directory.list().front().path, path / "snapshot-00000002.safetensors");
  EXPECT_EQ(directory.next(), path / "snapshot-123456790.safetensors");
}

TEST_F(SnapshotDirectory, PassesOverOtherFiles) {
  put("snapshot-00000003.safetensors");
  for (const auto* other :
       {"snapshot-.safetensors", "snapshot-7.safetensors", "snapshot-000000007.safetensors",
        "snapshot-0000000x.safetensors", "snapshot--0000007.safetensors", "snapshot-00000007.safetensors.bak",
        "a-snapshot-00000007.safetensors", "snapshot-00000007.pt", ".lock", "model.safetensors",
        "snapshot-99999999999999999999.safetensors", "snapshot-9223372036854775807.safetensors",
        ".safetensors"}) {
    put(other);
  }
  EXPECT_THAT(numbers_in(Directory(path)), ElementsAre(3));
  EXPECT_EQ(Directory(path).next().filename(), "snapshot-00000004.safetensors");
}

TEST_F(SnapshotDirectory, ListsWhatIsNamedAsASnapshotButIsNoFileAndNeverRemovesIt) {
  Directory directory(path);
  directory.lock();
  put("snapshot-00000002.safetensors");
  put("snapshot-00000003.safetensors");
  fs::create_directory(path / "snapshot-00000004.safetensors");
  fs::create_symlink("nowhere", path / "snapshot-00000005.safetensors");
  EXPECT_THAT(numbers_in(directory), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(directory.next().filename(), "snapshot-00000006.safetensors");
  directory.remove_old(1);
  EXPECT_THAT(numbers_in(directory), ElementsAre(3, 4, 5)) << "only files are counted and removed";
}

TEST_F(SnapshotDirectory, IsNotEmptyWhenItIsALinkToNothing) {
  fs::create_symlink(folder / "unmounted", path);
  EXPECT_THAT(message_of<SnapshotError>([&] { Directory(path).list(); }),
              AllOf(HasSubstr(path.string()), HasSubstr("No such file or directory")));
}

TEST_F(SnapshotDirectory, SaysWhenTheNumbersRunOut) {
  put("snapshot-999999999999.safetensors");
  EXPECT_THAT(message_of<SnapshotError>([&] { Directory(path).next(); }), HasSubstr("run out of numbers"));
}

TEST_F(SnapshotDirectory, IsMadeWithItsParents) {
  Directory directory(folder / "a/b//c/");
  directory.lock();
  EXPECT_EQ(directory.path(), folder / "a/b/c");
  EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
  write_file(small_document(1), directory.next());
  EXPECT_THAT(numbers_in(directory), ElementsAre(1));
}

TEST_F(SnapshotDirectory, StaysTheSameWhenTheProgramGoesElsewhere) {
  const auto status = in_child([&] {
    fs::current_path(folder.path());
    Directory directory("run1");
    directory.lock();
    fs::current_path("/");
    write_file(small_document(1), directory.next());
    EXPECT_THAT(numbers_in(directory), ElementsAre(1));
  });
  EXPECT_TRUE(exited_with(status, 0));
  EXPECT_TRUE(fs::exists(path / "snapshot-00000001.safetensors"));
}

TEST_F(SnapshotDirectory, KeepsTheNewest) {
  Directory directory(path);
  directory.lock();
  for (const int number : {1, 2, 5, 6, 9}) put(fmt::format("snapshot-{:08}.safetensors", number));
  put("mine.safetensors");
  directory.remove_old(0);
  EXPECT_EQ(numbers_in(directory).size(), 5);
  directory.remove_old(5);
  EXPECT_EQ(numbers_in(directory).size(), 5);
  directory.remove_old(2);
  EXPECT_THAT(numbers_in(directory), ElementsAre(6, 9));
  directory.remove_old(1);
  EXPECT_THAT(numbers_in(directory), ElementsAre(9));
  EXPECT_TRUE(fs::exists(path / "mine.safetensors"));
}

TEST_F(SnapshotDirectory, RemovesNothingWithoutTheLock) {
  put("snapshot-00000001.safetensors");
  put("snapshot-00000002.safetensors");
  EXPECT_THROW(Directory(path).remove_old(1), UsageError);
  EXPECT_EQ(numbers_in(Directory(path)).size(), 2);
}

TEST_F(SnapshotDirectory, RemovesWhatKilledWritersLeftAndNothingElse) {
  put(".snapshot-00000007.safetensors.0123456789abcdef.partial");
  put(".snapshot-123456789.safetensors.0123456789abcdef.partial");
  const std::vector<std::string> others = {".snapshot-00000007.safetensors.0123456789abcdef.partial.bak",
                                           ".snapshot-00000007.safetensors.0123456789abcdeX.partial",
                                           ".snapshot-00000007.safetensors..partial",
                                           ".snapshot-7.safetensors.0123456789abcdef.partial",
                                           ".model.safetensors.0123456789abcdef.partial",
                                           "snapshot-00000007.safetensors.0123456789abcdef.partial",
                                           ".partial",
                                           "snapshot-00000006.safetensors"};
  for (const auto& other : others) put(other);
  Directory(path).list();
  EXPECT_EQ(files_in(path), others.size() + 2) << "readers remove nothing";
  Directory directory(path);
  directory.lock();
  for (const auto& other : others) EXPECT_TRUE(fs::exists(path / other)) << other;
  EXPECT_EQ(files_in(path), others.size() + 1) << "and the lock";
}

TEST_F(SnapshotDirectory, HasOneWriterAtATime) {
  Directory first(path);
  first.lock();
  first.lock();  // locking again has no effect
  const auto status = in_child([&] {
    Directory second(path);
    EXPECT_THAT(
        message_of<SnapshotError>([&] { second.lock(); }),
        AllOf(HasSubstr(path.string()), HasSubstr(fmt::format("pid {}", ::getppid())),
              HasSubstr("host " + lockstep::base::host_name()), HasSubstr("hint: use another directory")));
    EXPECT_EQ(second.list().size(), 0) << "readers need no lock";
  });
  EXPECT_TRUE(exited_with(status, 0));
  Directory same_process(path);
  EXPECT_THROW(same_process.lock(), SnapshotError);
  {
    const Directory taken_over = std::move(first);
    EXPECT_THROW(same_process.lock(), SnapshotError);
  }
  same_process.lock();
}

TEST_F(SnapshotDirectory, IsFreeAgainWhenItsWriterIsKilled) {
  int ready[2], go[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  const pid_t writer = ::fork();
  if (writer == 0) {
    ::alarm(60);
    Directory directory(path);
    directory.lock();
    put(".snapshot-00000001.safetensors.0123456789abcdef.partial");
    char byte = 1;
    if (::write(ready[1], &byte, 1) != 1 || ::read(go[0], &byte, 1) != 1) ::_exit(1);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  Directory directory(path);
  EXPECT_THAT(message_of<SnapshotError>([&] { directory.lock(); }), HasSubstr(fmt::format("pid {}", writer)));
  EXPECT_EQ(files_in(path), 2) << "the hidden file of a running writer is not removed";
  ::kill(writer, SIGKILL);
  ASSERT_EQ(::waitpid(writer, nullptr, 0), writer);
  directory.lock();
  EXPECT_EQ(files_in(path), 1);
  EXPECT_THAT(bytes_in(path / ".lock"), HasSubstr(fmt::format("pid {},", ::getpid())));
  for (const int end : {ready[0], ready[1], go[0], go[1]}) ::close(end);
}

TEST_F(SnapshotDirectory, LockIsNotInheritedByOtherPrograms) {
  Directory directory(path);
  directory.lock();
  int found = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto open = fs::read_symlink(entry.path(), gone);
    if (open != path / ".lock" && open != path) continue;
    EXPECT_NE(::fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC, 0);
    ++found;
  }
  EXPECT_EQ(found, 2) << "the file and the directory";
}

TEST_F(SnapshotDirectory, StaysLockedWhenTheLockFileIsRemoved) {
  Directory first(path);
  first.lock();
  fs::remove(path / ".lock");
  EXPECT_THAT(message_of<SnapshotError>([&] { Directory(path).lock(); }),
              HasSubstr("another process writes"));
  first.check_lock();
  EXPECT_THAT(bytes_in(path / ".lock"), HasSubstr(fmt::format("pid {},", ::getpid()))) << "recreated";
  EXPECT_THAT(message_of<SnapshotError>([&] { Directory(path).lock(); }),
              HasSubstr(fmt::format("pid {}", ::getpid())));
  first.check_lock();
}

// As on a file server that can lock files, but not directories.
TEST_F(SnapshotDirectory, IsGivenUpToTheJobThatTookItOver) {
  Directory first(path);
  first.lock();
  put("snapshot-00000001.safetensors");
  put("snapshot-00000002.safetensors");
  fs::remove(path / ".lock");
  put_bytes(path / ".lock", "host other, pid 7");
  const lockstep::base::Fd second(::open((path / ".lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(second.get(), LOCK_EX | LOCK_NB), 0);
  const auto message = message_of<SnapshotError>([&] { first.check_lock(); });
  EXPECT_THAT(message, AllOf(HasSubstr("taken over"), HasSubstr("pid 7"), HasSubstr("rank 0"),
                             HasSubstr("hint: stop one of the two jobs")));
  EXPECT_THROW(first.remove_old(1), SnapshotError);
  EXPECT_THAT(numbers_in(first), ElementsAre(1, 2));
}

TEST_F(SnapshotDirectory, IsNotTheOneThatIsMadeAnewInItsPlace) {
  Directory first(path);
  first.lock();
  fs::rename(path, folder / "elsewhere");
  EXPECT_THAT(message_of<SnapshotError>([&] { first.check_lock(); }),
              AllOf(HasSubstr(path.string()), HasSubstr("No such file or directory")));
  Directory second(path);
  second.lock();
  put("snapshot-00000001.safetensors");
  put("snapshot-00000002.safetensors");
  EXPECT_THAT(message_of<SnapshotError>([&] { first.check_lock(); }),
              AllOf(HasSubstr(path.string()), HasSubstr("recreated")));
  EXPECT_THROW(first.remove_old(1), SnapshotError);
  EXPECT_THAT(numbers_in(second), ElementsAre(1, 2));
  second.check_lock();
  fs::remove_all(path);
  fs::rename(folder / "elsewhere", path);
  first.check_lock();
}

TEST_F(SnapshotDirectory, BearsALockFileWithNonsense) {
  Directory first(path);
  first.lock();
  const auto lock = path / ".lock";
  std::ofstream(lock, std::ios::in | std::ios::out) << std::string(3000, '\x1b');
  const auto message = message_of<SnapshotError>([&] { Directory(path).lock(); });
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 2000);
  fs::resize_file(lock, 0);
  EXPECT_THAT(message_of<SnapshotError>([&] { Directory(path).lock(); }), HasSubstr("an unknown process"));
}

TEST_F(SnapshotDirectory, RefusesPathsThatAreNoDirectory) {
  put_bytes(folder / "file", "x");
  for (const auto& bad : {folder / "file", folder / "file/below"}) {
    EXPECT_THAT(message_of<SnapshotError>([&] { Directory(bad).lock(); }), HasSubstr(bad.string()));
  }
  EXPECT_THAT(message_of<SnapshotError>([&] { Directory(folder / "file").list(); }),
              HasSubstr("Not a directory"));
  EXPECT_THROW(Directory(""), UsageError);
  fs::create_directory(path);
  fs::create_symlink(folder / "elsewhere", path / ".lock");
  EXPECT_THROW(Directory(path).lock(), SnapshotError);
  EXPECT_FALSE(fs::exists(folder / "elsewhere"));
}

// Runs as another user if the tests run as root, which may write anywhere.
TEST_F(SnapshotDirectory, SaysThatItMayNotBeWritten) {
  fs::create_directory(path);
  write_file(small_document(1), path / "snapshot-00000001.safetensors");
  fs::permissions(folder.path(), fs::perms(0755));
  fs::permissions(path, fs::perms(0555));
  const auto status = in_child([&] {
    if (::getuid() == 0) {
      constexpr gid_t kNobody = 65534;
      ASSERT_EQ(::setgroups(0, nullptr), 0);
      ASSERT_EQ(::setresgid(kNobody, kNobody, kNobody), 0);
      ASSERT_EQ(::setresuid(kNobody, kNobody, kNobody), 0);
    }
    Directory directory(path);
    EXPECT_THAT(message_of<SnapshotError>([&] { directory.lock(); }),
                AllOf(HasSubstr(path.string()), HasSubstr("Permission denied"), HasSubstr("hint: ")));
    EXPECT_THAT(message_of<SnapshotError>([&] { Directory(path / "below").lock(); }),
                HasSubstr("Permission denied"));
    EXPECT_THAT(message_of<SnapshotError>([&] { write_file(small_document(2), directory.next()); }),
                AllOf(HasSubstr("snapshot-00000002"), HasSubstr("Permission denied")));
    expect_same(read_file(directory.list().at(0).path), small_document(1));
  });
  EXPECT_TRUE(exited_with(status, 0));
  fs::permissions(path, fs::perms(0755));
}

}  // namespace
