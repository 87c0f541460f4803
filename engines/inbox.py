"""Items from any thread for one thread, which may wait for them very briefly."""

import threading
from collections import deque


class Inbox[T]:
    """`queue.SimpleQueue` with a wait that ends.

    CPython's `SimpleQueue.get` computes what is left of a timeout after its first look, and takes less than nothing for
    no timeout at all. With 20 us a pause of the thread in that moment is enough: it hung after some thousand calls.
    """

    __slots__ = ("_bell", "_items")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._bell = threading.Lock()
        """Held while there is nothing new; released by `put`."""
        self._bell.acquire()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item and wake the thread that waits."""
        self._items.append(item)
        if self._bell.locked():
            try:
                self._bell.release()
            except RuntimeError:  # another thread's item has rung it in this moment
                pass

    def pop(self) -> T:
        """The oldest item. Raises `IndexError` when there is none."""
        return self._items.popleft()

    def wait(self, seconds: float | None) -> bool:
        """Wait for an item at most so long, None for ever. Whether there is one; may be False early."""
        if not self._items:
            self._bell.acquire(timeout=-1 if seconds is None else seconds)
        return bool(self._items)
