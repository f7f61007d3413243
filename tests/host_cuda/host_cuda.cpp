// The run time of cuda_runtime.h beside it: fibers, streams, captures, memory.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace host_cuda { namespace {

std::mt19937_64& chance() {
  static std::mt19937_64 generator(
      std::getenv("HOST_CUDA_SEED") != nullptr ? std::atoi(std::getenv("HOST_CUDA_SEED")) : 1);
  return generator;
}
std::size_t below(std::size_t n) { return static_cast<std::size_t>(chance()() % n); }

// --- kernels -------------------------------------------------------------------------------------

enum class doing { runs, waits, ended };

struct fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(std::size_t{128} << 10);
  uint3 thread;
  doing now = doing::ended;
  bool waited = false;  // for the kernels before this one
  meeting kind = meeting::none;
  unsigned mask = 0;
  std::uint64_t value = 0;
  int argument = 0;
  int width = 32;
  std::uint64_t answer = 0;
};

struct block {
  ucontext_t scheduler;
  std::vector<std::unique_ptr<fiber>> fibers;
  std::size_t count = 0;
  std::size_t current = 0;
  const std::function<void()>* body = nullptr;
  bool failed = false;
};
block running;
std::string last_failure;

void thread_begins() {
  (*running.body)();
  running.fibers[running.current]->now = doing::ended;
  swapcontext(&running.fibers[running.current]->context, &running.scheduler);
}

void resume(std::size_t i) {
  running.current = i;
  threadIdx = running.fibers[i]->thread;
  swapcontext(&running.scheduler, &running.fibers[i]->context);
}

fiber& lane_of(std::size_t warp, unsigned lane) { return *running.fibers[warp * 32 + lane]; }

// Lets the lanes of a mask go on if all of them wait for the same.
void try_meeting(std::size_t warp, unsigned mask) {
  const unsigned one = static_cast<unsigned>(__builtin_ctz(mask));
  for (unsigned l = 0; l < 32; ++l) {
    if ((mask >> l & 1U) == 0) continue;
    if (warp * 32 + l >= running.count) fail("a mask names a lane that the block does not have");
    const fiber& f = lane_of(warp, l);
    if (f.now != doing::waits || f.kind != lane_of(warp, one).kind || f.mask != mask) return;
  }
  for (unsigned l = 0; l < 32; ++l) {
    if ((mask >> l & 1U) == 0) continue;
    fiber& f = lane_of(warp, l);
    unsigned from = l;
    const unsigned segment = l & ~static_cast<unsigned>(f.width - 1);
    switch (f.kind) {
      case meeting::shuffle:
        from = segment | (static_cast<unsigned>(f.argument) & static_cast<unsigned>(f.width - 1));
        break;
      case meeting::shuffle_xor:
        from = l ^ static_cast<unsigned>(f.argument);
        if (from >= segment + static_cast<unsigned>(f.width)) from = l;
        break;
      case meeting::ballot:
        f.answer = 0;
        for (unsigned k = 0; k < 32; ++k) {
          if ((mask >> k & 1U) != 0) f.answer |= lane_of(warp, k).value << k;
        }
        continue;
      default:
        continue;
    }
    if ((mask >> from & 1U) == 0) fail("a shuffle reads a lane that its mask does not name");
    f.answer = lane_of(warp, from).value;
  }
  for (unsigned l = 0; l < 32; ++l) {
    if ((mask >> l & 1U) != 0) lane_of(warp, l).now = doing::runs;
  }
}

void run_block(unsigned threads, const std::function<void()>& body) {
  while (running.fibers.size() < threads) running.fibers.push_back(std::make_unique<fiber>());
  running.count = threads;
  running.body = &body;
  std::vector<std::size_t> ready(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    fiber& f = *running.fibers[i];
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, thread_begins, 0);
    f.thread = {static_cast<unsigned>(i), 0, 0};
    f.now = doing::runs;
    f.waited = false;
    ready[i] = i;
  }
  std::shuffle(ready.begin(), ready.end(), chance());
  while (!running.failed) {
    bool moved = false;
    for (const std::size_t i : ready) {
      if (running.fibers[i]->now != doing::runs) continue;
      resume(i);
      moved = true;
      if (running.failed) return;
    }
    if (moved) continue;
    for (const std::size_t i : ready) {
      if (running.fibers[i]->now == doing::ended) continue;
      last_failure = "lanes wait for lanes that ended or wait for something else";
      running.failed = true;
    }
    return;
  }
}

