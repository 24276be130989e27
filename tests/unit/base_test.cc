// src/base: messages, environment, ports, notes.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <set>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/aside.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/error_text.h"
#include "base/fd.h"
#include "base/host.h"
#include "base/net.h"
#include "base/note.h"
#include "base/port.h"
#include "base/printable.h"
#include "base/process_end.h"
#include "base/rank_list.h"
#include "base/token.h"

namespace lockstep::base {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(Compose, JoinsWhatWhereEvidenceAndHint) {
  EXPECT_EQ(compose({.what = "x failed", .where = "rank 0/2", .evidence = "it rained", .hint = "wait"}),
            "x failed (rank 0/2): it rained\nhint: wait");
  EXPECT_EQ(compose({.what = "x failed"}), "x failed");
  EXPECT_EQ(errno_text(ECONNREFUSED), "Connection refused (errno 111)");
}

TEST(Printable, KeepsTextAndEscapesTerminalControl) {
  using namespace std::string_literals;
  EXPECT_EQ(printable("weights/größe 名前 🎉 \\ \"x\""), "weights/größe 名前 🎉 \\ \"x\"");
  EXPECT_EQ(printable("a\nb\rc\td"), R"(a\nb\rc\td)");
  EXPECT_EQ(printable("\x1b[2J\x07\x7f\0."s), R"(\x1b[2J\x07\x7f\x00.)");
  EXPECT_EQ(printable("\u009b31m \u202e \u2028 \ufeff"), R"(\u009b31m \u202e \u2028 \ufeff)");
  // Truncated, overlong, a surrogate, beyond Unicode, a single continuation byte.
  EXPECT_EQ(printable("\xe5\x90"), R"(\xe5\x90)");
  EXPECT_EQ(printable("\xc0\x9b \xe0\x82\x9b"), R"(\xc0\x9b \xe0\x82\x9b)");
  EXPECT_EQ(printable("\xed\xa0\x80 \xf4\x90\x80\x80 \x9b"), R"(\xed\xa0\x80 \xf4\x90\x80\x80 \x9b)");
  EXPECT_EQ(printable(""), "");
}

TEST(Quote, IsUnambiguousAndShort) {
  EXPECT_EQ(quote(R"(a "b" \)"), R"("a \"b\" \\")");
  EXPECT_EQ(quote(std::string(120, 'x')), "\"" + std::string(120, 'x') + "\"");
  EXPECT_EQ(quote(std::string(121, 'x')), "\"" + std::string(120, 'x') + "\"…");
  // Not truncated within a character.
  EXPECT_EQ(quote(std::string(119, 'x') + "ßß"), "\"" + std::string(119, 'x') + "\"…");
  EXPECT_LT(quote(std::string(200, '\x80')).size(), 500);
}

TEST(ProcessEnd, IsDescribedByStatusOrSignal) {
  EXPECT_EQ(describe_end(3 << 8), "exited with status 3");
  EXPECT_EQ(describe_end(0), "exited with status 0");
  EXPECT_EQ(describe_end(SIGKILL), "killed by signal 9 (Killed)");
  EXPECT_EQ(describe_end(SIGSEGV | 0x80), "killed by signal 11 (Segmentation fault)");  // 0x80: core dumped
}

TEST(RankList, CollapsesRuns) {
  EXPECT_EQ(describe_ranks({}), "");
  EXPECT_EQ(describe_ranks({4}), "4");
  EXPECT_EQ(describe_ranks({0, 2}), "0, 2");
  EXPECT_EQ(describe_ranks({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

TEST(ThrowKind, ThrowsTheNamedClass) {
  EXPECT_THROW(throw_kind("UsageError", "m"), UsageError);
  EXPECT_THROW(throw_kind("MismatchError", "m"), MismatchError);
  EXPECT_THROW(throw_kind("PeerLostError", "m"), PeerLostError);
  EXPECT_THROW(throw_kind("TimeoutError", "m"), TimeoutError);
  EXPECT_THROW(throw_kind("SnapshotError", "m"), SnapshotError);
  EXPECT_THROW(throw_kind("SystemError", "m"), SystemError);
  try {
    throw_kind("std::bad_alloc", "m");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), "Error");
    EXPECT_STREQ(error.what(), "m");
  }
}

TEST(Env, NumbersAndFlags) {
  ::setenv("LOCKSTEP_TEST", "42", 1);
  EXPECT_EQ(env_int("LOCKSTEP_TEST"), 42);
  EXPECT_THROW(env_int("LOCKSTEP_TEST", 0, 41), UsageError);
  for (const char* bad : {"4x", " 4", "4 ", "0x10", "1e3", "99999999999999999999"}) {
    ::setenv("LOCKSTEP_TEST", bad, 1);
    EXPECT_THROW(env_int("LOCKSTEP_TEST"), UsageError) << bad;
    EXPECT_THROW(env_flag("LOCKSTEP_TEST", true), UsageError) << bad;
  }
  ::setenv("LOCKSTEP_TEST", "off", 1);
  EXPECT_FALSE(env_flag("LOCKSTEP_TEST", true));
  ::setenv("LOCKSTEP_TEST", "", 1);
  EXPECT_EQ(env_int("LOCKSTEP_TEST"), std::nullopt);
  EXPECT_TRUE(env_flag("LOCKSTEP_TEST", true));
  ::unsetenv("LOCKSTEP_TEST");
}

TEST(Port, ReservationsDiffer) {
  std::set<uint16_t> ports;
  std::vector<PortReservation> held;
  for (int i = 0; i < 200; ++i) {
    held.emplace_back(i % 2 == 0 ? Reach::ThisMachine : Reach::Everyone);
    ports.insert(held.back().port());
  }
  EXPECT_EQ(ports.size(), held.size());
}

TEST(Port, AReservedPortCanBeListenedOnAndReachedButOnlyOnce) {
  const PortReservation reservation(Reach::ThisMachine);
  const Fd listener = listen_on(Reach::ThisMachine, reservation.port());
  EXPECT_EQ(local_port(listener), reservation.port());
  EXPECT_TRUE(connect_to("127.0.0.1", reservation.port(), Deadline::in(5s)));
  EXPECT_THROW(listen_on(Reach::ThisMachine, reservation.port()), SystemError);
  EXPECT_THROW(PortReservation(Reach::ThisMachine, reservation.port()), SystemError);
}

TEST(Net, AConnectionThatNobodyAcceptsFailsAtTheDeadline) {
  const PortReservation reservation(Reach::ThisMachine);
  try {
    connect_to("127.0.0.1", reservation.port(), Deadline::in(300ms));
    FAIL() << "connected to nobody";
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Connection refused"));
  }
  try {
    connect_to("no-such-host.invalid", 80, Deadline::in(300ms));
    FAIL() << "connected to nobody";
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not resolve"));
  }
}

TEST(Net, KnowsItsOwnAddresses) {
  EXPECT_TRUE(is_this_machine("127.0.0.1"));
  EXPECT_FALSE(is_this_machine("192.0.2.1"));
  EXPECT_FALSE(is_this_machine("no-such-host.invalid"));
}

TEST(Address, AsText) {
  const auto text_of = [](const std::string& host) {
    std::string why;
    const auto list = resolve(host, 1, SOCK_STREAM, why);
    return list ? address_text(list->ai_addr) : why;
  };
  EXPECT_EQ(text_of("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(text_of("fd00:0::1"), "fd00::1");
  EXPECT_EQ(text_of("::ffff:10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(text_of("fe80::1%lo"), "fe80::1%lo");
  EXPECT_THAT(text_of("no-such-host.invalid"), HasSubstr("does not resolve"));
  EXPECT_EQ(address_text(nullptr), "");
}

TEST(Address, Kinds) {
  for (const auto* address : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(is_loopback(address)) << address;
  for (const auto* address : {"10.127.0.1", "fd00::1", "::"}) EXPECT_FALSE(is_loopback(address)) << address;
  for (const auto* address : {"fe80::1", "fe80::1%eth0", "febf::1"})
    EXPECT_TRUE(is_link_local(address)) << address;
  for (const auto* address : {"fec0::1", "fd00::1", "169.254.0.1", "node0"})
    EXPECT_FALSE(is_link_local(address)) << address;
}

TEST(Address, WithAPort) {
  EXPECT_EQ(host_port("node0", 29500), "node0:29500");
  EXPECT_EQ(host_port("fd00::1", 29500), "[fd00::1]:29500");
  EXPECT_EQ(without_brackets("[fd00::1]"), "fd00::1");
  EXPECT_EQ(without_brackets("fd00::1"), "fd00::1");
  EXPECT_EQ(without_brackets("node0"), "node0");
}

TEST(Note, IsReadFromThePipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd reading(ends[0]), writing(ends[1]);
  ::setenv("LOCKSTEP_NOTE_FD", std::to_string(writing.get()).c_str(), 1);
  write_note({"PeerLostError", "line one\nline \"two\" \xff"});
  ::unsetenv("LOCKSTEP_NOTE_FD");
  char buffer[4096];
  const auto count = ::read(reading.get(), buffer, sizeof buffer);
  ASSERT_GT(count, 0);
  const auto note = decode_note(std::string_view(buffer, static_cast<size_t>(count)));
  ASSERT_TRUE(note);
  EXPECT_EQ(note->kind, "PeerLostError");
  EXPECT_THAT(note->message, HasSubstr("line \"two\""));
}

TEST(Note, IsLimitedAndValidated) {
  const auto line = encode_note({"Error", std::string(100000, 'x')});
  EXPECT_LT(line.size(), 4096);
  EXPECT_TRUE(decode_note(line));
  EXPECT_FALSE(decode_note(""));
  EXPECT_FALSE(decode_note("[]"));
  EXPECT_FALSE(decode_note("{\"kind\": 3, \"message\": \"x\"}"));
  EXPECT_FALSE(decode_note("\x00\x01"));
}

TEST(Machine, HasAnIdentity) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_EQ(machine_identity(), machine_identity());
  EXPECT_THAT(machine_identity(), HasSubstr("net:["));
}

TEST(Token, AProofIsValidForOneTokenRoleAndPairOfNonces) {
  const Token token = Token::random();
  const auto asked = make_nonce();
  const auto own = make_nonce();
  EXPECT_NE(asked, own);
  const auto proof = token.prove("client", asked, own);
  EXPECT_TRUE(token.proves(proof, "client", asked, own));
  EXPECT_EQ(proof.find(token.text()), std::string::npos);
  // Another secret, another role (a proof reflected to its sender), other nonces.
  EXPECT_FALSE(Token::random().proves(proof, "client", asked, own));
  EXPECT_FALSE(Token().proves(proof, "client", asked, own));
  EXPECT_FALSE(token.proves(proof, "server", asked, own));
  EXPECT_FALSE(token.proves(proof, "client", own, asked));
  EXPECT_FALSE(token.proves(proof, "client", make_nonce(), own));
  EXPECT_FALSE(token.proves("", "client", asked, own));
}

TEST(Token, IsReadFromAFileThatOnlyItsOwnerCanRead) {
  char path[] = "/tmp/lockstep-token-XXXXXX";
  const Fd file(::mkstemp(path));
  const std::string text = "0123456789abcdef0123\n";
  ASSERT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(Token::from_file(path).text(), "0123456789abcdef0123");
  ::fchmod(file.get(), 0640);
  try {
    Token::from_file(path);
    ADD_FAILURE() << "a file that the group can read was accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("chmod 600"));
  }
  ::unlink(path);
  EXPECT_THROW(Token::from_file(path), UsageError);
  EXPECT_THROW(Token::from_file("/tmp"), UsageError);
  EXPECT_THROW(Token("short"), UsageError);
}

// A store that was used aside must not outlive its user.
TEST(Aside, WhatTheWorkOwnsIsReleasedBeforeTheResultIsThere) {
  for (int i = 0; i < 200; ++i) {
    auto owned = std::make_shared<int>(i);
    const std::weak_ptr<int> seen = owned;
    auto value = run_aside([owned] { return *owned; });
    auto nothing = run_aside([owned] { EXPECT_TRUE(owned); });
    auto error = run_aside([owned]() -> int { throw UsageError(std::to_string(*owned)); });
    owned.reset();
    EXPECT_EQ(value.get(), i);
    nothing.get();
    EXPECT_THROW(error.get(), UsageError);
    EXPECT_TRUE(seen.expired());
  }
}

}  // namespace
}  // namespace lockstep::base
