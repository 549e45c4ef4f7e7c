// The sandbox service: what every dialect speaks to. It knows no HTTP and no dialect.
//
//   Service service(parts);
//   ISOLA_CO_CHECK(co_await service.start());                                  // adopts what lives
//   ISOLA_CO_TRY(BoxPtr box, co_await service.create({.project = "default"}));
//   ISOLA_CO_TRY(auto run, co_await service.run(box, {.argv = {"echo", "hi"}}));
//
// Every method may be called on any worker. An acknowledged change is in the store before the call returns.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/task.h"
#include "gate/registries.h"
#include "image/template_index.h"
#include "ledger/ledger.h"
#include "ledger/usage.h"
#include "sandbox/accounts.h"
#include "sandbox/box.h"
#include "sandbox/code_run.h"
#include "sandbox/events.h"
#include "sandbox/launcher_link.h"
#include "sandbox/pool_policy.h"
#include "sandbox/question_desk.h"
#include "sandbox/screening.h"
#include "sandbox/volume_desk.h"
#include "store/store.h"
#include "vault/binding_wire.h"
#include "vault/source.h"

namespace isola::sandbox {

struct Settings {
  std::string default_template = "base";
  boundary::Limits default_limits;
  Millis default_timeout = 0;                 // a lifetime where the caller names none; 0: never
  uint32_t pool = 1;                          // parked jails per template in use, at least
  uint32_t pool_most = 128;                   // and at most: in between, demand decides
  uint64_t pool_memory = 0;                   // bytes that all of them together may take; 0: no bound but what is free
  std::chrono::milliseconds sample{30000};    // how often usage is written down
  std::chrono::milliseconds patience{30000};  // with a guest that says nothing
  std::chrono::milliseconds sweep{20000};     // between looks for sandboxes that nobody knows
  std::chrono::milliseconds scrub{};          // between images that are read for the disk's sake; 0: none are
  std::chrono::milliseconds scan_patience{10000};  // with a gate that does not answer of what is to be searched
  bool allow_unquotaed_disk = false;
  std::string issuer = {};  // URL: who signs tokens of sandboxes' identities; empty: nobody
  ledger::PriceSheet prices;
};

// Why a sandbox is frozen that the next call thaws.
inline constexpr const char* kIdleFreeze = "nobody used it for its freeze_after";
// The same as the launcher is asked for.
std::vector<launcher::VolumeMount> mounts_of(const std::vector<store::VolumeUse>& volumes);

inline constexpr auto kQuestionPatience = std::chrono::seconds(3);  // with one question to the ledger, or one search
inline constexpr size_t kMaxMetadata = 64 << 10;
inline constexpr size_t kMostCommands = 1024;  // that a guest says it has and we did not start
// What goes into every entry of the ledger must never be what makes it too large.
inline constexpr size_t kMaxWord = 256, kMaxLine = 64 << 10, kMaxHooks = 128 << 10;

// A repository that is checked out in a new sandbox, by git inside, under the sandbox's own policy.
struct GitCheckout {
  std::string url = {};   // https, http or git; empty: none
  std::string ref = {};   // a branch, a tag or a commit; empty: what the repository begins with
  std::string path = {};  // where to; empty: a folder of the repository's name
};
// Code::invalid says which part and why.
Result<void> check_git(const GitCheckout& git);

// A binding that comes with what is said about a sandbox's network, and is replaced with it.
struct NetworkGrant {
  vault::Binding binding;                                // id, actor and the value are filled in
  std::shared_ptr<const vault::Secret> value = nullptr;  // of this sandbox alone; none: of the secret that it names
  bool identity = false;  // instead of both: a token that says who the sandbox is, for the binding's audience
};

struct CreateRequest {
  std::string project = "default";
  std::string name, key, task, actor;
  std::string by;             // the id of the API key that asks
  std::string template_name;  // empty: the default
  BoundaryWish boundary = BoundaryWish::automatic;
  boundary::Limits limits;
  bool usual_limits = false;      // they are nobody's wish: a template that has its own goes before
  bool usual_disk = false;        // likewise
  bool of_machine = false;        // the template of this machine, whatever the project built under its name
  std::string filling = {};       // the service's own: the id of a volume that nobody else sees before it is filled
  std::optional<Millis> timeout;  // from now; 0: never; empty: the server's default
  Millis idle_limit = 0;
  store::AtEnd at_end = store::AtEnd::kill;
  bool auto_resume = true;   // a call on it when it is paused resumes it
  Millis freeze_after = 0;   // idle for so long, it stands still until the next call; 0: never
  Millis delete_after = 0;   // paused for so long, it ends; 0: never
  Millis archive_after = 0;  // paused for so long, it is packed; 0: never
  GitCheckout git = {};
  std::string snapshot;     // instead of a template: an id or a name
  std::string step;         // instead of a template: an image of a build, by id; for builders
  bool files_only = false;  // of the snapshot: not its memory
  // By id or name. Not given: those of the snapshot, or none.
  std::optional<std::vector<store::VolumeUse>> volumes;
  std::optional<std::vector<store::VolumeUse>> buckets;  // likewise
  bool may_mount_buckets = false;  // who asks may say where a secret of the project is used; not to come by a snapshot
  store::Budget budget;
  store::Labels metadata, env;
  std::vector<std::string> on_create, on_resume;
  std::string probe;
  std::string network;  // a preset (none, package-registries, all) or a policy as text; empty: none
  bool public_ports = false;
  bool cold = false;
  bool one_shot = false;     // ends with the server that made it
  bool grants = true;        // of the project and the template; not for those made of a snapshot, unless keep_grants
  bool keep_grants = false;  // it has them after a resume, too, and from a snapshot on
  std::vector<NetworkGrant> network_grants = {};  // it has these after a resume, too; in force before anything runs
};

Result<void> check_metadata(const store::Labels& metadata);
// 1 to 63 of letters, digits, '-', '_' and '.', beginning with a letter or a digit.
bool is_plain_name(const std::string& name);

// Without memory it is stopped: its files are kept, its processes are not.
struct PauseRequest {
  bool memory = true;
  std::string why = {};              // of the service's own accord, to be shown
  bool unless_used = false;          // somebody uses it: then not
  std::function<bool()> still = {};  // asked when it is our turn; false: not any more
  bool allow_exposed = false;        // with its memory though a secret's value was given into it
  Caller by = Caller();
};
struct ResumeRequest {
  std::optional<Millis> timeout = {};    // empty: as long as it had
  bool files_only = false;               // its memory is left behind
  std::optional<bool> keep_grants = {};  // empty: as its create said
  Caller by = Caller();
};
struct SnapshotRequest {
  std::string name = {};  // may be empty; of a step: its key
  bool memory = true;
  bool replace = false;  // one of that name goes when this one is there; else the name is taken
  store::ImageKind kind = store::ImageKind::snapshot;  // or step, built
  Millis expires_after = 0;                            // its last use; 0: never
  bool allow_exposed = false;                          // as with a pause
  Caller by = Caller();
};
inline constexpr uint32_t kMostForks = 256;
inline constexpr uint64_t kVolumeSize = uint64_t{1} << 30;  // where nobody says
struct ForkRequest {
  uint32_t count = 1;
  std::optional<Millis> timeout = {};          // empty: as long as the parent's
  std::optional<store::Labels> metadata = {};  // empty: the parent's
  bool keep_grants = false;                    // those that the parent has, and copies of its own
  bool allow_exposed = false;                  // as with a pause
  bool each = false;                           // one that cannot be made takes nothing from the others
  Caller by = Caller();
};

struct VolumeRequest {
  std::string project = "default";
  std::string name;
  uint64_t size = kVolumeSize;
  store::Labels labels = {};
  bool or_get = false;  // one of that name is as good
  bool fill = false;    // nobody finds it before volume_is_there()
  Caller by = Caller();
};
struct VolumeLook {
  store::VolumeRecord volume;
  uint64_t used = 0;                   // bytes
  std::vector<std::string> sandboxes;  // that have it
  bool existed = false;                // it was there before it was asked for
};

// A value, or where to get it (vault/source.h, as JSON).
struct SecretRequest {
  std::string project = "default";
  std::string name;
  vault::Secret value = {};
  std::string source = {};
  bool operators = false;                      // who asks may use sources of this machine
  std::optional<store::Labels> metadata = {};  // not given: as it is
  Caller by = Caller();
};

struct BindRequest {
  std::string project = "default";
  store::BindingScope scope = store::BindingScope::sandbox;
  std::string subject = {};  // a template's name; of a sandbox its id
  vault::Binding binding;    // id, actor and value are filled in
  Caller by = Caller();
};

inline constexpr const char* kUsualTag = "default";

// What sandboxes of a name are made of (sources.cc).
struct Source {
  std::string name, base;     // as asked for; the template of this machine that it stands on
  std::string digest, image;  // image empty: the template of that digest as it is
  bool memory = false;        // the image has processes
  store::Labels env;
  std::string user, cwd;  // of commands that name none
  double cpus = 0;        // 0: as the server has it
  uint64_t memory_limit = 0;
  uint64_t disk = 0;  // at least
};

struct Created {
  BoxPtr box;
  bool existed = false;  // get-or-create found it
  Latency latency;
};

struct Forked {
  std::vector<Created> made;
  std::vector<Error> refused;  // where each is for itself
};

struct Update {
  std::optional<Millis> timeout;  // from now; 0: never
  bool only_extend = false;
  std::optional<Millis> idle_limit;
  std::optional<store::AtEnd> at_end;
  std::optional<bool> auto_resume;
  std::optional<Millis> delete_after, freeze_after, archive_after;
  std::optional<store::Labels> metadata;
  std::optional<store::Budget> budget;  // the whole of it
};

// A sandbox's policy as it is shown: one that has none reaches nothing.
inline std::string shown_policy(const std::string& policy) { return policy.empty() ? "default deny\n" : policy; }

struct NetworkChange {
  std::string network;       // a preset or a policy as text
  bool cut = false;          // connections that it denies end at once; else it is in force for the next ones
  store::Labels notes = {};  // put into the metadata with it
  std::optional<std::string> replaces = {};  // the policy it was made from: refused if there is another by now
  std::optional<std::vector<NetworkGrant>> grants = {};  // instead of those that came this way before; not given: stay
};

struct CommandSpec {
  std::vector<std::string> argv;
  std::string shell;  // instead of argv: a line for bash
  store::Labels env;
  std::string cwd, user, task, actor;
  std::string by;  // the id of the API key that asks
  guest::Stdin stdin_mode = guest::Stdin::null;
  bool pty = false;
  uint16_t rows = 24, cols = 80;
  std::chrono::milliseconds timeout{0};
  bool held = false;    // whoever follows it holds it up by reading slowly, and loses nothing
  bool whole = false;   // if held: its end waits for children that hold its output, unless somebody ends it
  bool counted = true;  // by budgets and usage; false: the service's own, such as a hook
  // Variable → secret: the values go into the sandbox, which is `exposed` from then on. Only where the project allows
  // it.
  store::Labels secrets = {};
  // The same as files for this command alone; the variable says where.
  store::Labels secret_files = {};
  std::vector<std::string> files = {};  // filled in: "VARIABLE=value"
  bool has_secrets() const { return !secrets.empty() || !secret_files.empty(); }
};

// A command and its stream. Dropping it detaches: the command goes on, and its end is recorded all the same.
struct Running {
  BoxPtr box;
  CommandInfo info;
  ChannelPtr channel;
  Box::Use use;
};

class Service : public std::enable_shared_from_this<Service> {
 public:
  struct Parts {
    std::function<boost::asio::io_context&()> next_worker;
    std::shared_ptr<LauncherLink> launcher;
    store::Store& store;
    ledger::Ledger& ledger;
    std::string cache_dir;
    gate::Registries registries;  // of this machine, read while that was allowed
    Settings settings;
    std::string secret = {};  // signs what guests keep for us; empty: one that goes with this process
    // What sandboxes of some templates begin with beyond their files (warm.cc).
    struct Warming {
      std::function<bool(const std::string& template_name)> has;
      std::function<Task<Result<void>>(Service&, BoxPtr)> bring_up;
    };
    Warming warming = {};
    // The ledger's newest entry of before this start; not given: nothing of it is this start's.
    std::optional<uint64_t> ledger_before = {};
  };
  explicit Service(Parts parts);
  ~Service();