// --- streams -------------------------------------------------------------------------------------

struct node {
  std::size_t number = 0;  // in the recording that it is of
  int recording = 0;       // 0: none
  std::function<void()> run;
  std::vector<std::shared_ptr<node>> after;
  bool done = false;
  std::uint64_t moment = 0;
};
using nodes = std::vector<std::shared_ptr<node>>;

struct kept_graph {
  nodes all;
  bool invalid = false;  // its capture did what a capture must not
};

struct recorded {
  cudaStream_t on;
  long long label;
  std::vector<std::size_t> after;
};
struct record_of_all {
  std::vector<recorded> all;
  std::set<std::size_t> waited_for;                      // by the host: what is enqueued later comes behind
  std::map<const void*, std::vector<std::size_t>> uses;  // of a block
  std::string fault;
};
std::unique_ptr<record_of_all> record;  // null: nothing is recorded
int recordings = 0;
lost what_is_lost = lost::nothing;
std::size_t limit = ~std::size_t{0};
bool memory_is_closed = false;
bool memory_is_shared = false;
std::size_t copies_on_device = 0;

nodes pending;
std::uint64_t moments = 0;
cudaError_t last_error = cudaSuccess;
cudaError_t sticky = cudaSuccess;
int devices = 2;
int current_device = 0;

cudaError_t keep(cudaError_t e) {
  if (e != cudaSuccess) last_error = e;
  return e;
}

std::size_t others_alive = 0;  // events, graphs
int calls_until_refusal = -1;
bool was_refused = false;
bool is_refused() {
  if (calls_until_refusal < 0) return false;
  was_refused = calls_until_refusal-- == 0;
  return was_refused;
}

void run_one(const std::shared_ptr<node>& n) {
  if (n->run && sticky == cudaSuccess) n->run();
  n->done = true;
  n->moment = ++moments;
  n->after.clear();
}
bool is_ready(const std::shared_ptr<node>& n) {
  return std::all_of(n->after.begin(), n->after.end(), [](const auto& before) { return before->done; });
}
// Runs what is ready, anything of it, until `enough` says so.
template <class Enough>
void work_until(nodes& all, const Enough& enough) {
  while (!all.empty() && !enough()) {
    const std::size_t first = below(all.size());
    for (std::size_t i = 0;; ++i) {
      if (i == all.size()) return;  // all that is left waits for gates
      const std::size_t at = (first + i) % all.size();
      if (!is_ready(all[at])) continue;
      const std::shared_ptr<node> n = all[at];
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
      run_one(n);
      break;
    }
  }
}
void work_until_done(const nodes& wanted) {
  work_until(pending, [&] {
    return std::all_of(wanted.begin(), wanted.end(), [](const auto& n) { return n->done; });
  });
}
void work_off() {
  work_until(pending, [] { return false; });
}
bool is_recorded(const node& n) { return record != nullptr && n.recording == recordings; }
void host_waits_for(const nodes& wanted, lost loses) {
  work_until_done(wanted);
  if (what_is_lost == loses) return;
  for (const auto& n : wanted) {
    if (is_recorded(*n)) record->waited_for.insert(n->number);
  }
}
std::set<std::size_t> all_before(std::vector<std::size_t> open) {
  std::set<std::size_t> seen;
  while (!open.empty()) {
    const std::size_t n = open.back();
    open.pop_back();
    if (!seen.insert(n).second) continue;
    open.insert(open.end(), record->all[n].after.begin(), record->all[n].after.end());
  }
  return seen;
}

}}  // namespace host_cuda

struct CUstream_st {
  host_cuda::nodes tail;    // what comes next comes behind these
  host_cuda::nodes before;  // the tail that a capture found, which is there again behind it
  std::shared_ptr<host_cuda::kept_graph> capture;
  bool began = false;
  int priority = 0;
  int device = 0;
};
struct CUevent_st {
  int device = 0;
  host_cuda::nodes at;
  std::shared_ptr<host_cuda::kept_graph> capture;
};
struct CUgraph_st {
  std::shared_ptr<host_cuda::kept_graph> kept;
};
struct CUgraphExec_st {
  std::shared_ptr<host_cuda::kept_graph> kept;
  unsigned long long flags;
};

