#include "launch/lines.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

TEST(LineAssembler, HoldsAnUnfinishedLineBack) {
  LineAssembler lines;
  lines.add("one\ntw");
  EXPECT_EQ(lines.take_complete(), "one\n");
  EXPECT_EQ(lines.take_complete(), "");
  lines.add("o\n\nthree\nfour");
  EXPECT_EQ(lines.take_complete(), "two\n\nthree\n");
  EXPECT_FALSE(lines.empty());
  EXPECT_EQ(lines.take_all(), "four");
  EXPECT_TRUE(lines.empty());
}

TEST(LineAssembler, IsBounded) {
  LineAssembler lines;
  lines.add(std::string(LineAssembler::kMostBytes, 'x'));
  EXPECT_EQ(lines.take_complete(), "");
  lines.add("y");
  EXPECT_EQ(lines.take_complete().size(), LineAssembler::kMostBytes + 1);
  EXPECT_TRUE(lines.empty());
}

TEST(LineAssembler, PassesAllBytes) {
  LineAssembler lines;
  const std::string bytes("\0\xff\x80\n", 4);
  lines.add(bytes);
  EXPECT_EQ(lines.take_complete(), bytes);
}

TEST(Prefixer, EachLineGetsOne) {
  Prefixer prefixer;
  EXPECT_EQ(prefixer.format(0, "[0] ", "a\nb\n"), "[0] a\n[0] b\n");
  EXPECT_EQ(prefixer.format(1, "[1] ", "\n"), "[1] \n");
}

TEST(Prefixer, AnUnfinishedLineIsContinuedByItsOwnSource) {
  Prefixer prefixer;
  EXPECT_EQ(prefixer.format(0, "[0] ", "load"), "[0] load");
  EXPECT_EQ(prefixer.format(0, "[0] ", "ing\nx"), "ing\n[0] x");
}

TEST(Prefixer, AnUnfinishedLineIsEndedForAnotherSource) {
  Prefixer prefixer;
  EXPECT_EQ(prefixer.format(0, "[0] ", "load"), "[0] load");
  EXPECT_EQ(prefixer.format(1, "[1] ", "hello\n"), "\n[1] hello\n");
  EXPECT_EQ(prefixer.format(0, "[0] ", "ing\n"), "[0] ing\n");
}

TEST(Tail, KeepsTheLastLines) {
  Tail tail;
  for (int i = 0; i < 50; ++i) tail.add(0, std::to_string(i) + "\n");
  ASSERT_EQ(tail.lines().size(), Tail::kMostLines);
  EXPECT_EQ(tail.lines().front(), "30");
  EXPECT_EQ(tail.lines().back(), "49");
}

TEST(Tail, JoinsPiecesAndCutsLongLines) {
  Tail tail;
  tail.add(0, "ab");
  tail.add(0, "cd\n");
  tail.add(1, std::string(5000, 'x'));
  ASSERT_EQ(tail.lines().size(), 2U);
  EXPECT_EQ(tail.lines()[0], "abcd");
  EXPECT_EQ(tail.lines()[1].size(), Tail::kMostLineBytes);
}

}  // namespace
}  // namespace lockstep::launch
