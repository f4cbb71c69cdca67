"""The steps that a command prints, as one rising number: epochs may count anew, and every rank may print each step."""

from __future__ import annotations


class Steps:
    """Puts printed numbers together. `told` gets each of them, and gives the steps since the command began.

    A number that is not higher is one that another rank, or another line, has told again. It begins an epoch where it
    is no higher than the first number of the epoch, and enough came since: ranks are hardly two steps apart.
    """

    LEAST, LEAST_OF_SEVERAL = 2, 3  # numbers of an epoch; where others print the same, too

    def __init__(self) -> None:
        self._total = self._last = self._first = self._numbers = 0
        self._again = False

    def told(self, number: int) -> int:
        """The steps since the command began, once it has printed this number."""
        if self._numbers == 0:
            self._total, self._first, self._last, self._numbers = number, number, number, 1
        elif number > self._last:
            self._total += number - self._last
            self._last, self._numbers = number, self._numbers + 1
        elif number < self._last and number <= self._first and self._numbers >= self._least:
            self._total += number
            self._first = self._last = number
            self._numbers = 1
        else:
            self._again = True
        return self._total

    @property
    def _least(self) -> int:
        return self.LEAST_OF_SEVERAL if self._again else self.LEAST
