#include "kernel/bpf_evaluator.h"

#include <cstring>

namespace isola::kernel {

namespace {

std::unexpected<Error> bad(size_t at, const char* what) {
  return fail(Code::corrupt, "filter instruction " + std::to_string(at) + ": " + what);
}

bool jump_holds(uint16_t operation, uint32_t a, uint32_t operand) {
  switch (operation) {
    case BPF_JEQ: return a == operand;
    case BPF_JGT: return a > operand;
    case BPF_JGE: return a >= operand;
    default: return (a & operand) != 0;  // BPF_JSET
  }
}

// false: not an operation, or a division by zero.
bool calculate(uint16_t operation, uint32_t& a, uint32_t operand) {
  switch (operation) {
    case BPF_ADD: a += operand; return true;
    case BPF_SUB: a -= operand; return true;
    case BPF_MUL: a *= operand; return true;
    case BPF_DIV:
      if (operand == 0) return false;
      a /= operand;
      return true;
    case BPF_AND: a &= operand; return true;
    case BPF_OR: a |= operand; return true;
    case BPF_XOR: a ^= operand; return true;
    case BPF_LSH: a = operand > 31 ? 0 : a << operand; return true;
    case BPF_RSH: a = operand > 31 ? 0 : a >> operand; return true;
    case BPF_NEG: a = 0U - a; return true;
    default: return false;
  }
}

}  // namespace

Result<uint32_t> evaluate(std::span<const sock_filter> code, const seccomp_data& call) {
  uint32_t a = 0, x = 0, memory[BPF_MEMWORDS] = {};
  // Jumps only go forward, so the loop ends.
  for (size_t at = 0; at < code.size(); ++at) {
    const sock_filter& i = code[at];
    uint32_t operand = BPF_SRC(i.code) == BPF_X ? x : i.k;
    switch (BPF_CLASS(i.code)) {
      case BPF_LD:
      case BPF_LDX: {
        uint32_t& into = BPF_CLASS(i.code) == BPF_LD ? a : x;
        if (BPF_MODE(i.code) == BPF_IMM) {
          into = i.k;
        } else if (BPF_MODE(i.code) == BPF_LEN) {
          into = sizeof call;
        } else if (BPF_MODE(i.code) == BPF_MEM) {
          if (i.k >= BPF_MEMWORDS) return bad(at, "no such memory word");
          into = memory[i.k];
        } else if (i.code == (BPF_LD | BPF_W | BPF_ABS)) {
          if (i.k % 4 != 0 || i.k >= sizeof call) return bad(at, "reads outside the call");
          std::memcpy(&into, reinterpret_cast<const char*>(&call) + i.k, sizeof into);
        } else {
          return bad(at, "unknown load");
        }
        break;
      }
      case BPF_ST:
      case BPF_STX:
        if (i.k >= BPF_MEMWORDS) return bad(at, "no such memory word");
        memory[i.k] = BPF_CLASS(i.code) == BPF_ST ? a : x;
        break;
      case BPF_ALU:
        if (!calculate(BPF_OP(i.code), a, operand)) return bad(at, "unknown calculation");
        break;
      case BPF_JMP: {
        uint16_t operation = BPF_OP(i.code);
        if (operation > BPF_JSET) return bad(at, "unknown jump");
        uint64_t skip = operation == BPF_JA ? i.k : jump_holds(operation, a, operand) ? i.jt : i.jf;
        if (skip >= code.size() - at) return bad(at, "jumps past the end");
        at += skip;
        break;
      }
      case BPF_RET: return BPF_RVAL(i.code) == BPF_A ? a : i.k;
      default:  // BPF_MISC
        if (BPF_MISCOP(i.code) == BPF_TAX)
          x = a;
        else
          a = x;
    }
  }
  return fail(Code::corrupt, "the filter runs past its end");
}

}  // namespace isola::kernel