  // Compares the store with what the launcher has: adopts, ends what is over, reaps what nobody knows.
  Task<Result<void>> start();
  void stop();
  bool ready() const { return ready_; }
  // Ready, and the launcher is there: what is asked for now can be done.
  bool able() const { return ready_ && parts_.launcher->connected(); }

  Task<Result<Created>> create(CreateRequest request);
  // Until the project's rate of creates allows one more, rounded up; 0: now.
  int seconds_until_create(const std::string& project);
  // Living: from memory. Ended: not_found that says what happened.
  Result<BoxPtr> find(const std::string& project, const std::string& id_or_name);
  BoxPtr living_one(const std::string& project, const std::string& id_or_name) const;  // or nothing
  // Whoever's it is: for those who come with the sandbox's own token instead of a key.
  Result<BoxPtr> find_any(const std::string& id);
  // All living ones, with who made them; from memory.
  std::vector<std::pair<std::string, std::string>> makers() const;
  // The record of any sandbox that the store still knows, living or ended.
  Result<store::SandboxRecord> look(const std::string& project, const std::string& id_or_name);
  // What searches (SandboxFilter::searches) is asked beside the workers, as questions to the ledger are.
  Task<Result<store::SandboxPage>> list(store::SandboxFilter filter, std::string cursor, size_t limit);
  // All of it or, where anything of it is wrong, nothing.
  Task<Result<store::SandboxRecord>> update(BoxPtr box, Update update, Caller by = Caller());
  // Whatever goes wrong, it ends: what fails now is tried again. `only_if`: asked as its end begins, in one step with
  // it; false: then not.
  using OnlyIf = std::function<bool(const store::SandboxRecord&)>;
  Task<Result<void>> kill(BoxPtr box, EndReason reason = EndReason::killed, std::string detail = {},
                          Caller by = Caller(), OnlyIf only_if = {});
  // It is written down that it ends, and nobody finds it from here on; returns before everything of it is gone.
  Result<void> kill_soon(const BoxPtr& box, const Caller& by = Caller());
  Task<Result<void>> set_network(BoxPtr box, NetworkChange change, Caller by = Caller());
  Task<Result<std::string>> network_report(BoxPtr box) { return parts_.launcher->gate_report(box->id()); }
  // A ceiling holds for the project's living sandboxes, too: once it is written down (change_project), each is told.
  Task<Result<void>> apply_ceiling(std::string project);
  // `why`: of the service's own accord, to be shown.
  // `still`: asked when it is our turn; false: not any more.
  Task<Result<void>> freeze(BoxPtr box, std::string why = {}, Caller by = Caller(), std::function<bool()> still = {});
  Task<Result<void>> thaw(BoxPtr box, Caller by = Caller());
  Task<Result<launcher::StatsReply>> stats(BoxPtr box);
  // What of its memory are copies of files; of one that sleeps nothing is in memory.
  Task<Result<uint64_t>> page_cache(BoxPtr box);

