// Which stage of which chunk a resource runs next: the oldest chunk first, each stage's chunks in order.
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct chunk_task {
  index_t stage = -1;
  index_t chunk = -1;
};

enum class chunk_choice : unsigned char { found, none_now, ended };

/// The next task of a resource. Stage s of chunk m may run when stage s - 1 of chunk m and stage s of chunk
/// m - 1 have ended. done(s): how many chunks have ended in stage s; resource_of(s).
template <class Done, class ResourceOf>
chunk_choice next_task(index_t stages, index_t chunks, index_t resource, const ResourceOf& resource_of,
                       const Done& done, chunk_task& task) {
  task = {};
  bool ended = true;
  for (index_t s = 0; s < stages; ++s) {
    if (resource_of(s) != resource) continue;
    const index_t m = done(s);
    if (m == chunks) continue;
    ended = false;
    if (s > 0 && done(s - 1) <= m) continue;
    if (task.stage < 0 || m < task.chunk) task = {s, m};
  }
  if (ended) return chunk_choice::ended;
  return task.stage < 0 ? chunk_choice::none_now : chunk_choice::found;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
