"""The steps that a command prints, as one rising number: epochs may count anew, and every rank may print each step."""

from __future__ import annotations


class Steps:
    """Puts printed numbers together. `total_after` gets each of them, and gives the steps since the command began.

    A number that is not higher is one that another rank, or another line, has told again. It begins an epoch where it
    is no higher than the first number of the epoch, and enough came since: ranks are hardly two steps apart. In a later
    epoch, a number far ahead is a late one of the epoch before. Epochs need three prints, or they are not told apart.
    Where an epoch's length is printed as well (`3/100`), its last steps count by that: a bar begins at 0.
    """

    LEAST, LEAST_OF_SEVERAL = 2, 3  # numbers of an epoch; where others print the same, too
    FAR = 2  # times the widest distance between two prints, as long, or as often
    FEW = 10  # prints, or rises
    UNLIKE = 0.8  # of the longest: epochs alone vary less

    def __init__(self) -> None:
        self._total = self._last = self._first = self._numbers = 0
        self._between = self._widest = 0  # of two prints: the last distance, and the widest
        self._again = self._later = False
        self._prints = self._in_vain = self._most_in_vain = self._length = 0
        self._rises = self._longest = self._before = 0  # of the lengths that were printed: the longest, and the last
        self._lengths: set[int] = set()
        self.bars: tuple[int, int] | None = None  # lengths of which one is perhaps a validation's

    def total_after(self, number: int, length: int = 0) -> int:
        """The steps since the command began, once it has printed this number. `length`: the epoch's; 0: not printed."""
        before = self._total
        if self._numbers == 0:
            self._total, self._first, self._last, self._numbers = number, number, number, 1
        elif number > self._last:
            self._rise(number)
        elif number < self._last and number <= self._first and self._numbers >= self._least:
            self._total += self._since_last_print(number)
            self._first = self._last = number
            self._numbers, self._later = 1, True
        else:
            self._again = True
        self._prints += 1
        if self._total > before:
            self._rises += 1
            if self._rises <= self.FEW:
                self._most_in_vain = max(self._most_in_vain, self._in_vain)
            self._in_vain = 0
        else:
            self._in_vain += 1
        if number == self._last:  # else it is another bar's
            self._length = length
        if length:
            self._compare(length)
        return self._total

    def _compare(self, length: int) -> None:
        """Note a length of which another one is perhaps a validation's: it is much shorter, or the two take turns."""
        shorter, longer = sorted((length, self._before))
        if self.FAR * length < self._longest:
            self.bars = length, self._longest
        elif length in self._lengths and shorter < self.UNLIKE * longer and self._before:
            self.bars = shorter, longer
        self._lengths.add(length)
        self._longest, self._before = max(self._longest, length), length

    @property
    def stuck(self) -> bool:
        """Whether the number has not risen for long: 1,000 is perhaps printed as 1 000, or 1.000.

        Where each of many ranks prints it, it rises as rarely from the beginning on.
        """
        return self._in_vain > max(self.FEW, self._prints // 10, self.FAR * self._most_in_vain)

    def _since_last_print(self, number: int) -> int:
        """The steps between the last print of an epoch and this one, the first of the next."""
        left = self._length - self._last
        if 0 <= left <= self.FAR * max(self._widest, self._between):  # else the epoch was left early
            return left + number
        return self._between  # as far as from one print to the next

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