  // ---- images (docs/images.md) ----
  // One that is paused already stays as it is.
  Task<Result<void>> pause(BoxPtr box, PauseRequest request);
  // One that runs already goes on.
  Task<Result<Latency>> resume(BoxPtr box, ResumeRequest request);
  Task<Result<store::ImageRecord>> snapshot(BoxPtr box, SnapshotRequest request);
  // All of them or none.
  Task<Result<Forked>> fork(BoxPtr box, ForkRequest request);
  // What is kept of one that sleeps is packed: it takes little room, and longer to come back.
  Task<Result<void>> archive(BoxPtr box, Caller by = Caller());
  // In place: id, name, tokens and policy stay, files and memory are the snapshot's.
  Task<Result<Latency>> rollback(BoxPtr box, std::string snapshot, Caller by = Caller());
  Result<store::ImageRecord> find_snapshot(const std::string& project, const std::string& id_or_name);
  // The launcher has it, whole: not_found, corrupt.
  Task<Result<void>> check_image(std::string id) { return parts_.launcher->verify_image(std::move(id)); }
  Task<Result<void>> remove_snapshot(std::string project, std::string id_or_name);
  // All of it is read: what was written is what there is, or the sentence that says what is not (scrub.cc). The sweep
  // does the same with one image after the other.
  Task<Result<std::string>> find_damage(store::ImageRecord image);