namespace host_cuda {
namespace {

CUstream_st null_stream;
std::set<cudaStream_t> streams;
CUstream_st& stream_of(cudaStream_t s) { return s == nullptr ? null_stream : *s; }

bool capturing() {
  return std::any_of(streams.begin(), streams.end(), [](cudaStream_t s) { return s->capture != nullptr; });
}
// What a capture does not allow ends it: the streams stay in it until its end is asked for.
cudaError_t invalidate(const std::shared_ptr<kept_graph>& capture, cudaError_t why) {
  if (capture != nullptr) capture->invalid = true;
  return keep(why);
}
cudaError_t invalidate_all() {
  for (const cudaStream_t s : streams) {
    if (s->capture != nullptr) s->capture->invalid = true;
  }
  return keep(cudaErrorStreamCaptureUnsupported);
}
}  // namespace

int device_of(cudaStream_t s) { return s == nullptr ? current_device : s->device; }

namespace {

void run_graph(const kept_graph& graph) {
  nodes copy;
  std::map<const node*, std::shared_ptr<node>> of;
  for (const auto& n : graph.all) {
    auto made = std::make_shared<node>();
    made->run = n->run;
    for (const auto& before : n->after) made->after.push_back(of.at(before.get()));
    of[n.get()] = made;
    copy.push_back(made);
  }
  work_until(copy, [] { return false; });
}

struct allocation {
  std::size_t bytes;
  cudaMemoryType kind;
  int device;
  bool closed;
};
std::map<const char*, allocation> allocations;

cudaError_t allocate(void** out, std::size_t bytes, cudaMemoryType kind) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorMemoryAllocation);
  if (bytes == 0) {  // no block
    *out = nullptr;
    return kind == cudaMemoryTypeManaged ? keep(cudaErrorInvalidValue) : cudaSuccess;
  }
  if (capturing()) return invalidate_all();
  void* made = nullptr;
  const std::size_t held = allocated_bytes();
  if (bytes > (std::size_t{1} << 30) || held > limit || bytes > limit - held) {
    return keep(cudaErrorMemoryAllocation);
  }
  const bool closed = memory_is_closed && kind == cudaMemoryTypeDevice;
  if (closed) {
    made = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return keep(cudaErrorMemoryAllocation);
  } else {
    if (posix_memalign(&made, 256, bytes) != 0) return keep(cudaErrorMemoryAllocation);
    std::memset(made, 0xa7, bytes);
  }
  allocations[static_cast<char*>(made)] = {bytes, kind, current_device, closed};
  *out = made;
  return cudaSuccess;
}
cudaError_t release(void* dead) {
  const auto lock = hold();
  if (dead == nullptr) return cudaSuccess;
  if (capturing()) return invalidate_all();
  work_off();
  const auto found = allocations.find(static_cast<char*>(dead));
  if (found == allocations.end()) return keep(cudaErrorInvalidValue);
  if (record != nullptr) {
    const auto waited = all_before({record->waited_for.begin(), record->waited_for.end()});
    for (const std::size_t n : record->uses[dead]) {
      if (waited.count(n) == 0) record->fault = "memory is freed under " + std::to_string(n);
    }
    record->uses.erase(dead);
  }
  found->second.closed ? static_cast<void>(munmap(dead, found->second.bytes)) : std::free(dead);
  allocations.erase(found);
  return cudaSuccess;
}
// The allocation that holds a byte, or the end.
auto allocation_of(const void* p) {
  auto at = allocations.upper_bound(static_cast<const char*>(p));
  if (at == allocations.begin()) return allocations.end();
  --at;
  return static_cast<const char*>(p) < at->first + at->second.bytes ? at : allocations.end();
}
// Whether these bytes lie in one allocation; pageable memory of the host does not.
bool is_known(const void* p, std::size_t bytes) {
  const auto at = allocation_of(p);
  return at != allocations.end() && static_cast<const char*>(p) + bytes <= at->first + at->second.bytes;
}
bool is_of_device(const void* p, std::size_t bytes) {
  return bytes == 0 || memory_is_shared || is_known(p, bytes);
}
// What was enqueued last uses the block that a byte lies in.
void last_uses(const void* p) {
  const auto at = allocation_of(p);
  if (record != nullptr && !record->all.empty() && at != allocations.end()) {
    record->uses[at->first].push_back(record->all.size() - 1);
  }
}

}  // namespace

