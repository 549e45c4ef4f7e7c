// Every sandbox of this launcher, from the first kernel object to the last: launching, parking, claiming, ending,
// clearing away, adopting after a restart. Knows nothing of sockets and clients: answers go to callbacks, and an owner
// is a number.
//
// The order is always the same: journal entry → id range, layer, control group → cell → … → cell gone → janitor
// (control group, layer) → id range, journal entry. Whatever fails on the way up takes the same way down.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "boundary/boundary.h"
#include "image/image_store.h"
#include "image/layer_store.h"
#include "kernel/cgroup.h"
#include "kernel/helper.h"
#include "launcher/event_loop.h"
#include "launcher/id_ranges.h"
#include "launcher/janitor.h"
#include "launcher/journal.h"
#include "launcher/machine_bounds.h"
#include "launcher/protocol.h"

namespace isola::launcher {

using OwnerId = uint64_t;  // 0: nobody

class Cells {
 public:
  using Launched = std::function<void(Result<std::pair<LaunchReply, boundary::Link>>)>;
  using Linked = std::function<void(Result<boundary::Link>)>;
  using Gone = std::function<void(Result<Ended>)>;
  using Done = std::function<void(Result<void>)>;
  using Checkpointed = std::function<void(Result<CheckpointReply>)>;

  struct Parts {
    EventLoop& loop;
    std::vector<boundary::Boundary*> boundaries;  // those that work here
    std::vector<boundary::Offer> offers;          // and all that there could be, with what is missing
    const kernel::CgroupTree& cgroups;
    image::LayerStore& layers;
    IdRanges& ranges;
    Journal& journal;
    std::string blobs;          // folder of the machine-wide cache
    std::string images;         // folder to mount them in
    std::string no_disk_limit;  // why the layer store enforces nothing, if so
    std::string kept;           // folder of the images that checkpoints make; empty: there are none
    std::string scratch;        // folder on the same filesystem, for restores
    std::string authorities;    // a file of those that are trusted beside the machine's; empty: none
    // What takes longer is given up: a launch, a guest that shall make a new link, processes that shall stop.
    std::chrono::milliseconds launch_limit = std::chrono::seconds(30);
    std::chrono::milliseconds link_limit = std::chrono::seconds(5);
    std::chrono::milliseconds freeze_limit = std::chrono::seconds(5);
    std::chrono::milliseconds bucket_limit = std::chrono::seconds(25);  // until a bucket is there
    std::chrono::milliseconds bucket_grace = std::chrono::seconds(10);  // for what an ending sandbox has to save there
  };
  explicit Cells(Parts parts);
  ~Cells();

  // Starts the janitor, adopts what lives, clears away what nobody knows.
  Result<void> start();

  void launch(LaunchRequest request, std::vector<Fd> trees, OwnerId owner, Launched done);
  void link(const std::string& id, OwnerId owner, Linked done);
  // The owner hears of its end.
  Result<void> own(const std::string& id, OwnerId owner);
  OwnerId owner_of(const std::string& id) const;  // 0: nobody's
  std::vector<std::string> owned_by(OwnerId owner) const;
  // Whether the user that is admitted beside root may know of it.
  bool open_to_user(const std::string& id) const;
  // Of a sandbox that somebody has (not of a parked one).
  Result<const boundary::IslandSockets*> sockets(const std::string& id);
  std::string birth_of(const std::string& id);  // names this life of it; journalled, so a restart does not change it
  void kill(const std::string& id, Gone done);
  // Answers when every process inside is really stopped.
  void freeze(const std::string& id, Done done);
  Result<void> thaw(const std::string& id);
  Result<StatsReply> stats(const std::string& id);
  Result<uint64_t> page_cache(const std::string& id);
  // At most `max` of them, by id, after `after`.
  std::vector<SandboxSummary> list(const std::string& after, size_t max, bool for_root = true) const;
  // Of a template (by digest), or of an image with memory.
  Result<void> park(const std::string& name, uint32_t count, BoundaryKind kind = BoundaryKind::jail);

