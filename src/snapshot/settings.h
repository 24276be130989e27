// What every rank must have alike, and nothing else would notice: the options of optimizers, and how far
// schedulers are. Ranks with different learning rates train different models without a word.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/snapshot.h>

namespace lockstep::snapshot {

// By what it is ("lr of group 0 of the optimizer 'optimizer'"), its value ("0.1").
using Settings = std::map<std::string, std::string>;

Settings settings_of(const std::vector<SnapshotPart>& parts);

// Equal for equal settings.
int64_t digest_of(const Settings& settings);

// All ranks call it, when they know that their settings differ; rank 0 warns, naming what differs where.
void warn_of_differences(ProcessGroup& group, const Settings& mine);

// Warns when the snapshot gave an optimizer another learning rate than the program did, and no scheduler was
// resumed: one that the program forgot to give would begin anew.
void warn_of_other_rates(const std::vector<SnapshotPart>& parts, const Settings& before);

}  // namespace lockstep::snapshot