void wait_for_earlier_kernels() { running.fibers[running.current]->waited = true; }

std::uint64_t meet(meeting kind, unsigned mask, std::uint64_t value, int argument, int width) {
  fiber& f = *running.fibers[running.current];
  const auto lane = static_cast<unsigned>(running.current % 32);
  if ((mask >> lane & 1U) == 0) fail("a lane waits with a mask that does not name it");
  f.kind = kind;
  f.mask = mask;
  f.value = value;
  f.argument = argument;
  f.width = width;
  f.now = doing::waits;
  try_meeting(running.current / 32, mask);
  if (f.now == doing::waits) swapcontext(&f.context, &running.scheduler);
  return f.answer;
}

void meet_block() {
  fiber& f = *running.fibers[running.current];
  f.kind = meeting::block;
  f.now = doing::waits;
  for (std::size_t i = 0; i < running.count; ++i) {
    const fiber& other = *running.fibers[i];
    if (other.now != doing::waits || other.kind != meeting::block) {
      swapcontext(&f.context, &running.scheduler);
      return;
    }
  }
  for (std::size_t i = 0; i < running.count; ++i) running.fibers[i]->now = doing::runs;
}

void fail(const std::string& what) {
  last_failure = what;
  running.failed = true;
  fiber& f = *running.fibers[running.current];
  f.now = doing::ended;
  swapcontext(&f.context, &running.scheduler);  // never comes back
  std::abort();
}
const std::string& failure() { return last_failure; }
void forget_failure() {
  last_failure.clear();
  sticky = cudaSuccess;
  last_error = cudaSuccess;
}
std::size_t blocks_alive() {
  work_off();
  return allocations.size();
}
std::size_t things_alive() {
  work_off();
  return allocations.size() + streams.size() + others_alive;
}
void refuse_after(int calls) {
  calls_until_refusal = calls;
  was_refused = false;
}
bool has_refused() { return was_refused; }

cudaError_t enqueue(cudaStream_t on, std::function<void()> work, long long label) {
  const auto lock = hold();
  if (sticky != cudaSuccess) return keep(sticky);
  CUstream_st& stream = stream_of(on);
  if (stream.capture != nullptr && stream.capture->invalid) return keep(cudaErrorStreamCaptureInvalidated);
  auto made = std::make_shared<node>();
  made->run = std::move(work);
  made->after = stream.tail;
  if (record != nullptr) {
    made->number = record->all.size();
    made->recording = recordings;
    recorded kept{on, label, {record->waited_for.begin(), record->waited_for.end()}};
    for (const auto& n : stream.tail) {
      if (is_recorded(*n)) kept.after.push_back(n->number);
    }
    record->all.push_back(std::move(kept));
  }
  stream.tail = {made};
  (stream.capture != nullptr ? stream.capture->all : pending).push_back(made);
  return cudaSuccess;
}

void lose(lost what) { what_is_lost = what; }
void set_limit(std::size_t bytes) { limit = bytes; }
std::size_t allocated_bytes() {
  std::size_t sum = 0;
  for (const auto& [p, a] : allocations) sum += a.bytes;
  return sum;
}
std::size_t bytes_of(const void* block) { return allocations.at(static_cast<const char*>(block)).bytes; }
std::size_t bytes_behind(const void* p) {
  const auto at = allocation_of(p);
  if (at == allocations.end()) return 0;
  return at->second.bytes - static_cast<std::size_t>(static_cast<const char*>(p) - at->first);
}
void share_memory(bool shared) { memory_is_shared = shared; }
void set_devices(int count) { devices = count; }
void pass_time(std::uint64_t more) { moments += more; }
std::size_t device_copies() { return copies_on_device; }
std::unique_lock<std::recursive_mutex> hold() {
  static std::recursive_mutex everything;
  return std::unique_lock(everything);
}
void close_memory(bool closed) { memory_is_closed = closed; }