  // Images (cells_images.cc).
  void checkpoint(const CheckpointRequest& request, OwnerId owner, Checkpointed done);
  std::vector<ImageSummary> images(const std::string& after, size_t max, bool for_root = true);
  Result<void> image_open_to_user(const std::string& id);  // an error is the user's answer
  Result<void> drop_image(const std::string& id);
  // `wanted`: and that this launch of it would not be refused for what the image is.
  void verify_image(const std::string& id, bool thorough, std::optional<LaunchRequest> wanted, Done done);
  // Packed, or unpacked (cells_packing.cc).
  using PackDone = std::function<void(Result<PackReply>)>;
  void pack_image(const std::string& id, bool pack, PackDone done);

  // Volumes (cells_volumes.cc).
  void make_volume(const std::string& id, uint64_t bytes, Done done);
  void resize_volume(const std::string& id, uint64_t bytes, Done done);
  void sync_volume(const std::string& id, Done done);
  Result<void> drop_volume(const std::string& id);
  Result<VolumeSummary> volume(const std::string& id);
  Result<std::vector<VolumeSummary>> volumes(const std::string& after, size_t max);

  void owner_gone(OwnerId owner);
  void kill_all();  // parked ones too
  void kill_parked();

  size_t live() const { return live_; }
  size_t parked() const { return parked_.size(); }
  size_t ending() const;  // killed, and not yet seen dead
  size_t cleaning() const;
  bool empty() const { return cells_.empty(); }

  // Called when a sandbox is gone (everything freed), and when anything happened that may make the launcher idle.
  std::function<void(OwnerId, const Ended&)> on_ended;
  std::function<void()> on_change;
  // Called when a cell is dropped, just before: its network must not be held any longer. True: somebody has still
  // something to tell of it, and it is gone only after let_go(id).
  std::function<bool(const std::string& id)> on_drop;
  void reap_soon();  // a child of ours has ended, or is about to
  void let_go(const std::string& id);
  // Opens what is sealed to the vault's key, into a pipe.
  std::function<void(const std::string& sealed, const Fd& into, std::function<void(Result<std::string>)> done)>
      open_secret;
  // Children of this process that are somebody else's.
  std::function<bool(pid_t)> is_known_child;

