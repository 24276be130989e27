// Settings that must be the same on all ranks, and that nothing else compares: the options of optimizers and
// the counters of schedulers. Ranks with different learning rates would train different models without any
// error.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/snapshot.h>

namespace lockstep::snapshot {

// The values ("0.1") by name ("lr of group 0 of the optimizer 'optimizer'").
using Settings = std::map<std::string, std::string>;

Settings settings_of(const std::vector<SnapshotPart>& parts);

// The same for equal settings.
int64_t digest_of(const Settings& settings);

// For ranks that know that their settings differ. A collective: all ranks must call it. Rank 0 logs a warning
// that names the differences.
void warn_of_differences(ProcessGroup& group, const Settings& mine);

// Logs a warning if the snapshot has changed the learning rate of an optimizer and no scheduler was restored:
// if the program has one, it would start over.
void warn_of_other_rates(const std::vector<SnapshotPart>& parts, const Settings& before);

}  // namespace lockstep::snapshot
