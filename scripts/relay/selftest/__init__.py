"""Does everything work on these devices? Faults that are planted, a kill, and one page of all that was found."""
