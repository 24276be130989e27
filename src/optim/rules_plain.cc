// The rules for every CPU.
#define LOCKSTEP_RULES_NAMESPACE plain
#define LOCKSTEP_RULES_WIDTH 16
#include "optim/rules_impl.h"
