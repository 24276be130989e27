"""PyTorch's torchrun.

Debian 12's fails under Python 3.11, where iterating over a flag skips its zero member, so that Std.from_str("0")
returns None. This works around it.
"""

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.run import main

_original = api.Std.from_str.__func__
api.Std.from_str = classmethod(lambda cls, text: cls.NONE if text == "0" else _original(cls, text))

if __name__ == "__main__":
    main()
