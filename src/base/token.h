// The secret of a job. Its processes prove to each other that they know it, without sending it: each side
// picks a nonce, and answers the other's with an HMAC-SHA256 over its own role and both nonces.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::base {

class Token {
 public:
  static constexpr size_t kLeastCharacters = 16;

  // No secret: every proof is accepted from whoever has none either. What holds then: docs/security.md.
  Token() = default;
  // Throws UsageError when it is too short to be a secret. White space at its end does not count.
  explicit Token(std::string text);

  static Token random();
  // LOCKSTEP_TOKEN, or what stands in the file that LOCKSTEP_TOKEN_FILE names; none when both are unset.
  // Throws UsageError when the file cannot be read, or can be read by other users.
  static Token from_environment();
  static Token from_file(const std::string& path);

  bool empty() const { return text_.empty(); }
  // For handing it on. Never for a message or a log.
  const std::string& text() const { return text_; }

  // What `role` answers: `theirs` is the nonce of the side that asked, `mine` that of the side that proves.
  std::string prove(std::string_view role, std::string_view theirs, std::string_view mine) const;
  // Whether `proof` is that answer. Takes as long for a wrong one as for a right one.
  bool proves(std::string_view proof, std::string_view role, std::string_view theirs,
              std::string_view mine) const;

 private:
  std::string text_;
};

// 32 hexadecimal digits from the kernel's generator, different each time.
std::string make_nonce();

}  // namespace lockstep::base
