#include "kernel/seccomp_program.h"

#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>

#include "kernel/fault.h"
#include "kernel/seccomp_digest.h"

namespace isola::kernel {

namespace {

constexpr uint32_t kLoad = BPF_LD | BPF_W | BPF_ABS;
constexpr uint32_t kAnd = BPF_ALU | BPF_AND | BPF_K;
constexpr uint32_t kEqual = BPF_JMP | BPF_JEQ | BPF_K;
constexpr uint32_t kNotLess = BPF_JMP | BPF_JGE | BPF_K;
constexpr uint32_t kJump = BPF_JMP | BPF_JA;
constexpr uint32_t kReturn = BPF_RET | BPF_K;

static_assert(std::endian::native == std::endian::little, "argument halves are laid out for little-endian");
constexpr uint32_t low_half(uint8_t argument) {
  return static_cast<uint32_t>(offsetof(seccomp_data, args)) + argument * 8U;
}
constexpr uint32_t high_half(uint8_t argument) { return low_half(argument) + 4; }

// Writes a program from its end to its start. BPF only jumps forward, so this way the place of every target is known
// when a jump is written, and whether it is in reach: a conditional jump has 8 bits, and where those do not suffice a
// plain jump (32 bits) right behind it carries on.
class BackwardAssembler {
 public:
  using Label = size_t;  // how many instructions stood between the target and the end

  Label emit(uint32_t code, uint32_t k) { return push({static_cast<uint16_t>(code), 0, 0, k}); }

  Label branch(uint32_t code, uint32_t k, Label yes, Label no) {
    // A stepping stone moves both distances by one: place the stones until both fit.
    while (distance(yes) > 255 || distance(no) > 255) {
      Label& far = distance(yes) > distance(no) ? yes : no;
      far = emit(kJump, static_cast<uint32_t>(distance(far)));
    }
    return push(
        {static_cast<uint16_t>(code), static_cast<uint8_t>(distance(yes)), static_cast<uint8_t>(distance(no)), k});
  }

  // Makes whatever is written next continue at the label.
  void fall_into(Label label) {
    if (label != code_.size()) emit(kJump, static_cast<uint32_t>(distance(label)));
  }

  // A return of this value that a branch written next can reach: the last one of its kind, or a new one.
  Label give_back(SeccompAction action) {
    auto it = returns_.find(action.value);
    if (it == returns_.end() || distance(it->second) > 200)
      it = returns_.insert_or_assign(action.value, emit(kReturn, action.value)).first;
    return it->second;
  }

  std::vector<sock_filter> take() {
    std::ranges::reverse(code_);
    return std::move(code_);
  }

 private:
  // Instructions that a jump written now would skip to get there.
  size_t distance(Label label) const { return code_.size() - label; }
  Label push(sock_filter instruction) {
    code_.push_back(instruction);
    return code_.size();
  }
  std::vector<sock_filter> code_;
  std::map<uint32_t, Label> returns_;
};

using Label = BackwardAssembler::Label;

// What happens to a number: an action, or first some rules.
struct Verdict {
  std::vector<SeccompRule> rules;
  SeccompAction otherwise;
  bool operator==(const Verdict&) const = default;
};

struct Range {
  uint32_t first;
  size_t verdict;  // index into the verdicts
};

class Compiler {
 public:
  explicit Compiler(const SeccompPolicy& policy) : policy_(policy) {}

  std::vector<sock_filter> run() {
    split();
    // Blocks of rules first, that is, at the very end: the tree stays together in front of them.
    for (auto& verdict : verdicts_) targets_.push_back(verdict.rules.empty() ? 0 : block(verdict));
    Label root = tree(0, ranges_.size());
    out_.fall_into(root);
    Label native = out_.emit(kLoad, offsetof(seccomp_data, nr));
    Label foreign = out_.emit(kReturn, policy_.unknown.value);
    out_.branch(kEqual, policy_.arch, native, foreign);
    out_.emit(kLoad, offsetof(seccomp_data, arch));
    return out_.take();
  }

 private:
  size_t verdict_index(Verdict verdict) {
    auto it = std::ranges::find(verdicts_, verdict);
    if (it == verdicts_.end()) it = verdicts_.insert(verdicts_.end(), std::move(verdict));
    return static_cast<size_t>(it - verdicts_.begin());
  }

  // Cuts 0…2^32-1 into ranges with one verdict each.
  void split() {
    std::map<uint32_t, const SeccompCall*> calls;
    for (const auto& call : policy_.calls) calls[call.number] = &call;
    for (uint32_t number = 0; number <= policy_.newest + 1; ++number) {
      auto it = calls.find(number);
      Verdict verdict = it != calls.end()          ? Verdict{it->second->rules, it->second->otherwise}
                        : number <= policy_.newest ? Verdict{{}, policy_.denied}
                                                   : Verdict{{}, policy_.unknown};
      size_t index = verdict_index(std::move(verdict));
      if (ranges_.empty() || ranges_.back().verdict != index) ranges_.push_back({number, index});
    }
  }