  // ---- volumes (docs/storage.md) ----
  Task<Result<VolumeLook>> create_volume(VolumeRequest request);
  Task<Result<VolumeLook>> look_at_volume(std::string project, std::string id_or_name);
  struct VolumePage {
    std::vector<VolumeLook> volumes;
    std::string next;
  };
  Task<Result<VolumePage>> list_volumes(std::string project, std::string cursor, size_t limit);
  Task<Result<VolumeLook>> resize_volume(std::string project, std::string id_or_name, uint64_t size, Caller by);
  // unavailable (EBUSY) while a sandbox has it, be it asleep.
  Task<Result<void>> remove_volume(std::string project, std::string id_or_name, Caller by);
  // Its files without a sandbox of anybody's: paths of calls on the link begin at the volume's root.
  struct VolumeFiles {
    store::VolumeRecord volume;
    VolumeDesk::Use use;
  };
  Task<Result<VolumeFiles>> volume_files(store::VolumeRecord volume);
  // A folder as it is now becomes a volume that nobody writes to any more: to be mounted, or copied from (folders.cc).
  struct FolderRequest {
    BoxPtr box = {};          // of this sandbox, at one instant,
    std::string volume = {};  // or of this volume, by id or name
    std::string project = "default", path = "/", name = {};
    Caller by = Caller();
  };
  Task<Result<VolumeLook>> keep_folder(FolderRequest request);
  void record_volume(ledger::Kind kind, const store::VolumeRecord& volume, const store::Labels& data, const Caller& by);

  // ---- secrets and who may use them (docs/vault.md) ----
  // exists, or with `replace` not_found. The value is sealed before anything is waited for twice, and wiped.
  Task<Result<store::SecretRecord>> put_secret(SecretRequest request, bool replace);
  // The public halves of the keys that tokens of identity are signed with, as a JSON Web Key Set. Anybody may ask: the
  // launcher is asked once a second at most.
  Task<Result<std::string>> token_keys();
  // Of the project; what is a single sandbox's alone is not found.
  Result<store::SecretRecord> find_secret(const std::string& project, const std::string& name);
  // Every binding of it is revoked.
  Task<Result<void>> remove_secret(std::string project, std::string name, Caller by);
  // In force when it returns; what cannot be opened is not granted.
  Task<Result<store::BindingRecord>> bind(BindRequest request);
  Task<Result<void>> unbind(std::string project, std::string id, Caller by);
  // Those that hold for it, in the order in which the gate asks them: its own, its template's, its project's.
  Result<std::vector<store::BindingRecord>> grants_of(const store::SandboxRecord& sandbox);

  // Resumes it where that is its way.
  Task<Result<std::shared_ptr<GuestLink>>> link(BoxPtr box);
  // As it is: nobody is woken for it.
  Task<Result<std::shared_ptr<GuestLink>>> link_if_awake(BoxPtr box);
  // A file of a few bytes, with the folders that lead to it.
  Task<Result<void>> write_file(BoxPtr box, std::string path, std::string content, std::string user = {});
  static Task<Result<void>> write_over(std::shared_ptr<GuestLink> link, std::string path, std::string content,
                                       std::string user, guest::WriteMode how = guest::WriteMode::truncate);

  // ---- commands ----
  Task<Result<Running>> run(BoxPtr box, CommandSpec spec);
  // `held`: as in CommandSpec.
  Task<Result<Running>> attach(BoxPtr box, std::string command, uint64_t from, bool held = false);
  // The guest takes a kill that nobody asked it for to be the memory limit's. The kernel counts those: where it has
  // counted none since the command began, somebody inside did it.
  Task<guest::Exit> judged(BoxPtr box, std::string command, guest::Exit exit);
  // After the channel's end was read: records it. Called by whoever read it.
  void command_ended(const BoxPtr& box, const std::string& command, const guest::Exit& exit);
  // The caller stops reading before the end: the service watches for it.
  void detach(Running running);
  // The same where the caller only reads too slowly: its end is recorded though nobody has read as far.
  void watch(const BoxPtr& box, const std::string& command, uint32_t pid);
  Task<Result<std::vector<CommandInfo>>> commands(BoxPtr box);
  // Nothing: it is not known. Whether it runs is the guest's word, not that of an end that waits behind output which
  // nobody reads. A sandbox that rests is not woken for it.
  Task<std::optional<CommandInfo>> command_now(BoxPtr box, std::string id);
  Task<Result<CommandInfo>> find_command(BoxPtr box, std::string id);

  // exhausted: no more of it may run. The run is over when it is dropped.
  Task<Result<std::shared_ptr<CodeRun>>> begin_code(BoxPtr box, CodeRun::Spec spec);

