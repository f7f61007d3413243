// An exchange as it is written by hand.
#include <mpi.h>

#include "sharding/ranks/plain_mpi.hpp"

namespace deeprec_bench {

struct plain_exchange::parts {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, ranks = 1;
  std::vector<MPI_Request> requests;
};

plain_exchange::plain_exchange() : parts_(std::make_unique<parts>()) {
  MPI_Comm_dup(MPI_COMM_WORLD, &parts_->comm);
  MPI_Comm_rank(parts_->comm, &parts_->rank);
  MPI_Comm_size(parts_->comm, &parts_->ranks);
  parts_->requests.resize(2 * static_cast<std::size_t>(parts_->ranks));
}
plain_exchange::~plain_exchange() { MPI_Comm_free(&parts_->comm); }

void plain_exchange::run(char* const* to, char* const* from, std::size_t bytes) {
  parts& p = *parts_;
  int count = 0;
  for (int r = 0; r < p.ranks; ++r) {
    if (r != p.rank)
      MPI_Irecv(from[r], static_cast<int>(bytes), MPI_BYTE, r, 7, p.comm,
                &p.requests[static_cast<std::size_t>(count++)]);
  }
  for (int r = 0; r < p.ranks; ++r) {
    if (r != p.rank)
      MPI_Isend(to[r], static_cast<int>(bytes), MPI_BYTE, r, 7, p.comm,
                &p.requests[static_cast<std::size_t>(count++)]);
  }
  MPI_Waitall(count, p.requests.data(), MPI_STATUSES_IGNORE);
}

}  // namespace deeprec_bench