  Label tree(size_t begin, size_t end) {
    if (end - begin == 1) {
      size_t index = ranges_[begin].verdict;
      return verdicts_[index].rules.empty() ? out_.give_back(verdicts_[index].otherwise) : targets_[index];
    }
    size_t middle = begin + (end - begin) / 2;
    Label high = tree(middle, end);
    Label low = tree(begin, middle);
    return out_.branch(kNotLess, ranges_[middle].first, high, low);
  }

  Label block(const Verdict& verdict) {
    Label next = out_.give_back(verdict.otherwise);
    for (auto rule = verdict.rules.rbegin(); rule != verdict.rules.rend(); ++rule) {
      Label holds = out_.give_back(rule->action);
      for (auto test = rule->tests.rbegin(); test != rule->tests.rend(); ++test) {
        holds = half(low_half(test->argument), static_cast<uint32_t>(test->mask), static_cast<uint32_t>(test->value),
                     holds, next);
        if (test->width == ArgumentTest::Width::full64)
          holds = half(high_half(test->argument), static_cast<uint32_t>(test->mask >> 32),
                       static_cast<uint32_t>(test->value >> 32), holds, next);
      }
      next = holds;
    }
    return next;
  }

  Label half(uint32_t offset, uint32_t mask, uint32_t value, Label yes, Label no) {
    if (mask == 0) return yes;  // compile() made sure that value is 0 too
    out_.branch(kEqual, value, yes, no);
    if (mask != 0xffffffff) out_.emit(kAnd, mask);
    return out_.emit(kLoad, offset);
  }

  const SeccompPolicy& policy_;
  std::vector<Verdict> verdicts_;
  std::vector<Range> ranges_;
  std::vector<Label> targets_;
  BackwardAssembler out_;
};

}  // namespace

SeccompAction SeccompAction::allow() { return {SECCOMP_RET_ALLOW}; }
SeccompAction SeccompAction::error(int sys_errno) {
  return {SECCOMP_RET_ERRNO | (static_cast<uint32_t>(sys_errno) & SECCOMP_RET_DATA)};
}
SeccompAction SeccompAction::kill_process() { return {SECCOMP_RET_KILL_PROCESS}; }

ArgumentTest ArgumentTest::is(uint8_t argument, uint32_t value) { return {argument, Width::low32, 0xffffffff, value}; }
ArgumentTest ArgumentTest::masked(uint8_t argument, uint32_t mask, uint32_t value) {
  return {argument, Width::low32, mask, value};
}
ArgumentTest ArgumentTest::masked64(uint8_t argument, uint64_t mask, uint64_t value) {
  return {argument, Width::full64, mask, value};
}

Result<SeccompProgram> SeccompProgram::compile(const SeccompPolicy& policy) {
  if (policy.newest >= 4096) return fail(Code::invalid, "no architecture of ours has that many system calls");
  std::vector<bool> seen(policy.newest + 1);
  for (const auto& call : policy.calls) {
    if (call.number > policy.newest)
      return fail(Code::invalid, "system call " + std::to_string(call.number) + " is above the newest");
    if (seen[call.number])
      return fail(Code::invalid, "system call " + std::to_string(call.number) + " is listed twice");
    seen[call.number] = true;
    for (const auto& rule : call.rules)
      for (const auto& test : rule.tests)
        if (test.argument > 5 || (test.value & ~test.mask) != 0 ||
            (test.width == ArgumentTest::Width::low32 && (test.mask >> 32) != 0))
          return fail(Code::invalid, "a rule of system call " + std::to_string(call.number) + " can never hold");
  }
  SeccompProgram program;
  program.code_ = Compiler(policy).run();
  if (program.code_.size() > BPF_MAXINSNS) return fail(Code::exhausted, "the system-call filter is too long");
  program.hash_ = hash_of(program.code_);
  return program;
}

Result<void> SeccompProgram::install() const {
  if (int e = fault::at("seccomp")) return sys_error("cannot install the system-call filter", e);
  sock_fprog program{static_cast<unsigned short>(code_.size()), const_cast<sock_filter*>(code_.data())};
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
    return sys_error("cannot install the system-call filter");
  return {};
}

std::string hash_of(const std::vector<sock_filter>& code) {
  return sha256_hex({reinterpret_cast<const char*>(code.data()), code.size() * sizeof(sock_filter)});
}

}  // namespace isola::kernel