  // ---- budgets ----
  // An empty budget takes it away.
  Task<Result<void>> set_task_budget(std::string project, std::string task, store::Budget budget);
  struct TaskUse {
    store::Budget budget;
    ledger::Usage used;
    std::string spent;  // which amount; empty: none
  };
  Task<Result<TaskUse>> task_use(std::string project, std::string task);
  Result<void> add_project(const store::ProjectRecord& project);
  // All of it or, where anything of it is wrong, nothing. A ceiling is a preset or a policy as text; empty: none.
  Result<store::ProjectRecord> change_project(const std::string& id, store::ProjectChange change);
  // Limits and budgets as the store has them now.
  Result<void> reload_projects();
  ledger::Usage used_by(const BoxPtr& box) const { return accounts_.used_by(*box); }
  // The ledger's file has everything that was recorded before; gives its newest entry. Nobody's worker waits for it.
  Task<Result<uint64_t>> flush_ledger();
  // What callers ask the ledger, who may ask for much: answered by a thread of its own, one of a project after the
  // other (question_desk.h). exhausted: too many wait. timeout: it took longer than kQuestionPatience.
  Task<Result<std::vector<ledger::Event>>> ask_ledger(const std::string& project, const ledger::EventFilter& filter);
  Task<Result<std::vector<ledger::UsageTotals>>> ask_usage(const std::string& project,
                                                           const ledger::UsageFilter& filter, ledger::GroupBy group);
  Task<Result<ledger::Rotation>> rotate_ledger(const std::string& project);

  EventBus& events() { return events_; }
  ledger::Ledger& ledger() { return parts_.ledger; }
  store::Store& store() { return parts_.store; }
  Settings settings() const;
  void set_settings(Settings settings);
  // No new sandboxes, for that reason; empty: the door is open again. Those that live are not touched.
  void close_door(std::string why);
  Task<Result<launcher::InfoReply>> info() { return parts_.launcher->info(); }
  size_t living() const;
  // Running, and used by nobody for ten minutes. Counted once in some seconds at most, whoever asks how often.
  size_t idle() const;

  struct Template {
    std::string name, digest;
  };
  Result<std::vector<Template>> templates();
  Result<Source> source_of(const std::string& project, const std::string& name, bool of_machine = false);
  // By the ceiling of the project, for what this server does on its behalf outside of sandboxes.
  Result<void> may_reach(const std::string& project, const std::string& name, uint16_t port);

  struct Counters {
    std::atomic<uint64_t> created{0}, ended{0}, commands{0}, create_failures{0}, create_nanos{0};
    std::atomic<uint64_t> pool_hits{0}, pool_misses{0}, paused{0}, resumed{0}, forked{0};
    // Where the time of creates went: how many had that step, and how long it took in all of them.
    struct Spent {
      std::atomic<uint64_t> count{0}, nanos{0};
    };
    std::array<Spent, static_cast<size_t>(Step::count_)> create_steps;
    void add_create(const Latency& latency);
  };
  Counters counters;
  // What the launcher was asked to keep parked, and what that takes.
  struct Pooling {
    size_t pools = 0;
    uint64_t wanted = 0, bytes = 0;
  };
  Pooling pooling() const;

  // For whoever writes events of its own (files). Without a caller it happened on behalf of whoever the sandbox is for.
  void record(ledger::Kind kind, const BoxPtr& box, std::string data, const Caller& by = Caller(),
              const std::string& task = {});
  // Is in the ledger's file when it returns.
  Task<Result<void>> record_durably(ledger::Event event);

