"""PyTorch's torchrun, around the faults of Debian's.

Debian 12's fails under Python 3.11, where iterating over a flag skips its zero member, so that Std.from_str("0")
returns None. Debian 13's is built without libuv, and asks for stores that use it, whatever USE_LIBUV says.
"""

import torch
import torch.distributed as dist


class StoreWithoutLibuv(dist.TCPStore):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **{"use_libuv": False, **options})


if int(torch.__version__.split(".")[0]) >= 2:
    dist.TCPStore = StoreWithoutLibuv  # before torchrun's modules import it

from torch.distributed.elastic.multiprocessing import api  # noqa: E402
from torch.distributed.run import main  # noqa: E402

_original = api.Std.from_str.__func__
api.Std.from_str = classmethod(lambda cls, text: cls.NONE if text == "0" else _original(cls, text))

if __name__ == "__main__":
    main()