 private:
  // A checkpoint under way.
  struct Imaging {
    image::Image image;  // as far as it is known
    image::Draft draft;
    bool keep_running = false;
    bool froze = false;   // we did: for files only
    bool exited = false;  // process 1 has ended already
    std::unique_ptr<boundary::Checkpointing> work;
    OwnerId owner = 0;
    Checkpointed done;
    Latency latency;
    std::chrono::steady_clock::time_point cleared_from;
  };
  // A launch that waits for its buckets.
  struct Mounting {
    LaunchRequest request;
    std::vector<Fd> trees;
    boundary::LaunchSpec spec;
    std::vector<kernel::Helper> helpers;  // one for each bucket, in their order
    std::vector<Fd> mounts;
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  };
  // Who serves a bucket of a sandbox, and is our child.
  struct Server {
    pid_t pid = -1;
    Fd pidfd;
  };
  // Under way until all processes have stopped.
  struct Freezing {
    std::vector<Done> waiting;
    std::optional<EventLoop::TimerId> deadline, again;  // v1 has to be asked again and again,
    Fd events;                                          // v2 says when
    std::chrono::milliseconds pause{1};
  };
  struct One {
    JournalEntry entry;
    State state = State::creating;
    boundary::Limits limits;
    OwnerId owner = 0;
    std::unique_ptr<Mounting> mounting;
    std::vector<Server> servers;
    std::optional<EventLoop::TimerId> servers_timer;
    std::unique_ptr<boundary::Launching> launching;
    std::unique_ptr<boundary::Cell> cell;
    Launched launched;  // whoever waits for the launch
    std::optional<EventLoop::TimerId> launch_timer, parent_timer;
    bool parent_late = false;  // whoever restored it takes too long to end
    // Whoever waits for a link. The guest may be making one (link_fd is watched) for somebody who went away.
    std::optional<std::pair<OwnerId, Linked>> linking;
    std::optional<EventLoop::TimerId> link_timer;
    int link_fd = -1;
    std::unique_ptr<Freezing> freezing;
    std::unique_ptr<Imaging> imaging;
    std::vector<Gone> gone;           // whoever waits for the end
    std::optional<Error> failure;     // of the launch: told when everything is cleared away
    std::optional<EndReason> reason;  // why it ends, if we decided so
    Ended ended;
    Latency latency;
    std::optional<EventLoop::TimerId> deadline;
    bool restored = false;  // its processes came from an image: its guest had another link
    bool being_parked = false;
    std::optional<boundary::Link> link;  // of a restored one that is parked: for whoever claims it
    bool counted = false;                // in live_
    bool uses = false;                   // its layers are counted in layer_users_
    bool layer_stays = false;            // after its end: it is part of an image
    bool held = false;                   // until let_go()
    bool empty = false;                  // nothing of it is left on this machine
    uint64_t old_oom_kills = 0;          // that its group had counted when it was adopted
    std::string spending;                // the image that its layer is a part of, which goes when it is known to run
  };
  // What is kept parked of one template or image in one boundary. `have` counts those being made too.
  struct Pool {
    std::string name;  // digest, or image
    BoundaryKind kind = BoundaryKind::jail;
    uint32_t wanted = 0, have = 0, failures = 0;  // failures: since one was claimed
    std::chrono::steady_clock::time_point failed{};
    bool making = false;
  };