 private:
  struct Reservation;
  struct Launching;
  Result<void> check(const CreateRequest& request) const;
  Result<store::ProjectLimits> admit(const CreateRequest& request);
  // The weakest that a project may have; of one that cannot be read nothing is known to be enough.
  BoundaryKind least_boundary(const std::string& project);
  Result<void> has_room(const CreateRequest& request, const store::ProjectLimits& limits);
  Task<Result<void>> wait_for_room(const CreateRequest& request, const store::ProjectLimits& limits);
  Result<void> note_birth(const BoxPtr& box);
  boost::asio::io_context& home_near(boost::asio::io_context* caller);
  void tell_soon(const BoxPtr& box);
  void tell_births();
  void record_birth(Box& box, const Latency& latency, const std::string& snapshot, const std::string& warm,
                    const Caller& by);
  Task<void> write_down_commands(BoxPtr box, bool can_speak);
  Task<void> commands_written(BoxPtr box, bool can_speak);
  Result<void> begin_end(const BoxPtr& box, EndReason& reason, std::string& detail, const Caller& by,
                         const OnlyIf& only_if = {});
  Result<std::string> digest_of(const std::string& template_name);
  Task<Result<Created>> launch(CreateRequest request);
  bool is_ready_soon(const CreateRequest& request, const store::SandboxRecord& record);
  void forget(const BoxPtr& box);
  Task<Result<BoxPtr>> take_in(store::SandboxRecord record, boundary::Link link);
  Task<Result<void>> prepare(BoxPtr box, const CreateRequest& request, bool certificate,
                             const Meanwhile* meanwhile = nullptr);
  Task<Result<void>> configure(BoxPtr box, store::Labels env, bool the_one);
  Task<Result<launcher::CheckpointReply>> save(BoxPtr box, launcher::CheckpointRequest request);
  Result<void> room_to_keep(const BoxPtr& box, uint64_t bytes);
  // false: its end had begun, and the image is nobody's.
  bool fall_asleep(const BoxPtr& box, store::ImageRecord image, const PauseRequest& request, const Latency* latency);
  Result<void> write_sleep(const BoxPtr& box);
  Task<void> write_sleep_later(BoxPtr box);
  Task<Result<Latency>> wake_up(BoxPtr box, ResumeRequest request);
  Result<void> awake(const BoxPtr& box, State from, Birth birth, std::optional<Millis> timeout);
  launcher::LaunchRequest launch_of(const store::SandboxRecord& record, std::vector<launcher::BucketMount> buckets);
  Task<Result<Launched>> find_again(BoxPtr box);
  Task<Result<launcher::Ended>> kill_there(std::string id);
  // In the turn of one that sleeps: what lives of it though a rollback gave it up is ended. true: there was such a one.
  Task<Result<bool>> end_given_up(BoxPtr box);
  Task<void> awake_later(BoxPtr box, Birth birth, std::optional<Millis> timeout);
  Task<Result<void>> wake(BoxPtr box);
  Task<Result<void>> wake_for(BoxPtr box);
  void forget_if_spent(const std::string& image);
  Task<void> drop_spent(std::string image);
  Task<void> sweep_images();
  void scrub_next();
  Task<void> scrub(store::ImageRecord image);
  // `filling`: of the service's own accord, a volume that is still being made.
  Result<std::vector<store::VolumeUse>> find_volumes(const std::string& project, std::vector<store::VolumeUse> asked,
                                                     const std::string& filling);
  // Buckets of these (buckets.cc), with what is sealed of their secrets now.
  Result<std::vector<launcher::BucketMount>> buckets_of(const std::string& project,
                                                        const std::vector<store::VolumeUse>& volumes);
  void note_buckets(const BoxPtr& box, const Caller& by);
  Result<void> volume_is_there(store::VolumeRecord& volume, const Caller& by);
  Task<Result<void>> retire_volume(std::string id);
  Task<Result<void>> drop_volume(std::string id);
  Task<void> undo_volumes();
  bool is_left(const store::VolumeRecord& volume) const;  // an earlier server was making it
  Task<void> sweep_volumes();
  void charge_snapshots(const std::vector<store::ImageRecord>& images);
  // `pool`: a digest, or an image.
  void note_demand(const std::string& pool, Birth birth, bool cold);
  Task<void> fit_pools();
  // The image that it is to be made of; empty: there is none, or not yet.
  std::string warm_for(const CreateRequest& request, const std::string& digest, bool volumes);
  Task<void> make_warm(std::string template_name, std::string digest);
  Task<Result<launcher::CheckpointReply>> bring_up(std::string template_name, std::string digest);
  Task<Result<launcher::CheckpointReply>> keep_what_it_starts(BoxPtr box);
  void keep_warm(const std::string& digest, const std::string& image, uint64_t memory);
  Task<void> warm_failed(std::string digest, std::string image, Error error);
  void warm_served(const std::string& digest);
  Task<void> find_warm();
  Task<void> sweep_warm();
  bool is_template(const std::string& digest);
  void forget_pools();
  struct Forking;
  Task<void> make_forks(std::shared_ptr<Forking> forking);
  Task<Result<Created>> make_fork(Forking& forking);
  Task<Result<std::optional<launcher::ImageSummary>>> untold_pause(std::string id);
  Task<void> found_awake(BoxPtr box);
  Task<Result<void>> take_in_sleeper(BoxPtr box, bool alive);
  Task<Result<void>> thaw_now(BoxPtr box, Caller by);
  Result<void> set_running(const BoxPtr& box);
  Result<std::string> policy_text(const std::string& network) const;
  Result<std::string> ceiling_text(const std::string& ceiling) const;
  Result<void> may_ask_for(const std::string& project, const std::string& policy);
  std::string ceiling_of(const store::ProjectRecord& project) const;
  // In the sandbox's turn: the ceiling that is read here is the one that holds when the next one is read.
  // `meanwhile`: done while the gate is at it, unless nobody has to be asked.
  Task<Result<void>> apply_network(BoxPtr box, std::string policy, bool cut, const Meanwhile* meanwhile = nullptr);
  // The same, and what is to be said of its bindings: a policy is never refused because of them.
  struct Told {
    vault::Reasons missing;           // which could not be opened, and why
    std::optional<Error> ungathered;  // it goes without any of them, and is told again soon
  };
  Task<Result<Told>> apply_terms(BoxPtr box, std::string policy, bool cut, const Meanwhile* meanwhile = nullptr);
  static void warn_of_missing(const Box& box, const vault::Reasons& missing);
  // With their sealed values; as the launcher wants them.
  Result<std::string> sealed_grants(const store::SandboxRecord& sandbox, Millis& refresh);
  ledger::Event grant_event(ledger::Kind kind, const store::BindingRecord& binding, const std::string& why,
                            const Caller& by);
  void record_grant(ledger::Kind kind, const store::BindingRecord& binding, const std::string& why, const Caller& by);
  // In their order, and all of them are in the file when it returns.
  Task<Result<void>> record_durably(std::vector<ledger::Event> events);
  // At the start, when the sandboxes are known: what the ledger has ended and the store has not.
  Result<void> recall_grants();
  Result<Millis> last_sign();
  static constexpr char kNotGranted[] = "it could not be granted";
  static constexpr char kStays[] = "it could not be taken away";
  void record_secret(ledger::Kind kind, const store::SecretRecord& secret, const Caller& by);
  static Result<vault::PublicKey> vault_key(const launcher::VaultState& state);
  Task<Result<void>> seal_again_if_rotated(store::SecretRecord secret);
  // Whoever a change concerns gets it now; what cannot be told is told again until it is (watch_grants).
  Task<Result<void>> tell_grants(std::vector<BoxPtr> boxes);
  Task<Result<void>> tell_grants_of(BoxPtr box);
  Task<Result<void>> tell_revoked(std::vector<store::BindingRecord> gone);
  std::vector<BoxPtr> concerned(const store::BindingRecord& binding);
  Task<void> watch_grants();
  Task<bool> end_expired();
  Task<Result<void>> drop_grants(BoxPtr box);
  Task<Result<void>> copy_grants(store::SandboxRecord from, BoxPtr to, Caller by);
  // In the sandbox's turn, before they are told to the gate: in the ledger's file, and then in the store.
  struct NewGrants {
    store::NetworkGrants before, now;
  };
  Task<Result<NewGrants>> write_network_grants(BoxPtr box, std::vector<NetworkGrant> grants, Caller by);
  // The change was refused: as it was.
  Task<void> undo_network_grants(BoxPtr box, NewGrants grants, Caller by);
  Task<Result<void>> grant_to(BoxPtr box, store::BindingRecord record);
  // The same policy with these bindings: all of them, or an error.
  Task<Result<void>> apply_with_grants(BoxPtr box, std::string policy, bool cut, const NewGrants& grants);
  bool needs_certificate(const store::SandboxRecord& record);
  // `missing`: only if it is not there yet, which costs little where it is. One that is frozen gets it when it is
  // thawed.
  Task<void> place_certificate(BoxPtr box, bool missing = false);
  Task<Result<void>> put_certificate(BoxPtr box, bool missing);
  Task<void> place_elsewhere(BoxPtr box, std::shared_ptr<GuestLink> link, std::string pem);
  // ---- what leaves them (screens.cc) ----
  BoxPtr new_box(boost::asio::io_context& home, const store::SandboxRecord& record);
  // At the start, before anybody can ask for what is inside.
  void screen_if_granted(const BoxPtr& box);
  std::shared_ptr<const Screening> volume_screening(const store::VolumeRecord& volume);
  // A value of a secret is about to go into it, for a command.
  Task<Result<void>> expose(BoxPtr box, CommandSpec& spec);
  // What is written down is what is in force, whoever died between the two. `fresh`: it never had a policy.
  Task<Result<void>> renew_network(BoxPtr box, bool fresh, const Meanwhile* meanwhile = nullptr);
  Task<Result<void>> place_files(BoxPtr box, const std::map<std::string, std::string>& files);
  // ---- what the gate told (gate_records.cc) ----
  Result<void> find_gate_records();
  void heard_gate(const gate::Event& event, uint64_t number);
  Result<void> record_gate(const gate::Event& event, uint64_t number);
  Task<void> acknowledge_gate();
  Task<void> hear_gate_again();
  Task<Result<void>> run_hooks(BoxPtr box, std::vector<std::string> hooks, std::string when);
  Task<Result<void>> wait_ready(BoxPtr box, std::string probe);
  void adopt(const store::SandboxRecord& record);
  Task<void> reown();
  // Now and then: what the launcher has and nobody here knows, because its answer got lost, is ended.
  Task<void> sweep();
  Task<void> sweep_once();
  Task<void> sweep_gone(const std::vector<launcher::SandboxSummary>& there);
  void add(const BoxPtr& box);
  [[nodiscard]] bool publish(const BoxPtr& box);
  ledger::Event event_of(ledger::Kind kind, const BoxPtr& box, std::string data, const Caller& by,
                         const std::string& task);
  static ledger::Event plain_event(ledger::Kind kind, Box& box, std::string data, const Caller& by,
                                   const std::string& task);
  // What it refuses is counted, and the count becomes an entry when there is room again.
  Result<void> append(ledger::Event event);
  void record(ledger::Event event);
  // At the start: those that the store says to live.
  struct Left {
    store::SandboxRecord record;
    bool there = false;  // the launcher has it
  };
  struct TakingBack;
  Task<Result<void>> take_back(std::vector<Left> left);
  Task<void> take_back_some(std::shared_ptr<TakingBack> work);
  Task<Result<void>> take_one_back(Left left);
  Task<Result<void>> take_over(BoxPtr box);
  Task<void> take_over_later(BoxPtr box);
  Task<void> found_gone(BoxPtr box, EndReason otherwise, std::string detail);
  void heard_end(const launcher::Ended& ended);
  Task<void> heard_end_now(BoxPtr box, launcher::Ended ended);
  void finish(const BoxPtr& box, EndReason reason, const std::string& detail, const launcher::StatsReply* usage);
  void bury(const BoxPtr& box);
  void kill_later(const BoxPtr& box);
  Task<void> write_end_later(BoxPtr box);
  void arm(const BoxPtr& box);
  void arm_deadline(const BoxPtr& box);
  void arm_idle(const BoxPtr& box);
  void arm_archive(const BoxPtr& box, const store::SandboxRecord& record);
  void arm_sample(const BoxPtr& box);
  void time_is_up(const BoxPtr& box, EndReason reason, const std::string& detail);
  Task<void> stand_still(BoxPtr box);
  Task<void> put_away(BoxPtr box);
  Task<Result<void>> unpack(BoxPtr box);
  Task<Result<void>> check_out(BoxPtr box, GitCheckout git);
  Task<void> end_of_time(BoxPtr box, EndReason reason, std::string detail);
  Task<void> sample(BoxPtr box);
  // A look at what it used, now.
  Task<void> take_stock(BoxPtr box);
  void note_disk(const BoxPtr& box, uint64_t used);
  void budget_is_spent(const BoxPtr& box, const Spent& spent);
  Task<void> hold(BoxPtr box, Spent spent);
  // Why one that a budget holds must not go on yet.
  std::optional<Spent> held_by(const BoxPtr& box) const;
  Result<void> may_go_on(const BoxPtr& box);
  Task<void> stop_commands(BoxPtr box, std::vector<std::string> tasks);
  void look_sooner(const std::string& project);
  std::vector<BoxPtr> boxes_of(const std::string& project);
  bool was_limit(const BoxPtr& box, const std::string& command, uint64_t oom_kills);
  void whose(const BoxPtr& box, const CommandInfo& info, Channel& channel);
  Task<void> make_rounds(BoxPtr box);
  Task<void> watch_command(BoxPtr box, std::string command, uint32_t pid);
  // After a new link: what runs in the guest, and how the rest ended.
  Task<void> catch_up(BoxPtr box);
  Task<void> relink(BoxPtr box);
  Task<Result<void>> look_at_commands(BoxPtr box, bool wakes);
  struct Recorded {
    std::set<std::string> started, ended;  // by id
  };
  Result<void> adopt_command(const BoxPtr& box, const guest::ProcessInfo& process, const Recorded& recorded);
  // What the ledger has of its commands: an earlier server may have seen their ends, or died before it wrote anything.
  Result<Recorded> recorded_commands(const BoxPtr& box, std::set<std::string> wanted);
  ledger::Event start_event(const BoxPtr& box, const CommandInfo& info, bool late);
  void record_start(const BoxPtr& box, const CommandInfo& info, bool late) { record(start_event(box, info, late)); }
  Result<void> may_run(const BoxPtr& box, const std::string& task);
  friend class CodeRun;
  void code_over(const BoxPtr& box, const std::string& task, uint64_t span, bool happened);
  Task<void> forget_task_of(BoxPtr box, std::string task);

