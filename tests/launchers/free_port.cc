// Prints a port that is currently free, for tests written in shell.
#include <cstdio>

#include "base/port.h"

int main() {
  std::printf("%d\n", lockstep::base::PortReservation(lockstep::base::Reach::Everyone).port());
  return 0;
}
