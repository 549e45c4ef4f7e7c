#include "kernel/bpf_evaluator.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace isola::kernel {
namespace {

using Code_ = std::vector<sock_filter>;

constexpr sock_filter load(uint32_t offset) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset); }
constexpr sock_filter give(uint32_t value) { return BPF_STMT(BPF_RET | BPF_K, value); }

TEST(BpfEvaluator, LoadsComparesAndReturns) {
  Code_ code = {load(offsetof(seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 7, 0, 1), give(1), give(2)};
  EXPECT_EQ(evaluate(code, {.nr = 7}).value(), 1U);
  EXPECT_EQ(evaluate(code, {.nr = 8}).value(), 2U);
}

TEST(BpfEvaluator, SeesBothHalvesOfAnArgument) {
  Code_ low = {load(offsetof(seccomp_data, args) + 8), BPF_STMT(BPF_RET | BPF_A, 0)};
  Code_ high = {load(offsetof(seccomp_data, args) + 12), BPF_STMT(BPF_RET | BPF_A, 0)};
  seccomp_data call{.args = {0, 0x11112222'33334444ULL}};
  EXPECT_EQ(evaluate(low, call).value(), 0x33334444U);
  EXPECT_EQ(evaluate(high, call).value(), 0x11112222U);
}

TEST(BpfEvaluator, CalculatesAndRemembers) {
  Code_ code = {BPF_STMT(BPF_LD | BPF_IMM, 12),
                BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 2),
                BPF_STMT(BPF_ST, 3),
                BPF_STMT(BPF_LDX | BPF_MEM, 3),
                BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0),
                BPF_STMT(BPF_MISC | BPF_TAX, 0),
                BPF_STMT(BPF_ALU | BPF_MUL | BPF_X, 0),
                BPF_STMT(BPF_RET | BPF_A, 0)};
  EXPECT_EQ(evaluate(code, {}).value(), 36U);
}

TEST(BpfEvaluator, JumpsByEveryCondition) {
  for (auto [operation, expected] :
       {std::pair<uint16_t, uint32_t>{BPF_JEQ, 0}, {BPF_JGT, 1}, {BPF_JGE, 1}, {BPF_JSET, 1}}) {
    Code_ code = {BPF_STMT(BPF_LD | BPF_IMM, 6), BPF_JUMP(static_cast<uint16_t>(BPF_JMP | operation | BPF_K), 4, 0, 1),
                  give(1), give(0)};
    EXPECT_EQ(evaluate(code, {}).value(), expected) << operation;
  }
}

TEST(BpfEvaluator, RefusesWhatTheKernelWouldRefuse) {
  for (const Code_& bad :
       {Code_{}, Code_{load(0)}, Code_{load(2), give(0)}, Code_{load(sizeof(seccomp_data)), give(0)},
        Code_{BPF_JUMP(BPF_JMP | BPF_JA, 5, 0, 0), give(0)},
        Code_{BPF_JUMP(BPF_JMP | BPF_JA, 0xffffffff, 0, 0), give(0)}, Code_{BPF_STMT(BPF_ST, 16), give(0)},
        Code_{BPF_STMT(BPF_ALU | BPF_DIV | BPF_K, 0), give(0)}, Code_{BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0), give(0)}})
    EXPECT_EQ(evaluate(bad, {}).error().code, Code::corrupt);
}

}  // namespace
}  // namespace isola::kernel