  Result<void> adopt(JournalEntry entry);
  Result<bool> keep_ids(JournalEntry& entry);
  void read_limits(One& one);
  Result<void> clear_unknown_ranges(std::set<std::string>& known);
  Result<void> check(const LaunchRequest& request) const;
  // The boundary is chosen, and the choice then names it.
  Result<void> choose_boundary(LaunchRequest& request) const;
  static BoundaryKind chosen(const LaunchRequest& request) { return *kind_of(request.boundary.wish); }
  boundary::Boundary* find_boundary(BoundaryKind kind) const;
  boundary::Boundary& boundary_of(const One& one) const { return *find_boundary(one.entry.kind); }
  Result<std::string> mount_image(const std::string& digest);
  void settle_volume(const std::string& id, Done done);
  void put_on_disk(std::function<Result<void>()> body, Done done);
  void drop_mount(const std::string& digest);
  void warm(const std::string& digest);
  bool claim(const LaunchRequest& request, OwnerId owner, Launched& done);
  bool fit(One& one, const LaunchRequest& request);
  Result<void> claim(One& one, const LaunchRequest& request);
  void begin(LaunchRequest request, std::vector<Fd> trees, OwnerId owner, bool park, Launched done);
  Result<void> make(One& one, LaunchRequest request, std::vector<Fd> trees);
  Result<void> write_down(One& one);
  void advance(const std::string& id);
  void born(One& one);
  Result<boundary::LaunchSpec> spec_for(One& one, const LaunchRequest& request);
  Result<void> fits_here(const image::Image& image) const;
  Result<void> resolve_image(LaunchRequest& request) const;
  bool may_spend(const image::Image& image, const LaunchRequest& request) const;
  Result<std::string> take_back(const std::string& layer, uint64_t bytes);
  Result<bool> keep_disk_of(const image::Image& image);  // false: it cannot be kept, and the image not be spent
  void bring_disk_back(const One& one);
  void spent(One& one);
  void note_outrun(const One& one);
  Result<void> check_volumes(const LaunchRequest& request);
  Result<Fd> open_volume(const VolumeMount& volume);
  // Buckets (cells_buckets.cc).
  Result<void> mount_buckets(One& one, LaunchRequest request, std::vector<Fd> trees, boundary::LaunchSpec spec);
  Result<void> start_server(One& one, const BucketMount& bucket, const kernel::CgroupDoors& doors);
  void bucket_mounted(const std::string& id, size_t number);
  void bucket_failed(One& one, const BucketMount& bucket, const Error& error);
  void server_ended(const std::string& id, pid_t pid);
  void end_servers_later(One& one);
  void kill_servers(const std::string& id);
  void forget_servers(One& one);
  Result<void> start_launch(One& one, const LaunchRequest& request, std::vector<Fd> trees, boundary::LaunchSpec spec);
  std::string layer_of(const JournalEntry& entry) const { return entry.layer.empty() ? entry.id : entry.layer; }
  void use_layers(One& one, bool use);
  void count_image(const image::Image& image, int more);
  void drop_unused(const std::vector<std::string>& layers);
  Result<void> start_images(std::set<std::string>& known);
  void adopt_drafts();
  void doubt_layers();
  bool is_doubtful(const std::string& layer) const { return doubts_all_ || doubtful_.contains(layer); }
  void look_again(const std::string& id);
  void ask_for_drafts();
  void doubt_undone();
  Result<void> begin_image(One& one, const CheckpointRequest& request);
  Result<void> start_work(One& one);
  void advance_image(const std::string& id);
  void image_made(One& one);
  void image_there(One& one, bool lives);
  void image_failed(One& one, const Error& error);
  void report_image(Imaging& imaging);
  // `capabilities`: what it takes to read that.
  void read_through(const std::string& name, uint64_t capabilities, std::function<Result<void>()> body, Done done);
  // What takes long is begun when its turn comes, and says when it is over (cells_aside.cc).
  struct Line {
    size_t under_way = 0;
    bool giving = false;
    std::deque<std::function<void()>> waiting;
  };
  void in_turn(Line& line, std::function<void()> begin);
  void turn_over(Line& line);
  void next_turn(Line& line);
  // A helper that does something at its leisure, for who has a turn.
  void do_aside(const kernel::Helper::Options& options, const kernel::Helper::Body& body, Done done);
  using Answered = std::function<void(const Result<std::string>&)>;
  // The descriptor of the helper; -1: it could not be started, and was said so.
  int ask_aside(const kernel::Helper::Options& options, const kernel::Helper::Body& body, Answered done);
  void seal_next();
  bool is_being_launched(const std::string& image) const;
  void stop_sealing(const std::string& image);
  void reap_strays();
  void arm_deadline(One& one, std::chrono::milliseconds left);
  void hand_over(One& one, Birth birth);
  void finish_launch(One& one, Birth birth, Result<boundary::Link> link);
  void begin_link(One& one, OwnerId owner, Linked done);
  void finish_link(const std::string& id);
  void fail_link(One& one, const Error& error);
  void begin_freezing(One& one, Done done);
  Result<void> note_frozen(One& one, bool frozen);
  Result<void> begin_freeze(One& one);
  Result<void> let_go_on(One& one);
  void ask_frozen(const std::string& id);
  void give_up_freeze(One& one, const Error& error);
  void finish_freeze(One& one, const Result<void>& result);
  One* find_living(const std::string& id);
  void end(One& one, EndReason reason);
  void watch_living();  // cells_watch.cc
  void watch_sockets();
  void end_hoarders();
  void watch_locks(std::chrono::milliseconds pause);
  void find_locks(std::optional<uint64_t> objects);
  void exited(const std::string& id);
  bool can_be_waited_for(One& one);
  void clear(One& one);
  void cleared(const std::string& id);
  static kernel::CgroupLimits group_limits(const boundary::Limits& limits);
  // Milliseconds since boot: the one clock that a restarted launcher shares with the one before.
  static int64_t boot_clock();
  Result<void> watch_janitor();
  void restart_janitor();
  void set_owner(One& one, OwnerId owner);
  void count_live(One& one, bool live);
  void link_ahead(One& one);
  void enter_pool(One& one);
  void leave_pool(One& one);
  static std::string pool_name(const std::string& name, BoundaryKind kind);
  static std::string pool_of(const JournalEntry& entry);
  Result<LaunchRequest> request_to_park(const std::string& name, BoundaryKind kind) const;
  void empty_pool(const std::string& name);
  void refill_soon();
  void refill();
  One* find(const std::string& id);

