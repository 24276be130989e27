// What rank 0 read or did, on all ranks.
//
// Rank 0 may take longer than a collective may last: a large file, a slow disk. So it tells the others every
// quarter of a second that it is at work. All ranks make the same calls.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/process_group.h>

#include "snapshot/background_task.h"
#include "snapshot/document.h"

namespace lockstep::snapshot {

// Waits for rank 0's task; those of the others are not looked at. Throws on all ranks what it threw.
void await_on_all(ProcessGroup& group, BackgroundTask& task);

// Rank 0 runs `task` in a thread of its own, and all ranks wait for it.
void run_on_rank_0(ProcessGroup& group, const std::function<void()>& task);

// Throws on all ranks if `mine` failed on any: the error of the lowest such rank.
void agree(ProcessGroup& group, const std::function<void()>& mine);
// As agree, and tells all ranks whether `mine` returned the same number on all of them. One exchange for
// both.
bool agree_and_compare(ProcessGroup& group, const std::function<int64_t()>& mine);

// What each rank gave, in the order of ranks.
std::vector<std::string> texts_of_all(ProcessGroup& group, const std::string& mine);

// Rank 0's document on all ranks; nothing if it has none. Throws on all ranks if any has no memory for it.
std::optional<Document> share(ProcessGroup& group, std::optional<Document> document);

}  // namespace lockstep::snapshot