recording::recording() {
  work_off();
  record = std::make_unique<record_of_all>();
  ++recordings;
}
recording::~recording() {
  work_off();
  record = nullptr;
  lose(lost::nothing);
  set_limit(~std::size_t{0});
  close_memory(false);
  current_device = 0;
}
std::size_t recording::mark(cudaStream_t on, long long label) {
  return enqueue(on, {}, label) == cudaSuccess ? size() - 1 : ~std::size_t{0};
}
std::size_t recording::size() const { return record->all.size(); }
long long recording::label_of(std::size_t n) const { return record->all.at(n).label; }
cudaStream_t recording::stream_of(std::size_t n) const { return record->all.at(n).on; }
std::set<std::size_t> recording::before(std::size_t n) const { return all_before(record->all.at(n).after); }
bool recording::ordered(std::size_t first, std::size_t second) const {
  return before(second).count(first) != 0;
}
void recording::use(std::size_t n, const void* block) { record->uses[block].push_back(n); }
const std::string& recording::fault() const { return record->fault; }

gate close(cudaStream_t on) {
  const auto lock = hold();
  auto closed = std::make_shared<node>();
  if (enqueue(on, {}) == cudaSuccess) stream_of(on).tail[0]->after.push_back(closed);
  return closed;
}
void open(const gate& closed) {
  const auto lock = hold();
  static_cast<node*>(closed.get())->done = true;
}
void work_some() {
  const auto lock = hold();
  std::size_t left = below(4);
  work_until(pending, [&] { return left-- == 0; });
}

cudaError_t launch(const cudaLaunchConfig_t& shape, std::size_t parameter_bytes, std::function<void()> body) {
  const auto lock = hold();
  const dim3 grid = shape.gridDim, threads = shape.blockDim;
  if (grid.x == 0 || grid.y == 0 || grid.z != 1 || grid.x > 0x7fffffffU || grid.y > 65535 || threads.x == 0 ||
      threads.x > 1024 || threads.y != 1 || threads.z != 1) {
    return keep(cudaErrorInvalidConfiguration);
  }
  if (parameter_bytes > 32764) return keep(cudaErrorInvalidValue);
  if (is_refused()) return keep(cudaErrorLaunchOutOfResources);
  if (device_of(shape.stream) != current_device) return keep(cudaErrorInvalidResourceHandle);
  bool early = false;
  for (unsigned i = 0; i < shape.numAttrs; ++i) {
    const cudaLaunchAttribute& a = shape.attrs[i];
    if (a.id != cudaLaunchAttributeProgrammaticStreamSerialization) return keep(cudaErrorInvalidValue);
    early = a.val.programmaticStreamSerializationAllowed != 0;
  }
  return enqueue(shape.stream, [grid, threads, early, body = std::move(body)] {
    gridDim = grid;
    blockDim = threads;
    running.failed = false;
    std::vector<unsigned> order(grid.x);
    for (unsigned i = 0; i < grid.x; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), chance());
    for (unsigned y = 0; y < grid.y; ++y) {
      for (const unsigned x : order) {
        blockIdx = {x, y, 0};
        run_block(threads.x, body);
        for (unsigned i = 0; early && !running.failed && i < threads.x; ++i) {
          if (running.fibers[i]->waited) continue;
          last_failure =
              "a thread of a kernel that may begin early ends without a wait for the kernels before";
          running.failed = true;
        }
        if (running.failed) {
          std::fprintf(stderr, "host_cuda: %s (block %u,%u thread %u)\n", last_failure.c_str(), x, y,
                       threadIdx.x);
          sticky = cudaErrorLaunchFailure;
          return;
        }
      }
    }
  });
}

}  // namespace host_cuda

using namespace host_cuda;

