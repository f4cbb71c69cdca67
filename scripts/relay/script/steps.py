"""The steps that a command prints, as one rising number: epochs may count anew, and every rank may print each step."""

from __future__ import annotations


class Steps:
    """Puts printed numbers together. `total_after` gets each of them, and gives the steps since the command began.

    A number that is not higher is one that another rank, or another line, has told again. It begins an epoch where it
    is no higher than the first number of the epoch, and enough came since: ranks are hardly two steps apart. In a later
    epoch, a number far ahead is a late one of the epoch before. Epochs need three prints, or they are not told apart.
    """

    LEAST, LEAST_OF_SEVERAL = 2, 3  # numbers of an epoch; where others print the same, too
    FAR = 2  # times the widest distance between two prints

    def __init__(self) -> None:
        self._total = self._last = self._first = self._numbers = 0
        self._between = self._widest = 0  # of two prints: the last distance, and the widest
        self._again = self._later = False

    def total_after(self, number: int) -> int:
        """The steps since the command began, once it has printed this number."""
        if self._numbers == 0:
            self._total, self._first, self._last, self._numbers = number, number, number, 1
        elif number > self._last:
            self._rise(number)
        elif number < self._last and number <= self._first and self._numbers >= self._least:
            self._total += self._between  # as far as from one print to the next
            self._first = self._last = number
            self._numbers, self._later = 1, True
        else:
            self._again = True
        return self._total

    def _rise(self, number: int) -> None:
        between = number - self._last
        if self._later and between > self.FAR * self._widest:
            self._again = True
            return
        self._widest = max(self._widest, 0 if self._later else between)
        self._between = between
        self._total += between
        self._last, self._numbers = number, self._numbers + 1

    @property
    def _least(self) -> int:
        return self.LEAST_OF_SEVERAL if self._again else self.LEAST
