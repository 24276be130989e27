// The secret of a job. Its processes prove to each other that they know the secret without sending it: each
// side picks a nonce and answers the other's with an HMAC-SHA256 over its own role and both nonces.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::base {

class Token {
 public:
  static constexpr size_t kLeastCharacters = 16;

  // No secret: proofs of peers that have no secret either are accepted. docs/security.md describes the risk.
  Token() = default;
  // Throws UsageError if the text is too short to be a secret. Trailing white space is removed.
  explicit Token(std::string text);

  static Token random();
  // LOCKSTEP_TOKEN, or the contents of the file that LOCKSTEP_TOKEN_FILE names; empty if both are unset.
  // Throws UsageError if the file cannot be read, or if other users can read it.
  static Token from_environment();
  static Token from_file(const std::string& path);

  bool empty() const { return text_.empty(); }
  // For passing the token on. Never print or log it.
  const std::string& text() const { return text_; }

  // The proof of `role`: `theirs` is the nonce of the side that asks for it, `mine` that of the side that
  // proves.
  std::string prove(std::string_view role, std::string_view theirs, std::string_view mine) const;
  // Whether `proof` is that proof. Compares in constant time.
  bool proves(std::string_view proof, std::string_view role, std::string_view theirs,
              std::string_view mine) const;

 private:
  std::string text_;
};

// 32 random hexadecimal digits from the kernel.
std::string make_nonce();

}  // namespace lockstep::base