extern "C" {

cudaError_t cudaPeekAtLastError() {
  const auto lock = hold();
  return last_error;
}
cudaError_t cudaGetLastError() {
  const auto lock = hold();
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorLaunchFailure ? "a kernel failed"
         : e == cudaSuccess          ? "no error"
                                     : "an error of the run time";
}
cudaError_t cudaGetDeviceCount(int* count) {
  const auto lock = hold();
  *count = devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorNoDevice);
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  const auto lock = hold();
  if (which != cudaDevAttrMultiProcessorCount) return keep(cudaErrorInvalidValue);
  *value = 128;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorInvalidDevice);
  if (device < 0 || device >= devices) return keep(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const auto lock = hold();
  if (capturing()) return invalidate_all();
  host_waits_for(nodes(pending), lost::waits_for_streams);
  return keep(sticky);
}

// --- memory ---
cudaError_t cudaMalloc(void** out, std::size_t bytes) { return allocate(out, bytes, cudaMemoryTypeDevice); }
cudaError_t cudaMallocManaged(void** out, std::size_t bytes, unsigned) {
  const auto lock = hold();
  return allocate(out, bytes, cudaMemoryTypeManaged);
}
cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  const auto lock = hold();
  return allocate(out, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFree(void* dead) { return release(dead); }
cudaError_t cudaMallocAsync(void** out, std::size_t bytes, cudaStream_t) {
  const auto lock = hold();
  return allocate(out, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFreeAsync(void* dead,
                          cudaStream_t on) {  // while it is in use by other streams, a sanitizer finds it
  const auto lock = hold();
  if (allocations.count(static_cast<char*>(dead)) == 0) return keep(cudaErrorInvalidValue);
  return enqueue(on, [dead] {
    allocations.erase(static_cast<char*>(dead));
    std::free(dead);
  });
}
cudaError_t cudaFreeHost(void* dead) { return release(dead); }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  *free = *total = std::size_t{1} << 30;
  for (const auto& [p, a] : allocations) *free -= a.kind != cudaMemoryTypeHost ? a.bytes : 0;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
  const auto lock = hold();
  *out = {};
  if (!is_known(p, 1)) return cudaSuccess;  // of the host, not registered
  const auto& [begin, held] = *std::prev(allocations.upper_bound(static_cast<const char*>(p)));
  out->type = held.kind;
  out->device = held.device;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t on) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if ((to_device && !is_of_device(to, bytes)) || (from_device && !is_of_device(from, bytes))) {
    return keep(cudaErrorInvalidValue);
  }
  if (kind == cudaMemcpyDeviceToDevice) ++copies_on_device;
  if (kind == cudaMemcpyHostToDevice &&
      !is_known(from, bytes)) {  // pageable: taken now, there when it is there
    const auto* const begin = static_cast<const char*>(from);
    const cudaError_t done = enqueue(on, [to, staged = std::vector<char>(begin, begin + bytes)] {
      std::copy(staged.begin(), staged.end(), static_cast<char*>(to));
    });
    if (done == cudaSuccess) last_uses(to);
    return done;
  }
  const cudaError_t done = enqueue(on, [=] {
    if (bytes > 0) std::memmove(to, from, bytes);
  });
  if (done == cudaSuccess) {
    last_uses(to);
    last_uses(from);
  }
  return done;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t on) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  if (!is_of_device(to, bytes)) return keep(cudaErrorInvalidValue);
  const cudaError_t done = enqueue(on, [=] {
    if (bytes > 0) std::memset(to, value, bytes);
  });
  if (done == cudaSuccess) last_uses(to);
  return done;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  const auto lock = hold();
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

// --- streams ---
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned, int priority) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  *made = new CUstream_st;
  (*made)->priority = std::clamp(priority, -5, 0);
  (*made)->device = current_device;
  streams.insert(*made);
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int* priority) {
  const auto lock = hold();
  *priority = stream_of(s).priority;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t dead) {
  const auto lock = hold();
  streams.erase(dead);
  delete dead;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  CUstream_st& stream = stream_of(s);
  if (stream.capture != nullptr) return invalidate(stream.capture, cudaErrorStreamCaptureUnsupported);
  host_waits_for(nodes(stream.tail), lost::waits_for_streams);
  return keep(sticky);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  CUstream_st& stream = stream_of(s);
  if (what_is_lost == lost::waits_of_streams && stream.capture == nullptr && e->capture == nullptr) {
    return cudaSuccess;
  }
  for (const auto& capture : {stream.capture, e->capture}) {
    if (capture != nullptr && capture->invalid) return keep(cudaErrorStreamCaptureInvalidated);
  }
  if (e->capture == nullptr && stream.capture != nullptr) {
    return invalidate(stream.capture, cudaErrorStreamCaptureIsolation);
  }
  if (e->capture != nullptr && stream.capture == nullptr) {  // joins the capture
    stream.capture = e->capture;
    stream.before = std::exchange(stream.tail, {});
  }
  if (e->capture != stream.capture) return invalidate(stream.capture, cudaErrorStreamCaptureMerge);
  for (const auto& n : e->at) {
    if (std::find(stream.tail.begin(), stream.tail.end(), n) == stream.tail.end()) stream.tail.push_back(n);
  }
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* answer) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  const auto& capture = stream_of(s).capture;
  *answer = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  if (s == nullptr || s->capture != nullptr) return keep(cudaErrorIllegalState);
  s->capture = std::make_shared<kept_graph>();
  s->before = std::exchange(s->tail, {});
  s->began = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* out) {
  const auto lock = hold();
  if (s->capture == nullptr || !s->began) return keep(cudaErrorIllegalState);
  const auto kept = s->capture;
  std::set<node*> reached;
  nodes open = s->tail;
  while (!open.empty()) {
    const auto n = open.back();
    open.pop_back();
    if (!reached.insert(n.get()).second) continue;
    open.insert(open.end(), n->after.begin(), n->after.end());
  }
  for (const cudaStream_t other : streams) {
    if (other->capture != kept) continue;
    other->capture = nullptr;
    other->tail = std::exchange(other->before, {});
    other->began = false;
  }
  if (kept->invalid) return keep(cudaErrorStreamCaptureInvalidated);
  if (reached.size() != kept->all.size()) return keep(cudaErrorStreamCaptureUnjoined);
  *out = new CUgraph_st{kept};
  ++others_alive;
  return cudaSuccess;
}