  Parts parts_;
  mutable MachineBoundsReader bounds_;
  Janitor janitor_;
  size_t held_ = 0;  // cells that wait for let_go()
  std::map<std::string, std::unique_ptr<One>> cells_;
  std::map<std::string, std::string> images_;             // digest → mount point, mounted while the launcher lives
  std::map<std::string, bool> warming_;                   // digest of an image that is read ahead → once more
  std::map<std::string, Pool> pools_;                     // by pool_name()
  std::set<std::pair<std::string, std::string>> parked_;  // pool, id
  std::map<OwnerId, std::set<std::string>> owned_;
  bool sockets_watched_ = false, locks_watched_ = false;
  size_t live_ = 0;  // counted, so that no request walks over all sandboxes
  std::optional<EventLoop::TimerId> refill_;
  std::chrono::steady_clock::time_point claimed_{};  // when somebody last wanted a parked one

  image::ImageStore store_;
  struct Kept {
    ImageSummary summary;
    std::vector<std::string> layers;
    uint64_t disk = 0;  // the limit of the sandbox that it was made of
    bool roots_own = false;
    bool machine = false;  // the memory of a virtual machine, which belongs to its disk
  };
  std::map<std::string, Kept> kept_;              // every image
  std::map<std::string, uint32_t> layer_images_;  // layer → images that name it
  std::map<std::string, uint32_t> layer_users_;   // layer → sandboxes that have it, writable or below
  std::set<std::string> writing_;                 // layers that a living sandbox may write to
  std::set<std::string> drafts_;                  // somebody whom an earlier launcher started is still working on them
  std::set<std::string> broken_;                  // images whose manifest could not be read
  std::set<std::string> doubtful_;                // layers that may be a part of those
  bool doubts_all_ = false;                       // when it cannot be said which there are
  std::set<std::string> outrun_;                  // images that are, and whose manifest could not be told
  std::set<std::string> to_seal_;
  struct Checking {
    kernel::Helper helper;
    Answered done;
  };
  std::map<int, Checking> checking_;  // by descriptor
  uint64_t calm_locks_ = 0;           // so many of them were there when nobody had too many
  Line images_line_;                  // reads through images, packs and unpacks them: minutes, maybe
  Line volumes_line_;                 // puts volumes on disk: behind nobody's image
  std::string sealing_;               // the image that a helper seals, or is about to
  int sealing_fd_ = -1;               // of that helper
  bool sealing_stopped_ = false;      // somebody needs the image now
  std::optional<EventLoop::TimerId> seal_timer_;
  void seal_later(std::chrono::milliseconds pause);
  std::function<void()> after_seal_;  // whoever wants to pack that one
  std::set<std::string> packing_;     // images that a helper packs or unpacks
  void pack_in_turn(const image::Image& image, bool pack, PackDone done);
  void make_room(const image::Image& image, bool pack, PackDone done);
  void pack_aside(const image::Image& image, bool pack, const std::string& trial, PackDone done);
  std::map<Janitor::Job, Done> after_jobs_;  // what goes on when the janitor has done that, or could not
  std::set<Janitor::Job> to_clear_again_;    // failed, and not done since
  std::set<Janitor::Job> going_;             // volumes that nobody may mount any more
  std::optional<EventLoop::TimerId> reap_;
  std::chrono::milliseconds reap_pause_{0};
};

}  // namespace isola::launcher
