#include "launch/shown.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

TEST(Shown, OrdinaryTextIsUnchanged) {
  for (const std::string text : {"", "plain\ttext", "größer → 數", "\xf0\x9f\x98\x80"}) {
    EXPECT_EQ(shown_line(text, 100), text);
    EXPECT_EQ(shown_lines(text, 100, kHanging), text);
  }
}

TEST(Shown, TerminalControlIsEscaped) {
  EXPECT_EQ(shown_line("\x1b[2J\r\x07\x7f", 100), "\\x1b[2J\\r\\x07\\x7f");
  EXPECT_EQ(shown_line(std::string("a\0b", 3), 100), "a\\x00b");
  EXPECT_EQ(shown_line("\xc2\x9b"
                       "31m",
                       100),
            "\\u009b31m");  // CSI in one character
  EXPECT_EQ(shown_line("\xe2\x80\xae"
                       "abc\xe2\x80\xa8",
                       100),
            "\\u202eabc\\u2028");  // right-to-left override; line separator
}

TEST(Shown, BytesThatAreNotUtf8AreEscaped) {
  EXPECT_EQ(shown_line("\xff\xc3", 100), "\\xff\\xc3");
  EXPECT_EQ(shown_line("\xc0\x9b", 100), "\\xc0\\x9b");           // overlong
  EXPECT_EQ(shown_line("\xed\xa0\x80", 100), "\\xed\\xa0\\x80");  // half of a surrogate pair
}

TEST(Shown, NewlinesAreEscapedOrIndented) {
  EXPECT_EQ(shown_line("a\nb", 100), "a\\nb");
  EXPECT_EQ(shown_lines("a\nb\n  c\n", 100, kHanging), "a\n  b\n  c\n  ");
  EXPECT_EQ(shown_lines("a\nb", 100, ""), "a\nb");
}

TEST(Shown, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(shown_line("0123456789", 10), "0123456789");
  EXPECT_EQ(shown_line("0123456789a", 10), "0123456…");
  EXPECT_EQ(shown_line("012345öööö", 10), "012345…");
  EXPECT_EQ(shown_line("012345\x1b\x1b", 10), "012345…");
}

TEST(Shown, IsIdempotent) {
  const std::string text = "a\x1b\n\nb\xff\r\n ö" + std::string(50, '\n') + std::string(50, '\x01');
  for (size_t most = 8; most < 300; ++most) {
    const auto line = shown_line(text, most);
    EXPECT_LE(line.size(), most);
    EXPECT_EQ(shown_line(line, most), line);
    for (const auto indent : {std::string_view(), kHanging}) {
      const auto lines = shown_lines(text, most, indent);
      EXPECT_LE(lines.size(), most);
      EXPECT_EQ(shown_lines(lines, most, indent), lines);
    }
  }
}

}  // namespace
}  // namespace lockstep::launch