// --- graphs ---
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t of, unsigned long long flags) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  if ((flags & ~static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority)) != 0) {
    return keep(cudaErrorInvalidValue);
  }
  *made = new CUgraphExec_st{of->kept, flags};
  ++others_alive;
  return cudaSuccess;
}
cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t of, unsigned long long* flags) {
  const auto lock = hold();
  *flags = of->flags;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t what, cudaStream_t on) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  return enqueue(on, [kept = what->kept] { run_graph(*kept); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t dead) {
  const auto lock = hold();
  --others_alive;
  delete dead;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t dead) {
  const auto lock = hold();
  --others_alive;
  delete dead;
  return cudaSuccess;
}

// --- events ---
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  *made = new CUevent_st;
  ++others_alive;
  (*made)->device = current_device;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t dead) {
  const auto lock = hold();
  --others_alive;
  delete dead;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  const CUstream_st& stream = stream_of(s);
  if (e->device != device_of(s)) return keep(cudaErrorInvalidResourceHandle);
  if (const cudaError_t failed = enqueue(s, {}, -1); failed != cudaSuccess) return failed;
  e->at = stream.tail;
  e->capture = stream.capture;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  const auto lock = hold();
  if (e->capture != nullptr) return keep(cudaErrorCapturedEvent);
  const bool done = std::all_of(e->at.begin(), e->at.end(), [](const auto& n) { return n->done; });
  return keep(done ? sticky : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  const auto lock = hold();
  if (is_refused()) return keep(cudaErrorUnknown);
  if (e->capture != nullptr) return invalidate(e->capture, cudaErrorCapturedEvent);
  host_waits_for(nodes(e->at), lost::waits_for_events);
  return keep(sticky);
}
cudaError_t cudaEventElapsedTime(float* out, cudaEvent_t from, cudaEvent_t to) {
  const auto lock = hold();
  if (from->capture != nullptr || to->capture != nullptr) return keep(cudaErrorCapturedEvent);
  if (from->at.empty() || to->at.empty()) return keep(cudaErrorInvalidResourceHandle);
  if (!from->at[0]->done || !to->at[0]->done) return keep(cudaErrorNotReady);
  *out = 1e-3F * static_cast<float>(to->at[0]->moment - from->at[0]->moment);
  return cudaSuccess;
}

}  // extern "C"
