#include "base/token.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "base/fd.h"

namespace lockstep::base {

namespace {

constexpr size_t kMostFileBytes = 4096;

std::string hexadecimal(const unsigned char* bytes, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

template <size_t N>
std::string random_digits() {
  std::array<unsigned char, N / 2> bytes;
  // For up to 256 bytes, getrandom(2) blocks until the generator is seeded and then returns all of them.
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw SystemError(
        compose({.what = "cannot get random bytes from the kernel", .evidence = errno_text(errno)}));
  }
  return hexadecimal(bytes.data(), bytes.size());
}

[[noreturn]] void bad_file(const std::string& path, const std::string& why, const std::string& hint) {
  throw UsageError(
      compose({.what = fmt::format("cannot use the token file {}", path), .evidence = why, .hint = hint}));
}

}  // namespace

Token::Token(std::string text) : text_(std::move(text)) {
  text_.erase(text_.find_last_not_of(" \t\r\n") + 1);
  if (text_.size() < kLeastCharacters) {
    throw UsageError(compose({.what = "the job's token is too short to be a secret",
                              .evidence = fmt::format("it has {} characters and needs at least {}",
                                                      text_.size(), kLeastCharacters),
                              .hint = "make one with: openssl rand -hex 32"}));
  }
}

Token Token::random() { return Token(random_digits<64>()); }

Token Token::from_environment() {
  if (auto text = env_string("LOCKSTEP_TOKEN")) return Token(std::move(*text));
  if (const auto path = env_string("LOCKSTEP_TOKEN_FILE")) return from_file(*path);
  return {};
}

Token Token::from_file(const std::string& path) {
  // O_NONBLOCK, because opening a named pipe would block.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0)
    bad_file(path, errno_text(errno), "correct its path or its permissions");
  if (!S_ISREG(status.st_mode)) bad_file(path, "it is not a regular file", "correct its path");
  if ((status.st_mode & 077) != 0) {
    bad_file(path, fmt::format("other users may read or write it (mode {:03o})", status.st_mode & 0777),
             fmt::format("chmod 600 {}", path));
  }
  std::array<char, kMostFileBytes> bytes;
  const ssize_t size = ::read(file.get(), bytes.data(), bytes.size());
  if (size < 0) bad_file(path, errno_text(errno), "correct its permissions");
  return Token(std::string(bytes.data(), static_cast<size_t>(size)));
}

std::string Token::prove(std::string_view role, std::string_view theirs, std::string_view mine) const {
  // The lengths come first, so that different parts never yield the same text.
  const auto text =
      fmt::format("lockstep {} {} {} {} {} {}", role.size(), theirs.size(), mine.size(), role, theirs, mine);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  if (::HMAC(::EVP_sha256(), text_.data(), static_cast<int>(text_.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
             &size) == nullptr) {
    throw SystemError(
        "OpenSSL cannot compute an HMAC-SHA256\nhint: check the OpenSSL installation and its configuration");
  }
  return hexadecimal(digest.data(), size);
}

bool Token::proves(std::string_view proof, std::string_view role, std::string_view theirs,
                   std::string_view mine) const {
  const auto right = prove(role, theirs, mine);
  return proof.size() == right.size() && ::CRYPTO_memcmp(proof.data(), right.data(), right.size()) == 0;
}

std::string make_nonce() { return random_digits<32>(); }

}  // namespace lockstep::base