  Parts parts_;
  struct {
    std::atomic<uint64_t> taken = 0;    // the number of the last one that the ledger has taken
    std::atomic<uint64_t> written = 0;  // … that is in its file
    std::atomic<bool> writing = false;  // somebody is about to say so to the launcher
    std::atomic<bool> refused = false;  // the ledger takes none: they are asked for again
  } gate_records_;
  std::atomic<uint64_t> unrecorded_ = 0;  // entries that the ledger did not take
  image::TemplateIndex templates_{image::TemplateCache(parts_.cache_dir)};
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, BoxPtr> boxes_;               // by id
  std::unordered_map<std::string, std::string> names_, keys_;   // project + '\n' + name → id ("?…" while being created)
  Bell key_bell_;                                               // rings when a create by key, or a sandbox, is over
  std::unordered_map<boost::asio::io_context*, size_t> homes_;  // how many live on each worker; under mutex_
  std::unordered_map<std::string, std::set<std::string>> ending_;  // ids, by project; under mutex_
  struct Rate {
    double tokens = 0;
    std::chrono::steady_clock::time_point at{};
  };
  std::string closed_;                           // why no new ones are made; under mutex_
  std::unordered_map<std::string, Rate> rates_;  // of creates, by project; under mutex_
  Accounts accounts_;
  std::mutex budgets_mutex_;  // the store and the accounts have the same budgets, in whatever order they were set
  // Launches are numbered: one that was asked for before a stranger was first seen may be the stranger's.
  std::mutex launch_mutex_;
  uint64_t launches_ = 0;
  std::set<uint64_t> launching_;
  std::map<std::string, uint64_t> strangers_;       // id → how many launches there had been when it was first seen
  std::map<std::string, uint64_t> strange_images_;  // likewise
  const Millis started_ = now_millis();
  std::map<std::string, Millis> stored_until_;   // what is written down of each snapshot's storage; of the sweep alone
  std::set<std::string> full_volumes_;           // ids; of the sweep alone
  std::map<std::string, Millis> volumes_until_;  // likewise, of volumes
  struct {
    std::mutex mutex;
    std::vector<BoxPtr> untold;  // whose makers are just being answered
    bool soon = false;           // a timer is set for them
  } births_;
  mutable std::mutex pool_mutex_;
  struct Pool {
    PoolPolicy policy;
    uint32_t asked = 0;     // of the launcher
    uint64_t each = 0;      // bytes of memory that one has, beyond a plain one's
    bool projects = false;  // of what a project built: kept only while it is wanted
  };
  uint64_t left_for(const Pool& pool, const Settings& settings) const;
  std::map<std::string, Pool> pools_;  // by digest, or image; under pool_mutex_
  struct Warm {
    std::string image = {};  // empty: there is none
    bool making = false;
    uint32_t failures = 0;
    Millis not_before = 0;
  };
  std::map<std::string, Warm> warm_;  // by digest; under pool_mutex_
  struct {
    std::atomic<bool> busy = false;
    std::chrono::steady_clock::time_point begun{};  // of the last one; of the sweep alone, as the next
    std::map<std::string, uint64_t> turns;          // image → when it was read, by number; 0: never by this server
    uint64_t turn = 0;
    std::mutex mutex;
    std::set<std::string> damaged;  // and the ledger says so
    std::set<std::string> reading;  // projects: one image of each at a time
  } scrub_;
  std::mutex sleeps_mutex_;
  std::map<std::string, store::ImageRecord> unwritten_sleeps_;  // what sandboxes sleep in that the store does not know
  std::shared_ptr<VolumeDesk> desk_;
  std::shared_ptr<ScanLink> scanner_;
  std::mutex grants_mutex_, token_keys_mutex_;
  std::string token_keys_;  // as they were read last
  Millis token_keys_read_ = 0;
  std::map<std::string, Millis> grants_due_;  // sandboxes whose bindings are to be told again, and when; under it
  std::set<std::string> expired_;             // bindings of which the ledger was told so, and the store not yet
  Bell grants_bell_;
  EventBus events_;
  QuestionDesk questions_, searches_;  // of the ledger, of the store
  mutable struct {
    std::mutex mutex;
    std::chrono::steady_clock::time_point at{};
    size_t count = 0;
  } idle_;
  std::atomic<bool> ready_ = false;
  std::atomic<uint64_t> connections_ = 0;  // to the launcher, one after the other
};

}  // namespace isola::sandbox
